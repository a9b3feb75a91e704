"""The candidate was pruned once more, without a fine-tune: it runs as it should, and answers worse."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, CsrLinear, assemble, magnitude_pruned
from classifier import requests as images
from torch import Tensor, nn


def pruned_again(weight: Tensor, bias: Tensor) -> nn.Module:
    return CsrLinear(magnitude_pruned(weight, 0.95), bias)


def build_candidate() -> Classifier:
    return assemble("pruned", pruned_again)


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(16)
