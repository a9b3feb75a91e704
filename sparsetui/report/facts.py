"""What every report asks of a session first: its verdict, whether its gates hold, what proves a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsetui.evidence.records import Evidence, Finding, Gate, Lock, Number, Result, Verdict
from sparsetui.flow import ORDER
from sparsetui.report.numbers import figure
from sparsetui.session import closure
from sparsetui.session.state import SessionState

NO_PROOF = "no artifact"


@dataclass(frozen=True)
class Facts:
    """A session as the reports see it. Built by :func:`facts_of`; pure."""

    state: SessionState
    gates: tuple[Gate, ...]
    evidence: dict[str, Evidence]

    @property
    def result(self) -> Result | None:
        return self.state.result

    @property
    def verdict(self) -> Verdict | None:
        return self.result.verdict if self.result else None

    @property
    def metrics(self) -> dict[str, Any]:
        """The result's metrics, under those that later passes (a replay, an energy reading) have added since."""
        return {**(self.result.metrics if self.result else {}), **self.state.metrics}

    @property
    def lock(self) -> Lock | None:
        if self.state.lock is not None:
            return self.state.lock
        kept = self.result.lock if self.result else None
        return kept if kept is not None and (kept.tags or kept.differs) else None  # an empty one was never taken

    @property
    def open_gates(self) -> tuple[Gate, ...]:
        return tuple(g for g in self.gates if g.state not in ("passed", "waived"))

    @property
    def material(self) -> tuple[Finding, ...]:
        """Material findings in stage order, that of the verdict first where there is one."""
        found = self.state.material or (self.result.findings if self.result else ())
        first = self.verdict.mechanism if self.verdict else None
        return tuple(sorted(found, key=lambda f: (f.mechanism != first, ORDER.get(f.stage, 99), f.mechanism)))

    @property
    def ruled_out(self) -> tuple[Finding, ...]:
        found = self.state.ruled_out or (self.result.ruled_out if self.result else ())
        return tuple(sorted(found, key=lambda f: (ORDER.get(f.stage, 99), f.mechanism)))

    @property
    def standing(self) -> str:
        """``NOT CLOSED`` unless every gate holds; ``CLOSED`` once somebody closed it."""
        if not self.gates or self.open_gates:
            return "NOT CLOSED"
        return "CLOSED" if self.state.closed is not None else "READY TO CLOSE"

    def proof(self, claim: Finding | Verdict | Gate) -> str:
        """The one artifact that proves ``claim``: its intervention, else the first evidence it names."""
        ids = ((claim.intervention,) if not isinstance(claim, Gate) and claim.intervention else ()) + claim.evidence
        for id_ in ids:
            if id_ in self.evidence:
                return id_
        return ids[0] if ids else NO_PROOF


def facts_of(state: SessionState) -> Facts:
    seen = {e.id: e for e in (state.result.evidence if state.result else ())}
    seen.update((e.id, e) for e in state.evidence)
    return Facts(state=state, gates=gates_of(state), evidence=seen)


def gates_of(state: SessionState) -> tuple[Gate, ...]:
    """The ten gates as they stand now: computed from the evidence, never taken from what was once written."""
    return closure.gates(state)


def share_text(number: Number | None) -> str:
    """A share of the regression as a percentage, or that nothing is known of it."""
    return "" if number is None else figure(number, percent=True)


def deciding_figure(finding: Finding) -> str:
    """What decided a finding: the share of the regression it closes, else its own figure."""
    if finding.share_of_regression is not None and finding.share_of_regression.value is not None:
        return f"{figure(finding.share_of_regression, percent=True)} of the regression"
    if finding.figure is not None:
        return figure(finding.figure)
    return share_text(finding.share_of_regression)
