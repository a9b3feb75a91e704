"""The candidate keeps CSR weights to save memory and decompresses them to call the dense product."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

import torch.nn.functional as F
from classifier import Classifier, CsrLinear, assemble, to_csr
from classifier import requests as images
from torch import Tensor, nn


class CompressedLinear(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", to_csr(weight))
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to_dense(), self.bias)


def build_candidate() -> Classifier:
    return assemble("pruned", CompressedLinear)


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(8)
