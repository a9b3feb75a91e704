"""R11: a conversion in every step, hidden in a CSC product or written out."""

from __future__ import annotations

from blocks import Csr, FeedForward, batches, csr, pruned


def module_failing():
    return FeedForward(Csr(pruned(896, 512, 0.95, seed=1).to_sparse_csc()), Csr(pruned(512, 896, 0.95, seed=2)))


def module_comparator():
    return FeedForward(Csr(pruned(896, 512, 0.95, seed=1)), Csr(pruned(512, 896, 0.95, seed=2)))


def module_inputs():
    return batches(12, 512)


def closure_failing():
    weight = pruned(720, 540, 0.93, seed=3)
    return lambda x: (weight.to_sparse_csr() @ x.t()).t()


def closure_comparator():
    weight = csr(pruned(720, 540, 0.93, seed=3))
    return lambda x: (weight @ x.t()).t()


def closure_inputs():
    return batches(12, 540)
