"""Trials: one intervention against its control arm, inside one process, with its outputs checked first."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sparsetui.diagnosis.case import Trial
from sparsetui.diagnosis.stats import ArmRound, Block, Round
from sparsetui.diagnosis.suspects import Suspect, suspects
from sparsetui.evidence.records import Number
from sparsetui.runner.journal import Journal
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Replica

if TYPE_CHECKING:
    from sparsetui.runner.lab import Lab

_BLOCK_MS = 12.0  # short blocks of all arms see the same neighbours
_CYCLE_MS = 240.0  # what the blocks of a cycle take in all, in as many turns as that allows
_TURNS = 4  # at most
_LEAST, _MOST = 2, 200
LEAST, MOST = 4, 16  # cycles at a time
MOST_IN_ALL = 64
_BY_PAIRS = {"relock", "calm"}  # measured over fresh pairs of processes, not in cycles of arms


def steps_for(step_ms: float) -> int:
    return min(_MOST, max(_LEAST, math.ceil(_BLOCK_MS / max(step_ms, 1e-3))))


def take_cycle(
    replica: Replica,
    intervention: str,
    label: str,
    number: int,
    steps: int,
    step_ms: float,
    deadline_s: Callable[[], float],
    cancel: threading.Event,
    journal: Journal,
) -> ArmRound:
    """One cycle off, control, on, on, control, off. The warm-up of each block lets the arm's twins settle in the caches."""
    names = ("off", f"control:{intervention}", f"on:{intervention}")
    order: tuple[int, ...] = (0, 1, 2, 2, 1, 0) if number % 2 == 0 else (2, 1, 0, 0, 1, 2)
    order = order * max(1, min(_TURNS, round(_CYCLE_MS / (len(order) * max(_BLOCK_MS, steps * step_ms)))))
    args: dict[str, Any] = {"arms": [names[i] for i in order], "count": steps, "warm": 2, "start": number * steps}
    got = replica.call("arms", args, deadline_s=deadline_s(), cancel=cancel)
    arms: list[list[Block]] = [[], [], []]
    for at, (arm, block) in enumerate(zip(order, got["blocks"], strict=True)):
        arms[arm].append(Block(names[arm], label, at, block["times_ms"], block["conditions"]))
        journal.latency(("off", "control", "without")[arm], sorted(block["times_ms"])[len(block["times_ms"]) // 2])
    return ArmRound(off=arms[0], control=arms[1], intervened=arms[2])


def take_interventions(lab: Lab) -> None:
    """Every suspect's intervention, in stage order."""
    found = [s for s in suspects(lab.case()) if s.intervention]
    for i, s in enumerate(found):
        try_out(lab, s, seconds=max(1.0, (lab.left - 1.0) / (len(found) - i)))


def try_out(lab: Lab, s: Suspect, seconds: float) -> None:
    """Check and time the suspect's intervention on the failing variant, and on the comparator where it is there too."""
    name = s.intervention
    if name is None:
        return
    if name == "relock":
        from sparsetui.runner.relock import relock

        relock(lab, seconds)
        return
    if name == "calm":
        from sparsetui.runner.calm import calm

        calm(lab, seconds)
        return
    with lab.journal.phase(s.mechanism.stage, f"intervention {name}", f"{s.mechanism.id} switched off live"):
        for v in s.tried_on:
            if (name, v) not in lab.trials or not lab.trials[(name, v)].valid:
                _try_one(lab, name, v, seconds / len(s.tried_on), s)
            if s.mechanism.fallback and ((name, v) not in lab.trials or not lab.trials[(name, v)].check.get("applied")):
                return  # what it gains in one of two says nothing


def sharpen(lab: Lab, waiting: list[Suspect], keep_s: float) -> None:
    """Spend what is left on the interventions whose gain is not settled yet, in turn."""
    while lab.left > keep_s:
        found = [(s, name, v) for s, name, v in _tried(lab, waiting) if unclear(lab, (name, v))]
        if not found:
            return
        for s, name, v in found:
            if lab.left > keep_s:
                lab.check_cancelled()
                with lab.journal.phase(s.mechanism.stage, f"intervention {name}", f"{s.mechanism.id}: more cycles"):
                    _try_one(lab, name, v, min(3.0, (lab.left - keep_s) / len(found)), s)


def _tried(lab: Lab, waiting: list[Suspect]) -> Iterator[tuple[Suspect, str, str]]:
    """Suspects with a valid trial that may have more cycles, by intervention and variant."""
    for s in waiting:
        for v in s.tried_on:
            name = s.intervention
            if name is None or name in _BY_PAIRS or (name, v) not in lab.trials:
                continue
            if lab.trials[(name, v)].valid and len(lab.arms[(name, v)]) < MOST_IN_ALL:
                yield s, name, v


def _try_one(lab: Lab, name: str, variant: str, seconds: float, s: Suspect) -> None:
    if not lab.ready():
        return
    replica, key = lab.first[variant], (name, variant)
    arms = lab.arms.setdefault(key, [])
    check: dict[str, Any] = {}
    failed = ""
    end = time.monotonic() + seconds
    try:
        args = {"intervention": name, "count": lab.few(lab.budget_s / 60, most=4)}
        check = replica.call("check", args, deadline_s=lab.deadline(), cancel=lab.cancel)
        if check["applied"] and check["equal"]:
            steps = steps_for(lab.step_ms(variant))
            first = len(arms)
            while not _enough(lab, key, first, end):
                lab.check_cancelled()
                arms.append(take_cycle(replica, name, f"{variant}-first", len(arms), steps, lab.step_ms(variant), lab.deadline,
                                       lab.cancel, lab.journal))  # fmt: skip
        else:
            failed = _why_not(check) if not check["applied"] else "it changed the outputs"
    except WorkerFault as e:
        lab.fault(e)
        lab.faults.pop(variant, None)  # the variant itself is well; only its intervened form is not
        failed = e.fault.message
    keep_trial(lab, key, s.mechanism.id, s.mechanism.stage, check, failed)


def _why_not(check: dict[str, Any]) -> str:
    if check.get("why"):
        return str(check["why"])
    notes = [str(n) for n in check.get("notes", ())]
    return "it found nothing to rewrite" + (f": {notes[-1]}" if notes else "")


def _enough(lab: Lab, key: tuple[str, str], first: int, end: float) -> bool:
    """The effect is known well enough, or time is up."""
    done = len(lab.arms[key]) - first
    if done < 2:
        return False
    if lab.left < 0:
        return True
    if done < LEAST:
        return False
    if done >= MOST or time.monotonic() >= end:
        return True
    return not unclear(lab, key)


def unclear(lab: Lab, key: tuple[str, str]) -> bool:
    """More cycles would still sharpen what the intervention gains: it may matter, yet is not known well or strictly enough."""
    closed = lab.closure(key)
    if closed is None or closed.effect.value is None or closed.effect.ci is None:
        return True
    low, high = closed.effect.ci
    half = (high - low) / 2
    if half < 0.004 or high < closed.resolution:
        return False  # whatever it gains is too little to matter
    return half > 0.1 * abs(closed.effect.value) or not closed.closes


def keep_trial(
    lab: Lab,
    key: tuple[str, str],
    mechanism: str,
    stage: str,
    check: dict[str, Any],
    failed: str,
    rounds: Sequence[Round] = (),
) -> None:
    """The trial goes to the session, as evidence of its mechanism's stage. ``rounds`` are pairs that no arm was part of."""
    name, variant = key
    closed = lab.closure(key)
    text, figures = failed or "measured", dict[str, Number]()
    if closed is not None and closed.closed_ratio.value is not None:
        figures = {"closed ratio": closed.closed_ratio, "effect": closed.effect}
        text = f"{name}: the step takes {closed.closed_ratio.value:.3f} of its control's time"
        if check.get("ratio") is not None:
            text = f"{name}: over {check['applied']} pairs of processes the ratio is {check['ratio']:.3f}"
        if "error" in check:
            text += f"; outputs equal to {check['error']:.1e}"
    payload = {"intervention": name, "mechanism": mechanism, "check": check, "arms": lab.arms[key], "failed": failed}
    if rounds:
        payload["rounds"] = list(rounds)
    made = lab.journal.evidence(stage, "intervention", payload, variant=variant, summary=text, figures=figures,
                                quality="unavailable" if failed else "measured")  # fmt: skip
    lab.trials[key] = Trial(name, closed, check, (made.id,), failed)
