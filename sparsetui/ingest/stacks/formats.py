"""Collapsed stacks as text, and speedscope's JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.source import Progress, Source
from sparsetui.ingest.samplers.base import Frame
from sparsetui.ingest.stacks.tally import Root, Tally, located
from sparsetui.ingest.stacks.tally import frame as parse

MAX_WHOLE = 192 << 20  # such a file is one JSON value and has to be held whole, several times over
_LONGEST_LINE = 1 << 20
_DEEPEST = 128  # calls below each other that are looked at in traced stacks: each event asks for them anew
_COUNT = re.compile(r"^(?P<stack>.*\S)[ \t]+(?P<count>\d{1,18}(?:\.\d{1,9})?)$", re.S)
_LETTER = re.compile(r"[^\W\d]")


def collapsed(path: Path, tally: Tally, progress: Progress | None) -> dict[str, Any]:
    """Lines of ``frame;frame;frame COUNT``, outermost first."""
    source = Source(path, progress)
    good, bad, first_bad, whole = 0, 0, None, True
    for number, raw in enumerate(_lines(source), 1):
        text = raw.decode("utf-8", "replace").strip()
        if not text or text.startswith(("#", "//")):
            continue
        m = _COUNT.match(text)
        if m is None or not _LETTER.search(m["stack"]):  # columns of numbers are no stacks
            bad += 1
            first_bad = first_bad or number
            continue
        weight = float(m["count"])
        whole = whole and weight == int(weight)
        stack = [tally.frame(f) for f in m["stack"].split(";") if f.strip()]
        tally.add(stack, weight, samples=max(1, int(weight)))
        good += 1
    if bad > good:
        raise IngestError(
            f"{path}: line {first_bad}: no stack, and so are {bad} of {bad + good} lines; accepted are lines of "
            "frame;frame;frame COUNT"
        )
    return {"format": "collapsed", "lines": good, "bad_lines": bad, "first_bad_line": first_bad, "cut": source.cut,
            "unit": "samples", "sampled": whole}  # fmt: skip


def _lines(source: Source) -> Iterator[bytes]:
    rest = b""
    for chunk in source.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line[:_LONGEST_LINE]
        if len(rest) > _LONGEST_LINE:
            rest = rest[:_LONGEST_LINE]
    if rest:
        yield rest


def speedscope(path: Path, tally: Tally, progress: Progress | None) -> dict[str, Any]:
    document = whole(path, progress, "a complete speedscope file")
    profiles, shared = document.get("profiles"), document.get("shared")
    frames = shared.get("frames") if isinstance(shared, dict) else None
    if not isinstance(profiles, list) or not isinstance(frames, list):
        raise IngestError(f"{path}: no profiles and shared.frames in it; a speedscope file is accepted")
    known = [_speedscope_frame(f) for f in frames]
    skipped, sampled, units = 0, True, set()
    for i, profile in enumerate(profiles):
        if not isinstance(profile, dict):
            skipped += 1
            continue
        units.add(str(profile.get("unit", "none"))[:20])
        thread = str(profile.get("name", f"profile {i + 1}"))[:200]
        if profile.get("type") == "sampled":
            skipped += _sampled(profile, known, tally, thread)
        elif profile.get("type") == "evented":
            sampled = False
            skipped += _evented(profile, known, tally, thread)
        else:
            skipped += 1
    return {"format": "speedscope", "profiles": len(profiles), "skipped": skipped, "cut": None,
            "unit": units.pop() if len(units) == 1 else "mixed", "sampled": sampled}  # fmt: skip


def whole(path: Path, progress: Progress | None, accepted: str) -> dict[str, Any]:
    """A file that is one JSON object. Raises :class:`IngestError` where it is none, is cut off or is too large."""
    source = Source(path, progress)
    parts, size = [], 0
    for chunk in source.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_WHOLE:
            raise IngestError(
                f"{path}: one JSON value above {MAX_WHOLE >> 20} MiB is not accepted; record fewer samples"
            )
    text = b"".join(parts).decode("utf-8", "replace")
    parts.clear()
    try:
        document = json.loads(text, strict=False, parse_int=lambda d: int(d) if len(d) < 300 else math.inf)
    except json.JSONDecodeError as e:
        cut = f"; {source.cut}" if source.cut else ""
        raise IngestError(f"{path}: line {e.lineno}: not whole JSON ({e.msg}{cut}); {accepted} is accepted") from None
    except RecursionError:
        raise IngestError(f"{path}: nested too deeply; {accepted} is accepted") from None
    if not isinstance(document, dict):
        raise IngestError(f"{path}: not a JSON object; {accepted} is accepted")
    return document


def _speedscope_frame(raw: Any) -> Frame | Root:
    if not isinstance(raw, dict):
        return Frame("")
    name, file, line = str(raw.get("name", ""))[:4096], raw.get("file"), raw.get("line")
    if not isinstance(file, str) or not file:
        return parse(name)
    return located(name, file[:4096], line if isinstance(line, int) and 0 < line < 1 << 31 else 0)


def _sampled(profile: dict[str, Any], frames: list[Frame | Root], tally: Tally, thread: str) -> int:
    samples, weights = profile.get("samples"), profile.get("weights")
    if not isinstance(samples, list):
        return 1
    skipped = 0
    for i, sample in enumerate(samples):
        weight = weights[i] if isinstance(weights, list) and i < len(weights) else 1.0
        if not isinstance(sample, list) or not finite(weight):
            skipped += 1
            continue
        stack = [frames[n] for n in sample if isinstance(n, int) and 0 <= n < len(frames)]
        tally.add(stack, float(weight), thread)
    return skipped


def _evented(profile: dict[str, Any], frames: list[Frame | Root], tally: Tally, thread: str) -> int:
    events = profile.get("events")
    if not isinstance(events, list):
        return 1
    usable = [
        e for e in events
        if isinstance(e, dict) and finite(e.get("at")) and isinstance(e.get("frame"), int)
        and 0 <= e["frame"] < len(frames) and e.get("type") in ("O", "C")
    ]  # fmt: skip
    skipped = len(events) - len(usable)
    usable.sort(key=lambda e: float(e["at"]))
    stack: list[int] = []
    last = float(usable[0]["at"]) if usable else 0.0
    for e in usable:
        at = float(e["at"])
        if stack and at > last:
            tally.add([frames[n] for n in stack[-_DEEPEST:]], at - last, thread)
        last = at
        if e["type"] == "O":
            stack.append(e["frame"])
        elif e["frame"] in (
            top := stack[: -_DEEPEST - 1 : -1]
        ):  # not always the innermost: closing order is often wrong
            del stack[len(stack) - 1 - top.index(e["frame"])]
        else:
            skipped += 1
    return skipped + len(stack)


def finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
