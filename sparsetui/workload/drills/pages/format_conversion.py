"""One layer of the candidate is stored as CSC, because its exporter writes columns; the product takes CSR."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, CsrLinear, assemble
from classifier import requests as images
from torch import Tensor


def build_candidate() -> Classifier:
    model = build_release()
    layer = model.hidden[1]
    assert isinstance(layer, CsrLinear)
    model.hidden[1] = CsrLinear(layer.weight.to_dense().to_sparse_csc(), layer.bias)
    return model


def build_release() -> Classifier:
    return assemble("pruned", CsrLinear)


def requests() -> list[tuple[Tensor]]:
    return images(16)
