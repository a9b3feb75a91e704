"""R02: weight times mask is computed in every forward."""

from __future__ import annotations

import torch
import torch.nn.utils.prune as prune
from blocks import FeedForward, batches, linear, noise, pruned


def module_failing():
    block = FeedForward(linear(noise(1152, 768, seed=1)), linear(noise(768, 1152, seed=2)))
    for layer in (block.up, block.down):
        prune.l1_unstructured(layer, "weight", amount=0.88)
    return block


def module_comparator():
    block = module_failing()
    for layer in (block.up, block.down):
        prune.remove(layer, "weight")
    return block


def module_inputs():
    return batches(3, 768)


def closure_failing():
    weight, mask = noise(1400, 1100, seed=5), (pruned(1400, 1100, 0.85, seed=5) != 0).float()
    return lambda x: torch.nn.functional.linear(x, weight * mask)


def closure_comparator():
    weight = pruned(1400, 1100, 0.85, seed=5)
    return lambda x: torch.nn.functional.linear(x, weight)


def closure_inputs():
    return batches(2, 1100)
