"""Several inputs of a step in one: which arguments have a batch dimension, and whether joining them there changes any answer.

Nothing is known of the step but its inputs and its outputs. The dimension is the first in which the tensor arguments agree in
size, and it counts only where the outputs of the joined call, split again, are those of the single calls, whatever an input is
joined with. A step that writes to what it keeps, goes on from what it kept, or takes gradients, is never called with joined
inputs: what it learns from them would stay. What a joined call changes in the objects of a step that is then left alone is put
back.
"""

from __future__ import annotations

import contextlib
import gc
import time
import types
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from . import identity, optable, tensors, walk
from .compiled import compiled_parts
from .context import Context
from .mode import Mode
from .outputs import plain, relative_error, tolerance
from .step import Stepper, seeded, stepper

SIZES = (8, 4, 2)  # inputs a call, the most that stays small
_LARGEST = 4 << 20  # bytes of joined inputs: what small work is joined to shall still fit the caches
_LONGEST = 0.25  # seconds that as many single calls may take
_GROUPS = 8  # joined inputs that are kept
_DIMS = (0, 1)
_FEWER = 0.5  # of the calls that joining could save at best: where it saves less, the step works input by input inside


class Unjoinable(Exception):
    """Why the inputs of this step cannot be joined, in words."""


class Joint:
    """Groups of inputs, each as the arguments of one call.

    ``groups`` holds positions in ``ctx.inputs``, ``k`` each; ``joined`` the arguments of the call that does a group's work.
    ``reach`` is the share of op calls that joining saves: 1 - 1/k where it saves all that it can.
    """

    def __init__(self, ctx: Context, dim: int, k: int) -> None:
        self.ctx, self.dim, self.k = ctx, dim, k
        self.batches = _batches(ctx.inputs, dim)
        self.groups = _grouped(ctx.inputs, dim, self.batches, k)[:_GROUPS]
        try:
            self.joined: List[Tuple[Any, ...]] = [
                tuple(_merged([ctx.inputs[i] for i in g], dim, [self.batches[i] for i in g])) for g in self.groups
            ]
        except (RuntimeError, TypeError, ValueError) as e:  # containers and tensors of the user's own kind
            raise Unjoinable("its arguments cannot be joined: %s" % (str(e).splitlines() or [""])[0][:120]) from None
        self.out_dims: List[int] = []
        self.reach = 0.0

    def one_by_one(self, run: Callable[[int], Any], number: int) -> None:
        for i in self.groups[number % len(self.groups)]:
            run(i)

    def together(self, number: int) -> Any:
        return self.ctx.fn(*self.joined[number % len(self.joined)])

    def outputs(self, count: int, seed: int = 0) -> List[List[torch.Tensor]]:
        """Outputs of the first ``count`` inputs, taken out of joined calls; of one that is in no group, by a call of its own."""
        run = stepper(self.ctx)
        found: Dict[int, List[torch.Tensor]] = {}
        with run.mode(), seeded(seed):
            for number, group in enumerate(self.groups):
                if any(i < count and i not in found for i in group):
                    parts = self.split(_outputs(self.together(number)), group)
                    found.update((i, p) for i, p in zip(group, parts))
            return [found[i] if i in found else _outputs(run(i)) for i in range(count)]

    def split(self, outs: Sequence[torch.Tensor], group: Sequence[int]) -> List[List[torch.Tensor]]:
        """The outputs of a joined call by input. Raises ValueError where they do not divide."""
        sizes = [self.batches[i] for i in group]
        parts: List[List[torch.Tensor]] = [[] for _ in group]
        for t, d in zip(outs, self.out_dims):
            each, rest = divmod(int(t.shape[d]), sum(sizes))
            if rest:
                raise ValueError("an output of the joined call does not divide by its inputs")
            for mine, p in zip(parts, torch.split(t, [each * n for n in sizes], d)):
                mine.append(p)
        return parts


class _Watch(Mode):  # type: ignore[no-untyped-call]
    """Counts ops that are no views, and sees what would make a joined call leave traces."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0
        self.keeps = ""  # the op that wrote to a tensor which the step did not make
        self.backward = False
        self._made: Dict[int, Any] = {}  # storage key -> a reference that keeps the key from being given away
        self.before: Set[int] = set()  # keys of what an earlier step made and kept
        self.reads = ""  # the op that reads such

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = optable.base_name(func)
        self.ops += optable.family(name, getattr(func, "tags", ())) != "view"
        self.backward = self.backward or torch._C._current_graph_task_id() != -1
        for t in identity.written(func, args, kwargs):
            if any(k not in self._made for k in identity.storages(t)):
                self.keeps = self.keeps or name
        before = {k for t in tensors.flatten((args, kwargs), 3) for k in identity.storages(t)}
        if not self.reads and not self.before.isdisjoint(before):
            self.reads = name
        out = func(*args, **kwargs)
        for t in tensors.flatten(out, 3):
            for p in tensors.parts(t).values():
                k = tensors.key(p)
                if k is not None and k not in before:  # a view of an operand is not new
                    self._made.setdefault(k, identity.weak(p.untyped_storage()))
        return out

    def kept(self) -> Set[int]:
        """The keys of what the step made and is still there."""
        if any(not ref.expired() for ref in self._made.values()):
            gc.collect()  # objects that hold each other
        return {k for k, ref in self._made.items() if not ref.expired()}


def join(ctx: Context) -> Joint:
    """The step's inputs in groups. Raises :class:`Unjoinable`; whatever the joined call raises ends as one."""
    run = stepper(ctx)
    if run.grad:
        raise Unjoinable("the step takes gradients, and those of joined inputs are others")
    if compiled_parts(ctx.fn):
        raise Unjoinable("the step is compiled, and would be compiled anew for joined inputs")
    k = _size(ctx)
    with run.mode():
        watched = _Watch()
        with watched, seeded():
            run(0)
        again = _Watch()
        again.before = kept = watched.kept()
        if kept and not watched.keeps:
            with again, seeded():
                run(0)
    if watched.backward:
        raise Unjoinable("the step takes gradients, and those of joined inputs are others")
    if watched.keeps:
        raise Unjoinable("the step writes to what it keeps from call to call (%s)" % watched.keeps)
    if again.reads:
        raise Unjoinable("the step goes on from what it kept of the call before (%s)" % again.reads)
    if kept & watched.kept():
        raise Unjoinable("the step keeps something of each call")
    spent = _best_s(run)
    k = next((n for n in SIZES if n <= k and n * spent <= _LONGEST), SIZES[-1])
    why: Optional[Unjoinable] = None
    for dim in _DIMS:
        held = Held(ctx.fn)
        try:
            joint = Joint(ctx, dim, k)
            _prove(joint)
            return joint
        except Unjoinable as e:
            held.put_back()
            why = why or e
    raise why or Unjoinable("there is nothing to join")


def _best_s(run: Stepper) -> float:
    """Seconds of the fastest of a few single calls."""
    times = []
    with run.mode(), seeded():
        for i in range(3):
            began = time.perf_counter()
            run(i)
            times.append(time.perf_counter() - began)
    return min(times)


def _prove(joint: Joint) -> None:
    """Call the first group one by one and together; the answers have to be the same and the ops fewer."""
    run = stepper(joint.ctx)
    group = joint.groups[0]
    with run.mode():
        apart, joined = _Watch(), _Watch()
        alone: Dict[int, List[torch.Tensor]] = {}
        with seeded(), apart:
            for i in group:
                alone[i] = _outputs(run(i))
        try:
            with seeded(), joined:
                outs = _outputs(joint.together(0))
        except Exception as e:  # the user's code, on inputs that it was not made for
            first = (str(e).splitlines() or [""])[0][:120]
            raise Unjoinable("the joined call raised %s: %s" % (type(e).__name__, first)) from None
    joint.out_dims = _out_dims(outs, [alone[i] for i in group])
    try:
        parts = joint.split(outs, group)
    except ValueError as e:
        raise Unjoinable(str(e)) from None
    worst, allowed = 0.0, max(tolerance(alone[i]) for i in group)
    for i, mine in zip(group, parts):
        worst = max(worst, _worst(alone[i], mine))
    if not worst <= allowed:
        raise Unjoinable("the answers of joined inputs differ from those of single ones by %.2g" % worst)
    with run.mode(), seeded():
        same = _outputs(run(group[0]))
    if not _worst(alone[group[0]], same) <= allowed:
        raise Unjoinable("after a joined call the step answers its inputs otherwise than before")
    _prove_apart(joint, alone[group[0]], allowed)
    joint.reach = 1.0 - joined.ops / max(1, apart.ops)
    if joint.reach < _FEWER * (1.0 - 1.0 / joint.k):
        raise Unjoinable(
            "the step makes its calls input by input: %d ops for %d inputs joined, %d one by one"
            % (joined.ops, joint.k, apart.ops)
        )


def _prove_apart(joint: Joint, alone: List[torch.Tensor], allowed: float) -> None:
    """The answers to an input must not hang on those that it is joined with. Where these are copies of it, or much like it, even
    a mean over the whole batch is the same: so the others are changed, and only the first is compared."""
    group = joint.groups[0]
    given = [joint.ctx.inputs[i] for i in group]
    batches = [joint.batches[i] for i in group]
    changed = [_changed(g, joint.dim, n) for g, n in zip(given[1:], batches[1:])]
    try:
        args = tuple(_merged([given[0], *changed], joint.dim, batches))
        with stepper(joint.ctx).mode(), seeded():
            mine = joint.split(_outputs(joint.ctx.fn(*args)), group)[0]
    except Exception as e:  # the user's code, on numbers that it may not take
        if len(set(group)) == len(group):
            return
        first = (str(e).splitlines() or [""])[0][:120]
        raise Unjoinable("the call of inputs that differ raised %s: %s" % (type(e).__name__, first)) from None
    off = _worst(alone, mine)
    if not off <= allowed:
        raise Unjoinable("the answers to an input differ by %.2g with what it is joined with" % off)


def _changed(obj: Any, dim: int, batch: int) -> Any:
    """Arguments of the same form with other numbers where there is a batch dimension: those of floating point shrunk and moved,
    of others the first for all, which the step is known to take."""
    if isinstance(obj, torch.Tensor):
        t = obj.detach()
        if t.dim() <= dim or int(t.shape[dim]) != batch or not t.numel():
            return obj
        if t.is_floating_point() or t.is_complex():
            finite = torch.where(torch.isfinite(t), t, torch.zeros_like(t))
            return t * 0.5 + finite.abs().mean()
        return t.reshape(-1)[:1].expand(t.shape).clone()
    if isinstance(obj, dict):
        return {k: _changed(v, dim, batch) for k, v in obj.items()}
    if isinstance(obj, (list, tuple)):
        parts = [_changed(v, dim, batch) for v in obj]
        return type(obj)(*parts) if hasattr(obj, "_fields") else type(obj)(parts)
    return obj


def _worst(a: List[torch.Tensor], b: List[torch.Tensor]) -> float:
    return max([relative_error(x, y) for x, y in zip(a, b)] or [0.0])


class Held:
    """What the objects of a step hold at one time: attributes, entries of lists and dictionaries, variables of functions."""

    def __init__(self, fn: Any) -> None:
        self._boxes: List[Tuple[Any, Any]] = []
        for obj in walk.held_objects(fn):
            if isinstance(obj, (torch.Tensor, type, types.ModuleType)):
                continue
            for box in (obj, getattr(obj, "__dict__", None)):
                if isinstance(box, (list, dict)) and type(box) in (list, dict, OrderedDict):
                    self._boxes.append((box, box.copy()))
            for cell in getattr(obj, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # an empty one
                    self._boxes.append((cell, cell.cell_contents))

    def put_back(self) -> None:
        for box, was in self._boxes:
            if isinstance(box, types.CellType):
                box.cell_contents = was
            elif isinstance(box, list):
                if len(box) != len(was) or any(a is not b for a, b in zip(box, was)):
                    box[:] = was
            elif len(box) != len(was) or any(k not in box or box[k] is not v for k, v in was.items()):
                box.clear()
                box.update(was)


def _outputs(out: Any) -> List[torch.Tensor]:
    return [plain(t) for t in tensors.flatten(out)]


def _size(ctx: Context) -> int:
    """How many inputs a call may take, by their bytes alone, so that it is the same for every variant."""
    each = [list(tensors.flatten(i)) for i in ctx.inputs]
    if not any(each):
        raise Unjoinable("the inputs hold no tensors")
    if any(t.layout != torch.strided for ts in each for t in ts):
        raise Unjoinable("an input is sparse")
    if any(t.is_nested for ts in each for t in ts):
        raise Unjoinable("an input is nested")
    largest = max(sum(tensors.nbytes(t) for t in ts) for ts in each)
    fits = [n for n in SIZES if n * largest <= _LARGEST]
    if not fits:
        raise Unjoinable("the inputs are too large to join and stay small: %.3g MiB each" % (largest / 2**20))
    return fits[0]


def _batches(inputs: Sequence[Any], dim: int) -> List[int]:
    """The batch size of each input: the size in ``dim`` of its first tensor that has one."""
    out = []
    for given in inputs:
        first = next((t for t in tensors.flatten(given) if t.dim() > dim), None)
        if first is None or first.shape[dim] == 0:
            raise Unjoinable("no argument has a batch dimension")
        out.append(int(first.shape[dim]))
    return out


def _grouped(inputs: Sequence[Any], dim: int, batches: Sequence[int], k: int) -> List[List[int]]:
    """Inputs that can be joined, ``k`` at a time; where there are fewer that are alike, they are taken again."""
    alike: Dict[Any, List[int]] = {}
    for i, given in enumerate(inputs):
        shape = tuple((tensors.dtype(t), _but(t, dim, batches[i])) for t in tensors.flatten(given))
        alike.setdefault(shape, []).append(i)
    groups = []
    for members in alike.values():
        groups += [[members[(at + j) % len(members)] for j in range(k)] for at in range(0, len(members), k)]
    return groups


def _but(t: torch.Tensor, dim: int, batch: int) -> Tuple[int, ...]:
    """A shape, with the batch dimension left open."""
    return tuple(-1 if d == dim and n == batch else int(n) for d, n in enumerate(t.shape))


def _merged(given: List[Any], dim: int, batches: List[int]) -> Any:
    """One argument out of several. What has no batch dimension has to be the same in all of them."""
    first = given[0]
    if any(type(g) is not type(first) for g in given):
        raise Unjoinable("an argument is of another type from input to input")
    if isinstance(first, torch.Tensor):
        if all(t.dim() > dim and int(t.shape[dim]) == n for t, n in zip(given, batches)):
            return torch.cat([t.detach() for t in given], dim)
        if all(t is first or (t.shape == first.shape and bool(torch.equal(t, first))) for t in given):
            return first
        raise Unjoinable("an argument without the batch dimension differs from input to input")
    if isinstance(first, dict):
        if any(list(g) != list(first) for g in given):
            raise Unjoinable("an argument has other keys from input to input")
        return {key: _merged([g[key] for g in given], dim, batches) for key in first}
    if isinstance(first, (list, tuple)):
        if any(len(g) != len(first) for g in given):
            raise Unjoinable("an argument is of another length from input to input")
        parts = [_merged([g[at] for g in given], dim, batches) for at in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if all(g is first for g in given) or (
        isinstance(first, (int, float, str, bool)) and given.count(first) == len(given)
    ):
        return first
    raise Unjoinable("an argument of type %s differs from input to input" % type(first).__name__)


def _out_dims(outs: Sequence[torch.Tensor], alone: Sequence[Sequence[torch.Tensor]]) -> List[int]:
    """The dimension of each output in which that of the joined call holds those of the single ones."""
    if not outs or any(len(a) != len(outs) for a in alone):
        raise Unjoinable(
            "the step returns no tensor to compare" if not outs else "the joined call returns other outputs"
        )
    found = []
    for j, t in enumerate(outs):
        single = [a[j] for a in alone]
        dims = [d for d in range(t.dim()) if all(s.dim() == t.dim() for s in single)
                and int(t.shape[d]) == sum(int(s.shape[d]) for s in single)
                and all(tuple(s.shape[:d]) + tuple(s.shape[d + 1 :]) == tuple(t.shape[:d]) + tuple(t.shape[d + 1 :])
                        for s in single)]  # fmt: skip
        if not dims:
            raise Unjoinable("an output has no batch dimension")
        found.append(dims[0])
    return found
