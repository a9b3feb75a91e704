"""Two rollouts of one release."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, CsrLinear, assemble
from classifier import requests as images
from torch import Tensor


def build_candidate() -> Classifier:
    return assemble("pruned", CsrLinear)


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(16)
