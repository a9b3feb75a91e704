"""Rewriting products: the constant or sparse operand of a matrix product is replaced by a twin of the same matrix.

A twin is made once per (storage, version, layout, side) and kept. Only constants and inputs get twins: an operand made afresh
on each step would have to be converted on each step.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Set, Tuple

import torch

from .. import optable, tensors
from ..census import census
from ..context import Context
from .engine import Handler, Rewrites

aten = torch.ops.aten


class Twin(NamedTuple):
    """A replacement operand. ``transposed`` means that it stands for the right operand's transpose, on the left side.
    ``rows`` puts the rows of a permuted twin's product back in place; ``batch`` holds a batched operand's matrices."""

    matrix: torch.Tensor
    transposed: bool = False
    rows: Optional[torch.Tensor] = None
    batch: Tuple[torch.Tensor, ...] = ()


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


def constants(ctx: Context) -> Set[int]:
    """Storage keys of operands that may get a twin; finds them by a short census where none was taken here."""
    if "constants" not in ctx.state:
        census(ctx, {"steps": 1})
    keys = set(ctx.state["constants"])
    for t in tensors.flatten(ctx.inputs):
        k = tensors.key(t)
        if k is not None:
            keys.add(k)
    return keys


class ProductRewrite:
    """The handler of all product ops for one kind of twin."""

    def __init__(self, ctx: Context, make: Maker) -> None:
        self.allowed = constants(ctx)
        self.names: Dict[int, str] = ctx.state.get("constant_names", {})
        self.make = make
        self.twins: Dict[Tuple[Any, ...], Optional[Twin]] = {}
        self.owner: Optional[Rewrites] = None
        self.contiguous = False

    def match(self, name: str, func: Any) -> Optional[Handler]:
        s = optable.short(name)
        if s not in _MM | _ADDMM | _MV | _ADDMV | _BMM or func._schema.is_mutable or "out" in func._overloadname:
            return None

        def handle(func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
            call = take_apart(name, args, kwargs)
            if call is None:
                return NotImplemented
            side, twin = self.find(call)
            if twin is None or not active:
                return NotImplemented
            if self.owner is not None:
                self.owner.applied += 1
            return self.run(call, side, twin)

        return handle

    def find(self, call: Call) -> Tuple[int, Optional[Twin]]:
        for side, w, other in ((0, call.left, call.right), (1, call.right, call.left)):
            if tensors.is_sparse(other):
                continue
            k = tensors.key(w)
            if k is None or k not in self.allowed:
                continue
            slot = (k, tensors.version(w), w.layout, tuple(w.shape), side)
            if slot not in self.twins:
                self.twins[slot] = self.make(w, side)
                if self.twins[slot] is not None and self.owner is not None:
                    self.owner.where.add(self.names.get(k, "") or "constant")
            twin = self.twins[slot]
            if twin is not None:
                return side, twin
        return 0, None

    def run(self, call: Call, side: int, twin: Twin) -> torch.Tensor:
        m = twin.matrix
        if twin.batch:
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
            out = out.contiguous() if self.contiguous else out
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
    return r


def fits_int32(t: torch.Tensor) -> bool:
    return max(t.shape) < 2**31 and int(t._nnz()) < 2**31


def sparsest(w: torch.Tensor) -> bool:
    """Whether a strided operand is worth a sparse twin at all (see :func:`..census.eligible`)."""
    from ..census import eligible

    return eligible(w, tensors.zero_fraction(w))
