"""Rows are dealt out so that each thread's contiguous share holds as many non-zeros; the result's rows are put back."""

from __future__ import annotations

from typing import Optional

import torch

from .. import tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .products import Twin, rewrites


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    lay = tensors.layout(w)
    if w.dim() != 2 or (lay, side) not in (("csr", 0), ("csc", 1), ("bsr", 0), ("bsc", 1)):
        return None
    base = w if side == 0 else tensors.flip(w)
    p = tensors.parts(base)
    width = (p["compressed"][1:] - p["compressed"][:-1]).to(torch.int64)
    tall = int(p["values"].shape[1]) if p["values"].dim() == 3 else 1  # rows of a block
    threads = max(2, torch.get_num_threads())
    # the heaviest rows first, dealt back and forth over the threads' shares
    order = torch.argsort(width, descending=True)
    lanes = torch.arange(order.numel()) % (2 * threads)
    lanes = torch.where(lanes < threads, lanes, 2 * threads - 1 - lanes)
    perm = torch.cat([order[lanes == t] for t in range(threads)])
    dense_rows = torch.repeat_interleave(torch.arange(width.numel()), width)
    place = torch.empty_like(perm)
    place[perm] = torch.arange(perm.numel())
    by = torch.argsort(place[dense_rows], stable=True)
    comp = torch.cat([torch.zeros(1, dtype=torch.int64), width[perm].cumsum(0)]).to(p["compressed"].dtype)
    twin = torch.sparse_compressed_tensor(comp, p["plain"][by], p["values"][by].contiguous(), base.shape, layout=base.layout,
                                          check_invariants=False)  # fmt: skip
    rows = (place[:, None] * tall + torch.arange(tall)).reshape(-1)
    return Twin(twin, transposed=side == 1, rows=rows)


def _prepare(ctx: Context) -> Rewrites:
    return rewrites(ctx, _make)


INTERVENTION = Intervention("balance-rows", "rows are dealt out evenly over the threads", _prepare)
