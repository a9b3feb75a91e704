"""One layer of the candidate was exported in COO, which has no vendor kernel on the CPU."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, CsrLinear, assemble
from classifier import requests as images
from torch import Tensor, nn


class CooLinear(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.to_sparse().coalesce())
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.t()).t() + self.bias


def build_candidate() -> Classifier:
    model = build_release()
    layer = model.hidden[1]
    assert isinstance(layer, CsrLinear)
    model.hidden[1] = CooLinear(layer.weight.to_dense(), layer.bias)
    return model


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(8)
