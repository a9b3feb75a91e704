"""Stacks as Chrome events: calls with a begin and an end, or samples that name their frames."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.reader import Event, Reading, read
from sparsetui.ingest.events.source import Progress
from sparsetui.ingest.samplers.base import Frame
from sparsetui.ingest.stacks.formats import finite, whole
from sparsetui.ingest.stacks.tally import Root, Tally
from sparsetui.ingest.traces.nest import nest

_MOST = 3_000_000  # events of one file
_DEEPEST = 512  # calls below each other that are looked at


@dataclass
class _Open:
    name: str
    start: float


def events(path: Path, tally: Tally, progress: Progress | None) -> dict[str, Any]:
    """A list of events, or an object that holds one; failing those, the samples beside it."""
    reading = Reading(path)
    lanes: dict[tuple[str, str], list[tuple[float, str, str, float]]] = {}
    skipped = kept = 0
    for events in read(path, reading, progress):
        for e in events:
            told = _timed(e)
            if told is None:
                skipped += e.ph in ("X", "B", "E")
                continue
            kept += 1
            if kept > _MOST:
                raise IngestError(
                    f"{path}: more than {_MOST // 1_000_000} million stack events; a shorter recording is accepted"
                )
            lanes.setdefault((str(e.pid)[:80], str(e.tid)[:80]), []).append(told)
    unbalanced = 0
    for key, told_events in lanes.items():
        intervals, odd = _intervals(told_events)
        unbalanced += odd
        _fold(intervals, tally, f"{key[0]}/{key[1]}")
    if not tally.total and not reading.bare_list and (found := _samples(path, tally, progress)):
        return found
    if not kept:
        raise IngestError(
            f"{path}: no B, E or X events with a time in it, and no samples; traces and stacks as Chrome events are accepted"
        )
    salvage = None
    if reading.damaged:
        salvage = {"repaired_events": reading.repaired, "lost_events": reading.lost, "cut": reading.cut,
                   "cut_at": {"byte": reading.cut_byte, "line": reading.cut_line} if reading.cut else None,
                   "last_good_event": reading.last_good}  # fmt: skip
    return {"format": "chrome", "events": reading.events, "skipped": skipped, "unbalanced": unbalanced,
            "salvage": salvage, "cut": reading.cut, "unit": "microseconds", "sampled": False}  # fmt: skip


def _samples(path: Path, tally: Tally, progress: Progress | None) -> dict[str, Any] | None:
    """``samples`` of the trace event format, each naming its innermost frame in ``stackFrames``, or listing its frames."""
    document = whole(path, progress, "a complete trace")
    samples, frames = document.get("samples"), document.get("stackFrames")
    if not isinstance(samples, list):
        return None
    frames = frames if isinstance(frames, dict) else {}
    skipped = 0
    for sample in samples:
        weight = _number(sample.get("weight", 1)) if isinstance(sample, dict) else None
        stack = _chain(sample.get("sf"), frames, tally) if weight is not None else []
        skipped += not stack
        if stack and weight is not None:
            tally.add(stack, weight, f"{str(sample.get('pid', ''))[:80]}/{str(sample.get('tid', ''))[:80]}")
    return {"format": "chrome samples", "events": len(samples), "skipped": skipped, "unbalanced": 0, "salvage": None,
            "cut": None, "unit": "samples", "sampled": True}  # fmt: skip


def _chain(leaf: Any, frames: dict[str, Any], tally: Tally) -> list[Frame | Root]:
    """The frames from the outermost to ``leaf``; a circle of parents ends where it would begin again."""
    if isinstance(leaf, list):
        return [tally.frame(str(name)) for name in leaf[-_DEEPEST:]]
    out: list[Frame | Root] = []
    seen: set[str] = set()
    key = str(leaf)
    while key in frames and key not in seen and len(out) < _DEEPEST:
        seen.add(key)
        frame = frames[key] if isinstance(frames[key], dict) else {}
        out.append(tally.frame(str(frame.get("name", ""))))
        key = str(frame.get("parent"))
    return out[::-1]


def _number(value: Any) -> float | None:
    """A time or weight; some writers put them in quotes."""
    if isinstance(value, str):
        try:
            value = float(value[:40])
        except ValueError:
            return None
    return float(value) if finite(value) else None


def _timed(e: Event) -> tuple[float, str, str, float] | None:
    if e.ph not in ("X", "B", "E") or (start := _number(e.ts)) is None:
        return None
    duration = _number(e.tdur if e.dur is None else e.dur)
    if e.ph == "X" and (duration is None or duration < 0):
        return None
    return start, str(e.ph), sys.intern(str(e.name if e.name is not None else "")[:4096]), duration or 0.0


def _intervals(events: Iterable[tuple[float, str, str, float]]) -> tuple[list[tuple[str, float, float]], int]:
    """(name, start, length) of every call of one thread; ends without a beginning and beginnings without an end count."""
    out: list[tuple[str, float, float]] = []
    stack: list[_Open] = []
    unbalanced, last = 0, 0.0
    for at, kind, name, duration in sorted(events, key=lambda e: e[0]):
        last = max(last, at + duration)
        if kind == "X":
            out.append((name, at, duration))
        elif kind == "B":
            stack.append(_Open(name, at))
        else:
            found = next(
                (
                    i
                    for i in range(len(stack) - 1, max(-1, len(stack) - _DEEPEST), -1)
                    if stack[i].name == name or not name
                ),
                None,
            )
            if found is None:
                unbalanced += 1
                continue
            unbalanced += found != len(stack) - 1
            opened = stack.pop(found)
            out.append((opened.name, opened.start, at - opened.start))
    for opened in stack:
        unbalanced += 1
        out.append((opened.name, opened.start, max(last - opened.start, 0.0)))
    return out, unbalanced


def _fold(intervals: list[tuple[str, float, float]], tally: Tally, thread: str) -> None:
    if not intervals:
        return
    starts = np.array([s for _, s, _ in intervals])
    lengths = np.array([d for _, _, d in intervals])
    nesting = nest(np.zeros(len(intervals), np.int32), starts, lengths, np.arange(len(intervals)))
    frames = [tally.frame(intervals[i][0]) for i in nesting.order.tolist()]
    for i, own in enumerate(nesting.own.tolist()):
        if own <= 0:
            continue
        stack: list[Frame | Root] = []
        at = i
        while at >= 0 and len(stack) < 64:
            stack.append(frames[at])
            at = int(nesting.parent[at])
        tally.add(stack[::-1], own, thread)
