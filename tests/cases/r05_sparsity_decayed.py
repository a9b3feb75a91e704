"""R05: zeros were lost between pruning and export: by an unmasked optimiser step, or by averaging."""

from __future__ import annotations

import torch
from blocks import Csr, FeedForward, batches, csr, linear, noise, pruned


def _fine_tuned(masked):
    layers = [linear(pruned(1024, 576, 0.92, seed=1)), linear(pruned(576, 1024, 0.92, seed=2))]
    masks = [(layer.weight != 0).float() for layer in layers]
    block = FeedForward(*layers)
    for layer in layers:
        layer.weight.requires_grad_(True)
    optimiser = torch.optim.SGD(block.parameters(), lr=0.05, momentum=0.9)
    with torch.enable_grad():
        block(noise(8, 576, seed=3)).pow(2).sum(-1).mean().backward()
    optimiser.step()
    weights = [layer.weight.detach() * (mask if masked else 1) for layer, mask in zip(layers, masks, strict=True)]
    return FeedForward(*(Csr(weight) for weight in weights))


def module_failing():
    return _fine_tuned(masked=False)


def module_comparator():
    return _fine_tuned(masked=True)


def module_inputs():
    return batches(6, 576)


def closure_failing():
    weight = csr(0.999 * pruned(1300, 700, 0.9, seed=4) + 0.001 * noise(1300, 700, seed=9))
    return lambda x: (weight @ x.t()).t()


def closure_comparator():
    weight = csr(pruned(1300, 700, 0.9, seed=4))
    return lambda x: (weight @ x.t()).t()


def closure_inputs():
    return batches(5, 700)
