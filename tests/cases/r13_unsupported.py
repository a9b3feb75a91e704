"""R13: no kernel for this dtype: an error under autocast, or an except branch that densifies."""

from __future__ import annotations

import torch
from blocks import Csr, FeedForward, batches, pruned


class Autocast(FeedForward):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)


def _layers():
    return Csr(pruned(768, 448, 0.9, seed=1)), Csr(pruned(448, 768, 0.9, seed=2))


def module_failing():
    return Autocast(*_layers())


def module_comparator():
    return FeedForward(*_layers())


def module_inputs():
    return batches(12, 448)


def _product(dtype):
    weight = pruned(840, 620, 0.9, seed=3).to(dtype).to_sparse_csr()

    def step(x):
        x = x.to(dtype)
        try:
            return (weight @ x.t()).t().float()
        except (NotImplementedError, RuntimeError):
            return (weight.to_dense() @ x.t()).t().float()

    return step


def closure_failing():
    return _product(torch.bfloat16)


def closure_comparator():
    return _product(torch.float32)


def closure_inputs():
    return batches(14, 620)
