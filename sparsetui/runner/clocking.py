"""The clock pass: rounds of fresh process pairs, interleaved ABBA, never both at once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparsetui.diagnosis import metrics as headline
from sparsetui.diagnosis.stats import Block, Comparison, Round, compare, needs_more, settle_by_calm, trouble
from sparsetui.diagnosis.stats.quantiles import LEAST_FOR_TAIL
from sparsetui.runner.cores import Cores, lone
from sparsetui.runner.journal import Journal
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Replica

if TYPE_CHECKING:
    from sparsetui.runner.lab import Lab

_BLOCK_MS = 12.0  # a block is at least this long; short ones of both variants see the same neighbours
_LEAST, _MOST = 3, 400  # steps a block
_CYCLES = (2, 8)  # ABBA cycles a round, at least and at most: four to sixteen blocks of each variant
_ROUND_S = 0.45  # what a round's cycles may take in all, once there are enough of them
_ORDER = ("failing", "comparator", "comparator", "failing")
TAIL_STEPS = 1100  # a p99 needs a thousand
_FIRST = 2  # rounds before the interventions get their time: one alone says nothing of how processes differ
LEAST_ROUNDS = 4  # below this, replicas say little about each other


@dataclass
class Clock:
    """The rounds of an investigation so far, and what they come to."""

    rounds: list[Round] = field(default_factory=list)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    planned: int | None = None
    lone: bool | None = None  # whether the steps of both are the work of one thread
    cold_ms: dict[str, list[float]] = field(default_factory=dict)  # the very first call of each process
    inputs: int = 1  # distinct inputs that the steps go through in order

    _compared: tuple[Any, Comparison] | None = None

    def comparison(self, threshold: float) -> Comparison:
        """The rounds so far against each other; computed once a round."""
        at = (len(self.rounds), self.planned, threshold)
        if self._compared is None or self._compared[0] != at:
            found = compare(self.rounds, planned=self.planned, threshold=threshold)
            self._compared = (at, settle_by_calm(found, self.rounds, self.inputs, threshold))
        return self._compared[1]

    def enough(self, threshold: float) -> bool:
        """Decided on slower, faster or the same, by enough pairs of processes."""
        c = self.comparison(threshold)
        return len(self.rounds) >= LEAST_ROUNDS and (c.verdict == "same" or not needs_more(c, threshold))


def steps_for(step_ms: float, inputs: int) -> int:
    """Steps a block: long enough to be timed well, whole cycles over the inputs where those are few."""
    count = min(_MOST, max(_LEAST, math.ceil(_BLOCK_MS / max(step_ms, 1e-3))))
    if 1 < inputs <= count:
        count = math.ceil(count / inputs) * inputs
    return count


def settle(
    replicas: Mapping[str, Replica], seconds: float, deadline_s: float, cancel: threading.Event
) -> dict[str, dict[str, Any]]:
    """Warm both side by side until their page faults have settled."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        jobs = {v: pool.submit(r.call, "settle", {"seconds": seconds}, deadline_s=deadline_s, cancel=cancel)
                for v, r in replicas.items()}  # fmt: skip
    return {v: job.result() for v, job in jobs.items()}


def take_round(
    replicas: Mapping[str, Replica],
    number: int,
    steps: Mapping[str, int],
    deadline_s: Callable[[], float],
    cancel: threading.Event,
    journal: Journal,
    *,
    seconds: float = _ROUND_S,
    one_core: bool = False,
) -> tuple[Round, list[dict[str, Any]]]:
    """One round of ABBA blocks over two built, settled replicas, for about ``seconds``. Both see the same inputs in the same
    order; with ``one_core`` they take each cycle on one core."""
    blocks: dict[str, list[Block]] = {"failing": [], "comparator": []}
    conditions: list[dict[str, Any]] = []
    at = {"failing": 0, "comparator": 0}
    flip = number % 2 == 1  # every other round starts with the comparator
    order = [{"failing": "comparator", "comparator": "failing"}[v] if flip else v for v in _ORDER]
    cores = Cores(r.pid for r in replicas.values()) if one_core else None
    began, cycles, cycle = time.monotonic(), _CYCLES[0], 0
    try:
        while cycle < cycles:
            core = _gather(cores, replicas[order[0]], deadline_s, cancel)
            for variant in order:
                args = {"count": steps[variant], "start": at[variant], "warm": 2}
                got = replicas[variant].call("block", args, deadline_s=deadline_s(), cancel=cancel)
                at[variant] += steps[variant]
                told = got["conditions"] if core is None else {**got["conditions"], "core": core}
                blocks[variant].append(Block(variant, f"{variant}-{number}", len(conditions), got["times_ms"], told))
                conditions.append({"round": number, "variant": variant, **told})
                journal.latency(variant, sorted(got["times_ms"])[len(got["times_ms"]) // 2])
            cycle += 1
            if cycle == 1:
                cycles = max(_CYCLES[0], min(_CYCLES[1], round(seconds / (time.monotonic() - began))))
    finally:
        if cores is not None:
            cores.free()
    return Round(blocks["failing"], blocks["comparator"]), conditions


def _gather(
    cores: Cores | None, leader: Replica, deadline_s: Callable[[], float], cancel: threading.Event
) -> int | None:
    """Let the scheduler choose a core for a step or two, then keep both there."""
    if cores is None:
        return None
    cores.free()
    leader.call("block", {"count": 1, "start": 0, "warm": 1}, deadline_s=deadline_s(), cancel=cancel)
    return cores.gather(leader.pid)


def planned_rounds(done: int, seconds_a_round: float, seconds_left: float) -> int:
    """How many rounds the budget will have allowed in all."""
    more = int(seconds_left / max(seconds_a_round, 1e-3))
    return max(LEAST_ROUNDS, min(40, done + more))


class Stopwatch:
    """Mean seconds a round, for ETAs and planning."""

    def __init__(self) -> None:
        self.n, self.total, self._t = 0, 0.0, time.monotonic()

    def lap(self) -> float:
        now = time.monotonic()
        self.total += now - self._t
        self.n += 1
        self._t = now
        return self.total / self.n


def take_clock(lab: Lab, until: float, *, spare: float = 0.0) -> None:
    """Rounds until the pair is decided, or until ``until`` seconds of budget are left.

    ``spare`` seconds more are left once the host is seen to take more from the failing variant: to wait for calm.
    """
    from sparsetui.runner.lab import THRESHOLD

    lab.settle()
    if lab.faults or not lab.ready():
        return
    clock, watch = lab.clock, Stopwatch()
    with lab.journal.phase("execution", "clock", "interleaved latency of fresh process pairs"):
        while not lab.faults:
            lab.check_cancelled()
            before = len(clock.rounds)
            _one_round(lab)
            mean = watch.lap()
            if len(clock.rounds) == before:
                break
            if spare and (seen := trouble(clock.conditions)) is not None and seen.one_sided:
                until, spare = until + spare, 0.0
            clock.planned = planned_rounds(len(clock.rounds), mean, lab.left - until)
            c = clock.comparison(THRESHOLD)
            left = max(0, clock.planned - len(clock.rounds))
            lab.journal.live(ratio=c.ratio, floor=c.floor, progress=1 - left / clock.planned, eta_s=mean * left)
            if _decided(lab) or lab.left - mean < (until if len(clock.rounds) >= _FIRST else 0.0):
                break
    clock.planned = None  # the last look: nothing is held back for further ones
    _keep(lab)


def take_tails(lab: Lab, until: float) -> None:
    """Longer rounds until p99 of both variants has the steps that it needs, or ``until`` seconds of budget are left."""
    clock, watch = lab.clock, Stopwatch()
    if lab.faults or not clock.rounds or _tails_told(clock) or lab.left < until:
        return
    with lab.journal.phase("execution", "tails", "more steps, so that p95 and p99 can be told"):
        while not lab.faults and not _tails_told(clock):
            lab.check_cancelled()
            before = len(clock.rounds)
            _one_round(lab, longer=3)
            mean = watch.lap()
            lab.journal.live(progress=min(1.0, _least_steps(clock) / TAIL_STEPS))
            if len(clock.rounds) == before or lab.left - mean < until:
                break
    _keep(lab)


def _tails_told(clock: Clock) -> bool:
    """Enough steps for a p99, in enough rounds to say that it is not one of them that is slow."""
    return _least_steps(clock) >= TAIL_STEPS and len(clock.rounds) >= LEAST_FOR_TAIL


def _least_steps(clock: Clock) -> int:
    """Timed steps of the variant that has fewer."""
    return min(sum(len(b.times_ms) for r in clock.rounds for b in getattr(r, v)) for v in ("failing", "comparator"))


def _decided(lab: Lab) -> bool:
    """The question is answered: a missing speed-up asks about the ideal, all else about the comparator."""
    from sparsetui.runner.lab import THRESHOLD

    if lab.question == "missing-speedup":
        return len(lab.clock.rounds) >= LEAST_ROUNDS and lab.open_gap != "undecided"
    return lab.clock.enough(THRESHOLD)


def _one_round(lab: Lab, longer: int = 1) -> None:
    """One more round, ``longer`` times as long as usual.

    The first round reuses the first pair, which is built and warm; every later one has a fresh pair.
    """
    number = len(lab.clock.rounds)
    lab.clock.inputs = lab.payloads[("build", "failing")]["inputs"]
    try:
        pair = lab.first
        if number:
            lab.gear.warm(lab.first, lab.deadline())
            pair, _ = lab.gear.pair(lab.deadline())
            for v, warmed in settle(pair, min(1.0, lab.budget_s / 30), lab.deadline(), lab.cancel).items():
                lab.clock.cold_ms.setdefault(v, []).append(float(warmed["cold_ms"]))
        steps = {v: steps_for(lab.step_ms(v), lab.payloads[("build", v)]["inputs"]) for v in pair}
        if lab.clock.lone is None:
            lab.clock.lone = _single_threaded(lab, pair, steps)
        taken, conditions = take_round(pair, number, steps, lab.deadline, lab.cancel, lab.journal,
                                       seconds=longer * _ROUND_S, one_core=lab.clock.lone)  # fmt: skip
        lab.clock.rounds.append(taken)
        lab.clock.conditions += conditions
        if number:
            for r in pair.values():
                lab.gear.end(r)
    except WorkerFault as e:
        lab.fault(e)


def _single_threaded(lab: Lab, pair: Mapping[str, Replica], steps: Mapping[str, int]) -> bool:
    """Whether a block of either variant is the work of one thread, seen while both may run where they like."""
    for v, replica in pair.items():
        args = {"count": steps[v], "start": 0, "warm": 2}
        told = replica.call("block", args, deadline_s=lab.deadline(), cancel=lab.cancel)["conditions"]
        if not lone(told["cpu_s"], told["wall_s"]):
            return False
    return True


def _keep(lab: Lab) -> None:
    """Rounds, host conditions and the comparison go to the session."""
    c = lab.comparison
    if c is None:
        return
    payload = {
        "rounds": lab.clock.rounds,
        "inputs": lab.clock.inputs,
        "conditions": lab.clock.conditions,
        "cold_ms": lab.clock.cold_ms,
        "comparison": c,
    }
    lab.journal.evidence("execution", "clock", payload, summary=f"{c.rounds} rounds of process pairs: {c.reason}",
                         figures={"ratio": c.ratio, "floor": c.floor})  # fmt: skip
    lab.journal.append("metrics", headline.metrics(lab.case(), lab.latency()))
