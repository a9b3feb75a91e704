"""One step taken down op by op: which tensor object went where, what each result follows from, and what outlives the step.

Nothing that the step makes is kept in memory: only the keys of its storages are held, by weak references, so that no key is
given to two storages within one recording.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Set, Tuple

import torch

from .. import identity, optable, tensors
from ..census import Owners
from ..context import Context
from ..mode import Mode
from ..step import stepper

# what these make says nothing of the numbers in the tensor that they are given, only of its form
_OF_THE_FORM = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
                "new_empty_strided"}  # fmt: skip

FOLLOWS_INPUT, FOLLOWS_CONSTANTS = "input", "constants"


class Slot:
    """One tensor object of the step: its storages and form, what it follows from, and which op made it (-1: none did)."""

    __slots__ = ("device", "dtype", "follows", "index", "keys", "made_by", "number", "shape", "stride", "tensor",
                 "version")  # fmt: skip

    def __init__(self, index: int, t: torch.Tensor, follows: str, made_by: int) -> None:
        self.index, self.follows, self.made_by = index, follows, made_by
        self.keys = tuple(identity.storages(t))
        self.shape, self.dtype, self.device = tuple(t.shape), t.dtype, t.device
        self.stride: Optional[Tuple[int, ...]] = tuple(t.stride()) if t.layout == torch.strided else None
        self.tensor: Optional[torch.Tensor] = None  # of constants of the code, and of numbers that it makes tensors of
        self.version = 0
        self.number: Optional[float] = None  # of what the code makes a tensor of anew on each step

    def hold(self, t: torch.Tensor) -> None:
        self.tensor, self.version = t, tensors.version(t)

    def empty(self) -> torch.Tensor:
        """A tensor of this form, with nothing in it."""
        return torch.empty_strided(self.shape, self.stride or (), dtype=self.dtype, device=self.device)


class Leaf(NamedTuple):
    """Stands for a tensor among an op's recorded arguments."""

    slot: int


class Op:
    """One op as it ran. ``args`` and ``kwargs`` have a :class:`Leaf` for each tensor; ``ins`` and ``outs`` are their slots."""

    __slots__ = ("args", "func", "ins", "is_random", "kwargs", "live", "module", "name", "of_form", "opaque", "outs",
                 "place", "raised", "sequence", "shape", "touches", "view", "writes")  # fmt: skip

    def __init__(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        self.func, self.name, self.args, self.kwargs = func, name, args, kwargs
        self.ins: List[Slot] = []
        self.outs: List[Slot] = []
        self.live: FrozenSet[int] = frozenset()  # those of ``ins`` whose numbers follow from the input
        self.sequence: Optional[type] = None  # of its results, where it has not just one
        self.opaque = False  # it gave numbers to the code, which may decide by them; or it changed an operand's form
        self.raised = False
        self.shape: Optional[Tuple[int, ...]] = None  # of its only result
        self.writes: FrozenSet[int] = frozenset()
        self.touches: FrozenSet[int] = frozenset()
        self.view = False  # its results lie in its operands, and nothing is computed
        self.is_random = False
        self.of_form = optable.short(name) in _OF_THE_FORM
        self.module = self.place = ""


def _draws(func: Any, name: str, args: Any) -> bool:
    """Whether an op draws random numbers. Dropout is one op in inference mode, and says whether it does."""
    if optable.short(name) in ("dropout", "dropout_") and len(args) == 3:
        return bool(args[2])
    return optable.is_random(name) or any(str(t).endswith("nondeterministic_seeded") for t in getattr(func, "tags", ()))


class Recording:
    """The ops of one step, their slots, and the keys of what the step returned and of what the code kept."""

    def __init__(self) -> None:
        self.ops: List[Op] = []
        self.slots: List[Slot] = []
        self.touched: Dict[int, List[int]] = {}  # storage key -> ops that read or write it, in order
        self.written: Set[int] = set()  # what existed before the step and was written to
        self.returned: Set[int] = set()
        self.kept: Set[int] = set()


class _Recorder(Mode):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: Set[int], known: Dict[int, torch.Tensor], owners: Owners) -> None:
        super().__init__()
        self.rec, self._inputs, self._known, self._owners = Recording(), inputs, known, owners
        self._objects: Dict[int, Tuple[Any, Slot]] = {}
        self.found: Dict[
            int, torch.Tensor
        ] = {}  # by storage key, what no op of the step made; kept, so that keys stay theirs
        self.made: Dict[int, Tuple[str, Any]] = {}  # storage key -> what it follows from, and what holds the key

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = optable.base_name(func)
        op = Op(func, name, None, None)
        op.is_random = _draws(func, name, args)
        op.module, op.place = self._owners.current(), self._owners.place()

        def leaf(t: torch.Tensor) -> Any:
            slot = self._slot(t)
            op.ins.append(slot)
            return Leaf(slot.index)

        op.args, op.kwargs = tensors.changed(args, leaf), tensors.changed(kwargs, leaf)
        written: Set[int] = set()
        if optable.short(name) != "detach_":  # which writes no numbers, whatever its schema says
            written = {k for t in identity.written(func, args, kwargs) for k in identity.storages(t)}
        if not op.of_form:
            op.live = frozenset(s.index for s in op.ins if self._follows(s) == FOLLOWS_INPUT)
        live = bool(op.live) or op.is_random
        live = live or not name.startswith("aten::")  # who knows what an op of someone else's follows from
        try:
            out = func(*args, **kwargs)
        except Exception:  # the code may catch it and go on
            op.opaque = op.raised = True
            self._results(op, (), written, FOLLOWS_INPUT)
            raise
        self._results(op, out, written, FOLLOWS_INPUT if live else FOLLOWS_CONSTANTS)
        return out

    def _results(self, op: Op, out: Any, written: Set[int], follows: str) -> None:
        number = len(self.rec.ops)
        if not isinstance(out, torch.Tensor):
            op.sequence = type(out)
            parts = out if isinstance(out, (tuple, list)) else (out,)
            op.opaque = op.opaque or (out is not None and any(not isinstance(p, torch.Tensor) for p in parts))
        else:
            op.shape = tuple(out.shape)
        before = {k for s in op.ins for k in s.keys}
        for k in written:
            if k in self.made:
                worse = FOLLOWS_INPUT in (follows, self.made[k][0])
                self.made[k] = (FOLLOWS_INPUT if worse else FOLLOWS_CONSTANTS, self.made[k][1])
            else:
                self.rec.written.add(k)
        for t in tensors.flatten(out, 3):
            for k, storage in _storages(t):
                if k not in before and k not in self.made:
                    self.made[k] = (follows, identity.weak(storage))
            op.outs.append(self._slot(t, number, follows))
            op.opaque = op.opaque or op.outs[-1].shape != tuple(t.shape)
        after = {k for s in op.outs for k in s.keys}
        op.writes = frozenset(written)
        op.touches = frozenset(before | after | written)
        op.view = bool(op.outs) and not written and after <= before and not op.opaque
        for k in op.touches:
            self.rec.touched.setdefault(k, []).append(number)
        self.rec.ops.append(op)

    def _follows(self, s: Slot) -> str:
        """What a tensor follows from at this point of the step. What no one knows is taken to follow from the input."""
        if not s.keys:
            return FOLLOWS_INPUT
        stands = [self.made[k][0] if k in self.made else s.follows for k in s.keys]
        return FOLLOWS_INPUT if FOLLOWS_INPUT in stands else FOLLOWS_CONSTANTS

    def _slot(self, t: torch.Tensor, made_by: int = -1, follows: str = "") -> Slot:
        hit = self._objects.get(id(t))
        if hit is not None and hit[0]() is t:
            return hit[1]
        keys = identity.storages(t)
        new = made_by < 0 and not any(k in self.made for k in keys)
        known = new and bool(keys) and all(k in self._known for k in keys)
        slot = Slot(len(self.rec.slots), t, follows or (FOLLOWS_CONSTANTS if known else FOLLOWS_INPUT), made_by)
        if known:
            slot.hold(t)
        elif new and not t.shape and t.device.type == "cpu" and not t.is_complex() and self._inputs.isdisjoint(keys):
            slot.follows, slot.number = FOLLOWS_CONSTANTS, float(t)
            slot.hold(t.detach().clone())
        if new:
            self.found.update((k, t) for k in keys)
        self.rec.slots.append(slot)
        self._objects[id(t)] = (weakref.ref(t), slot)
        return slot

    def finish(self, result: Any) -> Recording:
        """What outlives the step is looked for while its result is still there."""
        self.rec.returned = {k for t in tensors.flatten(result) for k in identity.storages(t)}
        self.rec.kept = self._living()
        if self.rec.kept - self.rec.returned:
            gc.collect()  # objects that hold each other
            self.rec.kept = self._living()
        return self.rec

    def _living(self) -> Set[int]:
        return {k for k, (_, ref) in self.made.items() if not ref.expired()}


def _storages(t: torch.Tensor) -> List[Tuple[int, Any]]:
    if t.layout != torch.strided and not tensors.is_sparse(t):
        return []
    found = [(tensors.key(p), p) for p in tensors.parts(t).values()]
    return [(k, p.untyped_storage()) for k, p in found if k is not None]


def record(ctx: Context, i: int) -> Recording:
    """One step over input ``i``, as it runs with nothing changed.

    Its constants are the tensors that two steps over the same input find there, and write nothing into. Whether each is still
    what it was is for those to look at who go by the recording.
    """
    run = stepper(ctx)
    inputs = {k for t in tensors.flatten(ctx.inputs) for k in identity.storages(t)}
    with Owners(ctx.fn) as owners, run.mode():
        before = _Recorder(inputs, {}, owners)
        with before:
            run(i)
        known = {k: t for k, t in before.found.items() if k not in inputs and k not in before.rec.written}
        recorder = _Recorder(inputs, known, owners)
        with recorder:
            result = run(i)
        return recorder.finish(result)


def replay(rec: Recording, ops: List[int], given: Dict[int, torch.Tensor], wide: bool) -> Dict[int, torch.Tensor]:
    """Run some ops of a recording again, in order; tensors by slot. ``given`` has those that other ops made. With ``wide``
    floating point is computed in float64, whatever it was. What is read for its form alone may be missing."""
    env = dict(given)

    def find(leaf: Leaf) -> torch.Tensor:
        s = rec.slots[leaf.slot]
        if leaf.slot not in env:
            held = s.tensor if s.tensor is not None else s.empty()
            env[leaf.slot] = _widened(held) if wide else held
        return env[leaf.slot]

    for j in ops:
        op = rec.ops[j]
        out = op.func(*_filled(op.args, find, wide), **_filled(op.kwargs, find, wide))
        results = list(tensors.flatten(out, 3))
        if optable.short(op.name).startswith(("empty", "new_empty")):
            for t in results:
                poison(t)  # what lay there is no part of the result
        for s, t in zip(op.outs, results):
            env[s.index] = t
    return env


def _filled(obj: Any, find: Callable[[Leaf], torch.Tensor], wide: bool) -> Any:
    if isinstance(obj, Leaf):
        return find(obj)
    if isinstance(obj, (list, tuple)):
        return [_filled(o, find, wide) for o in obj]
    if isinstance(obj, dict):
        return {k: _filled(v, find, wide) for k, v in obj.items()}
    if wide and isinstance(obj, torch.dtype) and obj.is_floating_point:
        return torch.float64
    return obj


def _widened(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.float64) if t.is_floating_point() else t


def poison(t: torch.Tensor) -> None:
    """Fill a tensor with what no result should hold, so that whoever reads it shows."""
    if t.is_floating_point() or t.is_complex():
        t.fill_(float("nan"))
    elif t.dtype != torch.bool:
        t.fill_(torch.iinfo(t.dtype).max)
