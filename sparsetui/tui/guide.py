"""The guide: what state each stage is in, what was found there, and the next best step. Pure reading of a session.

Classification comes before tuning: a fix is offered for a finding, never for a guess, and an intervention only once a
mechanism is suspected.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparsetui.evidence.records import Evidence, Finding
from sparsetui.flow import STAGES, Stage
from sparsetui.report.numbers import figure
from sparsetui.runner.api import Live
from sparsetui.session.closure import gates
from sparsetui.session.state import SessionState

# what each pass looks at, in the words of someone who has never seen the tool
PASS_TELLS: dict[str, str] = {
    "lock": "compare the tags both variants run under",
    "inventory": "count zeros, layouts, indices and bytes of every weight",
    "census": "list every op with its layouts and its module",
    "profile": "see the ops nested inside kernels and their times",
    "native": "sample the symbols that really run",
    "clock": "time both variants in turn, with nothing attached",
    "interventions": "remove one suspected mechanism and time again",
    "outputs": "compare outputs with the comparator",
    "quality": "run the quality metric against its gate",
    "gates": "check every condition of closure",
}


@dataclass(frozen=True)
class Step:
    """The next best step. ``do``: wait, stage, intervene, conclude, memo, owners, none."""

    do: str
    target: str
    label: str
    why: str = ""


def ran(state: SessionState, stage: str) -> bool:
    """Whether the stage's passes came to an end, well or badly."""
    return any(p.stage == stage and p.state in ("done", "failed") for p in state.phases)


def stage_state(state: SessionState, live: Live, stage: str) -> str:
    """One of found, running, done, failed, cancelled, skipped, todo."""
    if live.running and live.stage == stage:
        return "running"
    if any(f.material and f.stage == stage for f in state.findings):
        return "found"
    last = next((p for p in reversed(state.phases) if p.stage == stage), None)
    if last is None or last.state == "started":
        if last is not None:
            return "cancelled"
        return "skipped" if state.result is not None else "todo"
    return last.state if last.state in ("done", "failed", "cancelled") else "todo"


def stage_findings(state: SessionState, stage: str) -> tuple[Finding, ...]:
    """The stage's findings, material ones first."""
    mine = [f for f in state.findings if f.stage == stage]
    return tuple(sorted(mine, key=lambda f: not f.material))


def stage_evidence(state: SessionState, stage: str) -> tuple[Evidence, ...]:
    return tuple(e for e in state.evidence if e.stage == stage)


def suspect(state: SessionState, tried: Collection[str]) -> Finding | None:
    """The first material finding, in stage order, that no intervention has tested yet."""
    order = {s.id: i for i, s in enumerate(STAGES)}
    waiting = [
        f
        for f in state.findings
        if f.material and f.confidence != "confirmed" and f.intervention is None and f.mechanism not in tried
    ]
    return min(waiting, key=lambda f: order.get(f.stage, len(order)), default=None)


def next_step(state: SessionState, live: Live, *, tried: Collection[str] = (), exported: bool = False) -> Step:
    """What someone who never saw the tool should do now."""
    if live.running:
        return Step("wait", "", "wait for the run", "x cancels it and keeps what was measured")
    if state.result is None:
        for stage in STAGES[:-1]:
            if not ran(state, stage.id):
                return Step("stage", stage.id, f"run {stage.title}", stage.question)
        if (found := suspect(state, tried)) is not None:
            return Step("intervene", found.mechanism, f"remove {found.mechanism} and measure", "to prove the cause")
        return Step("conclude", "", "reach the verdict", "every stage has been run")
    if not exported:
        return Step("memo", "", "read and export the memo", "the verdict is in")
    if state.closed is None:
        return Step("owners", "", "name owners and close", "the memo is headed NOT CLOSED until its gates hold")
    return Step("memo", "", "read the memo again", f"closed by {state.closed}")


def to_run(stage: Stage) -> str:
    """The passes of a stage and what they look at, in one line."""
    return "; ".join(f"{name}: {PASS_TELLS.get(name, 'a pass')}" for name in stage.passes)


def found_line(state: SessionState, stage: str) -> tuple[str, str]:
    """``(mark, text)`` of what the stage came to; mark is found, done, failed or todo."""
    findings = stage_findings(state, stage)
    material = [f for f in findings if f.material]
    if stage == "release" and state.result is not None:
        open_ = [g.gate for g in gates(state) if g.state not in ("passed", "waived")]
        if open_:
            return "failed", f"{len(open_)} gates do not hold: {', '.join(open_)}"
        return "done", "every gate holds" + (f"; closed by {state.closed}" if state.closed else "; c closes it")
    if material:
        first = material[0]
        more = f" (+{len(material) - 1} more)" if len(material) > 1 else ""
        return "found", f"{first.mechanism} {first.confidence}: {first.summary}{more}"
    failed = [p for p in state.phases if p.stage == stage and p.state == "failed"]
    if failed:
        return "failed", f"{failed[-1].name} failed: {failed[-1].note or 'no reason was recorded'}"
    if findings:
        shown = ", ".join(f.mechanism.split(".", 1)[-1] for f in findings[:3])
        return "done", f"nothing material; ruled out: {shown}{' …' if len(findings) > 3 else ''}"
    evidence = stage_evidence(state, stage)
    if evidence:
        last = evidence[-1]
        return "done", f"{last.id} {last.probe}: {last.summary or 'recorded'}"
    return ("done", "nothing material") if ran(state, stage) else ("todo", "not run yet")


def closes(finding: Finding) -> str:
    """The share a finding accounts for, or its deciding figure, in words; empty when it has neither."""
    if finding.share_of_regression is not None and finding.share_of_regression.value is not None:
        verb = "closes" if finding.confidence == "confirmed" else "accounts for"
        return f"{verb} {figure(finding.share_of_regression, percent=True, count=False)}"
    if finding.figure is not None and finding.figure.value is not None:
        return figure(finding.figure, count=False)
    return ""
