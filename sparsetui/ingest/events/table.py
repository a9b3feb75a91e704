"""Timed events as columns: numbers in place of names, lanes and shapes, so that millions of them fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from sparsetui.ingest.events.reader import Args, Event

OP, RUNTIME, PYTHON, KERNEL, COPY, MARK, OTHER = range(7)
KINDS = {
    "cpu_op": OP, "operator": OP, "cpu_instant_event": OTHER,
    "cuda_runtime": RUNTIME, "runtime": RUNTIME, "cuda_driver": RUNTIME, "privateuse1_runtime": RUNTIME,
    "xpu_runtime": RUNTIME, "mtia_runtime": RUNTIME, "privateuse1_driver": RUNTIME, "glow_runtime": RUNTIME,
    "python_function": PYTHON, "user_annotation": MARK,
    "kernel": KERNEL, "concurrent_kernel": KERNEL,
    "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": COPY, "memset": COPY,
}  # fmt: skip

# Products whose operands are worth reading, and the accessor that shows blocks.
_SHAPED = frozenset(
    f"aten::{op}"
    for op in (
        "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "matmul", "linear", "_sparse_mm", "_sparse_addmm",
        "_addmm_activation", "alias",
    )
)  # fmt: skip
MAX_NAMES = 60_000
_LONGEST_US = (
    1e18  # of a start or a length: 30,000 years, and sums of as many as are kept stay finite; NaN is not below it
)
_LONGEST_SHAPE = 400
_FURTHER = "(further names)"
_NO_ARGS = Args()

Arrays = tuple[npt.NDArray[Any], ...]


class Table(NamedTuple):
    """Timed events, and what their numbers stand for.

    ``columns`` are arrays of equal length: kind (int8), name and lane (int32), ts and dur (float64, µs), corr (int64, 0 for
    none), occupancy (float32, NaN for none), shape (int32, -1 for none). ``names``, ``lanes`` and ``shapes`` are those that
    the tables before this one did not number yet; ``incomplete`` events lack a time or a name and are left out.
    """

    columns: Arrays
    names: Sequence[str]
    lanes: Sequence[tuple[Any, Any]]
    shapes: Sequence[tuple[bytes, bytes]]
    incomplete: int = 0

    def __len__(self) -> int:
        return len(self.columns[0])


_TYPES = (np.int8, np.int32, np.int32, np.float64, np.float64, np.int64, np.float32, np.int32)


class Packed(msgspec.Struct, array_like=True):
    """A table on its way from one process to another, with the count and the last of its events."""

    events: int
    last: str
    columns: list[bytes]
    names: list[str]
    lanes: list[tuple[Any, Any]]
    shapes: list[tuple[bytes, bytes]]
    incomplete: int

    def table(self) -> Table:
        columns = tuple(np.frombuffer(c, t) for c, t in zip(self.columns, _TYPES, strict=True))
        return Table(columns, self.names, self.lanes, self.shapes, self.incomplete)


_PACKED = msgspec.msgpack.Decoder(Packed)


def pack(events: int, last: str, table: Table) -> bytes:
    """Raises OverflowError or ValueError where a thread or process has a number beyond 64 bits."""
    columns = [c.tobytes() for c in table.columns]
    return msgspec.msgpack.encode(
        Packed(events, last, columns, list(table.names), list(table.lanes), list(table.shapes), table.incomplete)
    )


def unpack(text: bytes | memoryview) -> Packed:
    return _PACKED.decode(text)


class Ids(dict[Any, int]):
    """Numbers for things in order of appearance; beyond ``limit`` of them, the last one stands for all others."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.things: list[Any] = []

    def __missing__(self, key: Any) -> int:
        if len(self) >= self.limit:
            return self.limit - 1
        number = self[key] = len(self)
        self.things.append(key)
        return number


class Names(dict[Any, int]):
    """The same for names, as texts; beyond :data:`MAX_NAMES` of them, one more stands for all others."""

    def __init__(self) -> None:
        super().__init__()
        self.things: list[str] = []

    def __missing__(self, name: Any) -> int:
        if not isinstance(name, str):
            raise ValueError("an event without a name")
        if len(self.things) >= MAX_NAMES:
            return self._further()
        self.things.append(name[:4096])
        number = self[name] = len(self.things) - 1
        return number

    def _further(self) -> int:
        number = dict.get(self, _FURTHER)
        if number is None:
            self.things.append(_FURTHER)
            number = self[_FURTHER] = len(self.things) - 1
        return number


class _Kinds(dict[Any, int]):
    def __missing__(self, cat: Any) -> int:
        kind = KINDS.get(cat.lower(), OTHER) if isinstance(cat, str) and cat else -1
        if len(self) < 10_000:
            self[cat] = kind
        return kind


@dataclass
class Tabling:
    """Turns events into tables, one after the other, with numbers that hold throughout."""

    names: Names = field(default_factory=Names)
    lanes: Ids = field(default_factory=lambda: Ids(1_000_000))
    shapes: Ids = field(default_factory=lambda: Ids(100_000))
    _kinds: _Kinds = field(default_factory=_Kinds)

    def table(self, events: Iterable[Event]) -> Table:
        """The timed ones among ``events``."""
        timed = [e for e in events if e.ph == "X"]
        known = len(self.names.things), len(self.lanes.things), len(self.shapes.things)
        incomplete = 0
        try:
            columns = self._columns(timed)
        except (TypeError, ValueError, OverflowError):
            checked = [c for e in timed if (c := _checked(e)) is not None]
            incomplete = len(timed) - len(checked)
            columns = self._columns(checked)
        names, lanes, shapes = (
            self.names.things[known[0] :],
            self.lanes.things[known[1] :],
            self.shapes.things[known[2] :],
        )
        return Table(columns, names, lanes, shapes, incomplete)

    def _columns(self, timed: list[Event]) -> Arrays:
        names = [e.name for e in timed]
        kind = _column(map(self._kinds.__getitem__, [e.cat for e in timed]), len(timed), np.int8)
        if (kind == -1).any():
            for i in np.flatnonzero(kind == -1).tolist():
                kind[i] = _guess(timed[i])
        ts, dur = np.array([e.ts for e in timed], np.float64), np.array([e.dur for e in timed], np.float64)
        if ts.ndim != 1 or dur.ndim != 1:  # lists of equal length in place of numbers
            raise ValueError
        if not ((abs(ts) < _LONGEST_US).all() and (dur >= 0).all() and (dur < _LONGEST_US).all()):
            raise ValueError
        keep = kind != OTHER
        lanes = self._numbered([e.pid for e in timed], [e.tid for e in timed])
        name = _column(map(self.names.__getitem__, names), len(timed), np.int32)
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
            if told is not None and (dims := bytes(told.dims))[:1] == b"[":
                strides = bytes(told.strides)
                if max(len(dims), len(strides)) > _LONGEST_SHAPE:
                    dims, strides = _shortened(dims), _shortened(strides)
                shape[i] = self.shapes[dims, strides]
        columns: Arrays = (kind, name, lanes, ts, dur, corr, occupancy, shape)
        return columns if keep.all() else tuple(c[keep] for c in columns)

    def _numbered(self, pids: list[Any], tids: list[Any]) -> npt.NDArray[np.int32]:
        """The lane of each event. Where all are one, or plain numbers, each pair of them is looked up once."""
        if pids and pids.count(pids[0]) == len(pids) == tids.count(tids[0]):
            return np.full(len(pids), self.lanes[pids[0], tids[0]], np.int32)
        try:
            p, t = np.array(pids), np.array(tids)
        except ValueError:  # lists among them
            p = t = np.array("")
        if len(pids) and p.dtype == t.dtype == np.int64 and max(abs(p).max(), abs(t).max()) < 1 << 31:
            key = p << 32 | t & 0xFFFFFFFF
            runs = np.concatenate([[0], np.flatnonzero(key[1:] != key[:-1]) + 1])
            number = {k: self.lanes[pids[i], tids[i]] for k, i in zip(key[runs].tolist(), runs.tolist(), strict=True)}
            lengths = np.diff(np.append(runs, len(key)))
            return np.repeat(np.array([number[k] for k in key[runs].tolist()], np.int32), lengths)
        return _column(map(self.lanes.__getitem__, zip(pids, tids, strict=True)), len(pids), np.int32)

    def _shaped(self) -> list[int]:
        return [number for op in _SHAPED if (number := self.names.get(op)) is not None]


class Renumbering:
    """Numbers of one :class:`Tabling` in terms of the numbers that hold for the whole file."""

    def __init__(self, names: Names, lanes: Ids, shapes: Ids) -> None:
        self._into: tuple[Names | Ids, ...] = (names, lanes, shapes)
        none = np.zeros(0, np.int32)
        self._maps: list[npt.NDArray[np.int32]] = [none, none, none]

    def columns(self, table: Table) -> Arrays:
        """The columns of the next table, renumbered. Tables have to come in the order in which they were made."""
        for at, (into, new) in enumerate(zip(self._into, (table.names, table.lanes, table.shapes), strict=True)):
            if new:
                numbers = np.array([into[thing] for thing in new], np.int32)
                self._maps[at] = np.concatenate([self._maps[at], numbers])
        kind, name, lane, ts, dur, corr, occupancy, shape = table.columns
        if len(kind):
            name, lane = self._maps[0][name], self._maps[1][lane]
            shape = np.where(shape >= 0, np.append(self._maps[2], np.int32(-1))[shape], np.int32(-1))
        return kind, name, lane, ts, dur, corr, occupancy, shape


def _column(values: Iterable[Any], n: int, type_: Any) -> npt.NDArray[Any]:
    return np.fromiter(values, type_, n)


def _shortened(numbers: bytes) -> bytes:
    """A list of numbers in JSON without its spaces, as far as anybody reads it."""
    return b"".join(numbers[: 16 * _LONGEST_SHAPE].split())[:_LONGEST_SHAPE]


def _correlations(values: list[Any]) -> npt.NDArray[np.int64]:
    """Correlation numbers; 0 for what is none. A number does not depend on what stands beside it."""
    if set(map(type, values)) - {int}:
        values = [_correlation(v) for v in values]
    try:
        out = np.fromiter(values, np.int64, len(values))
    except OverflowError:
        out = np.array([v if 0 < v < 1 << 62 else 0 for v in values], np.int64)
    return np.where((out > 0) & (out < 1 << 62), out, 0)


def _correlation(value: Any) -> int:
    """One that may be no integer: other writers give it as a float or as a text."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else 0
    if isinstance(value, str):
        return int(value) if len(value) < 20 and value.isascii() and value.isdigit() else 0
    return value if type(value) is int else 0


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
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < _LONGEST_US else None


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)[:80]


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
