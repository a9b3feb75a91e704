"""Walking a playbook: which step comes next, what it wants run, and where the measured facts lead.

Pure: nothing is run here. A live runner asks :func:`next_step`, runs what it wants, takes the facts anew and asks
again; :func:`walk` gives the whole trail that the facts so far allow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from sparsetui.playbook.facts import Fact
from sparsetui.playbook.spec import Condition, End, FactRef, Playbook, PlaybookError, Step, Target


class Visit(msgspec.Struct, frozen=True):
    """One step as it was taken: ``found`` names the deciding condition with its figures."""

    step: str
    stage: str
    ask: str
    run: tuple[str, ...]
    look: str
    found: str
    next: str
    owner: str


class Trail(msgspec.Struct, frozen=True):
    """The steps taken and the finding they end in, as the ledger's ``playbook`` event holds them.

    ``end`` always has an owner.
    """

    id: str
    title: str
    trail: tuple[Visit, ...]
    end: End


class Pending(msgspec.Struct, frozen=True):
    """A step that cannot be decided before ``passes`` have been run."""

    step: Step
    passes: tuple[str, ...]


def walk(playbook: Playbook, facts: Mapping[str, Fact]) -> Trail:
    """Follow ``playbook`` over ``facts`` to its finding. Raises :class:`PlaybookError` where a step leads nowhere."""
    visits: list[Visit] = []
    step = playbook.steps[0]
    while True:
        target, found = decide(step, facts)
        following = target.go or (f"end: {target.end.kind}" if target.end else "")
        visits.append(_visit(step, found, following))
        if target.end is not None:
            return Trail(playbook.id, playbook.title, tuple(visits), target.end)
        step = _follow(playbook, target, {v.step for v in visits})


def next_step(playbook: Playbook, facts: Mapping[str, Fact], done: Collection[str]) -> Pending | None:
    """The first step on the way that still wants a pass run, or ``None`` when the walk is decided.

    A pass in ``done`` is never wanted again, whether it succeeded or not: a failed pass leaves its facts unknown.
    """
    seen: set[str] = set()
    step = playbook.steps[0]
    while True:
        wanted = tuple(p for p in step.run if p not in done)
        if wanted:
            return Pending(step, wanted)
        seen.add(step.id)
        target, _ = decide(step, facts)
        if target.end is not None:
            return None
        step = _follow(playbook, target, seen)


def decide(step: Step, facts: Mapping[str, Fact]) -> tuple[Target, str]:
    """Where ``step`` leads, and why in words with the figures.

    The first branch whose condition holds is taken. Where none holds but one could not be judged, the step's
    ``unknown`` is taken (its ``otherwise`` if it has none); where all are false, ``otherwise``.
    """
    unknown: list[str] = []
    for branch in step.branches:
        truth = holds(branch.when, facts)
        if truth:
            said = describe(branch.when, facts)
            return branch.target, f"{said}: {branch.because}" if branch.because else said
        if truth is None:
            unknown += [f for f in mentioned(branch.when) if facts.get(f) is None]
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        return step.unknown or step.otherwise, f"not measured: {names}"
    return step.otherwise, _none_held(step, facts)


def _none_held(step: Step, facts: Mapping[str, Fact]) -> str:
    """Why no branch was taken. That a mechanism is not material is only counted: it has nothing more to show."""
    measured = [b.when for b in step.branches if not b.when.fact.startswith("mechanism.")]
    cleared = len(step.branches) - len(measured)
    told = [describe(c, facts) for c in measured]
    if cleared:
        told.append(
            "the mechanism asked for is not material" if cleared == 1 else f"none of {cleared} mechanisms is material"
        )
    return "; ".join(told) or "nothing to decide"


def holds(c: Condition, facts: Mapping[str, Fact]) -> bool | None:
    """Three-valued: ``None`` when the facts cannot say. ``all`` with a false part is false whatever is unknown."""
    if c.combine:
        parts = [holds(p, facts) for p in c.parts]
        if c.combine == "not":
            return None if parts[0] is None else not parts[0]
        decisive = c.combine == "any"
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    fact = facts.get(c.fact)
    if c.op in ("known", "unknown"):
        return (fact is not None) == (c.op == "known")
    value = facts.get(c.value.fact) if isinstance(c.value, FactRef) else c.value
    if fact is None or value is None:
        return None
    if isinstance(value, tuple):
        return any(_equal(fact, v) for v in value)
    if c.op == "==":
        return _equal(fact, value)
    return _compare(fact, c.op or "", value)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a is b
    return bool(a == b)


def _compare(a: Any, op: str, b: Any) -> bool | None:
    if any(isinstance(x, (str, bool)) for x in (a, b)):
        return None
    return bool({">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b}[op])


def mentioned(c: Condition) -> list[str]:
    """The facts a condition reads, in order."""
    if c.combine:
        return [f for p in c.parts for f in mentioned(p)]
    return [c.fact, *([c.value.fact] if isinstance(c.value, FactRef) else [])]


def describe(c: Condition, facts: Mapping[str, Fact]) -> str:
    """The condition in words, each fact with its figure: ``latency_ratio.p50 = 5.34 > 1.1``."""
    if c.combine == "not":
        return f"not ({describe(c.parts[0], facts)})"
    if c.combine:
        word = " and " if c.combine == "all" else " or "
        return word.join(f"({describe(p, facts)})" if p.combine else describe(p, facts) for p in c.parts)
    seen = f"{c.fact} = {_shown(facts.get(c.fact))}"
    if c.op in ("known", "unknown"):
        return seen
    word = ", not " if holds(c, facts) is False else " "
    if isinstance(c.value, FactRef):
        return f"{seen}{word}{c.op} {c.value.fact} = {_shown(facts.get(c.value.fact))}"
    if isinstance(c.value, tuple):
        return f"{seen}{word}in {', '.join(_shown(v) for v in c.value)}"
    return seen if c.op == "==" and word == " " else f"{seen}{word}{c.op} {_shown(c.value)}"


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _visit(step: Step, found: str, following: str) -> Visit:
    return Visit(step.id, step.stage, step.ask, step.run, step.look, found, following, step.owner)


def _follow(playbook: Playbook, target: Target, seen: set[str]) -> Step:
    step = playbook.step(target.go)
    if step is None:
        raise PlaybookError(playbook.file, target.line, f"there is no step {target.go!r}")
    if step.id in seen:
        raise PlaybookError(playbook.file, target.line, f"leads back to the step {step.id!r}: a playbook has no cycles")
    return step
