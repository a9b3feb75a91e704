"""The sparse weight moves from the right side to the left: ``x @ Wᵀ`` becomes ``(W @ xᵀ)ᵀ``, with no copy of W."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    if side == 1 and w.dim() == 2 and tensors.layout(w) in ("csc", "bsc"):
        return Twin(tensors.flip(w), transposed=True)
    return None


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("swap-sides", "the sparse operand goes to the left side", _prepare)
