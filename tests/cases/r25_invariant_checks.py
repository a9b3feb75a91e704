"""R25: index validation is on in the hot loop."""

from __future__ import annotations

import torch
from blocks import batches, pruned
from torch import nn


class Rebuilt(nn.Module):
    """Values change from step to step, so the CSR weight is put together in each."""

    def __init__(self, weight, check):
        super().__init__()
        made = weight.to_sparse_csr()
        self.size, self.check = weight.shape, check
        parts = (("crow", made.crow_indices()), ("column", made.col_indices()), ("values", made.values()))
        for name, tensor in parts:
            self.register_buffer(name, tensor)

    def forward(self, x):
        weight = torch.sparse_csr_tensor(self.crow, self.column, self.values, self.size, check_invariants=self.check)
        return (weight @ x.t()).t()


def module_failing():
    return Rebuilt(pruned(1280, 896, 0.88, seed=1), True)


def module_comparator():
    return Rebuilt(pruned(1280, 896, 0.88, seed=1), False)


def module_inputs():
    return batches(3, 896)


def _step(weight):
    made = weight.to_sparse_csr()
    crow, column, values = made.crow_indices(), made.col_indices(), made.values()
    return lambda x: (torch.sparse_csr_tensor(crow, column, values, weight.shape) @ x.t()).t()


def closure_failing():
    torch.sparse.check_sparse_tensor_invariants.enable()  # left on after a debugging session
    return _step(pruned(1000, 1200, 0.9, seed=2))


def closure_comparator():
    torch.sparse.check_sparse_tensor_invariants.disable()
    return _step(pruned(1000, 1200, 0.9, seed=2))


def closure_inputs():
    return batches(2, 1200)
