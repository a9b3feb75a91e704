"""R34: load, copy and cast paths do not all know CSR, so the checkpoint is made dense to get past them."""

from __future__ import annotations

import copy

import torch
from blocks import Csr, FeedForward, batches, csr, pruned
from torch import nn


def _checkpoint():
    return {"up": csr(pruned(1344, 704, 0.94, seed=1)), "down": csr(pruned(704, 1344, 0.94, seed=2))}


def module_failing():
    saved = _checkpoint()
    block = FeedForward(nn.Linear(704, 1344, bias=False), nn.Linear(1344, 704, bias=False))
    block.load_state_dict({f"{name}.weight": weight.to_dense() for name, weight in saved.items()})
    return block.requires_grad_(False)


def module_comparator():
    saved = _checkpoint()
    return FeedForward(Csr(saved["up"]), Csr(saved["down"]))


def module_inputs():
    return batches(10, 704)


def closure_failing():
    saved = copy.deepcopy({name: weight.to_dense() for name, weight in _checkpoint().items()})
    up, down = saved["up"].t(), saved["down"].t()
    return lambda x: torch.relu(x @ up) @ down


def closure_comparator():
    saved = _checkpoint()
    up, down = saved["up"], saved["down"]
    return lambda x: (down @ torch.relu(up @ x.t())).t()


def closure_inputs():
    return batches(7, 704)
