"""The variants of a decision: failing and comparator as they are, and the fixed one: failing without the proved mechanism."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from sparsetui.runner.lab import Lab
from sparsetui.runner.relock import NAME as RELOCK
from sparsetui.worker.handle import Replica

FIXED = "fixed"


class Fix(NamedTuple):
    """``arm`` is the intervention's arm on the failing variant; a relock has none and runs under the comparator's launch."""

    intervention: str
    arm: str
    evidence: str


def confirmed(lab: Lab) -> Fix | str:
    """The fix that the session's verdict stands on, or why there is none."""
    state = lab.journal.state()
    verdict = state.result.verdict if state.result else None
    if verdict is None:
        return "the session has no verdict yet"
    if verdict.status != "fault":
        return f"the verdict is {verdict.status}"
    proof = next((e for e in state.evidence if e.id == verdict.intervention and e.sha256), None)
    if verdict.confidence != "confirmed" or proof is None or proof.sha256 is None:
        return f"no intervention has confirmed {verdict.mechanism}"
    payload: dict[str, Any] = msgspec.json.decode(lab.journal.writer.read_artifact(proof.sha256))
    name = str(payload["intervention"])
    return Fix(name, "off" if name == RELOCK else f"on:{name}", proof.id)


def replica_of(lab: Lab, name: str, fix: Fix | None) -> tuple[Replica, str, float]:
    """A fresh replica of ``failing``, ``comparator`` or ``fixed``, the arm to run it in, and the seconds its build took."""
    if name != FIXED:
        replica, built = lab.gear.replica(name, lab.deadline())
        return replica, "off", float(built["seconds"])
    assert fix is not None
    server = None
    if fix.intervention == RELOCK:
        import dataclasses

        launch = dataclasses.replace(lab.gear.launch("comparator"), python=lab.workload.failing.python, label=FIXED)
        lab.gear.server(RELOCK, lab.deadline(), launch)
        server = RELOCK
    replica, built = lab.gear.replica("failing", lab.deadline(), server=server)
    return replica, fix.arm, float(built["seconds"])


def candidate(fix: Fix | None, status: str | None) -> str:
    """What would be released: the fixed variant; the failing one where nothing is wrong with it; else the comparator again."""
    return FIXED if fix is not None else "failing" if status == "no_fault" else "comparator"
