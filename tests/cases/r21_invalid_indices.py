"""R21: duplicate and unsorted columns: products are right, functions of single values are wrong."""

from __future__ import annotations

import torch
from blocks import batches, csr, pruned
from torch import nn


def _halved(weight):
    """The same matrix with each value stored as two halves, out of order."""
    made = weight.to_sparse_csr()
    crow, column, value = made.crow_indices(), made.col_indices(), made.values()
    columns = column.repeat_interleave(2)
    values = (value / 2).repeat_interleave(2)
    crow = crow * 2
    for row in range(weight.shape[0]):
        start, end = int(crow[row]), int(crow[row + 1])
        columns[start:end] = columns[start:end].flip(0)
        values[start:end] = values[start:end].flip(0)
    return torch.sparse_csr_tensor(crow.int(), columns.int(), values, weight.shape)


class Bounded(nn.Module):
    """A layer whose weights are bounded by a sine of the stored ones."""

    def __init__(self, raw):
        super().__init__()
        self.register_buffer("raw", raw)

    def forward(self, x):
        return (torch.sin(self.raw) @ x.t()).t()


def module_failing():
    return Bounded(_halved(40 * pruned(640, 480, 0.95, seed=1)))


def module_comparator():
    return Bounded(csr(40 * pruned(640, 480, 0.95, seed=1)))


def module_inputs():
    return batches(10, 480)


def closure_failing():
    raw = _halved(30 * pruned(500, 720, 0.96, seed=2))
    return lambda x: (torch.sin(raw) @ x.t()).t()


def closure_comparator():
    raw = csr(30 * pruned(500, 720, 0.96, seed=2))
    return lambda x: (torch.sin(raw) @ x.t()).t()


def closure_inputs():
    return batches(9, 720)
