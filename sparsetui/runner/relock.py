"""The intervention of a lock mismatch: the failing variant run again under the comparator's launch environment."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from sparsetui.diagnosis.stats import ArmRound, Block
from sparsetui.runner import clocking, trials
from sparsetui.worker.faults import WorkerFault

if TYPE_CHECKING:
    from sparsetui.runner.lab import Lab

_LAUNCHED = ("threads", "interop_threads", "env.")
NAME = "relock"


def relock(lab: Lab, seconds: float) -> None:
    """Fresh pairs of the failing variant, one under its own launch and one under the comparator's, interleaved.

    Only tags that a launch sets (threads, environment) can be put right this way; for others it says what was not tried.
    """
    key = (NAME, "failing")
    bad = [d.tag for d in lab.lock().differs if not d.declared]
    failed = (
        ""
        if bad and all(t.startswith(_LAUNCHED) for t in bad)
        else "these tags are not set by the launch: " + ", ".join(bad)
    )
    arms: list[ArmRound] = []
    check: dict[str, Any] = {}
    if not failed:
        try:
            check = _measure(lab, seconds, arms)
        except WorkerFault as e:
            failed = e.fault.message
    lab.arms[key] = arms
    trials.keep_trial(lab, key, "ingress.lock-mismatch", "ingress", check, failed)


def _measure(lab: Lab, seconds: float, arms: list[ArmRound]) -> dict[str, Any]:
    theirs = lab.gear.launch("comparator")
    launch = dataclasses.replace(
        theirs, python=lab.workload.failing.python, label="failing under the comparator's lock"
    )
    lab.gear.server(NAME, lab.deadline(), launch)
    end = time.monotonic() + seconds
    with lab.journal.phase("ingress", "intervention relock", "the failing variant under the comparator's launch"):
        while len(arms) < 3 or time.monotonic() < end:
            lab.check_cancelled()
            own, _ = lab.gear.replica("failing", lab.deadline())
            under, built = lab.gear.replica("failing", lab.deadline(), server=NAME, threads=theirs.threads)
            if built["threads"] != lab.payloads[("build", "comparator")]["threads"]:
                lab.gear.end(own)
                lab.gear.end(under)
                return {
                    "applied": 0,
                    "equal": True,
                    "notes": ["the failing variant sets its own threads, whatever the launch"],
                }
            pair = {"failing": own, "comparator": under}
            clocking.settle(pair, 0.5, lab.deadline(), lab.cancel)
            counts = dict.fromkeys(pair, clocking.steps_for(lab.step_ms("failing"), 1))
            taken, _ = clocking.take_round(pair, len(arms), counts, lab.deadline, lab.cancel, lab.journal)
            arms.append(_as_arms(taken.failing, taken.comparator))
            for r in pair.values():
                lab.gear.end(r)
            if len(arms) >= 6:
                break
    return {
        "applied": len(arms),
        "equal": True,
        "notes": ["the same code, launched otherwise; outputs were not compared"],
    }


def _as_arms(own: list[Block], under: list[Block]) -> ArmRound:
    """The failing variant as it is stands for both off and control: no mode is involved, so none has to cancel."""
    return ArmRound(off=own, control=own, intervened=under)
