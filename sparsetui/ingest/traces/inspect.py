"""One profiler trace as evidence: tables by path, rates, gaps, steps, and what it cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsetui.evidence.kernels import PATHS, Catalogue
from sparsetui.evidence.records import Missing, Number, PathShare, TimeTable, Unanswered
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.reader import Reading
from sparsetui.ingest.events.source import Progress
from sparsetui.ingest.events.table import Renumbering
from sparsetui.ingest.events.team import tables
from sparsetui.ingest.traces import figures
from sparsetui.ingest.traces.columns import WINDOW, Builder
from sparsetui.ingest.traces.nest import nest
from sparsetui.ingest.traces.paths import NUMBER, assign, hosted
from sparsetui.ingest.traces.sums import Side, Sums

ROWS = 200  # rows kept of a table; the rest is summed up in one line


def inspect(
    path: Path,
    *,
    catalogue: Catalogue | None = None,
    progress: Progress | None = None,
    window: int = WINDOW,
    helpers: int | None = None,
) -> dict[str, Any]:
    """Everything a trace file tells, JSON-able (records included).

    Times are in milliseconds unless a key says otherwise. At most about two ``window`` timed events are held in memory;
    a larger trace is looked at window by window. ``helpers`` processes decode beside this one, by default as many as gain
    from it. Raises :class:`IngestError` for a file that is no trace, or one out of
    which not a single event could be saved.
    """
    reading, builder = Reading(path), Builder(window)
    numbers: dict[int, Renumbering] = {}
    for table, maker in tables(path, reading, progress, helpers):
        if maker not in numbers:
            numbers[maker] = builder.renumbering()
        builder.take(table, numbers[maker])
    if reading.damaged and not reading.events:
        raise IngestError(f"{path}: no event could be read ({reading.cut or 'none is whole'})")
    catalogue = catalogue or Catalogue.load()
    sums, before = Sums(), None
    for columns in builder.windows():
        nesting = nest(columns.lane, columns.ts, columns.dur, hosted(columns))
        paths = assign(columns, nesting, catalogue, before)
        sums.add(columns, nesting, paths)
        before = paths.calls
    return Trace(reading, builder, sums).payload()


class Trace:
    """The questions that can be asked of one trace."""

    def __init__(self, reading: Reading, builder: Builder, sums: Sums) -> None:
        self.reading, self.builder, self.sums = reading, builder, sums
        self.on_device = sums.on_device

    def payload(self) -> dict[str, Any]:
        r, sums = self.reading, self.sums
        steps = figures.steps(sums)
        busy = sum(row.total for row in sums.device.rows.values()) / 1e3
        return {
            "kind": "trace",
            "file": str(r.path),
            "events": r.events,
            "timed_events": sums.timed,
            "rank": r.rank,
            "world_size": r.world_size,
            "devices": r.devices,
            "device_time": self.on_device,
            "salvage": self.salvage(),
            "oddities": self.oddities(),
            "span_ms": (sums.last - sums.first) / 1e3 if sums.timed else None,
            "time_table": self.time_table(),
            "host_table": self._table(sums.host) if self.on_device else None,
            "kernels": self.kernels(),
            "ops": self.ops(),
            "rates": figures.rates(sums),
            "gaps": figures.gaps(sums),
            "occupancy_percent": figures.occupancy(sums),
            "tensor_core_share": figures.tensor_cores(sums),
            "steps": steps,
            "launches": self.launches(),
            "collective_ms": self.path_ms("collective"),
            "busy_ms": busy if self.on_device else None,
            "host_ms": sum(row.own for row in sums.host.rows.values()) / 1e3,
            "cannot_answer": self.unanswered(steps),
        }

    # ── what became of the file ──────────────────────────────────────────────────────────────────────────────────

    def salvage(self) -> dict[str, Any] | None:
        r = self.reading
        if not r.damaged:
            return None
        return {
            "repaired_events": r.repaired,
            "lost_events": r.lost,
            "first_lost": {"byte": r.first_lost_byte, "line": r.first_lost_line} if r.lost else None,
            "cut": r.cut,
            "cut_at": {"byte": r.cut_byte, "line": r.cut_line} if r.cut else None,
            "last_good_event": r.last_good,
        }

    def oddities(self) -> dict[str, int]:
        return {
            "incomplete": self.builder.incomplete,
            "overlapping": self.sums.overlapping,
            "out_of_order": self.sums.out_of_order,
            "orphan_kernels": self.launches()["orphans"],
            "beyond_limit": self.builder.beyond,
        }

    # ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    def time_table(self) -> TimeTable:
        """Share of kernel time by path; without a device, share of the host's own time."""
        return self._table(self.sums.device if self.on_device else self.sums.host)

    def _table(self, side: Side) -> TimeTable:
        names = self.sums.names
        missing = (
            [Missing("layouts", "a trace names ops and kernels, not tensor layouts")] if not self._layouts() else []
        )
        spent = side.by_path()
        total = sum(own for _, own in spent.values())
        if total <= 0:
            return TimeTable(unavailable=(*missing, Missing("time", "no event in the trace took any time")))
        shares = []
        for path in sorted(spent, key=lambda p: -spent[p][1]):
            count, own = spent[path]
            mine = sorted(((r.own, n) for (n, p), r in side.rows.items() if p == path and r.own > 0), reverse=True)
            shares.append(
                PathShare(
                    path=PATHS[path],
                    share=Number(own / total, n=count, quality="measured"),
                    symbols=tuple(names[n] for _, n in mine[:5]),
                    callers=tuple(names[n] for n, _ in side.callers[path].most_common(3))
                    if path in side.callers
                    else (),
                    threads=len(side.lanes[path]),
                )
            )
        return TimeTable(paths=tuple(shares), unavailable=tuple(missing))

    def kernels(self) -> list[dict[str, Any]]:
        """Device work by name, longest first."""
        names, rows = self.sums.names, self.sums.device.rows
        total = sum(r.total for r in rows.values()) or 1.0
        out = [
            {
                "name": names[name],
                "path": PATHS[path],
                "family": self.sums.family[name],
                "calls": r.calls,
                "ms": r.total / 1e3,
                "share": r.total / total,
                "mean_us": r.total / max(r.calls, 1),
                "occupancy_percent": r.occupancy / r.weight if r.seen else None,
                "tensor_core": figures.tensor_core(names[name], PATHS[path]),
            }
            for (name, path), r in rows.items()
        ]
        return _shortened(sorted(out, key=lambda row: -float(str(row["ms"]))), ("calls", "ms", "share"))

    def ops(self) -> list[dict[str, Any]]:
        """Host work by op and path, by own time."""
        names, rows = self.sums.names, self.sums.host.rows
        total = sum(r.own for r in rows.values()) or 1.0
        out = [
            {
                "op": names[name],
                "path": PATHS[path],
                "calls": r.calls,
                "self_ms": r.own / 1e3,
                "total_ms": r.total / 1e3,
                "share": r.own / total,
            }
            for (name, path), r in rows.items()
            if path != NUMBER["python"]
        ]
        ordered = sorted(out, key=lambda row: -float(str(row["self_ms"])))
        return _shortened(ordered, ("calls", "self_ms", "total_ms", "share"))

    # ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────

    def path_ms(self, path: str) -> float:
        side = self.sums.device if self.on_device else self.sums.host
        return side.by_path().get(NUMBER[path], (0, 0.0))[1] / 1e3

    def launches(self) -> dict[str, int]:
        """How many device events can be traced to the call that launched them."""
        events = sum(r.calls for r in self.sums.device.rows.values())
        orphans = events - self.sums.linked if self.sums.calls else 0
        return {"device_events": events, "correlated": self.sums.linked, "orphans": orphans}

    # ── what it cannot tell ──────────────────────────────────────────────────────────────────────────────────────

    def _layouts(self) -> bool:
        return self.sums.products > 0 and self.sums.layouts_known >= 0.5 * self.sums.products

    def unanswered(self, steps: dict[str, Any]) -> list[Unanswered]:
        out = []
        if not self._layouts():
            out.append(Unanswered(
                "Which layouts did the operands of the products have?",
                "this trace names ops and kernels; it did not record the strides of their operands",
                "a census of the live model (sparsetui investigate), or a trace with record_shapes=True from torch 2.4 or newer",
            ))  # fmt: skip
        out.append(Unanswered(
            "Do the dense products multiply zeros?",
            "a trace holds no values",
            "the checkpoint (sparsetui import MODEL.safetensors) or the inventory of the live model",
        ))  # fmt: skip
        if not self.on_device:
            out.append(Unanswered(
                "Which kernels ran?",
                "the trace holds host ops only; a library's kernel inside an op is not an event",
                "a native pass (sparsetui attach PID), or on a GPU a trace with ProfilerActivity.CUDA",
            ))  # fmt: skip
        elif not self.sums.host.rows:
            out.append(Unanswered(
                "Which ops launched the kernels?",
                "the trace holds device events only",
                "a trace with ProfilerActivity.CPU as well",
            ))  # fmt: skip
        if not steps["n"]:
            out.append(Unanswered(
                "How long does a step take, and how much does it vary?",
                "the trace holds no step marks",
                "a trace in which profiler.step() is called after each step",
            ))  # fmt: skip
        if self.builder.beyond:
            out.append(Unanswered(
                "What happened in the events that were left out?",
                f"{self.builder.beyond} timed events were read but not kept: {self.builder.full or 'too many at one time'}",
                "a trace of fewer steps, or TMPDIR on a disk with room",
            ))  # fmt: skip
        return out


def _shortened(rows: list[dict[str, Any]], summed: Sequence[str]) -> list[dict[str, Any]]:
    if len(rows) <= ROWS:
        return rows
    rest = rows[ROWS:]
    last = dict.fromkeys(rows[0]) | {k: sum(r[k] for r in rest) for k in summed}
    last["op" if "op" in last else "name"] = f"({len(rest)} further)"
    last["path"] = "other"
    return [*rows[:ROWS], last]
