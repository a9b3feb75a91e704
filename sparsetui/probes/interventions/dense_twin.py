"""A sparse operand is multiplied as a strided tensor, on the side where it stands."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    return Twin(w.to_dense()) if tensors.is_sparse(w) else None


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("dense-twin", "the sparse operand is multiplied dense", _prepare)
