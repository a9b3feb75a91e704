"""Stored zeros, and entries below the dtype's resolution, are dropped; layout and index width stay."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    lay = tensors.layout(w)
    vals = tensors.values(w)
    if lay not in ("csr", "csc", "coo") or w.dim() != 2 or vals.dim() != 1:
        return None
    keep = tensors.telling(vals)
    if bool(keep.all()):
        return None
    p = tensors.parts(w)
    if lay == "coo":
        return Twin(torch.sparse_coo_tensor(p["indices"][:, keep], vals[keep], w.shape, check_invariants=False)._coalesced_(
            w.is_coalesced()))  # fmt: skip
    groups = p["compressed"].numel() - 1
    width = (p["compressed"][1:] - p["compressed"][:-1]).to(torch.int64)
    of = torch.repeat_interleave(torch.arange(groups), width)
    counts = torch.bincount(of[keep], minlength=groups)
    comp = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(p["compressed"].dtype)
    return Twin(torch.sparse_compressed_tensor(comp, p["plain"][keep], vals[keep], w.shape, layout=w.layout,
                                               check_invariants=False))  # fmt: skip


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("drop-zeros", "stored zeros are dropped", _prepare)
