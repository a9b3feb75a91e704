"""A CSR operand whose non-zeros lie in blocks becomes BSR, so that one index moves for a block instead of one for each value.

The side stays: a CSC operand on the right becomes BSC there. Of the square blocks that tile the matrix the one that takes the
fewest bytes is chosen, and none where CSR takes as few: fill-in moves as well.
"""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites

BLOCKS = (2, 4, 8, 16, 32)
_INDEX = 4  # bytes of an int32 index


def cheapest(csr: torch.Tensor) -> Optional[int]:
    """The edge of the square blocks in which a 2-D CSR tensor takes the fewest bytes; ``None`` where it is CSR itself."""
    rows, cols = csr.shape
    p = tensors.parts(csr)
    width = (p["compressed"][1:] - p["compressed"][:-1]).to(torch.int64)
    row, col = torch.repeat_interleave(torch.arange(rows, device=width.device), width), p["plain"].to(torch.int64)
    item = p["values"].element_size()
    best, least = None, col.numel() * (item + _INDEX) + (rows + 1) * _INDEX
    for b in BLOCKS:
        if rows % b or cols % b:
            continue
        hit = int(torch.unique((row // b) * (cols // b) + col // b).numel())
        taken = hit * (b * b * item + _INDEX) + (rows // b + 1) * _INDEX
        if taken < least:
            best, least = b, taken
    return best


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    if w.dim() != 2 or (tensors.layout(w), side) not in (("csr", 0), ("csc", 1)):
        return None
    if tensors.parts(w)["plain"].dtype != torch.int32:
        return None  # with wide indices the width comes first
    base = w if side == 0 else tensors.flip(w)
    edge = cheapest(base)
    if edge is None:
        return None
    blocks = tensors.with_index(base.to_sparse_bsr((edge, edge)), torch.int32)
    return Twin(blocks if side == 0 else tensors.flip(blocks))


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("to-blocks", "CSR becomes BSR, one index a block", _prepare)
