"""A real slowdown of three per cent that no mechanism of sparsity causes: one product more than thirty-three."""

from __future__ import annotations

import torch
from blocks import batches, noise
from torch import nn

LAYERS = 33


class Deep(nn.Module):
    """Layers of one width, and ``more`` of the same kind whose results are dropped (with weights of their own, as a weight
    that has just been used is still in the cache)."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more
        for i in range(LAYERS + 1):
            self.register_buffer(f"weight{i}", noise(320, 320, seed=i))

    def forward(self, x):
        for i in range(LAYERS):
            x = torch.tanh(x @ getattr(self, f"weight{i}"))
        for i in range(self.more):
            torch.tanh(x @ getattr(self, f"weight{LAYERS + i}"))
        return x


def failing():
    return Deep(more=1)


def comparator():
    return Deep(more=0)


def inputs():
    return batches(16, 320)
