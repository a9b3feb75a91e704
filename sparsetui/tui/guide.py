"""The guide: what state each stage is in, what was found there, and the next best step. Pure reading of a session.

Classification comes before tuning: a fix is offered for a finding, never for a guess, and an intervention only once a
mechanism is suspected.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparsetui.evidence.records import Evidence, Finding, Result
from sparsetui.flow import BY_ID, ORDER, STAGES, Stage
from sparsetui.report.numbers import figure
from sparsetui.runner.api import Live
from sparsetui.session.closure import gates
from sparsetui.session.state import Phase, SessionState

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
    """The next best step. ``do``: wait, stage, intervene, conclude, more, memo, owners."""

    do: str
    target: str
    label: str
    why: str = ""


def phases_of(state: SessionState, stage: str) -> list[Phase]:
    """The passes of a stage that were run, also for another stage; and whatever else of it failed."""
    passes = BY_ID[stage].passes
    return [p for p in state.phases if p.name in passes or (p.stage == stage and p.state == "failed")]


def ran(state: SessionState, stage: str, attempted: Collection[str] = ()) -> bool:
    """Whether a pass of the stage came to an end, well or badly, or the stage was tried in this sitting."""
    return stage in attempted or any(p.state in ("done", "failed") for p in phases_of(state, stage))


def stage_state(state: SessionState, live: Live, stage: str) -> str:
    """One of found, running, done, failed, cancelled, skipped, todo."""
    if live.running and live.stage == stage:
        return "running"
    if any(f.material and f.stage == stage for f in state.findings):
        return "found"
    if stage == "release":
        return "done" if state.closed is not None else "todo"
    last = next(reversed(phases_of(state, stage)), None)
    if last is None:
        return "todo"
    if last.state == "started":
        return "running" if live.running else "cancelled"
    return last.state


def stage_findings(state: SessionState, stage: str) -> tuple[Finding, ...]:
    """The stage's findings, material ones first."""
    mine = [f for f in state.findings if f.stage == stage]
    return tuple(sorted(mine, key=lambda f: not f.material))


def stage_evidence(state: SessionState, stage: str) -> tuple[Evidence, ...]:
    return tuple(e for e in state.evidence if e.stage == stage)


def suspect(state: SessionState, tried: Collection[str]) -> Finding | None:
    """The first material finding, in stage order, that no intervention has tested yet."""
    waiting = [
        f
        for f in state.findings
        if f.material
        and f.confidence != "confirmed"
        and f.intervention is None
        and f.mechanism not in tried
        and can_be_removed(f.mechanism)
    ]
    return min(waiting, key=lambda f: ORDER.get(f.stage, len(ORDER)), default=None)


def can_be_removed(mechanism: str) -> bool:
    """Whether the catalogue knows an intervention for a mechanism."""
    from sparsetui.diagnosis.catalogue import by_id

    try:
        return by_id(mechanism).intervention is not None
    except LookupError:
        return True  # of a newer tool: the runner will say


def next_step(
    state: SessionState,
    live: Live,
    *,
    tried: Collection[str] = (),
    attempted: Collection[str] = (),
    exported: bool = False,
    extended: bool = False,
) -> Step:
    """What someone who never saw the tool should do now.

    ``tried`` are mechanisms whose intervention was run in this sitting, ``attempted`` stages that were, ``extended``
    tells that the budget was extended once already.
    """
    if live.running:
        return Step("wait", "", "wait for the run", "x cancels it and keeps what was measured")
    if state.closed is None:
        for stage in STAGES[:-1]:
            if not ran(state, stage.id, attempted):
                return Step("stage", stage.id, f"run {stage.title}", stage.question)
        if (found := suspect(state, tried)) is not None:
            return Step("intervene", found.mechanism, f"remove {found.mechanism} and measure", "to prove the cause")
    if state.result is None:
        return Step("conclude", "", "reach the verdict", "every stage has been run")
    if state.closed is None and state.result.verdict.status == "cannot_answer" and not extended:
        why = state.unanswered[-1].why if state.unanswered else "the evidence does not decide"
        return Step("more", "execution", "measure longer, with a fresh budget", why)
    if not exported:
        return Step("memo", "", "read and export the memo", "the verdict is in")
    if state.closed is None:
        return Step("owners", "", "name owners and close", "the memo is headed NOT CLOSED until its gates hold")
    return Step("memo", "", "read the memo again", f"closed by {state.closed}")


def verdict_of(state: SessionState, attempted: Collection[str] = ()) -> Result | None:
    """The result, unless stages are being run one by one in this sitting and what they say so far is not the last word."""
    if state.result is None or not attempted or state.result.verdict.status == "fault":
        return state.result
    return state.result if all(ran(state, s.id, attempted) for s in STAGES[:-1]) else None


def to_run(stage: Stage) -> str:
    """The passes of a stage and what they look at, in one line."""
    return "; ".join(f"{name}: {PASS_TELLS.get(name, 'a pass')}" for name in stage.passes)


def found_line(state: SessionState, stage: str) -> tuple[str, str]:
    """``(mark, text)`` of what the stage came to; mark is found, done, failed or todo."""
    findings = stage_findings(state, stage)
    material = [f for f in findings if f.material]
    if stage == "release" and state.result is not None:
        verdict = state.result.verdict
        said = f"{verdict.status.replace('_', ' ')}: {verdict.summary}"
        open_ = [g.gate for g in gates(state) if g.state not in ("passed", "waived")]
        if open_:
            mark = "found" if verdict.status == "fault" else "done"
            return mark, f"{said}. {len(open_)} gates do not hold: {', '.join(open_)}"
        return "done", f"{said}. Every gate holds" + (
            f"; closed by {state.closed}" if state.closed else "; c closes it"
        )
    if material:
        first = material[0]
        more = f" (+{len(material) - 1} more)" if len(material) > 1 else ""
        return "found", f"{first.mechanism} {first.confidence}: {first.summary}{more}"
    last = next(reversed(phases_of(state, stage)), None)
    if last is not None and last.state == "failed":
        why = str(state.faults[-1].get("why", "")) if state.faults else ""
        return "failed", f"{last.name} failed: {last.note or why or 'no reason was recorded'}"
    if findings:
        shown = ", ".join(f.mechanism.split(".", 1)[-1] for f in findings[:3])
        return "done", f"nothing material{' so far; seen' if open_question(state) else '; ruled out'}: {shown}" + (
            " …" if len(findings) > 3 else ""
        )
    evidence = stage_evidence(state, stage)
    if evidence:
        newest = evidence[-1]
        return "done", f"{newest.id} {newest.probe}: {newest.summary or 'recorded'}"
    return ("done", "nothing material") if ran(state, stage) else ("todo", "not run yet")


def open_question(state: SessionState) -> bool:
    """Whether what is not material may still turn out to be: there is no verdict yet, or it cannot tell."""
    return state.result is None or state.result.verdict.status == "cannot_answer"


def closes(finding: Finding) -> str:
    """The share a finding accounts for, or its deciding figure, in words; empty when it has neither."""
    if finding.share_of_regression is not None and finding.share_of_regression.value is not None:
        verb = "closes" if finding.confidence == "confirmed" else "accounts for"
        return f"{verb} {figure(finding.share_of_regression, percent=True, count=False)}"
    if finding.figure is not None and finding.figure.value is not None:
        return figure(finding.figure, count=False)
    return ""
