"""What a trace adds up to: sums over its events that windows of it can be added to one after the other."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsetui.evidence.kernels import PATHS, SPARSE
from sparsetui.ingest.events.table import COPY, KERNEL, MARK, OP, PYTHON, RUNTIME
from sparsetui.ingest.traces.columns import Columns
from sparsetui.ingest.traces.nest import Nesting
from sparsetui.ingest.traces.paths import NUMBER, Paths
from sparsetui.ingest.traces.spill import CONTINUES

_STEP = re.compile(r"ProfilerStep#(\d+)")
_WIDE = len(PATHS)
_SPARSE = [NUMBER[p] for p in SPARSE]
_WEIGHED = 50_000  # of a window the longest events, for which callers are looked up
Floats = npt.NDArray[np.float64]
Key = tuple[int, int]  # name and path, as numbers


@dataclass
class Row:
    """Events of one name and path; times in µs."""

    calls: int = 0
    total: float = 0.0
    own: float = 0.0
    seen: int = 0  # events with an occupancy, their weight, and its weighted sum
    weight: float = 0.0
    occupancy: float = 0.0


@dataclass
class Covered:
    """How much of the time from a first start to a last end something covers; fed in order of time."""

    busy: float = 0.0
    first: float = np.inf
    reach: float = -np.inf
    n: int = 0
    total: float = 0.0

    def add(self, ts: Floats, dur: Floats) -> None:
        order = np.argsort(ts, kind="stable")
        start, end = ts[order], ts[order] + dur[order]
        reach = np.maximum.accumulate(np.concatenate([[self.reach], end]))
        self.busy += float(np.maximum(end - np.maximum(start, reach[:-1]), 0.0).sum())
        self.first, self.reach = min(self.first, float(start[0])), float(reach[-1])
        self.n += len(ts)
        self.total += float(dur.sum())

    @property
    def span(self) -> float:
        return self.reach - self.first


@dataclass
class Side:
    """The events of the host or of the devices: by name and path, and of each path its threads and its callers."""

    rows: dict[Key, Row] = field(default_factory=dict)
    lanes: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    callers: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def by_path(self) -> dict[int, tuple[int, float]]:
        """Of each path: events and own time."""
        out: dict[int, tuple[int, float]] = {}
        for (_, path), row in self.rows.items():
            n, own = out.get(path, (0, 0.0))
            out[path] = n + row.calls, own + row.own
        return out


@dataclass
class Sums:
    """Everything that the tables and figures of a trace are made of."""

    device: Side = field(default_factory=Side)
    host: Side = field(default_factory=Side)
    names: list[str] = field(default_factory=list)
    family: list[str] = field(default_factory=list)
    timed: int = 0
    first: float = np.inf
    last: float = -np.inf
    devices: dict[str, Covered] = field(default_factory=lambda: defaultdict(Covered))
    threads: dict[int, Covered] = field(
        default_factory=lambda: defaultdict(Covered)
    )  # ops, or top events without Python
    tops: dict[int, Covered] = field(default_factory=lambda: defaultdict(Covered))
    python: bool = False
    products: int = 0
    layouts_known: int = 0
    innermost: Counter[int] = field(default_factory=Counter)  # products with no product below, by path
    steps: dict[int, float] = field(default_factory=dict)
    overlapping: int = 0
    out_of_order: int = 0
    linked: int = 0
    calls: int = 0
    windows: int = 0

    def add(self, c: Columns, nesting: Nesting, paths: Paths) -> None:
        """The next window, in order of time."""
        self.windows += 1
        self.names = c.names
        self.family += paths.family[len(self.family) :]
        for i, told in enumerate(paths.family):
            self.family[i] = self.family[i] or told
        self.timed += int((c.corr != CONTINUES).sum())
        if len(c):
            self.first = min(self.first, float(c.ts.min()))
            self.last = max(self.last, float((c.ts + c.dur).max()))
        rows = np.flatnonzero((c.kind == KERNEL) | (c.kind == COPY))
        order = nesting.order
        python = bool((c.kind[order] == PYTHON).any())
        self.python |= python
        self._rows(self.device, c, paths, rows, c.dur[rows])
        self._rows(self.host, c, paths, order, nesting.own)
        if python:
            known: dict[int, int] = {}
            self._callers(self.device, c, nesting, paths, rows, c.dur[rows], paths.launched_by[rows], known)
            self._callers(self.host, c, nesting, paths, order, nesting.own, np.arange(len(order)), known)
        self._covered(c, nesting, rows)
        self._products(nesting, paths)
        self._steps(c)
        self.overlapping += nesting.overlapping
        self.out_of_order += nesting.out_of_order
        self.linked += paths.linked
        self.calls += int((c.kind == RUNTIME).sum())

    @property
    def on_device(self) -> bool:
        return bool(self.device.rows)

    def _rows(self, side: Side, c: Columns, paths: Paths, rows: npt.NDArray[np.int64], own: Floats) -> None:
        if not len(rows):
            return
        path = paths.path[rows].astype(np.int64)
        key = c.name[rows].astype(np.int64) * _WIDE + path
        width = len(c.names) * _WIDE
        counted = np.bincount(key, c.corr[rows] != CONTINUES, width)
        total, selfs = np.bincount(key, c.dur[rows], width), np.bincount(key, own, width)
        told = np.flatnonzero(~np.isnan(c.occupancy[rows]))
        weight = np.maximum(c.dur[rows[told]], 1e-9)
        seen, heavy = np.bincount(key[told], minlength=width), np.bincount(key[told], weight, width)
        full = np.bincount(key[told], weight * c.occupancy[rows[told]], width)
        for k in np.unique(key).tolist():
            row = side.rows.setdefault((k // _WIDE, k % _WIDE), Row())
            row.calls += int(counted[k])
            row.total += float(total[k])
            row.own += float(selfs[k])
            row.seen += int(seen[k])
            row.weight += float(heavy[k])
            row.occupancy += float(full[k])
        for pair in np.unique(path * (len(c.lanes) or 1) + c.lane[rows]).tolist():
            side.lanes[pair // (len(c.lanes) or 1)].add(pair % (len(c.lanes) or 1))

    def _callers(
        self, side: Side, c: Columns, nesting: Nesting, paths: Paths, rows: npt.NDArray[np.int64], weight: Floats,
        start: npt.NDArray[np.int64], known: dict[int, int],
    ) -> None:  # fmt: skip
        for i in np.argsort(-weight)[:_WEIGHED].tolist():
            name = _frame(c, nesting, int(start[i]), known)
            if name >= 0:
                side.callers[int(paths.path[rows[i]])][name] += weight[i]

    def _covered(self, c: Columns, nesting: Nesting, rows: npt.NDArray[np.int64]) -> None:
        if len(rows):
            numbers: dict[str, int] = {}
            of_lane = np.array([numbers.setdefault(p, len(numbers)) for p, _ in c.lanes], np.int64)
            names = list(numbers)
            for number, here in _grouped(of_lane[c.lane[rows]], rows):
                self.devices[names[number]].add(c.ts[here], c.dur[here])
        order = nesting.order
        kind = c.kind[order]
        for into, which in ((self.threads, kind == OP), (self.tops, (nesting.parent < 0) & (kind != PYTHON))):
            there = order[which]
            for lane, here in _grouped(c.lane[there], there):
                into[lane].add(c.ts[here], c.dur[here])

    def _products(self, nesting: Nesting, paths: Paths) -> None:
        """Products on the host; one that only wraps another is not a call of its own."""
        self.products += paths.products
        self.layouts_known += paths.layouts_known
        path = paths.path[nesting.order]
        marked = np.isin(path, [*_SPARSE, NUMBER["dense"]])
        alone = marked.copy()
        below = np.flatnonzero(marked & (nesting.parent >= 0))
        alone[nesting.parent[below]] = False
        numbers, counts = np.unique(path[alone], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self.innermost[number] += count

    def _steps(self, c: Columns) -> None:
        marks = {i: m[1] for i, text in enumerate(c.names) if (m := _STEP.fullmatch(text))}
        if not marks:
            return
        rows = np.flatnonzero(np.isin(c.name, list(marks)) & ((c.kind == MARK) | (c.kind == OP)))
        for i in rows.tolist():
            number, length = int(marks[int(c.name[i])][:15]), float(c.dur[i])
            known = self.steps.get(number, 0.0)
            self.steps[number] = known + length if c.corr[i] == CONTINUES else max(known, length)


def _grouped(
    key: npt.NDArray[np.integer[Any]], rows: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """``rows`` by their key, in their order; however many keys there are, this sorts once."""
    if len(rows):
        order = np.argsort(key, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            yield int(key[group[0]]), rows[group]


def _frame(c: Columns, nesting: Nesting, at: int, known: dict[int, int]) -> int:
    """The nearest Python frame above ``at`` that is not the framework's own, as a name number; -1 for none."""
    walked, first = [], -1
    while at >= 0:
        if at in known:
            first = known[at]
            break
        walked.append(at)
        row = nesting.order[at]
        if c.kind[row] == PYTHON:
            name = c.names[c.name[row]]
            if (
                not name.startswith(("<built-in", "torch/", "nn.Module", "<string>"))
                and "site-packages/torch" not in name
            ):
                first = int(c.name[row])
                break
        at = int(nesting.parent[at])
    for w in walked:
        known[w] = first
    return first
