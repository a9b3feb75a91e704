"""The events that take time, as columns: a few dozen bytes an event, so that millions fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsetui.ingest.traces.events import Args, Event
from sparsetui.ingest.traces.spill import RECORD, Records, Spill, records

OP, RUNTIME, PYTHON, KERNEL, COPY, MARK, OTHER = range(7)
HOST = (OP, RUNTIME, PYTHON)
DEVICE = (KERNEL, COPY)

_KINDS = {
    "cpu_op": OP, "operator": OP, "cpu_instant_event": OTHER,
    "cuda_runtime": RUNTIME, "runtime": RUNTIME, "cuda_driver": RUNTIME, "privateuse1_runtime": RUNTIME,
    "xpu_runtime": RUNTIME, "mtia_runtime": RUNTIME, "privateuse1_driver": RUNTIME, "glow_runtime": RUNTIME,
    "python_function": PYTHON, "user_annotation": MARK,
    "kernel": KERNEL, "concurrent_kernel": KERNEL,
    "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": COPY, "memset": COPY,
}  # fmt: skip
CATEGORIES = frozenset(_KINDS) | {"ac2g", "async", "fwdbwd", "gpu_user_annotation", "trace", "cuda_sync", "overhead"}

# Products whose operands are worth reading, and the accessor that shows blocks.
_SHAPED = frozenset(
    f"aten::{op}"
    for op in (
        "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "matmul", "linear", "_sparse_mm", "_sparse_addmm",
        "_addmm_activation", "alias",
    )
)  # fmt: skip
WINDOW = 1_500_000  # timed events that are held and looked at together; of larger traces the rest waits on disk
MAX_EVENTS = 150_000_000  # six gigabytes of it
MAX_NAMES = 60_000
_LONGEST_US = (
    1e18  # of a start or a length: 30,000 years, and sums of as many as are kept stay finite; NaN is not below it
)
_FURTHER = "(further names)"
_NO_ARGS = Args()


class _Ids(dict[Any, int]):
    """Numbers for things in order of appearance; beyond ``limit`` of them, the last one stands for all others."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __missing__(self, key: Any) -> int:
        if len(self) >= self.limit:
            return self.limit - 1
        number = self[key] = len(self)
        return number


class _Names(dict[Any, int]):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, name: Any) -> int:
        if len(self.texts) >= MAX_NAMES:
            return self._further()
        self.texts.append(name[:4096] if isinstance(name, str) else str(name)[:200])
        number = self[name] = len(self.texts) - 1
        return number

    def _further(self) -> int:
        number = dict.get(self, _FURTHER)
        if number is None:
            self.texts.append(_FURTHER)
            number = self[_FURTHER] = len(self.texts) - 1
        return number


class _Kinds(dict[Any, int]):
    def __missing__(self, cat: Any) -> int:
        kind = _KINDS.get(cat.lower(), OTHER) if isinstance(cat, str) else (-1 if cat is None else OTHER)
        if kind == OTHER and cat == "":
            kind = -1
        if len(self) < 10_000:
            self[cat] = kind
        return kind


@dataclass
class Columns:
    """Complete events of one trace.

    Arrays of equal length: ``kind`` (int8), ``name`` and ``lane`` (int32: indices into ``names`` and ``lanes``), ``ts``
    and ``dur`` (float64, µs), ``corr`` (int64, 0 for none), ``occupancy`` (float32, NaN for none), ``shape`` (int32 index
    into ``shapes``, -1 for none). A lane is a thread of the host or a stream of a device.
    """

    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    ts: npt.NDArray[np.float64]
    dur: npt.NDArray[np.float64]
    corr: npt.NDArray[np.int64]
    occupancy: npt.NDArray[np.float32]
    shape: npt.NDArray[np.int32]
    names: list[str]
    lanes: list[tuple[str, str]]
    shapes: list[tuple[bytes, bytes]]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass
class Builder:
    """Collects events into :class:`Columns`; what lacks a time or a name is counted, not kept.

    Up to ``window`` events stay in memory. From then on all go to disk, and come back in windows of time.
    """

    window: int = WINDOW
    incomplete: int = 0
    beyond: int = 0
    kept: int = 0
    full: str = ""  # why events were left out, if they were
    _kinds: _Kinds = field(default_factory=_Kinds)
    _names: _Names = field(default_factory=_Names)
    _lanes: _Ids = field(default_factory=lambda: _Ids(1_000_000))
    _shapes: _Ids = field(default_factory=lambda: _Ids(100_000))
    _parts: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    _held: int = 0
    _spill: Spill | None = None

    def add(self, events: Iterable[Event]) -> None:
        timed = [e for e in events if e.ph == "X"]
        if not timed:
            return
        if self.full or self.kept >= MAX_EVENTS:
            self.full = self.full or f"at most {MAX_EVENTS:,} timed events are kept"
            self.beyond += len(timed)
            return
        try:
            self._add(timed)
        except (TypeError, ValueError, OverflowError):
            checked = [c for e in timed if (c := _checked(e)) is not None]
            self.incomplete += len(timed) - len(checked)
            if checked:
                self._add(checked)

    def _add(self, timed: list[Event]) -> None:
        names = [e.name for e in timed]
        kind = _column(map(self._kinds.__getitem__, [e.cat for e in timed]), len(timed), np.int8)
        if (kind == -1).any():
            for i in np.flatnonzero(kind == -1).tolist():
                kind[i] = _guess(timed[i])
        ts, dur = np.array([e.ts for e in timed], np.float64), np.array([e.dur for e in timed], np.float64)
        if None in names or not ((abs(ts) < _LONGEST_US).all() and (dur >= 0).all() and (dur < _LONGEST_US).all()):
            raise ValueError
        keep = kind != OTHER
        lanes = self._numbered([e.pid for e in timed], [e.tid for e in timed])
        name = _column(map(self._names.__getitem__, names), len(timed), np.int32)
        corr = np.zeros(len(timed), np.int64)
        occupancy = np.full(len(timed), np.nan, np.float32)
        shape = np.full(len(timed), -1, np.int32)
        linked = np.flatnonzero((kind == RUNTIME) | (kind == KERNEL) | (kind == COPY))
        if len(linked):
            args = [timed[i].args or _NO_ARGS for i in linked.tolist()]
            corr[linked] = _correlations([a.correlation for a in args])
            occupancy[linked] = _occupancies([a.occupancy for a in args])
        for i in np.flatnonzero((kind == OP) & np.isin(name, self._shaped())).tolist():
            told = timed[i].args
            if told is not None and (dims := bytes(told.dims)):
                shape[i] = self._shapes[dims[:400], bytes(told.strides)[:400]]
        columns: tuple[npt.NDArray[Any], ...] = (kind, name, lanes, ts, dur, corr, occupancy, shape)
        if not keep.all():
            columns = tuple(c[keep] for c in columns)
        self._parts.append(columns)
        self.kept += len(columns[0])
        self._held += len(columns[0])
        if self._held > self.window:
            self._to_disk()

    def _to_disk(self) -> None:
        """Move what is held to disk. Where there is no room for it, it and all that follows is counted as left out."""
        try:
            self._spill = self._spill or Spill(self.window)
            for part in self._parts:
                self._spill.add(records(part))
        except OSError as e:
            self.full = f"no room on disk for more ({e.strerror or e})"
            self.kept -= self._held
            self.beyond += self._held
        self._parts.clear()
        self._held = 0

    def _numbered(self, pids: list[Any], tids: list[Any]) -> npt.NDArray[np.int32]:
        """The lane of each event. Where all are plain numbers, each pair of them is looked up once."""
        try:
            p, t = np.array(pids), np.array(tids)
        except ValueError:  # lists among them
            p = t = np.array("")
        if p.dtype == t.dtype == np.int64 and max(abs(p).max(), abs(t).max()) < 1 << 31:
            key = p << 32 | t & 0xFFFFFFFF
            runs = np.concatenate([[0], np.flatnonzero(key[1:] != key[:-1]) + 1])
            number = {k: self._lanes[pids[i], tids[i]] for k, i in zip(key[runs].tolist(), runs.tolist(), strict=True)}
            lengths = np.diff(np.append(runs, len(key)))
            return np.repeat(np.array([number[k] for k in key[runs].tolist()], np.int32), lengths)
        return _column(map(self._lanes.__getitem__, zip(pids, tids, strict=True)), len(pids), np.int32)

    def _shaped(self) -> list[int]:
        return [number for op in _SHAPED if (number := self._names.get(op)) is not None]

    def windows(self) -> Iterator[Columns]:
        """All that was kept: as one piece, or in windows of time. Names, lanes and shapes are numbered throughout."""
        if self._spill is None:
            types = [RECORD[name] for name in RECORD.names or ()]
            columns: list[npt.NDArray[Any]] = []
            for i, t in enumerate(types):
                columns.append(np.concatenate([p[i] for p in self._parts]) if self._parts else np.zeros(0, t))
            self._parts.clear()
            yield self._columns(columns)
            return
        if self._held:
            self._to_disk()
        try:
            for window, beyond in self._spill.windows(HOST):
                self.beyond += beyond
                yield self._columns(_split(window))
        finally:
            self._spill.close()

    def _columns(self, columns: list[npt.NDArray[Any]]) -> Columns:
        kind, name, lane, ts, dur, corr, occupancy, shape = columns
        lanes = [(_word(p), _word(t)) for p, t in self._lanes]
        return Columns(kind, name, lane, ts, dur, corr, occupancy, shape, self._names.texts, lanes, list(self._shapes))


def _split(window: Records) -> list[npt.NDArray[Any]]:
    return [np.ascontiguousarray(window[name]) for name in RECORD.names or ()]


def _column(values: Iterable[Any], n: int, type_: Any) -> npt.NDArray[Any]:
    return np.fromiter(values, type_, n)


def _word(value: Any) -> str:
    return str(value)[:80]


def _correlations(values: list[Any]) -> npt.NDArray[np.int64]:
    """Correlation numbers; 0 for what is none."""
    try:
        out = np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        out = np.array([v if type(v) is int and 0 < v < 1 << 62 else 0 for v in values], np.int64)
    return np.where((out > 0) & (out < 1 << 62), out, 0)


def _occupancies(values: list[Any]) -> npt.NDArray[np.float32]:
    """Occupancies in percent; NaN for what is none."""
    out = np.array([v if isinstance(v, int | float) and abs(v) < 1e9 else math.nan for v in values], np.float32)
    return np.where((out >= 0) & (out <= 100), out, np.float32(math.nan))


def _checked(e: Event) -> Event | None:
    """The event with its fields in order, or None if it lacks what it takes to be one."""
    ts, dur = _time(e.ts), _time(e.tdur if e.dur is None else e.dur)
    if ts is None or dur is None or dur < 0 or not isinstance(e.name, str):
        return None
    cat = e.cat if isinstance(e.cat, str) else None
    return Event(e.ph, cat, e.name, _plain(e.pid), _plain(e.tid), ts, dur, args=e.args)


def _time(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < _LONGEST_US else None


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else str(value)[:80]


def _guess(e: Event) -> int:
    """The kind of an event without a category, as old profilers wrote them."""
    pid = str(e.pid)
    if pid == "CPU functions":
        return OP
    if pid == "CUDA functions":
        return KERNEL
    name = str(e.name)
    if name.startswith(("aten::", "prim::", "torch::", "autograd::")):
        return OP
    return OTHER
