"""The memo's end: how it came about, and what it cannot say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sparsetui.report.document import Block, Cell, Code, Heading, Para, Strong, Table
from sparsetui.report.facts import Facts
from sparsetui.report.numbers import as_number

# events that carry the story; the rest (captured output, op tables …) is only counted
TOLD = frozenset(
    {"session", "phase", "evidence", "finding", "result", "owner", "waiver", "signoff", "artifact", "note", "fault"}
    | {"interrupted", "closed", "section", "playbook", "lock", "unanswered"}
)
MAX_TIMELINE = 150
MAX_REASONS = 40


def playbook_section(f: Facts) -> list[Block]:
    book = f.state.playbook or (f.result.playbook if f.result else {})
    if not book:
        return []
    blocks: list[Block] = [Heading("Playbook"), Para((Code(str(book.get("id", ""))), f" {book.get('title', '')}"))]
    rows = tuple(
        tuple(str(step.get(k, "") or "") for k in ("step", "stage", "ask", "found", "next"))
        for step in book.get("trail") or ()
        if isinstance(step, Mapping)
    )
    blocks.append(Table(("step", "stage", "asked", "found", "went to"), rows))
    end = book.get("end")
    if isinstance(end, Mapping):
        name = str(end.get("mechanism") or str(end.get("kind", "")).replace("_", " "))
        settle = f" What would settle it: {end['settle']}" if end.get("settle") else ""
        blocks.append(
            Para((Strong(f"Ends in {name}:"), f" {end.get('say', '')} Owner: {end.get('owner', '')}.{settle}"))
        )
    return blocks


def timeline_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Timeline")]
    told = _told(f.state.timeline)
    rows: list[tuple[Cell, ...]] = list(told)
    if len(told) > MAX_TIMELINE:
        half = MAX_TIMELINE // 2
        gap: tuple[Cell, ...] = ("…", "", f"{len(told) - 2 * half} entries are in the session only")
        rows = [*told[:half], gap, *told[-half:]]
    blocks.append(Table(("time (UTC)", "entry", "what"), tuple(rows)))
    untold = Counter(k for _, k, _ in f.state.timeline if k not in TOLD)
    if untold:
        blocks.append(Para("Also in the ledger: " + ", ".join(f"{n} {k}" for k, n in sorted(untold.items())) + "."))
    if f.state.notes:
        blocks.append(Heading("Notes", 3))
        notes = tuple((str(n.get("time", "")), str(n.get("by", "")), str(n.get("text", ""))) for n in f.state.notes)
        blocks.append(Table(("time (UTC)", "by", "note"), notes))
    return blocks


def _told(timeline: tuple[tuple[str, str, str], ...]) -> list[tuple[str, str, str]]:
    """The entries that carry the story. That a phase started is only told where its end is missing."""
    ended: set[str] = set()
    out: list[tuple[str, str, str]] = []
    for when, kind, line in reversed(timeline):
        name, _, state = line.rpartition(" ")
        if kind == "phase" and state == "started" and name in ended:
            ended.discard(name)
            continue
        if kind == "phase":
            ended.add(name)
        if kind in TOLD:
            out.append((when, kind, line))
    return out[::-1]


def unanswered_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("What could not be answered")]
    questions = f.state.unanswered or (f.result.cannot_answer if f.result else ())
    seen = dict.fromkeys((u.question, u.why, u.settle) for u in questions)
    blocks.append(Table(("question", "why", "what would settle it"), tuple(seen)))
    native = f.state.native or (f.result.native if f.result else None)
    missing: list[tuple[str, str]] = [(m.what, m.why) for m in (native.unavailable if native else ())]
    missing += [(name, reason) for name, reason in _unavailable("", f.metrics)][:MAX_REASONS]
    missing += [(f"{e.id} {e.probe}", e.summary) for e in f.evidence.values() if e.quality == "unavailable"]
    missing += [(str(x.get("what", "")), str(x.get("why", ""))) for x in f.state.faults]
    by_reason: dict[str, list[str]] = {}
    for what, why in missing:
        by_reason.setdefault(why, []).append(what)
    rows = tuple(("; ".join(dict.fromkeys(names)), why) for why, names in by_reason.items())
    blocks.append(Table(("not seen", "why"), rows))
    if not seen and not missing:
        blocks.append(Para("Nothing that was asked."))
    return blocks


def _unavailable(name: str, raw: Any) -> list[tuple[str, str]]:
    if isinstance(raw, Mapping) and "quality" not in raw and "value" not in raw:
        return [r for k, v in raw.items() for r in _unavailable(f"{name} {str(k).replace('_', ' ')}".strip(), v)]
    if isinstance(raw, (str, int, float, list, tuple)) or raw is None:
        return []
    number = as_number(raw)
    return [(name, number.reason or "no reason was given")] if number.value is None else []
