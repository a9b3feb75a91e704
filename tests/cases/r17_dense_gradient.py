"""R17: the backward of a sparse weight builds a full n x m product and masks it."""

from __future__ import annotations

import torch
from blocks import batches, pruned
from torch import nn


class SampledGradient(torch.autograd.Function):
    """``W x`` whose gradient is computed at the stored positions only."""

    @staticmethod
    def forward(context, values, crow, row, column, x, size):
        context.save_for_backward(row, column, x)
        if crow is None:  # in COO, as the variant that it is compared with
            at = torch.stack([row, column])
            return torch.sparse.mm(torch.sparse_coo_tensor(at, values, size, is_coalesced=True), x)
        return torch.sparse_csr_tensor(crow, column, values, size) @ x

    @staticmethod
    def backward(context, gradient):
        row, column, x = context.saved_tensors
        return (gradient[row] * x[column]).sum(1), None, None, None, None, None


def _parts(rows, columns, seed):
    weight = pruned(rows, columns, 0.99, seed=seed)
    made = weight.to_sparse_csr()
    return weight, made.crow_indices(), weight.nonzero()[:, 0], made.col_indices(), made.values()


class CooTrainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(_parts(1408, 960, 1)[0].to_sparse().coalesce())

    def forward(self, x):
        self.weight.grad = None
        with torch.enable_grad():
            loss = torch.sparse.mm(self.weight, x.t()).pow(2).mean()
            loss.backward()
        return loss.detach()


class ValuesTrainer(nn.Module):
    def __init__(self):
        super().__init__()
        weight, _, row, column, values = _parts(1408, 960, 1)
        self.size = weight.shape
        self.values = nn.Parameter(values)
        for name, tensor in (("row", row), ("column", column)):
            self.register_buffer(name, tensor)

    def forward(self, x):
        self.values.grad = None
        with torch.enable_grad():
            out = SampledGradient.apply(self.values, None, self.row, self.column, x.t(), self.size)
            loss = out.pow(2).mean()
            loss.backward()
        return loss.detach()


def module_failing():
    return CooTrainer()


def module_comparator():
    return ValuesTrainer()


def module_inputs():
    return batches(8, 960)


def closure_failing():
    weight = _parts(1200, 1200, 5)[0].to_sparse_csr().requires_grad_(True)

    def train(x):
        weight.grad = None
        with torch.enable_grad():
            loss = (weight @ x.t()).abs().sum()
            loss.backward()
        return loss.detach()

    return train


def closure_comparator():
    weight, crow, row, column, values = _parts(1200, 1200, 5)
    values.requires_grad_(True)

    def train(x):
        values.grad = None
        with torch.enable_grad():
            loss = SampledGradient.apply(values, crow, row, column, x.t(), weight.shape).abs().sum()
            loss.backward()
        return loss.detach()

    return train


def closure_inputs():
    return batches(6, 1200)
