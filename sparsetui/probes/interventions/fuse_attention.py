"""Masked attention in many ops becomes one: of a product, whatever masks and normalises its scores, and a second product, only
``scaled_dot_product_attention`` runs.

A step is recorded first, for each way that it takes over the inputs. Where a chain of it turns out to be a masked softmax
between two products (:mod:`.chains`), the ops of the chain are answered with tensors that hold nothing, and so are those that
only make its mask; the second product then computes all. Each op is compared with the recorded one before it is answered, so
that a step which takes another way runs as it is.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Dict, Iterator, List, Set, Tuple, Union

import torch

from ..context import Context
from ..mode import Mode
from ..step import stepper
from . import chains
from .attending import attend, blocks_of, faster
from .chains import Chain, NotOne, Softmax
from .engine import Intervention, Prepared
from .plans import FUSE, RUN, SCORES, Plan, Walk
from .recording import Recording, Slot, poison, record

_MOST_RECORDED = 16  # inputs, each of which may take the step another way
_PREPARE_S = 4.0  # after this no further input is recorded
_LOOK_S = 4.0  # that may be spent on what chains compute, whatever it took to record them
_POISONED = 4  # steps in which what is left out holds NaN, so that code which reads it past the dispatcher is found out
_MOST_NOTES = 20


class Fused(Prepared):
    """The plans, and where the running step stands in them."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: List[Plan] = []
        self.walks: List[Walk] = []
        self.steps = 0  # in which something was left out
        self.void = ""  # why no step can be trusted any more

    def begin(self) -> None:
        self.walks = [Walk(p) for p in self.plans if p.stands()]

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(text)

    @contextlib.contextmanager
    def arm(self, active: bool) -> Iterator[Any]:
        self.begin()
        with _Mode(self, active):
            yield self

    def agreed(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> List[Tuple[Walk, Dict[int, torch.Tensor]]]:
        """The plans that this op fits; none where they would not do the same."""
        alone = len(self.walks) == 1
        fit = [(w, got) for w, got in ((w, w.fits(func, args, kwargs, alone)) for w in self.walks) if got is not None]
        return fit if len({w.step.action for w, _ in fit}) == 1 else []

    def depart(self, active: bool) -> None:
        """The step takes a way that was not recorded."""
        owing = active and any(w.owes() for w in self.walks)
        if owing or not any(w.done for w in self.walks):
            self.note("a step took another way than those that were recorded")
        self.walks = []
        if owing:
            self.void = "the step took another way than the recorded one after part of it had been left out"
            raise RuntimeError(self.void)

    def act(self, fit: List[Tuple[Walk, Dict[int, torch.Tensor]]]) -> Any:
        """What is returned in place of an op."""
        walk, got = fit[0]
        step = walk.step
        if step.action == FUSE and step.chain is not None:
            queries, keys = walk.waiting.pop(id(step.chain))
            self.applied += 1
            batch = step.op.outs[0].shape[:-2]
            return attend(
                queries, keys, got[step.chain.values], step.chain.bias, step.chain.scale, batch, step.chain.blocks
            )
        self.skipped += 1
        if step.action == SCORES:
            for w, seen in fit:
                call = w.step.chain
                if call is not None:
                    w.waiting[id(call)] = (seen[call.queries], seen[call.keys])
        results = [got[s.index] if s.index in got else self._nothing(s) for s in step.op.outs]
        return results[0] if step.op.sequence is None else step.op.sequence(results)

    def _nothing(self, s: Slot) -> torch.Tensor:
        t = s.empty()
        if self.steps <= _POISONED:
            poison(t)
        return t


class _Mode(Mode):  # type: ignore[no-untyped-call]
    def __init__(self, live: Fused, active: bool) -> None:
        super().__init__()
        self._live, self._active = live, active

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, live = kwargs or {}, self._live
        live.seen += 1
        if self._active and live.void:
            raise RuntimeError(live.void)
        if not live.walks:
            return func(*args, **kwargs)
        if self._active and live.walks[0].at == 0:
            live.steps += 1
        fit = live.agreed(func, args, kwargs)
        if not fit:
            live.depart(self._active)
            return func(*args, **kwargs)
        try:
            acts = self._active and fit[0][0].step.action != RUN
            out = live.act(fit) if acts else func(*args, **kwargs)
        except Exception:
            live.walks = [w for w, _ in fit if w.raised()]
            raise
        going = [w for w, _ in fit if w.took(out)]
        if going:
            live.walks = going
        else:
            live.depart(self._active)
        return out


def _prepare(ctx: Context) -> Fused:
    fused = Fused()
    if stepper(ctx).grad:
        fused.note(
            "the step computes gradients, and backward needs the probabilities, which a fused attention does not keep"
        )
        return fused
    seen = _Seen(_LOOK_S)
    end = time.perf_counter() + _PREPARE_S
    forms: Set[Any] = set()
    for i in range(min(len(ctx.inputs), _MOST_RECORDED)):
        if i and time.perf_counter() > end:
            fused.note("%d of %d inputs were recorded" % (i, len(ctx.inputs)))
            break
        try:
            plan = _planned(ctx, i, fused, seen)
        except Exception as e:  # the step itself may raise, or use tensors that cannot be followed
            fused.note("the step could not be recorded: %s" % (str(e).splitlines() or [""])[0][:160])
            continue
        form = plan.form()
        if form not in forms:
            forms.add(form)
            fused.plans.append(plan)
    taken = sum(p.chains for p in fused.plans)
    if taken and seen.passed_over:
        fused.reach = taken / (taken + seen.passed_over)
    counts = sorted({(p.chains, p.skipped, len(p.steps)) for p in fused.plans})
    for count, skipped, ops in counts[-3:]:
        if count:
            fused.note("masked attentions in a step: %d; ops left out for them: %d of %d" % (count, skipped, ops))
    if not any(p.chains for p in fused.plans):
        fused.plans = []
    return fused


def _planned(ctx: Context, i: int, fused: Fused, seen: _Seen) -> Plan:
    """What the step over input ``i`` does, and which of its chains can be fused; notes say why others cannot."""
    rec = record(ctx, i)
    found, why = chains.find(rec)
    taken = []
    for chain in found:
        soft = seen.softmax_of(rec, chain)
        if isinstance(soft, Softmax):
            taken.append((chain, soft))
            if soft.blocks is not None:
                fused.note("%s: only the blocks that its mask leaves are made" % chain.place(rec))
            fused.where.add(chain.place(rec))
        else:
            why.append("%s: %s" % (chain.place(rec), soft))
    for text in why:
        fused.note(text)
    return Plan(rec, taken)


class _Seen:
    """What chains compute, found out once for all that do the same, and in no more time than there is."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self.passed_over = 0  # chains that there was no time for
        self._known: Dict[Any, Union[Softmax, str]] = {}
        self._constants: List[torch.Tensor] = []

    @property
    def late(self) -> bool:
        return self._left <= 0

    def softmax_of(self, rec: Recording, chain: Chain) -> Union[Softmax, str]:
        """A text says why it cannot be fused."""
        began = time.perf_counter()
        try:
            return self._found(rec, chain)
        finally:
            self._left -= time.perf_counter() - began

    def _found(self, rec: Recording, chain: Chain) -> Union[Softmax, str]:
        key = chains.key(rec, chain, self._constants)
        if key not in self._known:
            if self.late and self._known:
                self.passed_over += 1
                return "there was no time left to look at it"
            try:
                self._known[key] = self._as_used(rec, chain, chains.softmax_of(rec, chain))
            except NotOne as e:
                self._known[key] = str(e)
            except (RuntimeError, TypeError) as e:  # it does not fit into memory, or an op does not run by itself
                self._known[key] = "its ops could not be run apart: %s" % (str(e).splitlines() or [""])[0][:160]
        return self._known[key]

    def _as_used(self, rec: Recording, chain: Chain, soft: Softmax) -> Softmax:
        """With its bias in the dtype of the queries, and as one tensor for all chains that have the same; with its blocks, where
        they are faster."""
        (q, kt), (_, v) = chain.left(rec), chain.right(rec)
        bias = soft.bias.to(q.dtype).contiguous()
        for other in self._known.values():
            if isinstance(other, Softmax) and other.bias.dtype == bias.dtype and torch.equal(other.bias, bias):
                bias = other.bias
        batch = rec.ops[chain.last].outs[0].shape[:-2]
        blocks = None if self.late else blocks_of(bias)
        if blocks is not None and not faster([s.shape for s in (q, kt, v)], bias, soft.scale, batch, blocks):
            blocks = None
        return soft._replace(bias=bias, blocks=blocks)


INTERVENTION = Intervention("fuse-attention", "masked attention runs as one op", _prepare)
