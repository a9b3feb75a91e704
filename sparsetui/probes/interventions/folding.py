"""Folding constants: an op whose operands are the same on each step runs once, and its result is kept.

Constancy is followed through ops that are not folded themselves, by a signature (op, signatures of operands, scalars), so a
conversion of a freshly masked weight is still recognised as the same conversion.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .. import optable, tensors
from ..context import Context
from .engine import Handler, Rewrites
from .products import constants

_LEARNING_STEPS = 4  # by then every constant op has been seen
_MAX_MISSES = 64  # an op that still misses this often has operands that change: it is not constant after all


class Folding:
    """``wanted(family, name, args)`` picks the ops to fold; all others are only followed."""

    def __init__(self, ctx: Context, wanted: Callable[[str, str, List[torch.Tensor]], bool]) -> None:
        self.leaves = constants(ctx)
        for t in tensors.flatten(ctx.inputs):
            self.leaves.discard(tensors.key(t) or -1)
        self.wanted = wanted
        self.kept: Dict[Any, Tuple[Any, List[int]]] = {}
        self.sigs: Dict[int, Any] = {}
        self.alive: List[Any] = []
        self.misses: Dict[str, int] = {}
        self.steps = 0
        self.owner: Optional[Rewrites] = None
        self.names: Dict[int, str] = ctx.state.get("constant_names", {})

    def begin(self) -> None:
        self.steps += 1
        self.sigs.clear()
        self.alive.clear()

    def match(self, name: str, func: Any) -> Optional[Handler]:
        fam = optable.family(name, getattr(func, "tags", ()))
        if fam in ("view", "product", "conv", "recurrent", "attention", "collective"):
            return None
        if optable.is_random(name):
            return None
        mutable = bool(func._schema.is_mutable)

        def handle(func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
            ins = list(tensors.flatten((args, kwargs), 3))
            if mutable:
                if ins:
                    self.sigs.pop(tensors.key(ins[0]) or -1, None)
                return NotImplemented
            sig = self.signature(func, args, kwargs, ins)
            if sig is None:
                return NotImplemented
            take = self.wanted(fam, name, ins)
            if take:
                hit = self.kept.get(sig)
                if hit is not None and self.fresh(hit):
                    if not active:
                        return self.note(func(*args, **kwargs), sig)
                    return self.reuse(hit[0])
                if self.misses.get(name, 0) > _MAX_MISSES:
                    return NotImplemented
            out = func(*args, **kwargs)
            if take:
                self.keep(name, sig, out, ins)
            return self.note(out, sig)

        return handle

    def signature(self, func: Any, args: Any, kwargs: Any, ins: List[torch.Tensor]) -> Any:
        parts: List[Any] = []
        for t in ins:
            k = tensors.key(t)
            s = self.sigs.get(k) if k is not None else None
            if s is None:
                if k is None or k not in self.leaves:
                    return None
                s = (k, tensors.version(t))
            # views of one storage are told apart by what they look at
            parts.append((s, t.layout, tuple(t.shape), tuple(t.stride()) if t.layout == torch.strided else ()))
        if not ins:
            return None
        scalars = tuple(repr(a) for a in _scalars(args)) + tuple(f"{k}={_plain(v)}" for k, v in sorted(kwargs.items()))
        return (func, tuple(parts), scalars)

    def note(self, out: Any, sig: Any) -> Any:
        for i, t in enumerate(tensors.flatten(out, 3)):
            k = tensors.key(t)
            if k is not None and k not in self.leaves:
                self.sigs[k] = (sig, i)
                self.alive.append(tensors.values(t).untyped_storage())
        return out

    def keep(self, name: str, sig: Any, out: Any, ins: List[torch.Tensor]) -> None:
        outs = list(tensors.flatten(out, 3))
        if self.steps > _LEARNING_STEPS:
            self.misses[name] = self.misses.get(name, 0) + 1
        self.kept[sig] = (out, [tensors.version(t) for t in outs])
        if self.owner is not None:
            for t in ins:
                self.owner.where.add(self.names.get(tensors.key(t) or -1, "") or optable.short(name))

    def fresh(self, hit: Tuple[Any, List[int]]) -> bool:
        return [tensors.version(t) for t in tensors.flatten(hit[0], 3)] == hit[1]

    def reuse(self, out: Any) -> Any:
        if self.owner is not None:
            self.owner.applied += 1
        if isinstance(out, torch.Tensor):
            k = tensors.key(out)
            if k is not None:
                self.leaves.add(k)  # kept for good, so its key stays its own
            return out.detach()
        return out


def _scalars(args: Any) -> List[Any]:
    out: List[Any] = []
    for a in args:
        if isinstance(a, (list, tuple)):
            out += _scalars(a)
        elif not isinstance(a, torch.Tensor):
            out.append(a)
    return out


def _plain(v: Any) -> str:
    return "tensor" if isinstance(v, torch.Tensor) else repr(v)


def fold(ctx: Context, wanted: Callable[[str, str, List[torch.Tensor]], bool]) -> Rewrites:
    f = Folding(ctx, wanted)
    r = Rewrites([f.match])
    r.each_step.append(f.begin)
    f.owner = r
    return r
