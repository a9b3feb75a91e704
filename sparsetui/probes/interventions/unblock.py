"""A BSR operand that is mostly fill-in becomes CSR without the fill, int32 indices."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    if w.dim() != 2 or tensors.layout(w) not in ("bsr", "bsc"):
        return None
    dense = w.to_dense()
    return Twin(tensors.compressed(dense if side == 0 else dense.t(), "csr"), transposed=side == 1)


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("unblock", "blocks become CSR without fill-in", _prepare)
