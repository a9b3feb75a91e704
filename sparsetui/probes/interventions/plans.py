"""Which ops of a recorded step are not run, and whether a running step goes the way of the recorded one."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Set, Tuple

import torch

from .. import identity, tensors
from .attending import Blocks
from .chains import Chain, Softmax
from .recording import Leaf, Op, Recording, Slot

# what is done in place of an op: it runs; nothing; its operands are kept for the one call; that call
RUN, SKIP, SCORES, FUSE = range(4)


class Step:
    """One op of a plan: what it has to look like, and what is done in its place."""

    __slots__ = ("action", "chain", "exact", "hollow", "op")

    def __init__(self, op: Op) -> None:
        self.op, self.action = op, RUN
        self.exact = False  # its operands have to be those of the recording
        self.hollow = False  # its results hold nothing, or are views of what holds nothing
        self.chain: Optional[Call] = None


class Call(NamedTuple):
    """The call that stands for a chain: slots of its operands, and what it computes."""

    queries: int
    keys: int  # transposed
    values: int
    bias: torch.Tensor
    scale: float
    blocks: Optional[Blocks] = None


class Plan:
    """One way through the step, and which of its ops are not run."""

    def __init__(self, rec: Recording, found: List[Tuple[Chain, Softmax]]) -> None:
        self.slots: List[Slot] = rec.slots
        self.steps = [Step(op) for op in rec.ops]
        self.inside: Set[int] = set()  # slots that the chains and what feeds them make
        self.held: List[Slot] = []  # the constants of the code that what is left out reads
        for chain, soft in found:
            (q, kt), (_, v) = chain.left(rec), chain.right(rec)
            call = Call(q.index, kt.index, v.index, soft.bias, soft.scale, soft.blocks)
            for j in (chain.first, chain.last, *chain.region, *chain.feeders):
                self.steps[j].exact = True
            for j in chain.region:
                self._leave_out(j)
            for j in (*chain.region, *chain.feeders, chain.first):
                read = [s for s in rec.ops[j].ins if s.index not in (q.index, kt.index)]
                self.held += [s for s in read if s.tensor is not None and s.number is None and s not in self.held]
            for j, action in ((chain.first, SCORES), (chain.last, FUSE)):
                self.steps[j].action, self.steps[j].chain = action, call
            self.steps[chain.first].hollow = True
        self.chains = len(found)
        self._spare(rec, found)
        for step in self.steps:
            if step.exact and step.action != FUSE:
                self.inside.update(s.index for s in step.op.outs if s.made_by >= 0)

    def _spare(self, rec: Recording, found: List[Tuple[Chain, Softmax]]) -> None:
        """What makes a mask need not run where nothing but chains reads it, and nothing of it outlives the step."""
        read = {j for chain, _ in found for j in chain.region}
        read |= {chain.first for chain, _ in found if len(rec.ops[chain.first].ins) > 2}
        feeders = {j for chain, _ in found for j in chain.feeders}
        for j in sorted(feeders, reverse=True):
            op = rec.ops[j]
            keys = {k for s in op.outs for k in s.keys} | op.writes
            outside = {k for s in op.ins if s.made_by < 0 for k in s.keys}
            if keys & (rec.kept | rec.returned | rec.written | outside):
                continue
            if all(n in read for k in keys for n in rec.touched[k] if n > j):
                read.add(j)
                self._leave_out(j)

    def _leave_out(self, j: int) -> None:
        """A view computes nothing, and is opened on what holds nothing."""
        self.steps[j].hollow = True
        if not self.steps[j].op.view:
            self.steps[j].action = SKIP

    def stands(self) -> bool:
        """Nobody wrote into the constants that the chains read since they were looked at."""
        return all(tensors.version(s.tensor) == s.version for s in self.held if s.tensor is not None)

    @property
    def skipped(self) -> int:
        return sum(s.action in (SKIP, SCORES) for s in self.steps)

    def form(self) -> Tuple[Hashable, ...]:
        """Equal for two recordings that took the same way."""

        def told(obj: Any) -> Hashable:
            if isinstance(obj, Leaf):
                s = self.slots[obj.slot]
                same = s.number if s.tensor is None or s.number is not None else id(s.tensor)
                return ("tensor", s.shape, s.stride, s.dtype, same)
            if isinstance(obj, (list, tuple)):
                return tuple(told(o) for o in obj)
            if isinstance(obj, dict):
                return tuple((k, told(v)) for k, v in sorted(obj.items()))
            return str(obj)

        given = [(told(s.op.args), told(s.op.kwargs)) if s.exact else None for s in self.steps]
        return tuple((s.op.func, s.action, s.op.shape, g) for s, g in zip(self.steps, given))


class Walk:
    """One step on its way through a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.at = plan, 0
        self.made: Dict[int, Any] = {}  # slot -> reference to the tensor that stands there in this step
        self.inside: Dict[int, Any] = {}  # by id, the tensors that only the chains may read
        self.waiting: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}  # id of a call -> its queries and keys

    @property
    def step(self) -> Step:
        return self.plan.steps[self.at]

    @property
    def done(self) -> bool:
        return self.at >= len(self.plan.steps)

    def fits(self, func: Any, args: Any, kwargs: Dict[str, Any], alone: bool) -> Optional[Dict[int, torch.Tensor]]:
        """Whether the op is the one that comes next in the plan; if so, its operands by slot so far as they are looked at. What
        runs anyway is looked at closely only as long as there are other plans to tell from this one."""
        if self.done:
            return None
        step = self.step
        got: Dict[int, torch.Tensor] = {}
        if step.op.func is not func:
            return None
        if not step.exact and self.inside and self._reads_inside(args, kwargs):
            return None
        if not step.exact and alone:
            return got
        stands = self._stands if step.exact and not step.op.of_form else self._of_form
        return got if _alike(step.op.args, args, got, stands) and _alike(step.op.kwargs, kwargs, got, stands) else None

    def _reads_inside(self, *values: Any) -> bool:
        for v in values:
            if isinstance(v, torch.Tensor):
                ref = self.inside.get(id(v))
                if ref is not None and ref() is v:
                    return True
            elif isinstance(v, (list, tuple)):
                if self._reads_inside(*v):
                    return True
            elif isinstance(v, dict) and self._reads_inside(*v.values()):
                return True
        return False

    def _stands(self, index: int, t: torch.Tensor) -> bool:
        """The tensor is the one that stood there in the recording, or one of its form where its numbers are the input's."""
        s = self.plan.slots[index]
        if s.index in self.plan.inside:
            ref = self.made.get(s.index)
            return ref is not None and ref() is t
        if s.number is not None:
            return t.dim() == 0 and t.dtype == s.dtype and float(t) == s.number
        if s.tensor is not None:
            same = t is s.tensor or identity.identity(t) == identity.identity(s.tensor)
            return same and tensors.version(t) == s.version
        return t.layout == torch.strided and self._of_form(index, t) and not self._reads_inside(t)

    def _of_form(self, index: int, t: torch.Tensor) -> bool:
        s = self.plan.slots[index]
        return t.shape == s.shape and t.dtype == s.dtype

    def took(self, out: Any) -> bool:
        """Go on after an op; false where its result is not of the form that it had in the recording."""
        step = self.step
        self.at += 1
        if step.op.raised:
            return False
        if not step.exact:
            return step.op.shape is None or (isinstance(out, torch.Tensor) and out.shape == step.op.shape)
        results = [out] if isinstance(out, torch.Tensor) else list(tensors.flatten(out, 3))
        if len(results) != len(step.op.outs) or any(t.shape != s.shape for s, t in zip(step.op.outs, results)):
            return False
        if step.action != FUSE:
            for s, t in zip(step.op.outs, results):
                self.made[s.index] = ref = weakref.ref(t)
                if step.hollow:
                    self.inside[id(t)] = ref
        return True

    def raised(self) -> bool:
        """Go on after an op that raised, which the code may catch; false where it did not in the recording."""
        step = self.step
        self.at += 1
        return step.op.raised

    def owes(self) -> bool:
        """Tensors that hold nothing are still about."""
        return any(ref() is not None for ref in self.inside.values())


def _alike(form: Any, value: Any, got: Dict[int, torch.Tensor], stands: Callable[[int, torch.Tensor], bool]) -> bool:
    """Whether arguments are those of a recorded op, each tensor of which ``stands``; ``got`` takes these."""
    if isinstance(form, Leaf):
        if not isinstance(value, torch.Tensor) or not stands(form.slot, value):
            return False
        got[form.slot] = value
        return True
    if isinstance(form, (list, tuple)):
        same = isinstance(value, (list, tuple)) and len(form) == len(value)
        return same and all(_alike(f, v, got, stands) for f, v in zip(form, value))
    if isinstance(form, dict):
        return form.keys() == value.keys() and all(_alike(f, value[k], got, stands) for k, f in form.items())
    # not a number is not equal to itself, and yet the same argument
    return not isinstance(value, torch.Tensor) and bool(form == value or (form != form and value != value))
