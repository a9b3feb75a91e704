"""R16: the compiler leaves the frame with the sparse weight eager, so nothing around the product is fused."""

from __future__ import annotations

import torch
from blocks import batches, csr, pruned
from torch import nn


def _gated(x):
    """Small operations that a compiler makes one pass of."""
    return torch.where(x > 0, x * 1.01 + 0.02, x * 0.98 - 0.03) * (x * 0.7 + 0.1) + x.abs() * 0.05 - x * x * 0.01


class Skipped(nn.Module):
    """One frame from end to end: the compiler meets the sparse buffer and gives the whole frame up."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x):
        x = x.t()
        x = torch.where(x > 0, x * 1.01 + 0.02, x * 0.98 - 0.03) * (x * 0.7 + 0.1) + x.abs() * 0.05 - x * x * 0.01
        x = (self.weight @ x).t()
        return torch.where(x > 0, x * 1.01 + 0.02, x * 0.98 - 0.03) * (x * 0.7 + 0.1) + x.abs() * 0.05 - x * x * 0.01


class Split(nn.Module):
    """The sparse product outside, what is around it compiled."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", weight)
        self.gated = torch.compile(_gated)

    def forward(self, x):
        return self.gated((self.weight @ self.gated(x.t())).t())


def module_failing():
    return torch.compile(Skipped(csr(pruned(640, 768, 0.97, seed=1))))


def module_comparator():
    return Split(csr(pruned(640, 768, 0.97, seed=1)))


def module_inputs():
    return batches(96, 768)


def closure_failing():
    weight = csr(pruned(576, 900, 0.97, seed=2))

    @torch.compile
    def step(x):
        x = x.t()
        x = torch.where(x > 0, x * 1.01 + 0.02, x * 0.98 - 0.03) * (x * 0.7 + 0.1) + x.abs() * 0.05 - x * x * 0.01
        x = (weight @ x).t()
        return torch.where(x > 0, x * 1.01 + 0.02, x * 0.98 - 0.03) * (x * 0.7 + 0.1) + x.abs() * 0.05 - x * x * 0.01

    return step


def closure_comparator():
    weight, gated = csr(pruned(576, 900, 0.97, seed=2)), torch.compile(_gated)
    return lambda x: gated((weight @ gated(x.t())).t())


def closure_inputs():
    return batches(80, 900)
