"""The candidate's CSR has 64-bit indices, as torch makes them; MKL takes 32-bit ones."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

import torch
from classifier import Classifier, CsrLinear, assemble, to_csr
from classifier import requests as images
from torch import Tensor, nn


def wide_indices(weight: Tensor, bias: Tensor) -> nn.Module:
    return CsrLinear(to_csr(weight, torch.int64), bias)


def build_candidate() -> Classifier:
    return assemble("pruned", wide_indices)


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(4)
