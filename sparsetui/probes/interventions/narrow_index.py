"""int64 indices become int32 once, instead of on each product."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, fits_int32, rewrites


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    if (
        tensors.layout(w) in ("csr", "csc", "bsr", "bsc")
        and tensors.parts(w)["plain"].dtype == torch.int64
        and fits_int32(w)
    ):
        return Twin(tensors.with_index(w, torch.int32))
    return None


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("narrow-index", "indices are int32", _prepare)
