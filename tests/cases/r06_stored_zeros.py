"""R06: a sparse layout stores zeros, exact ones or values of 1e-9."""

from __future__ import annotations

import torch
from blocks import Csr, FeedForward, batches, csr, noise, pruned


def _masked_after(rows, columns, seed):
    full, weight = csr(noise(rows, columns, seed=seed)), pruned(rows, columns, 0.95, seed=seed)
    return torch.sparse_csr_tensor(full.crow_indices(), full.col_indices(), weight.flatten(), full.shape)


def module_failing():
    return FeedForward(Csr(_masked_after(960, 640, 1)), Csr(_masked_after(640, 960, 2)))


def module_comparator():
    return FeedForward(Csr(pruned(960, 640, 0.95, seed=1)), Csr(pruned(640, 960, 0.95, seed=2)))


def module_inputs():
    return batches(5, 640)


def closure_failing():
    weight = pruned(1200, 800, 0.94, seed=3)
    stored = csr(torch.where(weight == 0, torch.full((), 1e-9), weight))
    return lambda x: (stored @ x.t()).t()


def closure_comparator():
    stored = csr(pruned(1200, 800, 0.94, seed=3))
    return lambda x: (stored @ x.t()).t()


def closure_inputs():
    return batches(7, 800)
