"""Two faults at once, in two stages: the earlier one is the verdict, the other is listed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from blocks import Csr, FeedForward, batches, csr, linear, noise, pruned
from torch import nn


class Right(Csr):
    """The weight on the right-hand side of the product."""

    def forward(self, x):
        return F.linear(x, self.weight)


class Masked(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("mask", (weight != 0).float())

    def forward(self, x):
        return F.linear(x, self.weight * self.mask)


class Unpacked(Csr):
    def forward(self, x):
        return F.linear(x, self.weight.to_dense())


def _up(seed=1):
    return pruned(896, 640, 0.93, seed=seed)


def _down(seed=2):
    return pruned(640, 896, 0.93, seed=seed)


def good():
    return FeedForward(Csr(_up()), Csr(_down()))


def _stored_zeros(weight, seed):
    full = csr(noise(*weight.shape, seed=seed))
    return torch.sparse_csr_tensor(full.crow_indices(), full.col_indices(), weight.flatten(), full.shape)


def zeros_and_orientation():
    """ingress.stored-zeros in up, kernel.wrong-orientation in down."""
    return FeedForward(Csr(_stored_zeros(_up(), 1)), Right(_down()))


def mask_and_conversion():
    """lowering.mask-recompute in up, scheduling.format-conversion in down."""
    return FeedForward(Masked(_up()), Csr(_down().to_sparse_csc()))


def folded_and_csr():
    return FeedForward(linear(_up()), Csr(_down()))


def orientation_and_conversion():
    """kernel.wrong-orientation in up, scheduling.format-conversion in down."""
    return FeedForward(Right(_up()), Csr(_down().to_sparse_csc()))


def gap_and_generic():
    """ingress.coverage-gap in up (never pruned), kernel.generic in down (COO)."""
    return FeedForward(linear(noise(896, 640, seed=1)), Csr(_down().to_sparse().coalesce()))


def densified_and_index():
    """lowering.densified in up, execution.index-copy in the deep part."""
    return nn.Sequential(Unpacked(_up()), *(Csr(csr(w, torch.int64)) for w in _deep()))


def sparse_and_narrow():
    return nn.Sequential(Csr(_up()), *(Csr(w) for w in _deep()))


def _deep():
    return [pruned(896, 896, 0.9, seed=20 + i) for i in range(8)]


def generic_and_quality():
    """kernel.generic in down, and validation.quality-drift: up was pruned far too much."""
    return FeedForward(Csr(pruned(896, 640, 0.999, seed=1)), Csr(_down().to_sparse().coalesce()))


def inputs():
    return batches(12, 640)


def wide_inputs():
    return batches(48, 640)


def few_inputs():
    return batches(2, 640)


def agreement(model):
    """Share of held-out rows for which the largest of the outputs is the one that the good model has."""
    x = noise(1000, 640, seed=12) * 640**0.5
    with torch.no_grad():
        return {"agreement": float((model(x).argmax(1) == good()(x).argmax(1)).float().mean())}
