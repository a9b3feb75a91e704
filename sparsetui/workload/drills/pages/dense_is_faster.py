"""Half of the weights are zero, and the service keeps them dense because that is faster; nothing claims otherwise."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, assemble, dense_layer, magnitude_pruned
from classifier import requests as images
from torch import Tensor, nn


def half_pruned(weight: Tensor, bias: Tensor) -> nn.Module:
    return dense_layer(magnitude_pruned(weight, 0.5), bias)


def build_candidate() -> Classifier:
    return assemble("dense", half_pruned)


def build_release() -> Classifier:
    return assemble("dense", dense_layer)


def requests() -> list[tuple[Tensor]]:
    return images(32)
