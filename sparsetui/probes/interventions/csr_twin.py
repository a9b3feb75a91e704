"""A dense product over a mostly-zero strided constant runs on its CSR twin instead, sparse side left, int32 indices."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites, sparsest


def make(w: torch.Tensor, side: int) -> Optional[Twin]:
    if w.dim() not in (2, 3) or w.layout != torch.strided or not w.is_floating_point() or not sparsest(w):
        return None
    if w.dim() == 3:  # a stack of matrices (experts): each on its own
        each = tuple(tensors.compressed(m if side == 0 else m.t(), "csr") for m in w)
        return Twin(each[0], transposed=side == 1, batch=each)
    if side == 0:
        return Twin(tensors.compressed(w, "csr"))
    return Twin(tensors.compressed(w.t(), "csr"), transposed=True)


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, make)


INTERVENTION = Intervention("csr-twin", "zeros move from a strided tensor to CSR", _prepare)
