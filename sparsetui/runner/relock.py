"""The intervention of a lock mismatch: the failing variant run again under the comparator's launch environment."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from sparsetui.diagnosis.case import Trial
from sparsetui.diagnosis.stats import ArmRound, Block
from sparsetui.runner import clocking
from sparsetui.worker.faults import WorkerFault

if TYPE_CHECKING:
    from sparsetui.runner.investigation import Investigation

_LAUNCHED = ("threads", "interop_threads", "env.")
NAME = "relock"


def relock(run: Investigation, seconds: float) -> None:
    """Fresh pairs of the failing variant, one under its own launch and one under the comparator's, interleaved.

    Only tags that a launch sets (threads, environment) can be put right this way; for others it says what was not tried.
    """
    key = (NAME, "failing")
    bad = [d.tag for d in run.lock().differs if not d.declared]
    failed = (
        ""
        if bad and all(t.startswith(_LAUNCHED) for t in bad)
        else "these tags are not set by the launch: " + ", ".join(bad)
    )
    arms: list[ArmRound] = []
    check: dict[str, object] = {}
    if not failed:
        try:
            check = _measure(run, seconds, arms)
        except WorkerFault as e:
            failed = e.fault.message
    run.arms[key] = arms
    closed = run._closure(key) if arms else None
    text = failed or "measured"
    if closed is not None and closed.closed_ratio.value is not None:
        text = f"under the comparator's launch the failing step takes {closed.closed_ratio.value:.3f} of its own time"
    payload = {
        "intervention": NAME,
        "mechanism": "ingress.lock-mismatch",
        "check": check,
        "arms": arms,
        "failed": failed,
    }
    made = run.journal.evidence("ingress", "intervention", payload, variant="failing", summary=text,
                                quality="unavailable" if failed else "measured")  # fmt: skip
    run.trials[key] = Trial(NAME, closed, check, (made.id,), failed)


def _measure(run: Investigation, seconds: float, arms: list[ArmRound]) -> dict[str, object]:
    theirs = run.gear.launch("comparator")
    launch = dataclasses.replace(
        theirs, python=run.workload.failing.python, label="failing under the comparator's lock"
    )
    run.gear.server(NAME, run.deadline(), launch)
    end = time.monotonic() + seconds
    with run.journal.phase("ingress", "intervention relock", "the failing variant under the comparator's launch"):
        while len(arms) < 3 or time.monotonic() < end:
            run.check_cancelled()
            own, _ = run.gear.replica("failing", run.deadline())
            under, _ = run.gear.replica("failing", run.deadline(), server=NAME)
            pair = {"failing": own, "comparator": under}
            clocking.settle(pair, 0.5, run.deadline(), run._cancel)
            counts = dict.fromkeys(pair, clocking.steps_for(run.step_ms("failing"), 1))
            taken, _ = clocking.take_round(pair, len(arms), counts, run.deadline, run._cancel, run.journal, cycles=1)
            arms.append(_as_arms(taken.failing, taken.comparator))
            for r in pair.values():
                run.gear.end(r)
            if len(arms) >= 6:
                break
    return {
        "applied": len(arms),
        "equal": True,
        "error": 0.0,
        "notes": ["the code is the same; only its launch differs"],
    }


def _as_arms(own: list[Block], under: list[Block]) -> ArmRound:
    """The failing variant as it is stands for both off and control: no mode is involved, so none has to cancel."""
    return ArmRound(off=own, control=own, intervened=under)
