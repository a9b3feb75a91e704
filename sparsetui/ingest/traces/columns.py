"""The timed events of a trace, held in memory or on disk, and handed out in windows of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsetui.ingest.events.table import (
    COPY,
    KERNEL,
    KINDS,
    OP,
    PYTHON,
    RUNTIME,
    Arrays,
    Ids,
    Names,
    Renumbering,
    Table,
)
from sparsetui.ingest.traces.spill import RECORD, Records, Spill, records

HOST = (OP, RUNTIME, PYTHON)
DEVICE = (KERNEL, COPY)
CATEGORIES = frozenset(KINDS) | {"ac2g", "async", "fwdbwd", "gpu_user_annotation", "trace", "cuda_sync", "overhead"}

WINDOW = 1_200_000  # timed events that are held and looked at together; of larger traces the rest waits on disk
MAX_EVENTS = 150_000_000  # six gigabytes of it


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
    """Collects tables of events into :class:`Columns`; what lacks a time or a name is counted, not kept.

    Up to ``window`` events stay in memory. From then on all go to disk, and come back in windows of time.
    """

    window: int = WINDOW
    incomplete: int = 0
    beyond: int = 0
    kept: int = 0
    full: str = ""  # why events were left out, if they were
    names: Names = field(default_factory=Names)
    lanes: Ids = field(default_factory=lambda: Ids(1_000_000))
    shapes: Ids = field(default_factory=lambda: Ids(100_000))
    _parts: list[Arrays] = field(default_factory=list)
    _held: int = 0
    _spill: Spill | None = None

    def renumbering(self) -> Renumbering:
        """For the tables of one :class:`Tabling`: what their numbers are here."""
        return Renumbering(self.names, self.lanes, self.shapes)

    def take(self, table: Table, renumbering: Renumbering) -> None:
        """The next table of a tabling."""
        columns = renumbering.columns(table)
        self.incomplete += table.incomplete
        if self.full or self.kept >= MAX_EVENTS:
            self.full = self.full or f"at most {MAX_EVENTS:,} timed events are kept"
            self.beyond += len(table)
            return
        if not len(table):
            return
        self._parts.append(columns)
        self.kept += len(table)
        self._held += len(table)
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
        lanes = [(_word(p), _word(t)) for p, t in self.lanes.things]
        return Columns(kind, name, lane, ts, dur, corr, occupancy, shape, self.names.things, lanes, self.shapes.things)


def _split(window: Records) -> list[npt.NDArray[Any]]:
    return [np.ascontiguousarray(window[name]) for name in RECORD.names or ()]


def _word(value: Any) -> str:
    return str(value)[:80]
