"""One profiler trace as evidence: tables by path, rates, gaps, steps, and what it cannot tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsetui.evidence.kernels import PATHS, SPARSE, Catalogue
from sparsetui.evidence.records import Missing, Number, PathShare, TimeTable, Unanswered, unavailable
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.traces.columns import COPY, KERNEL, MARK, OP, PYTHON, RUNTIME, Builder, Columns
from sparsetui.ingest.traces.events import Reading, read
from sparsetui.ingest.traces.nest import Nesting, nest
from sparsetui.ingest.traces.paths import NUMBER, Paths, assign, hosted
from sparsetui.ingest.traces.source import Progress

ROWS = 200  # rows kept of a table; the rest is summed up in one line
_STEP = re.compile(r"ProfilerStep#(\d+)")
_TENSOR_CORE = re.compile(
    r"(?i)tensorop|xmma|(?:^|_)[hifsb]\d{0,2}_?(?:884|1688|16816|16832|161616|8816)|wmma|gmma|warpgroup|hmma|imma|"
    r"_MI\d+x\d+x\d|mfma|s\d{4,6}gemm|884gemm|nvjet|tensor16x8"
)
_NOT_TENSOR_CORE = re.compile(
    r"(?i)simt|(?:volta|ampere|turing|maxwell|pascal|kepler)_(?:s|d|c|z|gc)?gemm|gemv|splitK|largek_lds|gemmk1|scal_"
)


def inspect(path: Path, *, catalogue: Catalogue | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Everything a trace file tells, JSON-able (records included).

    Times are in milliseconds unless a key says otherwise. Raises :class:`IngestError` for a file that is no trace, or
    one out of which not a single event could be saved.
    """
    reading, builder = Reading(path), Builder()
    for events in read(path, reading, progress):
        builder.add(events)
    if reading.damaged and not reading.events:
        raise IngestError(f"{path}: no event could be read ({reading.cut or 'none is whole'})")
    columns = builder.done()
    nesting = nest(columns.lane, columns.ts, columns.dur, hosted(columns))
    paths = assign(columns, nesting, catalogue or Catalogue.load())
    return Trace(reading, columns, nesting, paths).payload()


class Trace:
    """The questions that can be asked of one trace."""

    def __init__(self, reading: Reading, c: Columns, nesting: Nesting, paths: Paths) -> None:
        self.reading, self.c, self.nesting, self.paths = reading, c, nesting, paths
        self.device = np.flatnonzero((c.kind == KERNEL) | (c.kind == COPY))
        self.host_rows = nesting.order
        self.on_device = len(self.device) > 0

    def payload(self) -> dict[str, Any]:
        r, c = self.reading, self.c
        steps = self.steps()
        return {
            "kind": "trace",
            "file": str(r.path),
            "events": r.events,
            "timed_events": len(c),
            "rank": r.rank,
            "world_size": r.world_size,
            "devices": r.devices,
            "device_time": self.on_device,
            "salvage": self.salvage(),
            "oddities": self.oddities(),
            "span_ms": self.span(),
            "time_table": self.time_table(),
            "host_table": self.host_table() if self.on_device else None,
            "kernels": self.kernels(),
            "ops": self.ops(),
            "rates": self.rates(),
            "gaps": self.gaps(),
            "occupancy_percent": self.occupancy(),
            "tensor_core_share": self.tensor_cores(),
            "steps": steps,
            "launches": self.launches(),
            "collective_ms": self.path_ms("collective"),
            "busy_ms": float(c.dur[self.device].sum()) / 1e3 if self.on_device else None,
            "host_ms": float(self.nesting.own.sum()) / 1e3,
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
            "incomplete": self.c.incomplete,
            "overlapping": self.nesting.overlapping,
            "out_of_order": self.nesting.out_of_order,
            "orphan_kernels": self.launches()["orphans"],
            "beyond_limit": self.c.beyond,
        }

    def span(self) -> float | None:
        c = self.c
        return float((c.ts + c.dur).max() - c.ts.min()) / 1e3 if len(c) else None

    # ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    def time_table(self) -> TimeTable:
        """Share of kernel time by path; without a device, share of the host's own time."""
        if not self.on_device:
            return self.host_table()
        rows, c = self.device, self.c
        return self._table(rows, c.dur[rows], "no device clock rate is in a trace")

    def host_table(self) -> TimeTable:
        rows = self.host_rows
        return self._table(rows, self.nesting.own, "a profiler that records every op does not sample")

    def _table(self, rows: npt.NDArray[np.int64], weight: npt.NDArray[np.float64], _why: str) -> TimeTable:
        c, path = self.c, self.paths.path[rows]
        total = float(weight.sum())
        missing = (
            [Missing("layouts", "a trace names ops and kernels, not tensor layouts")] if not self._layouts() else []
        )
        if total <= 0:
            return TimeTable(unavailable=(*missing, Missing("time", "no event in the trace took any time")))
        shares = []
        callers = self._callers(rows, weight)
        by_path = np.bincount(path, weight, len(PATHS))
        for number in np.argsort(-by_path).tolist():
            mine = path == number
            count = int(mine.sum())
            if not count:
                continue
            names = np.bincount(c.name[rows[mine]], weight[mine], len(c.names))
            top = np.argsort(-names)[:5]
            shares.append(
                PathShare(
                    path=PATHS[number],
                    share=Number(float(by_path[number]) / total, n=count, quality="measured"),
                    symbols=tuple(c.names[i] for i in top.tolist() if names[i] > 0),
                    callers=callers.get(number, ()),
                    threads=len(np.unique(c.lane[rows[mine]])),
                )
            )
        return TimeTable(paths=tuple(shares), unavailable=tuple(missing))

    def _callers(self, rows: npt.NDArray[np.int64], weight: npt.NDArray[np.float64]) -> dict[int, tuple[str, ...]]:
        """For each path the Python frames that led to most of its time, where the trace has stacks."""
        c, order, parent = self.c, self.nesting.order, self.nesting.parent
        if not (c.kind[order] == PYTHON).any():
            return {}
        start = self.paths.launched_by[rows] if self.on_device and rows is self.device else np.arange(len(rows))
        kept = np.argsort(-weight)[:50_000]
        sums: dict[int, dict[int, float]] = {}
        known: dict[int, int] = {}
        for i in kept.tolist():
            name = self._frame(int(start[i]), order, parent, known)
            if name >= 0:
                mine = sums.setdefault(int(self.paths.path[rows[i]]), {})
                mine[name] = mine.get(name, 0.0) + float(weight[i])
        return {
            path: tuple(c.names[n] for n, _ in sorted(by.items(), key=lambda kv: -kv[1])[:3])
            for path, by in sums.items()
        }

    def _frame(
        self, at: int, order: npt.NDArray[np.int64], parent: npt.NDArray[np.int64], known: dict[int, int]
    ) -> int:
        """The nearest Python frame above ``at`` that is not the framework's own, as a name number."""
        walked, first = [], -1
        while at >= 0:
            if at in known:
                first = known[at] if known[at] >= 0 else first
                break
            walked.append(at)
            row = order[at]
            if self.c.kind[row] == PYTHON:
                name = self.c.names[self.c.name[row]]
                if (
                    not name.startswith(("<built-in", "torch/", "nn.Module", "<string>"))
                    and "site-packages/torch" not in name
                ):
                    first = int(self.c.name[row])
                    break
            at = int(parent[at])
        for w in walked:
            known[w] = first
        return first

    def kernels(self) -> list[dict[str, Any]]:
        """Device work by name, longest first."""
        c, rows = self.c, self.device
        if not len(rows):
            return []
        total = float(c.dur[rows].sum()) or 1.0
        out = []
        for name, number, mine in self._groups(rows, c.dur[rows]):
            dur = c.dur[mine]
            occupancy = c.occupancy[mine]
            known = ~np.isnan(occupancy)
            out.append(
                {
                    "name": c.names[name],
                    "path": PATHS[number],
                    "family": self.paths.family[name],
                    "calls": len(mine),
                    "ms": float(dur.sum()) / 1e3,
                    "share": float(dur.sum()) / total,
                    "mean_us": float(dur.mean()),
                    "occupancy_percent": float(np.average(occupancy[known], weights=np.maximum(dur[known], 1e-9)))
                    if known.any()
                    else None,
                    "tensor_core": tensor_core(c.names[name], PATHS[number]),
                }
            )
        return _shortened(sorted(out, key=lambda row: -row["ms"]), ("calls", "ms", "share"))

    def ops(self) -> list[dict[str, Any]]:
        """Host work by op and path, by own time."""
        c, order = self.c, self.nesting.order
        wanted = np.flatnonzero((c.kind[order] == OP) | (c.kind[order] == RUNTIME))
        if not len(wanted):
            return []
        own = self.nesting.own[wanted]
        rows = order[wanted]
        total = float(self.nesting.own.sum()) or 1.0
        key = c.name[rows].astype(np.int64) * len(PATHS) + self.paths.path[rows]
        groups, where = np.unique(key, return_inverse=True)
        selfs = np.bincount(where, own)
        alls = np.bincount(where, c.dur[rows])
        calls = np.bincount(where)
        out = [
            {
                "op": c.names[g // len(PATHS)],
                "path": PATHS[g % len(PATHS)],
                "calls": int(calls[i]),
                "self_ms": float(selfs[i]) / 1e3,
                "total_ms": float(alls[i]) / 1e3,
                "share": float(selfs[i]) / total,
            }
            for i, g in enumerate(groups.tolist())
        ]
        return _shortened(sorted(out, key=lambda row: -row["self_ms"]), ("calls", "self_ms", "total_ms", "share"))

    def _groups(
        self, rows: npt.NDArray[np.int64], _weight: npt.NDArray[np.float64]
    ) -> list[tuple[int, int, npt.NDArray[np.int64]]]:
        key = self.c.name[rows].astype(np.int64) * len(PATHS) + self.paths.path[rows]
        order = np.argsort(key, kind="stable")
        cuts = np.flatnonzero(np.diff(key[order])) + 1
        return [(int(key[g[0]]) // len(PATHS), int(key[g[0]]) % len(PATHS), rows[g]) for g in np.split(order, cuts)]

    # ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────

    def path_ms(self, path: str) -> float:
        rows = self.device if self.on_device else self.host_rows
        weight = self.c.dur[rows] if self.on_device else self.nesting.own
        return float(weight[self.paths.path[rows] == NUMBER[path]].sum()) / 1e3

    def rates(self) -> dict[str, Number]:
        """Shares of product time and of all time. ``fallback_rate`` only where the trace shows sparse work at all."""
        rows = self.device if self.on_device else self.host_rows
        weight = self.c.dur[rows] if self.on_device else self.nesting.own
        path = self.paths.path[rows]
        total = float(weight.sum())
        sparse = np.isin(path, [NUMBER[p] for p in SPARSE])
        dense = path == NUMBER["dense"]
        if self.on_device:
            counted = np.ones(len(rows), bool)
        else:  # a product that only wraps another is not a call of its own
            counted = self._innermost(sparse | dense)
        converting = path == NUMBER["conversion"]
        sorting = path == NUMBER["sort"]
        products = float(weight[sparse | dense].sum())
        n = int(((sparse | dense) & counted).sum())
        out: dict[str, Number] = {}
        none = "the trace holds no matrix product"
        out["sparse_rate"] = (
            Number(float(weight[sparse].sum()) / products, n=n)
            if products > 0
            else Number(0.0, n=0, reason=none)
            if len(rows)
            else unavailable(none)
        )
        out["dense_share"] = (
            Number(float(weight[dense].sum()) / total, n=int((dense & counted).sum()))
            if total > 0
            else unavailable("no time in the trace")
        )
        out["conversion_rate"] = (
            Number(float(weight[converting].sum()) / total, n=int(converting.sum()))
            if total > 0
            else unavailable("no time in the trace")
        )
        out["sort_rate"] = (
            Number(float(weight[sorting].sum()) / total, n=int(sorting.sum()))
            if total > 0
            else unavailable("no time in the trace")
        )
        if sparse.any() or converting.any():
            out["fallback_rate"] = (
                Number(
                    float(weight[dense].sum()) / products,
                    n=n,
                    quality="derived",
                    reason="an upper bound: which dense products were meant to be sparse is not in a trace",
                )
                if products > 0
                else unavailable(none)
            )
        else:
            out["fallback_rate"] = unavailable(
                "nothing in the trace is weight-sparse, and which dense products should have been is not recorded"
            )
        return out

    def _innermost(self, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Marked events with no marked event directly below them."""
        out = marked.copy()
        below = np.flatnonzero(marked & (self.nesting.parent >= 0))
        out[self.nesting.parent[below]] = False
        return out

    def gaps(self) -> dict[str, Number]:
        """Idle shares: of each device between its first and last work, and of the host's busiest thread."""
        c = self.c
        out: dict[str, Number] = {}
        if self.on_device:
            busy = span = 0.0
            for lane_device in np.unique(self._device_of()).tolist():
                rows = self.device[self._device_of() == lane_device]
                b, s = _union(c.ts[rows], c.dur[rows])
                busy, span = busy + b, span + s
            out["device_idle"] = (
                Number(1 - busy / span, n=len(self.device))
                if span > 0
                else unavailable("all device work happened at one instant")
            )
        else:
            out["device_idle"] = unavailable("the trace holds no device work")
        top = np.flatnonzero((self.nesting.parent < 0) & (c.kind[self.nesting.order] != PYTHON))
        if (c.kind[self.nesting.order] == PYTHON).any() or not len(top):
            top = np.flatnonzero(c.kind[self.nesting.order] == OP)
        if not len(top):
            out["host_gap"] = unavailable("the trace holds no host ops")
            return out
        rows = self.nesting.order[top]
        lanes = c.lane[rows]
        main = int(np.argmax(np.bincount(lanes, c.dur[rows])))
        rows = rows[lanes == main]
        b, s = _union(c.ts[rows], c.dur[rows])
        out["host_gap"] = (
            Number(1 - b / s, n=len(rows)) if s > 0 else unavailable("all host ops happened at one instant")
        )
        return out

    def _device_of(self) -> npt.NDArray[np.int32]:
        """The device of each device event: its lane's process."""
        if not hasattr(self, "_devices"):
            numbers: dict[str, int] = {}
            of_lane = np.array([numbers.setdefault(p, len(numbers)) for p, _ in self.c.lanes] or [0], np.int32)
            self._devices = of_lane[self.c.lane[self.device]]
        return self._devices

    def occupancy(self) -> Number:
        """Mean achieved occupancy in percent as the profiler estimated it, weighted by kernel time."""
        if not self.on_device:
            return unavailable("the trace holds no device work", "%")
        c = self.c
        rows = self.device[~np.isnan(c.occupancy[self.device])]
        if not len(rows):
            return unavailable("the trace holds no occupancy figures", "%")
        mean = float(np.average(c.occupancy[rows], weights=np.maximum(c.dur[rows], 1e-9)))
        return Number(mean, n=len(rows), unit="%", quality="estimated", reason="the profiler's own estimate")

    def tensor_cores(self) -> Number:
        """Share of matrix and convolution kernel time in kernels whose names say that they use matrix units."""
        c = self.c
        wide = [NUMBER[p] for p in (*SPARSE, "dense", "conv", "attention")]
        yes = no = unsure = 0.0
        n = 0
        rows = self.device[c.kind[self.device] == KERNEL] if self.on_device else self.device
        for name, number, mine in self._groups(rows, c.dur[rows]) if len(rows) else ():
            if number not in wide:
                continue
            spent, said = float(c.dur[mine].sum()), tensor_core(c.names[name], PATHS[number])
            n += len(mine)
            if said is None:
                unsure += spent
            elif said:
                yes += spent
            else:
                no += spent
        if yes + no <= 0:
            return unavailable(
                "no kernel's name says which units it uses" if n else "the trace holds no matrix kernels"
            )
        low, high = yes / (yes + no + unsure), (yes + unsure) / (yes + no + unsure)
        return Number(
            yes / (yes + no),
            ci=(low, high) if unsure else None,
            n=n,
            quality="derived",
            reason="by kernel names; the interval counts kernels whose name does not say"
            if unsure
            else "by kernel names",
        )

    def launches(self) -> dict[str, int]:
        """How many device events can be traced to the call that launched them."""
        linked = int((self.paths.launched_by[self.device] >= 0).sum())
        calls = int((self.c.kind == RUNTIME).sum())
        return {
            "device_events": len(self.device),
            "correlated": linked,
            "orphans": len(self.device) - linked if calls else 0,
        }

    def steps(self) -> dict[str, Any]:
        """Step times between the profiler's own step marks."""
        c = self.c
        marks: dict[int, float] = {}
        spans: dict[int, float] = {}
        for i, text in enumerate(c.names):
            m = _STEP.fullmatch(text)
            if not m:
                continue
            rows = np.flatnonzero((c.name == i) & ((c.kind == MARK) | (c.kind == OP)))
            if len(rows):
                number = int(m[1][:15])
                marks[number] = float(c.ts[rows].min())
                spans[number] = float(c.dur[rows].max())
        times = np.array([spans[k] for k in sorted(spans)]) / 1e3
        why = "the trace holds no step marks (ProfilerStep#N)"
        out: dict[str, Any] = {"n": len(times), "numbers": sorted(spans)[:1000]}
        for q in (0.5, 0.95, 0.99):
            out[f"p{round(q * 100)}_ms"] = percentile(times, q, why)
        return out

    # ── what it cannot tell ──────────────────────────────────────────────────────────────────────────────────────

    def _layouts(self) -> bool:
        return self.paths.products > 0 and self.paths.layouts_known >= 0.5 * self.paths.products

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
        elif not len(self.host_rows):
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
        if self.c.beyond:
            out.append(Unanswered(
                "What happened after the first 12 million timed events?",
                f"{self.c.beyond} more were read but not kept",
                "a trace of fewer steps",
            ))  # fmt: skip
        return out


def percentile(times: npt.NDArray[np.float64], q: float, why: str) -> Number:
    """A percentile of step times in ms, with an order-statistic interval; only where enough steps support it."""
    n = len(times)
    if n == 0:
        return unavailable(why, "ms")
    if n * (1 - q) < 10 and q > 0.5:
        return unavailable(f"{n} steps do not support it; {round(10 / (1 - q))} do", "ms")
    ordered = np.sort(times)
    value = float(np.quantile(ordered, q))
    half = 1.96 * float(np.sqrt(n * q * (1 - q)))
    low, high = int(np.floor(n * q - half)), int(np.ceil(n * q + half))
    ci = (float(ordered[low]), float(ordered[high])) if low >= 0 and high < n else None
    return Number(value, ci=ci, n=n, unit="ms")


def tensor_core(name: str, path: str) -> bool | None:
    """Whether a kernel's name says that it ran on matrix units (True), on others (False) or nothing (None)."""
    if path not in SPARSE and path not in ("dense", "conv", "attention"):
        return None
    if _TENSOR_CORE.search(name[:400]) and not re.search(r"_MI1x1x", name[:400]):
        return True
    return False if _NOT_TENSOR_CORE.search(name[:400]) else None


def _union(ts: npt.NDArray[np.float64], dur: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Time covered by the intervals and time from the first start to the last end, in µs."""
    order = np.argsort(ts, kind="stable")
    start, end = ts[order], ts[order] + dur[order]
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(start[1:] - reach[:-1], 0.0).sum()
    span = float(reach[-1] - start[0])
    return span - float(gaps), span


def _shortened(rows: list[dict[str, Any]], summed: Sequence[str]) -> list[dict[str, Any]]:
    if len(rows) <= ROWS:
        return rows
    rest = rows[ROWS:]
    last = dict.fromkeys(rows[0]) | {k: sum(r[k] for r in rest) for k in summed}
    last["op" if "op" in last else "name"] = f"({len(rest)} further)"
    last["path"] = "other"
    return [*rows[:ROWS], last]


def spread(payloads: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How several ranks of one run differ: who works longest, who waits in collectives. None for fewer than two."""
    if len(payloads) < 2:
        return None
    rows = []
    for p in payloads:
        idle = p["gaps"]["device_idle"].value
        step = p["steps"]["p50_ms"].value
        busy = p["busy_ms"] if p["busy_ms"] is not None else p["span_ms"]
        rows.append(
            {
                "file": p["file"],
                "rank": p["rank"],
                "span_ms": p["span_ms"],
                "busy_ms": busy,
                "compute_ms": (busy or 0.0) - p["collective_ms"],
                "collective_ms": p["collective_ms"],
                "idle_share": idle,
                "step_p50_ms": step,
            }
        )
    out: dict[str, Any] = {"ranks": rows}
    for key in ("span_ms", "compute_ms", "collective_ms", "step_p50_ms"):
        values = [r[key] for r in rows if r[key]]
        out[f"{key}_max_over_min"] = max(values) / min(values) if len(values) == len(rows) else None
    slowest = max(rows, key=lambda r: r["compute_ms"])
    waiting = max(rows, key=lambda r: r["collective_ms"])
    out["most_compute"] = slowest["rank"] if slowest["rank"] is not None else slowest["file"]
    out["most_collective"] = waiting["rank"] if waiting["rank"] is not None else waiting["file"]
    return out
