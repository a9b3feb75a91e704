"""Ingress, beyond the field cases: the lock by environment and by dtype, targets that match nothing, COO that outgrows dense."""

from __future__ import annotations

import torch
from blocks import Csr, FeedForward, batches, csr, linear, noise, pruned
from torch import nn

# ingress.lock-mismatch: one side was started with an MKL that has to give the same bits on any processor


def env_module():
    return FeedForward(linear(noise(640, 384, seed=1)), linear(noise(384, 640, seed=2)))


def env_module_inputs():
    return batches(48, 384)


def env_closure():
    weight = csr(pruned(900, 700, 0.9, seed=3))
    return lambda x: (weight @ x.t()).t()


def env_closure_inputs():
    return batches(32, 700)


# ingress.lock-mismatch: an export script left the weights in double precision


class Cast(nn.Module):
    """Computes in the dtype of its weights and answers in float32."""

    def __init__(self, dtype):
        super().__init__()
        self.body = FeedForward(linear(noise(512, 320, seed=4)), linear(noise(320, 512, seed=5))).to(dtype)
        self.dtype = dtype

    def forward(self, x):
        return self.body(x.to(self.dtype)).float()


def dtype_module_failing():
    return Cast(torch.float64)


def dtype_module_comparator():
    return Cast(torch.float32)


def dtype_module_inputs():
    return batches(24, 320)


def _cast_step(dtype):
    weight = csr(pruned(800, 600, 0.9, seed=6).to(dtype))
    return lambda x: (weight @ x.to(dtype).t()).t().float()


def dtype_closure_failing():
    return _cast_step(torch.float64)


def dtype_closure_comparator():
    return _cast_step(torch.float32)


def dtype_closure_inputs():
    return batches(24, 600)


# ingress.coverage-gap: the layers were renamed, and the declared targets name nothing any more


def target_module():
    return FeedForward(Csr(pruned(704, 448, 0.9, seed=7)), Csr(pruned(448, 704, 0.9, seed=8)))


def target_module_inputs():
    return batches(20, 448)


def target_closure():
    projection = csr(pruned(620, 540, 0.92, seed=9))
    return lambda x: (projection @ x.t()).t()


def target_closure_inputs():
    return batches(24, 540)


# ingress.index-overhead: two 64-bit indices for each value


class Coo(Csr):
    def __init__(self, weight):
        super().__init__(weight.to_sparse().coalesce())


def coo_module_failing():
    return FeedForward(Coo(pruned(600, 420, 0.72, seed=10)), Coo(pruned(420, 600, 0.72, seed=11)))


def coo_module_comparator():
    return FeedForward(linear(pruned(600, 420, 0.72, seed=10)), linear(pruned(420, 600, 0.72, seed=11)))


def coo_module_inputs():
    return batches(16, 420)


def coo_closure_failing():
    weight = pruned(500, 640, 0.7, seed=12).to_sparse().coalesce()
    return lambda x: torch.sparse.mm(weight, x.t()).t()


def coo_closure_comparator():
    weight = csr(pruned(500, 640, 0.7, seed=12))
    return lambda x: torch.sparse.mm(weight, x.t()).t()


def coo_closure_inputs():
    return batches(12, 640)
