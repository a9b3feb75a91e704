"""The pruning job's name pattern missed one hidden layer; the exporter left it dense."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, CsrLinear, assemble, dense_layer, tensor
from classifier import requests as images
from torch import Tensor


def build_candidate() -> Classifier:
    model = build_release()
    model.hidden[1] = dense_layer(tensor("dense.hidden.1.weight"), tensor("dense.hidden.1.bias"))
    return model


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(16)
