"""Request logs: when requests arrived and how large they were, from CSV or JSON lines.

A CSV has a header. The time column is called time, timestamp, arrival, arrival_time, start or ts (in any case; ``_ms`` and ``_us``
endings give the unit) and holds seconds or ISO 8601 times, all of one kind. A size column is optional: size, length, tokens,
contexttokens, prompt_tokens, input_tokens, num_tokens, batch or bytes.
"""

from __future__ import annotations

import csv
import json
import math
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sparsetui.evidence.text import clean

TIMES = ("time", "timestamp", "arrival", "arrival_time", "arrived_at", "start", "start_time", "ts")
SIZES = ("size", "length", "tokens", "contexttokens", "context_tokens", "prompt_tokens", "input_tokens", "num_tokens", "batch",
         "batch_size", "bytes")  # fmt: skip
UNITS = {"_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9, "_s": 1.0, "": 1.0}
MOST_BYTES = 512 << 20
_LONG_FRACTION = re.compile(r"(\.\d{6})\d+")


class RequestLogError(Exception):
    """A log that cannot be replayed; one line that names file, line, column and what is accepted."""


class RequestLog(NamedTuple):
    """``arrivals`` in seconds from the first request, ascending; ``sizes`` of the same length, or ``None``."""

    path: Path
    arrivals: tuple[float, ...]
    sizes: tuple[float, ...] | None
    reordered: int = 0  # requests that stood out of order

    @property
    def span(self) -> float:
        return self.arrivals[-1] if self.arrivals else 0.0

    def faster(self, speed: float) -> RequestLog:
        """The same log played ``speed`` times as fast."""
        return self._replace(arrivals=tuple(a / speed for a in self.arrivals))

    def first(self, seconds: float) -> RequestLog:
        """The requests of the first ``seconds``."""
        n = sum(a <= seconds for a in self.arrivals)
        return self._replace(arrivals=self.arrivals[:n], sizes=self.sizes[:n] if self.sizes else None)

    def windows(self, count: int) -> list[RequestLog]:
        """``count`` windows of equal time, each beginning at 0; empty ones are left out."""
        wide = self.span / count if self.span else 1.0
        cut: list[list[int]] = [[] for _ in range(count)]
        for i, a in enumerate(self.arrivals):
            cut[min(count - 1, int(a / wide))].append(i)
        return [self._replace(arrivals=tuple(self.arrivals[i] - k * wide for i in at),
                              sizes=tuple(self.sizes[i] for i in at) if self.sizes else None)
                for k, at in enumerate(cut) if at]  # fmt: skip


def read_log(path: str | Path) -> RequestLog:
    """The log at ``path``. Raises :class:`RequestLogError`."""
    path = Path(path)
    name = clean(path, 300)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise RequestLogError(f"{name}: not a regular file; a CSV or JSON lines file is accepted")
        if info.st_size > MOST_BYTES:
            raise RequestLogError(f"{name}: {info.st_size >> 20} MiB; logs up to {MOST_BYTES >> 20} MiB are read")
        with path.open(encoding="utf-8-sig", newline="") as f:
            rows = list(_jsonl(f, name) if path.suffix.lower() in (".jsonl", ".ndjson", ".json") else _csv(f, name))
    except OSError as e:
        raise RequestLogError(f"{name}: {e.strerror or e}") from None
    except UnicodeDecodeError as e:
        raise RequestLogError(f"{name}: byte {e.start} is not UTF-8 text; expected CSV or JSON lines") from None
    if not rows:
        raise RequestLogError(
            f"{name}: holds no request; expected a line for each, with {TIMES[0]} and optionally {SIZES[0]}"
        )
    ordered = sorted(rows, key=lambda r: r[0])
    start = ordered[0][0]
    moved = sum(a is not b for a, b in zip(rows, ordered, strict=True))
    sizes = tuple(s for _, s in ordered if s is not None)
    return RequestLog(path, tuple(t - start for t, _ in ordered), sizes if len(sizes) == len(rows) else None, moved)


def _csv(lines: Any, name: str) -> Iterator[tuple[float, float | None]]:
    reader = csv.reader(lines)
    try:
        header = next(reader, None)
        if header is None:
            return
        at, size, unit = _columns([h.strip() for h in header], name, "line 1")
        for row in reader:
            if not row or not any(c.strip() for c in row):
                continue
            place = f"{name}: line {reader.line_num}"
            if len(row) <= max(at, size if size is not None else 0):
                raise RequestLogError(f"{place}: has {len(row)} columns, the header has {len(header)}")
            yield (_time(row[at], unit, f"{place}, column {header[at]}"),
                   None if size is None else _size(row[size], f"{place}, column {header[size]}"))  # fmt: skip
    except csv.Error as e:
        raise RequestLogError(f"{name}: line {reader.line_num}: {clean(e, 120)}") from None


def _jsonl(lines: Any, name: str) -> Iterator[tuple[float, float | None]]:
    keys: tuple[str, str | None, float] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{name}: line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise RequestLogError(f"{place}: is no JSON; expected one object a line") from None
        if not isinstance(row, dict):
            raise RequestLogError(f"{place}: is {type(row).__name__}; expected one object a line")
        if keys is None:
            names = list(row)
            at, size, unit = _columns(names, name, f"line {number}")
            keys = (names[at], names[size] if size is not None else None, unit)
        key, size_key, unit = keys
        if key not in row:
            raise RequestLogError(f"{place}: has no {clean(key, 60)}")
        found = row.get(size_key) if size_key is not None else None
        yield (_time(row[key], unit, f"{place}, key {clean(key, 60)}"),
               None if found is None else _size(found, f"{place}, key {clean(size_key, 60)}"))  # fmt: skip


def _columns(names: list[str], file: str, where: str) -> tuple[int, int | None, float]:
    """Position of the time and the size, and the time's unit in seconds."""
    low = [n.casefold() for n in names]
    for wanted in TIMES:
        for ending, unit in UNITS.items():
            if wanted + ending in low:
                size = next((low.index(s) for s in SIZES if s in low), None)
                return low.index(wanted + ending), size, unit
    held = ", ".join(clean(n, 40) for n in names[:8])
    raise RequestLogError(f"{file}: {where}: no column for the time among {held}; accepted are {', '.join(TIMES)}")


def _time(raw: Any, unit: float, place: str) -> float:
    text = str(raw).strip()
    try:
        value = float(text) * unit
    except ValueError:
        value = _iso(text)
    if not math.isfinite(value) or isinstance(raw, bool):
        raise RequestLogError(f"{place}: {clean(repr(raw), 60)} is no time; accepted are seconds and ISO 8601")
    return value


def _iso(text: str) -> float:
    try:
        moment = datetime.fromisoformat(_LONG_FRACTION.sub(r"\1", text))
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _size(raw: Any, place: str) -> float:
    try:
        value = float(raw)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise RequestLogError(f"{place}: {clean(repr(raw), 60)} is no size; accepted is a number of 0 or more")
    return value
