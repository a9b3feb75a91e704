"""R03: a checkpoint's pruned weights were not applied on load, because its names did not match."""

from __future__ import annotations

import io

import torch
import torch.nn.utils.prune as prune
from blocks import batches, linear, noise
from torch import nn


def _model(seed):
    return nn.Sequential(linear(noise(448, 320, seed=seed)), nn.ReLU(), linear(noise(320, 448, seed=seed + 1)))


def _checkpoint(baked):
    model = _model(1)
    for layer in (model[0], model[2]):
        prune.l1_unstructured(layer, "weight", amount=0.9)
        if baked:
            prune.remove(layer, "weight")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def module_failing():
    model = _model(50)
    model.load_state_dict(_checkpoint(baked=False), strict=False)
    return model


def module_comparator():
    model = _model(50)
    model.load_state_dict(_checkpoint(baked=True))
    return model


def module_inputs():
    return batches(16, 320)


def _function(model):
    first, second = model[0].weight.detach(), model[2].weight.detach()
    return lambda x: torch.relu(x @ first.t()) @ second.t()


def closure_failing():
    return _function(module_failing())


def closure_comparator():
    return _function(module_comparator())


def closure_inputs():
    return batches(10, 320)
