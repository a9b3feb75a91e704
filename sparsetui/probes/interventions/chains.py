"""Chains that a fused attention could stand for: a product that makes scores, whatever is done to them, a product that uses
them up. What happens between the two is not known by its ops but by what it does to numbers, see :func:`softmax_of`."""

from __future__ import annotations

import heapq
import math
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch

from .. import optable
from ..outputs import TOLERANCE
from .attending import Blocks
from .recording import Leaf, Op, Recording, Slot, replay

_MAKES = {"mm": 0, "bmm": 0, "matmul": 0, "addmm": 1, "baddbmm": 1}  # product -> position of its left operand
_USES = {"mm", "bmm", "matmul"}
_EXACT = 1e-5  # of a probability, where all is computed in float64
_SPREAD = 2.0  # standard deviation of the exponents in a probe
_WIDEST = 1 << 22  # entries of a score matrix that is also looked at in float64
_MOST = 1 << 26  # entries of a score matrix that is looked at at all
_PART = 1 << 20  # entries that are compared at a time


class Chain(NamedTuple):
    """Positions in the recording: the product that makes the scores and the one that takes the probabilities, the ops between
    them that work on these (``region``), and those that make what the region needs besides (``feeders``), constants all."""

    first: int
    last: int
    region: Tuple[int, ...]
    feeders: Tuple[int, ...]
    keys: FrozenSet[int]  # storages that hold scores, probabilities or what lies between

    def left(self, rec: Recording) -> Tuple[Slot, Slot]:
        """Queries and transposed keys."""
        op = rec.ops[self.first]
        at = _MAKES[optable.short(op.name)]
        return rec.slots[op.args[at].slot], rec.slots[op.args[at + 1].slot]

    def right(self, rec: Recording) -> Tuple[Slot, Slot]:
        """Probabilities and values."""
        op = rec.ops[self.last]
        return rec.slots[op.args[0].slot], rec.slots[op.args[1].slot]

    def place(self, rec: Recording) -> str:
        op = rec.ops[self.last]
        return op.module or op.place or op.name


class Softmax(NamedTuple):
    """``softmax(scale * scores + bias)`` along the last axis. ``bias`` is [S, T], or [G, P, S, T] of scores in G groups of P, where
    G or P may be 1; minus infinity hides an entry."""

    scale: float
    bias: torch.Tensor
    blocks: Optional[Blocks] = None  # what the mask leaves, where that is worth taking by itself


class NotOne(Exception):
    """A chain that no fused attention stands for, and why."""


def find(rec: Recording) -> Tuple[List[Chain], List[str]]:
    """The chains of a step, and why others that look like one are none."""
    chains: List[Chain] = []
    why: List[str] = []
    for at, op in enumerate(rec.ops):
        if not _makes_scores(op):
            continue
        try:
            found = _follow(rec, at)
        except NotOne as e:
            why.append("%s: %s" % (op.module or op.place or op.name, e))
        else:
            if found is not None:
                chains.append(found)
    return chains, why


def _makes_scores(op: Op) -> bool:
    at = _MAKES.get(optable.short(op.name))
    if at is None or len(op.outs) != 1 or op.opaque or op.writes or len(op.args) != at + 2:
        return False
    if not all(isinstance(a, Leaf) for a in op.args[: at + 2]) or any(s.stride is None for s in op.ins):
        return False
    sides = {a.slot for a in op.args[at : at + 2]}
    return bool(op.live & sides) and op.live <= sides and op.outs[0].dtype.is_floating_point


def _follow(rec: Recording, first: int) -> Optional[Chain]:
    """Follow the scores of one product through the step. ``None`` where this is no attention; :class:`NotOne` with the reason
    where it is one that has to stay as it is."""
    made = rec.ops[first].outs[0]
    keys: Set[int] = set(made.keys)
    region: List[int] = []
    last, soft, why = -1, False, ""
    ahead = [j for k in keys for j in rec.touched[k] if j > first]
    heapq.heapify(ahead)
    seen: Set[int] = set()
    while ahead:
        j = heapq.heappop(ahead)
        if j in seen:
            continue
        seen.add(j)
        op = rec.ops[j]
        if last >= 0:
            why = why or "its probabilities, or what leads to them, are used elsewhere too (%s)" % op.name
            break
        if optable.family(op.name) == "product":
            if not _uses(rec, op, keys):
                return None
            last = j
            continue
        soft = soft or "softmax" in op.name or optable.short(op.name) in ("exp", "exp_")
        why = why or _stays(rec, op, keys)
        region.append(j)
        more = {k for s in op.outs for k in s.keys} | op.writes
        for k in more - keys:
            for n in rec.touched[k]:
                if n > j:
                    heapq.heappush(ahead, n)
        keys |= more
    if last < 0 or not soft:
        return None
    if keys & rec.returned:
        why = why or "its probabilities are returned as well"
    elif keys & rec.kept:
        why = why or "the code keeps its probabilities after the step"
    if why:
        raise NotOne(why)
    return _chain(rec, first, last, region, keys)


def _uses(rec: Recording, op: Op, keys: Set[int]) -> bool:
    """The op multiplies the probabilities by values that follow from the input."""
    if optable.short(op.name) not in _USES or len(op.outs) != 1 or op.writes or len(op.args) != 2:
        return False
    left, right = rec.slots[op.args[0].slot], rec.slots[op.args[1].slot]
    return set(left.keys) <= keys and not set(right.keys) & keys and right.index in op.live and right.stride is not None


def _stays(rec: Recording, op: Op, keys: Set[int]) -> str:
    """Why an op between the products cannot be left out; empty if it can."""
    if op.is_random:
        return "%s draws random numbers" % op.name
    if op.opaque or not op.outs:
        return "%s gives numbers of the scores to the code" % op.name
    if not op.name.startswith("aten::"):
        return "what %s does is not known" % op.name
    if any(s.stride is None for s in op.ins + op.outs):
        return "%s makes it sparse" % op.name
    if op.writes & rec.written:
        return "%s writes them into a buffer that the code keeps" % op.name
    for s in op.ins:
        if s.index in op.live and not set(s.keys) & keys:
            return "a mask or bias that follows the input (%s)" % op.name
    if any(s.index in op.live and s.made_by < 0 for s in op.ins):
        return "%s reads them past what can be followed" % op.name
    return ""


def _chain(rec: Recording, first: int, last: int, region: List[int], keys: Set[int]) -> Chain:
    chain = Chain(first, last, tuple(region), (), frozenset(keys))
    (q, kt), (p, v) = chain.left(rec), chain.right(rec)
    scores = rec.ops[first].outs[0]
    if p.shape != scores.shape or min(len(s.shape) for s in (q, kt, v)) < 2:
        raise NotOne("its scores change their shape before they are used")
    if len({q.dtype, kt.dtype, v.dtype}) > 1:
        raise NotOne("queries, keys and values differ in dtype")
    held = set(q.keys) | set(kt.keys)
    if any(rec.ops[j].writes & held for j in range(first, last)):
        raise NotOne("queries or keys are written to before the values come in")
    return chain._replace(feeders=_feeders(rec, chain))


def _feeders(rec: Recording, chain: Chain) -> Tuple[int, ...]:
    """The ops that make the constants which the region reads, so far as they are made in the step."""
    inside = {chain.first, *chain.region}
    found: List[int] = []
    seen: Set[int] = set()
    back = [-j for j in inside]  # the latest first; of all before it only what made or wrote what is read
    heapq.heapify(back)
    while back:
        j = -heapq.heappop(back)
        if j in seen:
            continue
        seen.add(j)
        op = rec.ops[j]
        if j not in inside:
            if op.live or op.is_random or op.opaque or not op.name.startswith("aten::"):
                raise NotOne("a mask or bias that does not follow from constants alone (%s)" % op.name)
            found.append(j)
        for s in _read(rec, j, chain.first):
            if s.made_by in inside:
                continue
            if set(s.keys) & rec.written:
                raise NotOne("the step writes into its mask or bias")
            if s.made_by < 0 and s.tensor is None:
                raise NotOne("a mask or bias of unknown origin")
            made = [n for k in s.keys for n in rec.touched[k] if n < j and rec.ops[n].writes & set(s.keys)]
            for n in [s.made_by, *made]:
                if 0 <= n < j:
                    heapq.heappush(back, -n)
    return tuple(reversed(found))


def _read(rec: Recording, j: int, first: int) -> List[Slot]:
    """The operands whose numbers an op of a chain needs; queries and keys apart."""
    op = rec.ops[j]
    if j == first:
        has_acc = _MAKES[optable.short(op.name)] == 1 and bool(op.kwargs.get("beta", 1))
        return [rec.slots[op.args[0].slot]] if has_acc else []
    return [] if op.of_form else op.ins


def softmax_of(rec: Recording, chain: Chain) -> Softmax:
    """What the region computes, found out by running it on scores of our own.

    Of ``P = softmax(a S + B)`` the bias shows where the scores are zero, ``B = log P(0)`` up to a number for each row, which
    changes nothing; and the scale in how ``log P - B`` follows random scores. Whether that is all that the region does is
    then seen on other random scores. :class:`NotOne` where it is not, or where nothing is hidden.
    """
    scores = rec.ops[chain.first].outs[0]
    if not 0 < math.prod(scores.shape) <= _MOST:
        raise NotOne("its scores have %d entries" % math.prod(scores.shape))
    run = _Region(rec, chain, scores)
    plain = run(run.zeros(), wide=False)
    if not bool(torch.isfinite(plain).all()):
        raise NotOne("equal scores give no finite probabilities: a row may be wholly masked")
    if not bool((plain == 0).any()):
        raise NotOne("nothing is masked")
    base = run.widely(run.zeros()) if math.prod(scores.shape) <= _WIDEST else None
    wide = base is not None
    bias = _log(plain if base is None else base)
    scale = _scale(run, bias, wide, 1.0)
    scale = _scale(run, bias, wide, _SPREAD / abs(scale))
    drawn = run.draw(2, _SPREAD / abs(scale))
    rough = TOLERANCE.get(_name(plain.dtype), 1e-3)
    for in_float64, tol in ((True, _EXACT), (False, rough)) if wide else ((False, rough),):
        off = _off(run(drawn, in_float64), drawn, bias, scale)
        if not off <= tol:
            raise NotOne("what is done to its scores is no softmax of them: it is off by %.2g" % off)
    return Softmax(scale, _grouped(bias))


def _parts(*ts: torch.Tensor) -> Iterator[Tuple[torch.Tensor, ...]]:
    """Tensors of one shape some rows at a time, so that what is computed of them in float64 takes little memory."""
    wide = ts[0].shape[-1]
    rows = [t.reshape(-1, wide) for t in ts]
    step = max(1, _PART // wide)
    for at in range(0, rows[0].shape[0], step):
        yield tuple(r[at : at + step].to(torch.float64) for r in rows)


def _log(p: torch.Tensor) -> torch.Tensor:
    """Logarithms, the largest of each row 0."""
    logs = torch.cat([part.log() for (part,) in _parts(p)]).view(p.shape)
    return logs.sub_(logs.amax(-1, keepdim=True)).to(torch.promote_types(p.dtype, torch.float32))


def _scale(run: _Region, bias: torch.Tensor, wide: bool, spread: float) -> float:
    """The slope of ``log P - B`` over the scores, each row taken from its mean, by least squares over what is not hidden."""
    drawn = run.draw(1, spread)
    over = up = 0.0
    for p, s, b in _parts(run(drawn, wide), drawn, bias):
        rest = p.log() - b
        seen = torch.isfinite(rest)
        count = seen.sum(-1, keepdim=True).clamp_(min=1)
        x, y = torch.where(seen, s, 0.0), torch.where(seen, rest, 0.0)
        x = torch.where(seen, x - x.sum(-1, keepdim=True) / count, 0.0)
        over, up = over + float((x * x).sum()), up + float((x * y).sum())
    scale = up / over if over > 0 else 0.0
    if not abs(scale) > 1e-6:
        raise NotOne("its probabilities do not follow its scores")
    return scale


def _off(p: torch.Tensor, scores: torch.Tensor, bias: torch.Tensor, scale: float) -> float:
    """The largest difference between probabilities and ``softmax(scale * scores + bias)``; NaN counts as one."""
    worst = 0.0
    for got, s, b in _parts(p, scores, bias):
        off = float((got - torch.softmax(b + scale * s, -1)).abs().max())
        worst = max(worst, off) if off == off else math.inf
    return worst


class _Region:
    """The region as a function of the scores."""

    def __init__(self, rec: Recording, chain: Chain, scores: Slot) -> None:
        self._rec, self._scores = rec, scores
        self._ops = sorted((*chain.feeders, *chain.region))
        self._result = chain.right(rec)[0].index
        first = rec.ops[chain.first]
        self._acc: Optional[Slot] = None
        self._beta = self._alpha = 1.0
        if _MAKES[optable.short(first.name)] == 1:
            self._beta, self._alpha = float(first.kwargs.get("beta", 1)), float(first.kwargs.get("alpha", 1))
            self._acc = rec.slots[first.args[0].slot] if self._beta else None

    def __call__(self, scores: torch.Tensor, wide: bool) -> torch.Tensor:
        """Probabilities, in the shape of the scores."""
        s = self._scores
        with torch.no_grad():
            given = scores.to(torch.float64) if wide else scores
            env = replay(self._rec, [j for j in self._ops if j < s.made_by], {}, wide)
            if self._alpha != 1.0:
                given = self._alpha * given
            if self._acc is not None:
                acc = env.get(self._acc.index, self._acc.tensor)
                assert acc is not None
                given = given + self._beta * acc
            laid = torch.empty_strided(s.shape, s.stride or (), dtype=given.dtype, device=s.device)
            env[s.index] = laid.copy_(given)
            env = replay(self._rec, [j for j in self._ops if j > s.made_by], env, wide)
        return env[self._result].detach()

    def widely(self, scores: torch.Tensor) -> Optional[torch.Tensor]:
        """In float64, or None where an op of the region does not take it."""
        try:
            return self(scores, wide=True)
        except (RuntimeError, TypeError):
            return None

    def zeros(self) -> torch.Tensor:
        return torch.zeros(self._scores.shape, dtype=self._scores.dtype, device=self._scores.device)

    def draw(self, seed: int, spread: float) -> torch.Tensor:
        """Random scores, from a generator of their own."""
        g = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self._scores.shape, generator=g, dtype=torch.float32) * spread
        return drawn.to(device=self._scores.device, dtype=self._scores.dtype)


def _grouped(bias: torch.Tensor) -> torch.Tensor:
    """The bias without repetitions over the batch: of all heads, or of all heads of one request, or of one head in all."""
    batch, last = bias.shape[:-2], bias.shape[-2:]
    n = math.prod(batch)
    flat = bias.reshape(n, *last)
    if bool((flat == flat[:1]).all()):
        return flat[0]
    sizes = [int(batch[1])] if len(batch) == 2 else [d for d in range(n - 1, 1, -1) if n % d == 0]
    for size in sizes:
        split = flat.view(n // size, size, *last)
        for one in (split[:, :1], split[:1]):
            if bool((split == one).all()):
                return one
    return bias if len(batch) == 2 else flat[:, None]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def key(rec: Recording, chain: Chain, constants: List[torch.Tensor]) -> Tuple[object, ...]:
    """Equal for chains that compute the same of their scores: the same ops wired alike over equal constants. ``constants`` takes
    one of each, to compare others with."""
    numbers: Dict[int, object] = {}

    def told(obj: object) -> object:
        if isinstance(obj, Leaf):
            s = rec.slots[obj.slot]
            if s.index not in numbers:
                numbers[s.index] = ("made", len(numbers))
                if s.number is not None:
                    numbers[s.index] = ("number", s.number)
                elif s.tensor is not None:
                    numbers[s.index] = ("constant", _which(s.tensor, constants))
            return numbers[s.index]
        if isinstance(obj, (list, tuple)):
            return tuple(told(o) for o in obj)
        if isinstance(obj, dict):
            return tuple((k, told(v)) for k, v in sorted(obj.items()))
        return (type(obj).__name__, str(obj))

    ops = sorted((*chain.feeders, chain.first, *chain.region))
    (q, kt), made = chain.left(rec), rec.ops[chain.first].outs[0]
    numbers.update({q.index: "queries", kt.index: "keys"})
    form = (made.shape, made.stride, made.dtype, q.dtype)
    return (form, *((rec.ops[j].func, told(rec.ops[j].args), told(rec.ops[j].kwargs)) for j in ops))


def _which(t: torch.Tensor, among: List[torch.Tensor]) -> int:
    for i, other in enumerate(among):
        if other is t or (
            (other.shape, other.dtype, other.stride(), other.device) == (t.shape, t.dtype, t.stride(), t.device)
            and bool(torch.equal(other, t))
        ):
            return i
    among.append(t)
    return len(among) - 1
