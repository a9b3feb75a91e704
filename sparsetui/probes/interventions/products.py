"""Rewriting products: the constant or sparse operand of a matrix product is replaced by a twin of the same matrix."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from .. import identity, optable, tensors
from ..context import Context
from .engine import Handler, Rewrites
from .twins import Twin as Twin
from .twins import Twins

# (operand, side, the dense operand on the other side) -> twin, or None where the mechanism is not present in this operand
Maker = Callable[[torch.Tensor, int], Optional[Twin]]

_MM = {"mm", "_sparse_mm", "smm"}
_ADDMM = {"addmm", "_sparse_addmm"}
_MV = {"mv"}
_ADDMV = {"addmv"}
_BMM = {"bmm"}


class Call(NamedTuple):
    """One product taken apart: ``alpha * left @ right + beta * acc``."""

    left: torch.Tensor
    right: torch.Tensor
    acc: Optional[torch.Tensor] = None
    beta: float = 1
    alpha: float = 1


def take_apart(name: str, args: Any, kwargs: Dict[str, Any]) -> Optional[Call]:
    s = optable.short(name)
    if s in _MM or s in _MV or s in _BMM:
        return Call(args[0], args[1])
    if s in _ADDMM or s in _ADDMV:
        beta = kwargs.get("beta", args[3] if len(args) > 3 else 1)
        alpha = kwargs.get("alpha", args[4] if len(args) > 4 else 1)
        return Call(args[1], args[2], args[0], beta, alpha)
    return None


class _Plain(NamedTuple):
    """A batched product one of whose sides is a single matrix, expanded over the batch, as the plain product that it is.
    ``first`` has that matrix where it belongs, and the other side's first."""

    call: Call
    first: Call
    right: bool  # whether the single matrix is the right one

    def run(self, product: Callable[[Call], torch.Tensor]) -> torch.Tensor:
        left, right = self.call.left, self.call.right
        b, rows, columns = left.shape[0], left.shape[1], right.shape[2]
        if self.right:
            out = product(self.call._replace(left=left.reshape(b * rows, left.shape[2]), right=right[0]))
            return out.reshape(b, rows, columns)
        wide = right.permute(1, 0, 2).reshape(right.shape[1], b * columns)
        return product(self.call._replace(left=left[0], right=wide)).reshape(rows, b, columns).permute(1, 0, 2)


def _unbatched(call: Call) -> List[_Plain]:
    left, right = call.left, call.right
    if left.dim() != 3 or right.dim() != 3 or tensors.is_sparse(left) or tensors.is_sparse(right) or not left.shape[0]:
        return []
    first = call._replace(left=left[0], right=right[0])
    return [_Plain(call, first, at) for at, t in ((True, right), (False, left)) if _single(t)]


def _single(t: torch.Tensor) -> bool:
    return t.shape[0] == 1 or t.stride(0) == 0


class ProductRewrite(Twins):
    """The handler of all product ops for one kind of twin."""

    def __init__(self, ctx: Context, make: Maker) -> None:
        super().__init__(ctx)
        self.make = make

    def match(self, name: str, func: Any) -> Optional[Handler]:
        s = optable.short(name)
        if s not in _MM | _ADDMM | _MV | _ADDMV | _BMM:
            return None

        def handle(func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
            call = take_apart(name, args, kwargs)
            if call is None:
                return NotImplemented
            plain = next((p for p in _unbatched(call) if self.find(p.first, (int(p.right),))[1] is not None), None)
            side, twin = self.find(call) if plain is None else self.find(plain.first, (int(plain.right),))
            if twin is None or not active:
                return NotImplemented
            try:
                out = self.run(call, side, twin) if plain is None else plain.run(lambda c: self.run(c, side, twin))
            except RuntimeError as e:  # this build has no such kernel for the twin: the original op it stays
                self.give_up(twin, e)
                return NotImplemented
            self.applied()
            return out

        return handle

    def find(self, call: Call, sides: Tuple[int, ...] = (0, 1)) -> Tuple[int, Optional[Twin]]:
        for side, w, other in ((0, call.left, call.right), (1, call.right, call.left)):
            if side not in sides or tensors.is_sparse(other):
                continue
            keys = self.keys(w)
            if not keys:
                continue
            twin = self.twin((identity.identity(w), side), w, keys[0], partial(self.make, w, side))
            if twin is not None:
                return side, twin
        return 0, None

    def run(self, call: Call, side: int, twin: Twin) -> torch.Tensor:
        return multiply(call, side, twin, self.owner is not None and self.owner.contiguous)


def multiply(call: Call, side: int, twin: Twin, contiguous: bool = False) -> torch.Tensor:
    """A product with its operand on ``side`` replaced by a twin; ``contiguous`` has transposed results laid out as usual."""
    m = twin.matrix
    if twin.cast:
        dtype = (call.right if side == 0 else call.left).dtype
        left, right = (x if tensors.is_sparse(x) else x.to(m.dtype) for x in (call.left, call.right))
        acc = None if call.acc is None else call.acc.to(m.dtype)
        cast = call._replace(left=left, right=right, acc=acc)
        return multiply(cast, side, twin._replace(cast=False), contiguous).to(dtype)
    if twin.batch and twin.transposed:
        out = torch.stack([torch.mm(one, call.left[i].t()).t() for i, one in enumerate(twin.batch)])
    elif twin.batch:
        out = torch.stack([torch.mm(one, call.right[i]) for i, one in enumerate(twin.batch)])
    elif call.left.dim() == 3:
        left, right = (m, call.right) if side == 0 else (call.left, m)
        out = torch.bmm(left, right)
    elif call.right.dim() == 1 and side == 0:
        out = torch.mv(m, call.right)
        out = out if twin.rows is None else out[twin.rows]
    elif twin.transposed:
        out = torch.mm(m, call.left.t())
        out = (out if twin.rows is None else out.index_select(0, twin.rows)).t()
        out = out.contiguous() if contiguous else out
    else:
        out = torch.mm(m, call.right) if side == 0 else torch.mm(call.left, m)
        out = out if twin.rows is None else out.index_select(0, twin.rows)
    if call.alpha != 1:
        out = out * call.alpha
    if call.acc is not None and call.beta != 0:
        acc = call.acc if call.beta == 1 else call.acc * call.beta
        out = out + acc
    return out


def rewrites(ctx: Context, make: Maker) -> Rewrites:
    p = ProductRewrite(ctx, make)
    r = Rewrites([p.match])
    p.owner = r
    r.on_write.append(p.wrote)
    return r


def fits_int32(t: torch.Tensor) -> bool:
    return max(t.shape) < 2**31 and int(t._nnz()) < 2**31


def sparsest(w: torch.Tensor) -> bool:
    """Whether a strided operand is worth a sparse twin at all (see :func:`..census.eligible`)."""
    from ..census import eligible

    return eligible(w, tensors.zero_fraction(w))
