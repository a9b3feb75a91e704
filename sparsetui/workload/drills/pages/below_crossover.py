"""A lightly pruned candidate runs on the CSR kernel, where this much work is faster dense."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, CsrLinear, assemble, dense_layer, magnitude_pruned
from classifier import requests as images
from torch import Tensor, nn


def lightly_pruned(weight: Tensor, bias: Tensor) -> nn.Module:
    return CsrLinear(magnitude_pruned(weight, 0.55), bias)


def build_candidate() -> Classifier:
    return assemble("dense", lightly_pruned)


def build_release() -> Classifier:
    return assemble("dense", dense_layer)


def requests() -> list[tuple[Tensor]]:
    return images(64)
