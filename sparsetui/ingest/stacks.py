"""Stacks that a sampler or tracer wrote: collapsed text, speedscope files, Chrome events. Time by path, with callers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sparsetui.evidence.kernels import SPARSE, Catalogue
from sparsetui.evidence.records import Missing, Number, PathShare, TimeTable, Unanswered, unavailable
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.traces.events import Event, Reading, read
from sparsetui.ingest.traces.nest import nest
from sparsetui.ingest.traces.source import Progress, Source

MAX_SPEEDSCOPE = 512 << 20  # such a file is one JSON value and has to be held whole
_LONGEST_LINE = 1 << 20
_DEEPEST = 4096
_KEPT = 200

_FRAME = re.compile(r"^(?P<symbol>.*\S)\s+\((?P<where>[^()]*)\)$", re.S)
_SOURCE = re.compile(r"\.pyx?(:\d+)?$|^<(string|stdin|frozen .*|ipython.*)>(:\d+)?$")
_ROOT = re.compile(r"^(thread \(?0x[0-9a-fA-F]+|thread \d+|process \d+|tid[ :]\d+)")
_PERF_MARK = re.compile(r"_\[[kji]\]$")
_COUNT = re.compile(r"^(?P<stack>.*\S)[ \t]+(?P<count>\d{1,18}(?:\.\d{1,9})?)$", re.S)
_FRAMEWORK = re.compile(r"(^|/)(site-packages/)?torch/|(^|/)threading\.py|^<frozen|<string>|importlib")
# A frame above the leaf that says for what the leaf was working: its own path is then only how.
_MEANS = frozenset({"elementwise", "copy", "alloc", "other", "unknown"})


@dataclass(frozen=True)
class Frame:
    """One frame: a Python function (``python``), or a native symbol in a ``module``."""

    symbol: str
    module: str = ""
    python: bool = False
    root: bool = False  # not a call: the thread or process the stack belongs to

    def __str__(self) -> str:
        return f"{self.module} {self.symbol}" if self.python and self.module else self.symbol


def frame(text: str) -> Frame:
    """A frame as samplers write it: ``func (file.py:12)``, ``symbol (libx.so)``, ``symbol_[k]`` or just a name."""
    text = text.strip()[:4096]
    if _ROOT.match(text):
        return Frame(text, root=True)
    m = _FRAME.match(text)
    if m is None:
        return Frame(_PERF_MARK.sub("", text))
    where = m["where"]
    return Frame(m["symbol"], where, python=bool(_SOURCE.search(where)))


@dataclass
class _Tally:
    """Weights by path, symbol, caller and thread while stacks go by."""

    catalogue: Catalogue
    total: float = 0.0
    samples: int = 0
    paths: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, dict[str, float]] = field(default_factory=dict)
    callers: dict[str, dict[str, float]] = field(default_factory=dict)
    lanes: dict[str, set[str]] = field(default_factory=dict)
    threads: dict[str, dict[str, float]] = field(default_factory=dict)
    products: dict[str, float] = field(default_factory=dict)
    _frames: dict[str, Frame] = field(default_factory=dict)

    def frame(self, text: str) -> Frame:
        known = self._frames.get(text)
        if known is None:
            if len(self._frames) > 200_000:
                self._frames.clear()
            known = self._frames[text] = frame(text)
        return known

    def add(self, stack: list[Frame], weight: float, thread: str = "", samples: int = 1) -> None:
        """``stack`` from the outermost call to the innermost."""
        calls = [f for f in stack[-_DEEPEST:] if not f.root]
        if not calls or weight <= 0:
            return
        roots = [f.symbol for f in stack[:8] if f.root]
        thread = thread or " ".join(roots)
        path = self._path(calls)
        self.total += weight
        self.samples += samples
        self.paths[path] = self.paths.get(path, 0.0) + weight
        self.counts[path] = self.counts.get(path, 0) + samples
        _more(self.symbols.setdefault(path, {}), calls[-1].symbol, weight)
        caller = _caller(calls)
        if caller:
            _more(self.callers.setdefault(path, {}), caller, weight)
        self.lanes.setdefault(path, set()).add(thread)
        if len(self.threads) < 10_000 or thread in self.threads:
            _more(self.threads.setdefault(thread, {}), path, weight)

    def _path(self, calls: list[Frame]) -> str:
        leaf = calls[-1]
        if leaf.python:
            return "python"
        path = self.catalogue.classify(leaf.symbol, leaf.module).path
        if path in _MEANS:
            for above in reversed(calls[:-1]):
                if above.python:
                    break
                found = self.catalogue.classify(above.symbol, above.module).path
                if found == "conversion" or (found == "sort" and path != "other"):
                    return found
        return path


def _more(sums: dict[str, float], key: str, weight: float) -> None:
    if key in sums or len(sums) < 20_000:
        sums[key] = sums.get(key, 0.0) + weight


def _caller(calls: list[Frame]) -> str:
    """The innermost Python frame that is not the framework's own, as ``file.py:12 function``."""
    python = [f for f in calls if f.python]
    for f in reversed(python):
        if not _FRAMEWORK.search(f.module):
            return str(f)
    return str(python[-1]) if python else ""


def inspect(path: Path, *, catalogue: Catalogue | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Everything a file of stacks tells, JSON-able (records included).

    Raises :class:`IngestError` when no stack could be read from it.
    """
    tally = _Tally(catalogue or Catalogue.load())
    head = next(iter(Source(path).chunks()), b"").lstrip()
    if head[:1] == b"{" and b'"traceEvents"' not in head[: 1 << 20]:
        about = _speedscope(path, tally, progress)
    elif head[:1] in b"{[" and head:
        about = _chrome(path, tally, progress)
    else:
        about = _collapsed(path, tally, progress)
    return _payload(path, tally, about)


# ── collapsed text ───────────────────────────────────────────────────────────────────────────────────────────────────


def _collapsed(path: Path, tally: _Tally, progress: Progress | None) -> dict[str, Any]:
    source = Source(path, progress)
    good, bad, first_bad, whole = 0, 0, None, True
    for number, raw in enumerate(_lines(source), 1):
        text = raw.decode("utf-8", "replace").strip()
        if not text or text.startswith("#"):
            continue
        m = _COUNT.match(text)
        if m is None:
            bad += 1
            first_bad = first_bad or number
            continue
        weight = float(m["count"])
        whole = whole and weight == int(weight)
        stack = [tally.frame(f) for f in m["stack"].split(";") if f.strip()]
        tally.add(stack, weight, samples=max(1, int(weight)))
        good += 1
    if not good:
        raise IngestError(f"{path}: line {first_bad or 1}: no stack; accepted are lines of frame;frame;frame COUNT")
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


# ── speedscope ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _speedscope(path: Path, tally: _Tally, progress: Progress | None) -> dict[str, Any]:
    document = _whole(path, progress)
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


def _whole(path: Path, progress: Progress | None) -> dict[str, Any]:
    source = Source(path, progress)
    parts, size = [], 0
    for chunk in source.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_SPEEDSCOPE:
            raise IngestError(f"{path}: a speedscope file above {MAX_SPEEDSCOPE >> 20} MiB is not accepted")
    text = b"".join(parts).decode("utf-8", "replace")
    try:
        document = json.loads(text, strict=False, parse_int=lambda d: int(d) if len(d) < 300 else math.inf)
    except json.JSONDecodeError as e:
        cut = f"; {source.cut}" if source.cut else ""
        raise IngestError(
            f"{path}: line {e.lineno}: not whole JSON ({e.msg}{cut}); a complete speedscope file is accepted"
        ) from None
    except RecursionError:
        raise IngestError(f"{path}: nested too deeply; a speedscope file is accepted") from None
    if not isinstance(document, dict):
        raise IngestError(f"{path}: not a JSON object; a speedscope file is accepted")
    return document


def _speedscope_frame(raw: Any) -> Frame:
    if not isinstance(raw, dict):
        return Frame("")
    name, file, line = str(raw.get("name", "")), raw.get("file"), raw.get("line")
    if not isinstance(file, str) or not file:
        return frame(name)
    python = bool(_SOURCE.search(file))
    return Frame(name[:4096], f"{file}:{line}" if python and isinstance(line, int) else file, python=python)


def _sampled(profile: dict[str, Any], frames: list[Frame], tally: _Tally, thread: str) -> int:
    samples, weights = profile.get("samples"), profile.get("weights")
    if not isinstance(samples, list):
        return 1
    skipped = 0
    for i, sample in enumerate(samples):
        weight = weights[i] if isinstance(weights, list) and i < len(weights) else 1.0
        if not isinstance(sample, list) or not _finite(weight):
            skipped += 1
            continue
        stack = [frames[n] for n in sample if isinstance(n, int) and 0 <= n < len(frames)]
        tally.add(stack, float(weight), thread)
    return skipped


def _evented(profile: dict[str, Any], frames: list[Frame], tally: _Tally, thread: str) -> int:
    events = profile.get("events")
    if not isinstance(events, list):
        return 1
    usable = [
        e for e in events
        if isinstance(e, dict) and _finite(e.get("at")) and isinstance(e.get("frame"), int)
        and 0 <= e["frame"] < len(frames) and e.get("type") in ("O", "C")
    ]  # fmt: skip
    skipped = len(events) - len(usable)
    usable.sort(key=lambda e: float(e["at"]))
    stack: list[int] = []
    last = float(usable[0]["at"]) if usable else 0.0
    for e in usable:
        at = float(e["at"])
        if stack and at > last:
            tally.add([frames[n] for n in stack], at - last, thread)
        last = at
        if e["type"] == "O":
            stack.append(e["frame"])
        elif e["frame"] in stack:  # not always the innermost: closing order is often wrong
            del stack[len(stack) - 1 - stack[::-1].index(e["frame"])]
        else:
            skipped += 1
    return skipped + len(stack)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


# ── Chrome events ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Open:
    name: str
    start: float


def _chrome(path: Path, tally: _Tally, progress: Progress | None) -> dict[str, Any]:
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
            if kept > 4_000_000:
                raise IngestError(f"{path}: more than 4 million stack events; a shorter recording is accepted")
            lanes.setdefault((str(e.pid)[:80], str(e.tid)[:80]), []).append(told)
    unbalanced = 0
    for key, told_events in lanes.items():
        intervals, odd = _intervals(told_events)
        unbalanced += odd
        _fold(intervals, tally, f"{key[0]}/{key[1]}")
    if not kept:
        raise IngestError(f"{path}: no B, E or X events with a time in it; stacks as Chrome events are accepted")
    salvage = None
    if reading.damaged:
        salvage = {"repaired_events": reading.repaired, "lost_events": reading.lost, "cut": reading.cut,
                   "cut_at": {"byte": reading.cut_byte, "line": reading.cut_line} if reading.cut else None,
                   "last_good_event": reading.last_good}  # fmt: skip
    return {"format": "chrome", "events": reading.events, "skipped": skipped, "unbalanced": unbalanced,
            "salvage": salvage, "cut": reading.cut, "unit": "microseconds", "sampled": False}  # fmt: skip


def _timed(e: Event) -> tuple[float, str, str, float] | None:
    if e.ph not in ("X", "B", "E") or not _finite(e.ts):
        return None
    duration = e.tdur if e.dur is None else e.dur
    if e.ph == "X" and (not _finite(duration) or duration < 0):
        return None
    return float(e.ts), str(e.ph), str(e.name if e.name is not None else "")[:4096], float(duration or 0.0)


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
            found = next((i for i in range(len(stack) - 1, -1, -1) if stack[i].name == name or not name), None)
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


def _fold(intervals: list[tuple[str, float, float]], tally: _Tally, thread: str) -> None:
    if not intervals:
        return
    starts = np.array([s for _, s, _ in intervals])
    lengths = np.array([d for _, _, d in intervals])
    nesting = nest(np.zeros(len(intervals), np.int32), starts, lengths, np.arange(len(intervals)))
    frames = [tally.frame(intervals[i][0]) for i in nesting.order.tolist()]
    for i, own in enumerate(nesting.own.tolist()):
        if own <= 0:
            continue
        stack: list[Frame] = []
        at = i
        while at >= 0 and len(stack) < 64:
            stack.append(frames[at])
            at = int(nesting.parent[at])
        tally.add(stack[::-1], own, thread)


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _payload(path: Path, t: _Tally, about: dict[str, Any]) -> dict[str, Any]:
    if t.total <= 0:
        raise IngestError(f"{path}: no stack in it took any time; stacks with a count or a duration are accepted")
    shares = tuple(
        PathShare(
            path=p,
            share=_number(t.paths[p] / t.total, t.counts[p], t.samples, sampled=about["sampled"]),
            symbols=_top(t.symbols.get(p, {}), 5),
            callers=_top(t.callers.get(p, {}), 3),
            threads=len(t.lanes[p]),
        )
        for p in sorted(t.paths, key=lambda p: -t.paths[p])
    )
    rates = _rates(t)
    native = any(p not in ("python", "unknown") for p in t.paths)
    missing = [Missing("layouts", "a stack names functions, not tensor layouts")]
    questions = [
        Unanswered(
            "Which layouts did the operands of the products have?",
            "a stack names functions, not operands",
            "a census of the live model (sparsetui investigate)",
        )
    ]
    if not native:
        missing.append(Missing("kernels", "the stacks hold no native frames that are known"))
        questions.append(
            Unanswered(
                "Which kernels ran?",
                "the stacks hold no native frames that are known",
                "py-spy with --native (sparsetui attach PID)",
            )
        )
    return {
        "kind": "stacks",
        "file": str(path),
        **about,
        "samples": t.samples,
        "total": t.total,
        "time_table": TimeTable(paths=shares, unavailable=tuple(missing)),
        "rates": rates,
        "threads": _threads(t),
        "functions": _functions(t),
        "cannot_answer": questions,
    }


def _rates(t: _Tally) -> dict[str, Number]:
    sparse = sum(v for p, v in t.paths.items() if p in SPARSE)
    dense = t.paths.get("dense", 0.0)
    out = {
        "sparse_rate": unavailable("no stack holds a matrix product"),
        "conversion_rate": Number(t.paths.get("conversion", 0.0) / t.total, n=t.samples),
        "fallback_rate": unavailable(
            "nothing in the stacks is weight-sparse, and which dense products should have been is not recorded"
        ),
    }
    if sparse + dense > 0:
        out["sparse_rate"] = Number(sparse / (sparse + dense), n=t.samples)
    if sparse > 0:
        why = "an upper bound: which dense products were meant to be sparse is not in a stack"
        out["fallback_rate"] = Number(dense / (sparse + dense), n=t.samples, quality="derived", reason=why)
    return out


def _threads(t: _Tally) -> list[dict[str, Any]]:
    busiest = sorted(t.threads.items(), key=lambda kv: -sum(kv[1].values()))[:_KEPT]
    return [
        {
            "thread": name,
            "share": sum(by.values()) / t.total,
            "paths": {p: w / t.total for p, w in sorted(by.items(), key=lambda kv: -kv[1])},
        }
        for name, by in busiest
    ]


def _functions(t: _Tally) -> list[dict[str, Any]]:
    rows = [
        {"name": name, "path": path, "share": weight / t.total}
        for path, by in t.symbols.items()
        for name, weight in by.items()
    ]
    return sorted(rows, key=lambda r: -float(str(r["share"])))[:_KEPT]


def _top(sums: dict[str, float], n: int) -> tuple[str, ...]:
    return tuple(k for k, _ in sorted(sums.items(), key=lambda kv: -kv[1])[:n])


def _number(share: float, count: int, n: int, *, sampled: bool) -> Number:
    """A share with its Wilson interval where samples were counted; a traced duration has none."""
    if not sampled or n <= 0:
        return Number(share, n=count)
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Number(share, ci=(max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share))), n=n)
