"""A real slowdown of three per cent that no mechanism of sparsity causes: one product in thirty-three is done twice."""

from __future__ import annotations

import torch
from blocks import batches, noise
from torch import nn

LAYERS = 33


class Deep(nn.Module):
    """Layers of one width; ``again`` of them are computed once more, and the second result is dropped."""

    def __init__(self, again: int) -> None:
        super().__init__()
        self.again = again
        for i in range(LAYERS):
            self.register_buffer(f"weight{i}", noise(320, 320, seed=i))

    def forward(self, x):
        for i in range(LAYERS):
            weight = getattr(self, f"weight{i}")
            if i < self.again:
                torch.tanh(x @ weight)
            x = torch.tanh(x @ weight)
        return x


def failing():
    return Deep(again=1)


def comparator():
    return Deep(again=0)


def inputs():
    return batches(16, 320)
