"""The candidate was exported with torch's pruning hooks still on its layers."""

# mypy: ignore-errors
# (classifier is a sibling, found as a service's own files are: through sys.path)
from __future__ import annotations

from classifier import Classifier, assemble, dense_layer, tensor
from classifier import requests as images
from torch import Tensor
from torch.nn.utils import prune


def with_hooks() -> Classifier:
    model = assemble("dense", dense_layer)
    for index, layer in enumerate(model.hidden):
        mask = (tensor(f"pruned.hidden.{index}.weight") != 0).float()
        prune.custom_from_mask(layer, "weight", mask)
    return model


def build_candidate() -> Classifier:
    return with_hooks()


def build_release() -> Classifier:
    model = with_hooks()
    for layer in model.hidden:
        prune.remove(layer, "weight")
    return model


def requests() -> list[tuple[Tensor]]:
    return images(8)
