"""The candidate's CSR was made before the mask was applied: the structure still holds every weight."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

import torch
from classifier import Classifier, CsrLinear, assemble, to_csr
from classifier import requests as images
from torch import Tensor, nn


def converted_then_masked(weight: Tensor, bias: Tensor) -> nn.Module:
    full = to_csr(torch.ones_like(weight))
    values = weight.flatten()
    return CsrLinear(torch.sparse_csr_tensor(full.crow_indices(), full.col_indices(), values, weight.shape), bias)


def build_candidate() -> Classifier:
    return assemble("pruned", converted_then_masked)


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(4)
