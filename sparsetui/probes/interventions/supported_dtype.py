"""Sparse products in a dtype that has no kernel run in float32, and their results are cast back."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites

_NARROW = (torch.float16, torch.bfloat16)


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    if not tensors.is_sparse(w) or w.dtype not in _NARROW or _has_kernel(w, side):
        return None
    return Twin(w.to(torch.float32), cast=True)


def _has_kernel(w: torch.Tensor, side: int) -> bool:
    """Whether this build multiplies the operand as it is, tried on one column or row."""
    try:
        if side == 0:
            torch.mm(w, torch.zeros(w.shape[1], 1, dtype=w.dtype, device=w.device))
        else:
            torch.mm(torch.zeros(1, w.shape[0], dtype=w.dtype, device=w.device), w)
    except RuntimeError:
        return False
    return True


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("supported-dtype", "sparse products run in float32", _prepare)
