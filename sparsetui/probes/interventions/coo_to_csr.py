"""A COO operand, or each matrix of a batched sparse one, becomes CSR (int32 indices, sparse side left), so that the vendor
kernel runs instead of the generic loop."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    if w.dim() == 3 and side == 0 and tensors.is_sparse(w):
        dense = w.to_dense()
        return Twin(w, batch=tuple(tensors.compressed(dense[i], "csr") for i in range(w.shape[0])))
    if w.dim() != 2 or tensors.layout(w) != "coo" or w.dense_dim() != 0:
        return None
    base = w if side == 0 else w.t()
    csr = tensors.with_index(base.coalesce().to_sparse_csr(), torch.int32)
    return Twin(csr, transposed=side == 1)


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("coo-to-csr", "COO becomes CSR", _prepare)
