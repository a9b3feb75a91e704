"""R10: the sparse weight becomes the right-hand CSC operand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from blocks import Csr, FeedForward, batches, csr, pruned


class Linear(Csr):
    def forward(self, x):
        return F.linear(x, self.weight)


def module_failing():
    return FeedForward(Linear(pruned(1152, 768, 0.92, seed=1)), Linear(pruned(768, 1152, 0.92, seed=2)))


def module_comparator():
    return FeedForward(Csr(pruned(1152, 768, 0.92, seed=1)), Csr(pruned(768, 1152, 0.92, seed=2)))


def module_inputs():
    return batches(20, 768)


def closure_failing():
    weight = csr(pruned(900, 1300, 0.9, seed=3))
    return lambda x: torch.mm(x, weight.t())


def closure_comparator():
    weight = csr(pruned(900, 1300, 0.9, seed=3))
    return lambda x: torch.mm(weight, x.t()).t()


def closure_inputs():
    return batches(28, 1300)
