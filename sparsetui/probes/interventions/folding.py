"""Folding constants: an op whose operands are the same on each step runs once, and its result is kept.

Constancy is followed through ops that are not folded themselves, by a signature (op, signatures of operands, scalars), so a
conversion of a freshly masked weight is still recognised as the same conversion.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch

from .. import identity, optable, tensors
from ..context import Context
from .engine import Handler, Rewrites
from .twins import constants

_LEARNING_STEPS = 4  # by then every constant op has been seen
_MAX_MISSES = 64  # an op that still misses this often has operands that change: it is not constant after all
_MOST_NUMBERED = 100_000
_UNUSED_STEPS = 8  # a result that no step asked for in this many rounds over the inputs is given up

# what these make follows from their numbers alone
_FACTORIES = {"scalar_tensor", "zeros", "ones", "full", "arange", "eye", "linspace"}


class _Kept:
    """The result of a folded op, and the step that last asked for it."""

    __slots__ = ("out", "step", "versions")

    def __init__(self, out: Any, step: int) -> None:
        self.out, self.step = out, step
        self.versions = [identity.versions(t) for t in tensors.flatten(out, 3)]

    def intact(self) -> bool:
        return [identity.versions(t) for t in tensors.flatten(self.out, 3)] == self.versions


class Folding:
    """``wanted(family, name, args)`` picks the ops to fold; all others are only followed."""

    def __init__(self, ctx: Context, wanted: Callable[[str, str, List[torch.Tensor]], bool]) -> None:
        self.leaves: Dict[int, Any] = dict(constants(ctx))  # storage key -> what keeps that storage alive
        for t in tensors.flatten(ctx.inputs):
            for k in identity.storages(t):
                self.leaves.pop(k, None)
        self.wanted = wanted
        self.kept: Dict[Hashable, _Kept] = {}
        self.results: Dict[int, Hashable] = {}  # storage key of a kept result -> its signature
        self.writes: Dict[int, int] = {}  # how often leaves were written to
        self.sigs: Dict[int, Hashable] = {}
        self.ids: Dict[Hashable, int] = {}  # signatures nest: by their numbers they stay short
        self.numbered = 0
        # what is freed in the plain step is freed here too, and its buffer used again while it is in the caches
        self.watched: Dict[int, Any] = {}
        self.misses: Dict[str, int] = {}
        self.same: Dict[Hashable, Tuple[int, int]] = {}  # writes that changed nothing: how the target stood then
        self.steps = 0
        self.patience = _UNUSED_STEPS * max(1, len(ctx.inputs))
        self.owner: Optional[Rewrites] = None
        self.names: Dict[Hashable, str] = ctx.state.get("constant_names", {})

    def begin(self) -> None:
        self.steps += 1
        self.sigs.clear()
        self.watched.clear()
        for sig in [s for s, kept in self.kept.items() if self.steps - kept.step > self.patience]:
            self.drop(sig)

    def wrote(self, k: int) -> None:
        """The step wrote into a storage: it no longer holds what its signature says."""
        self.freed(k)
        if k in self.leaves:
            self.writes[k] = self.writes.get(k, 0) + 1
        if k in self.results:
            self.drop(self.results[k])

    def freed(self, k: int) -> None:
        """The storage with this key is gone, or no longer holds what was made."""
        self.sigs.pop(k, None)
        self.watched.pop(k, None)

    def match(self, name: str, func: Any) -> Optional[Handler]:
        fam = optable.family(name, getattr(func, "tags", ()))
        if fam in ("view", "product", "conv", "recurrent", "attention", "collective") or optable.is_random(name):
            return None

        def handle(func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
            ins: List[torch.Tensor] = []
            form = (_form(args, ins), _form(kwargs, ins))
            if not ins and optable.short(name) in _FACTORIES:
                return self.note(func(*args, **kwargs), (func, form))
            sig = self.signature(func, form, ins)
            if sig is None:
                return NotImplemented
            take = self.wanted(fam, name, ins)
            if take:
                hit = self.kept.get(sig)
                if hit is not None and hit.intact():
                    hit.step = self.steps
                    return self.reuse(hit.out, sig) if active else self.note(func(*args, **kwargs), sig)
                if self.misses.get(name, 0) > _MAX_MISSES:
                    return NotImplemented
            out = func(*args, **kwargs)
            if take:
                self.keep(name, sig, out, ins)
            return self.note(out, sig)

        return handle

    def match_write(self, name: str, func: Any) -> Optional[Handler]:
        """In-place work on a constant that leaves it as it was (``weight.mul_(mask)`` on each step)."""
        fam = optable.family(name, getattr(func, "tags", ()))
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if written != ["self"] or optable.is_random(name) or identity.hides_writes(name):
            return None

        def handle(func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
            target = args[0]
            others: List[torch.Tensor] = []
            form = (_form(args[1:], others), _form(kwargs, others))
            k = tensors.key(target) if isinstance(target, torch.Tensor) and target.layout == torch.strided else None
            if k is not None and k in self.sigs and k not in self.leaves:
                return self.fill(func, args, kwargs, name, (k, fam, others, form), active)
            if k is None or k not in self.leaves or not self.wanted(fam, name, [target, *others]):
                return NotImplemented
            sig = self.signature(func, form, others) if others else (func, form)
            if sig is None:
                return NotImplemented
            what = (sig, identity.identity(target))
            stands = (self.writes.get(k, 0), tensors.version(target))
            known = self.same.get(what)
            # autograd counts a version more after each in-place call, whether or not anything was computed in it
            if known is not None and known[0] == stands[0] and 0 <= stands[1] - known[1] <= 1:
                self.same[what] = stands
                if active:
                    if self.owner is not None:
                        self.owner.applied += 1
                        self.owner.skipped += 1
                    return target
                return func(*args, **kwargs)
            if self.misses.get(name, 0) > _MAX_MISSES:
                return NotImplemented
            return self.learn(func, args, kwargs, name, k, what)

        return handle

    def fill(self, func: Any, args: Any, kwargs: Dict[str, Any], name: str, of: Any, active: bool) -> Any:
        """Constants written into a buffer that the step made: the filled buffer is kept, and copied in from then on."""
        k, fam, others, form = of
        target = args[0]
        told = self.signature(func, form, others) if others else (func, form)
        if told is None:
            return NotImplemented
        sig = (told, self.sigs[k], _windows(target))
        if k in self.results:
            self.drop(self.results[k])  # it is about to hold something else
        take = self.wanted(fam, name, [target, *others])
        hit = self.kept.get(sig) if take else None
        if hit is not None and hit.intact():
            hit.step = self.steps
            if active:
                if self.owner is not None:
                    self.owner.applied += 1
                target.copy_(hit.out)
                return self.note(target, sig)
            return self.note(func(*args, **kwargs), sig)
        out = func(*args, **kwargs)
        if take and self.misses.get(name, 0) <= _MAX_MISSES:
            self.keep(name, sig, target.detach().clone(), [target, *others])
        return self.note(out, sig)

    def learn(self, func: Any, args: Any, kwargs: Dict[str, Any], name: str, k: int, what: Hashable) -> Any:
        """Run a write and see whether it changed anything."""
        target = args[0]
        before = target.detach().clone()
        version = tensors.version(target)
        out = func(*args, **kwargs)
        if torch.equal(before, target):
            self.same[what] = (self.writes.get(k, 0), version)
            if self.owner is not None:
                self.owner.where.add(self.names.get(k, "") or optable.short(name))
        else:
            self.same.pop(what, None)
            if self.steps > _LEARNING_STEPS:
                self.misses[name] = self.misses.get(name, 0) + 1
            if self.owner is not None:
                self.owner.wrote(func, args, kwargs)
        return out

    def signature(self, func: Any, form: Hashable, ins: List[torch.Tensor]) -> Hashable:
        """What the result follows from, or None where that may differ from step to step."""
        if not ins:
            return None
        parts: List[Hashable] = []
        for t in ins:
            if t.layout is torch.strided:  # most are, and each step asks: nothing is looked at twice
                k = tensors.key(t)
                stands = None if k is None else self.stands(k, t)
                if stands is None:
                    return None
                parts.append((stands, *identity.window(t)))
                continue
            if identity.identity(t) is None:
                return None
            of_parts = [self.stands(k, p) for k, p in zip(identity.storages(t), tensors.parts(t).values())]
            if None in of_parts:
                return None
            parts.append((tuple(of_parts), _windows(t)))
        return self.number((func, tuple(parts), form))

    def stands(self, k: int, part: torch.Tensor) -> Optional[Hashable]:
        """What is in the storage ``k``: what made it, or the state of a constant; None where neither is known."""
        made = self.sigs.get(k)
        if made is None and k in self.leaves:
            return (k, tensors.version(part), self.writes.get(k, 0))
        return made

    def number(self, sig: Hashable) -> int:
        """The same number for the same signature; never one that another had before."""
        known = self.ids.get(sig)
        if known is None:
            if len(self.ids) >= _MOST_NUMBERED:
                self.ids.clear()
            self.numbered += 1
            known = self.ids[sig] = self.numbered
        return known

    def note(self, out: Any, sig: Hashable) -> Any:
        if isinstance(out, torch.Tensor) and out.layout is torch.strided:
            self.made(out, (sig, 0, 0))
            return out
        for i, t in enumerate(tensors.flatten(out, 3)):
            for j, p in enumerate(tensors.parts(t).values()):
                self.made(p, (sig, i, j))
        return out

    def made(self, part: torch.Tensor, sig: Hashable) -> None:
        k = tensors.key(part)
        if k is not None and k not in self.leaves:
            self.sigs[k] = sig
            if k not in self.watched:
                self.watched[k] = identity.watch(part.untyped_storage(), partial(self.freed, k))

    def keep(self, name: str, sig: Hashable, out: Any, ins: List[torch.Tensor]) -> None:
        if self.steps > _LEARNING_STEPS:
            self.misses[name] = self.misses.get(name, 0) + 1
        self.drop(sig)
        self.kept[sig] = _Kept(_detached(out), self.steps)
        for t in tensors.flatten(out, 3):
            for k in identity.storages(t):
                self.results[k] = sig
        if self.owner is not None:
            for t in ins:
                self.owner.where.add(self.names.get(tensors.key(t) or -1, "") or optable.short(name))

    def drop(self, sig: Hashable) -> None:
        kept = self.kept.pop(sig, None)
        if kept is not None:
            for t in tensors.flatten(kept.out, 3):
                for k in identity.storages(t):
                    self.results.pop(k, None)

    def reuse(self, out: Any, sig: Hashable) -> Any:
        if self.owner is not None:
            self.owner.applied += 1
            self.owner.skipped += 1
        return self.note(_detached(out), sig)


def _windows(t: torch.Tensor) -> Hashable:
    """The identity of a tensor without its storages."""
    return (t.layout, t.shape, *(identity.window(p) for p in tensors.parts(t).values()))


def _detached(out: Any) -> Any:
    """Aliases of the tensors in a result, without a graph: autograd marks what it is handed, so each caller gets its own."""
    if isinstance(out, torch.Tensor):
        return out.detach()
    if isinstance(out, (list, tuple)):
        return type(out)(_detached(o) for o in out)
    return out


def _form(obj: Any, ins: List[torch.Tensor]) -> Hashable:
    """Arguments with their tensors taken out, into ``ins``: numbers, flags, and where in the lists the tensors stood."""
    if isinstance(obj, torch.Tensor):
        ins.append(obj)
        return "tensor"
    if obj is None or isinstance(obj, (bool, int, str, torch.dtype)):
        return (type(obj), obj)
    if isinstance(obj, (list, tuple)):
        return tuple([_form(o, ins) for o in obj])
    if isinstance(obj, dict):
        return tuple([(k, _form(obj[k], ins)) for k in sorted(obj)])
    return repr(obj)


def fold(ctx: Context, wanted: Callable[[str, str, List[torch.Tensor]], bool]) -> Rewrites:
    f = Folding(ctx, wanted)
    r = Rewrites([f.match], writers=[f.match_write])
    r.each_step.append(f.begin)
    r.on_write.append(f.wrote)
    f.owner = r
    return r
