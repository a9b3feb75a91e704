"""The memo's second half: what was decided, by whom, against which gates, and how to get back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsetui.evidence.records import Number
from sparsetui.flow import CLOSURE_ARTIFACTS, OWNERS
from sparsetui.report.document import Block, Cell, Heading, Para, Strong, Table
from sparsetui.report.facts import Facts
from sparsetui.report.numbers import as_number, figure, metric
from sparsetui.report.sections import section_blocks
from sparsetui.session.closure import TITLES

RESPONSIBILITY = {
    "ML performance engineer": "mechanism and architecture intent",
    "sparse kernel library owner": "mapping, runtime and execution",
    "runtime systems architect": "correctness, risk and sign-off",
    "production reliability owner": "SLA, guardrails and rollback",
}

# gates that check the result, and so belong into the validation matrix too
VALIDATING = ("reproduced", "stable", "tails", "quality", "replay", "rollback")


def owners_section(f: Facts) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for role in dict.fromkeys([*OWNERS.values(), *f.state.owners]):
        attached = [str(a.get("evidence", "")) for a in f.state.artifacts if a.get("role") == role]
        signed = [
            f"{s.get('who', '')} at {s.get('time', '')}" + (f": {s['note']}" if s.get("note") else "")
            for s in f.state.signoffs
            if s.get("role") == role
        ]
        rows.append(
            (
                role,
                f.state.owners.get(role, "") or "unassigned",
                RESPONSIBILITY.get(role, ""),
                CLOSURE_ARTIFACTS.get(role, ""),
                ", ".join(dict.fromkeys(attached)) or "not attached",
                "; ".join(signed) or "not signed",
            )
        )
    header = ("role", "who", "responsible for", "closure artifact", "attached", "signed off")
    return [Heading("Owners"), Table(header, tuple(rows))]


def validation_section(f: Facts) -> list[Block]:
    """Each check against its own limit; a limit nobody set is said to be missing rather than passed."""
    spec = f.state.spec.get("spec", f.state.spec)
    rows: list[tuple[Cell, ...]] = []
    for q in ("p50", "p95", "p99"):
        limit = _limit(spec, "sla", f"{q}_ms")
        sides = [metric(f.metrics, "latency_ms", side, q) for side in ("failing", "comparator")]
        if limit is None and all(n.value is None for n in sides):
            continue
        figures = [figure(n, unit="ms") for n in sides]
        rows.append((f"latency {q}", *figures, _at_most(limit, "ms"), _held(sides[0], limit)))
    gate = _limit(spec, "quality", "max_drift")
    for name, drift in _drifts(f.metrics.get("quality_drift")):
        rows.append((name, figure(drift), "reference", _at_most(gate, ""), _held(drift, gate)))
    for words, name, key in (("speed-up", "real_speedup", "speedup"), ("sparsity", "nominal_sparsity", "sparsity")):
        claim = _limit(spec, "declared", key)
        if claim is not None:
            got = metric(f.metrics, name)
            share = key == "sparsity"
            text, least = figure(got, percent=share), f"at least {claim:.0%}" if share else f"at least {claim:g}×"
            rows.append((f"declared {words}", text, "", least, _held(got, claim, least=True)))
    rows.extend((f"gate: {g.gate}", "", "", g.why, g.state) for g in f.gates if g.gate in VALIDATING)
    return [Heading("Validation matrix"), Table(("check", "failing", "comparator", "limit", "outcome"), tuple(rows))]


def _drifts(raw: Any) -> list[tuple[str, Number]]:
    """One drift, or one for each metric of the user's evaluation."""
    if isinstance(raw, Mapping) and "value" not in raw and "failing" not in raw and raw:
        return [(f"drift of {str(name).replace('_', ' ')}", as_number(n)) for name, n in raw.items()]
    return [("quality drift", metric({"d": raw}, "d"))]


def _limit(spec: Any, *path: str) -> float | None:
    for key in path:
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return float(spec) if isinstance(spec, (int, float)) and not isinstance(spec, bool) else None


def _at_most(limit: float | None, unit: str) -> str:
    return "none was set" if limit is None else f"at most {limit:g} {unit}".rstrip()


def _held(number: Number, limit: float | None, *, least: bool = False) -> str:
    """``held`` or ``broken`` only where the whole interval is on one side of the limit."""
    if number.value is None:
        return "not measured"
    if limit is None:
        return "no limit"
    low, high = number.ci or (number.value, number.value)
    if least:
        low, high, limit = -high, -low, -limit
    return "held" if high <= limit else "broken" if low > limit else "cannot tell"


def rollback_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Rollback criteria and rehearsal")]
    way = f.verdict.rollback if f.verdict and f.verdict.rollback else ""
    if way:
        blocks.append(Para((Strong("Way back:"), f" {way}")))
    criteria = f.state.sections.get("rollback")
    rehearsal = f.state.sections.get("rehearsal")
    if criteria is None:
        blocks.extend(_criteria(rehearsal))
    else:
        blocks.extend(section_blocks(criteria))
    blocks.append(Heading("Rehearsal", 3))
    if rehearsal is None:
        blocks.append(Para("Not rehearsed."))
    else:
        shown = rehearsal
        if isinstance(rehearsal, Mapping):
            shown = {k: v for k, v in rehearsal.items() if k != "criteria" or criteria is not None}
        blocks.extend(section_blocks(shown))
    return blocks


def _stands(state: str) -> Cell:
    return state if state == "passed" else Strong(state)


def _criteria(rehearsal: Any) -> list[Block]:
    """The criteria that were rehearsed, where no section of their own holds them."""
    criteria = rehearsal.get("criteria") if isinstance(rehearsal, Mapping) else None
    if not criteria:
        return [Para("No criteria were generated: they need a measured noise floor or an SLA.")]
    return section_blocks(list(criteria) if isinstance(criteria, (list, tuple)) else criteria)


def gates_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Gates")]
    if not f.gates:
        blocks.append(Para("No gate has been evaluated."))
        return blocks
    rows = tuple(
        (
            TITLES.get(g.gate, g.gate),
            Strong(g.state) if g.state != "passed" else g.state,
            g.why,
            g.by,
            ", ".join(g.evidence),
        )
        for g in f.gates
    )
    blocks.append(Table(("gate", "state", "why", "waived by", "evidence"), rows))
    waived: Sequence[Mapping[str, Any]] = f.state.waivers
    if waived:
        blocks.append(Para("Waivers, as they were given:"))
        blocks.append(
            Table(
                ("gate", "reason", "by", "time"),
                tuple(tuple(str(w.get(k, "")) for k in ("gate", "why", "by", "time")) for w in waived),
            )
        )
    return blocks


def closed_line(f: Facts) -> Block:
    """The sentence under the title: what stands between this memo and closure."""
    if not f.gates:
        return Para((Strong("Gates:"), " none has been evaluated yet."))
    if f.open_gates:
        names = "; ".join(f"{TITLES.get(g.gate, g.gate)} ({g.state})" for g in f.open_gates)
        return Para((Strong("Gates that do not hold:"), f" {names}."))
    waived = [g for g in f.gates if g.state == "waived"]
    said = f" all {len(f.gates)} hold" + (f", {len(waived)} of them by waiver" if waived else "") + "."
    who = f" Closed by {f.state.closed}." if f.state.closed else ""
    return Para((Strong("Gates:"), said + who))
