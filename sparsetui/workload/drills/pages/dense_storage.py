"""The pruned checkpoint is loaded into the same nn.Linear layers as the dense one."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, assemble, dense_layer
from classifier import requests as images
from torch import Tensor


def build_candidate() -> Classifier:
    return assemble("pruned", dense_layer)


def build_release() -> Classifier:
    return assemble("dense", dense_layer)


def requests() -> list[tuple[Tensor]]:
    return images(16)
