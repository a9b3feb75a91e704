"""R01: zeros live in a strided tensor and a dense product multiplies them."""

from __future__ import annotations

import torch
import torch.nn.utils.prune as prune
from blocks import FeedForward, batches, linear, noise, pruned


def module_failing():
    block = module_comparator()
    for layer in (block.up, block.down):
        prune.l1_unstructured(layer, "weight", amount=0.93)
        prune.remove(layer, "weight")
    return block


def module_comparator():
    return FeedForward(linear(noise(1536, 640, seed=1)), linear(noise(640, 1536, seed=2)))


def module_inputs():
    return batches(24, 640)


def _scorer(first, second):
    def score(x):
        return torch.tanh(x @ first) @ second

    return score


def closure_failing():
    return _scorer(pruned(1280, 896, 0.94, seed=3).t(), pruned(512, 1280, 0.94, seed=4).t())


def closure_comparator():
    return _scorer(noise(1280, 896, seed=3).t(), noise(512, 1280, seed=4).t())


def closure_inputs():
    return batches(20, 896)
