"""Format conversions and casts of constants run once: those in the code, and those that a product hides (CSC on the left,
CSR on the right, COO that is not coalesced)."""

from __future__ import annotations

from typing import List, Optional

import torch

from .. import optable, tensors
from ..context import Context
from .engine import Intervention, Rewrites
from .folding import Folding
from .products import ProductRewrite, Twin


def _wanted(family: str, name: str, ins: List[torch.Tensor]) -> bool:
    return family in ("conversion", "sort") or (optable.short(name) == "_to_copy" and ins[0].is_floating_point())


def _make(w: torch.Tensor, side: int) -> Optional[Twin]:
    lay = tensors.layout(w)
    if lay == "coo" and not w.is_coalesced():
        return Twin(w.coalesce())
    if lay == "csc" and side == 0:
        return Twin(tensors.with_index(w.to_sparse_csr(), tensors.parts(w)["plain"].dtype))
    if lay == "csr" and side == 1:
        return Twin(tensors.with_index(w.to_sparse_csc(), tensors.parts(w)["plain"].dtype))
    return None


def _prepare(ctx: Context) -> Rewrites:
    product, folding = ProductRewrite(ctx, _make), Folding(ctx, _wanted)
    r = Rewrites([product.match, folding.match])
    r.each_step.append(folding.begin)
    r.on_write += [product.wrote, folding.wrote]
    product.owner = folding.owner = r
    return r


INTERVENTION = Intervention("cache-conversion", "format conversions run once", _prepare)
