"""Watching live processes from outside: tables that fill while samples come, and what the watching costs.

Three observers run beside each other for each process: perf's cpu-clock event (every thread, no pause, read every
moment), py-spy (Python's threads with their callers, in runs that grow longer, because each start reads symbols and
stops the target meanwhile), and a look at ``/proc`` that tells waiting from running.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import msgspec

from sparsetui.evidence.records import Missing, Number, PathShare, TimeTable, unavailable
from sparsetui.evidence.records import Sampler as SamplerRecord
from sparsetui.ingest.samplers import Perf, PySpy, SamplerError, Tally, merge
from sparsetui.ingest.samplers.base import OnCommand, alive
from sparsetui.ingest.samplers.fold import catalogue, share, wilson
from sparsetui.ingest.samplers.proc import PauseMeter, Who, children, thread_states, who
from sparsetui.ingest.samplers.pyspy import STARTUP_S

Choice = Literal["auto", "py-spy", "perf"]

# Runs of py-spy: the first is short, for a table within three seconds; the later ones long, for each costs a start
# that stops the target for up to a second. Beside perf, which fills the table at once, there is no hurry.
_RUNS_ALONE = (1.0, 4.0, 12.0, 30.0)
_RUNS_BESIDE_PERF = (4.0, 30.0)
_LONGEST_ONE_RUN = 20.0
_GENTLE_RUN = 2.0  # without pauses a start costs the target nothing
_LOOKS_HZ = 20.0
_PATIENCE_S = 20.0  # how much longer than asked a watch may take that has seen nothing yet
PRODUCTS = ("sparse-csr", "sparse-csr-rhs", "sparse-csc", "sparse-coo", "sparse-bsr", "sparse-nm")


class NothingToSee(Exception):
    """No sampler may look at any of the processes; ``missing`` holds the reasons."""

    def __init__(self, missing: tuple[Missing, ...]) -> None:
        super().__init__("; ".join(f"{m.what}: {m.why}" for m in missing))
        self.missing = missing


class NoProcess(Exception):
    """A PID that does not exist; its text is one line."""


class ThreadShare(msgspec.Struct, frozen=True):
    """One thread: how much of the time it ran (``busy``), and on what while it ran."""

    pid: int
    tid: int
    name: str
    busy: Number
    paths: tuple[tuple[str, float], ...] = ()  # (path, share of the thread's samples), largest first


class Cost(msgspec.Struct, frozen=True):
    """What the watching does to its targets: the share of time they stand still."""

    forecast: float
    measured: Number
    text: str


class Snapshot(msgspec.Struct, frozen=True):
    """All that is known after ``elapsed_s`` seconds; nothing in it changes any more."""

    elapsed_s: float
    targets: tuple[Who, ...]
    table: TimeTable
    threads: tuple[ThreadShare, ...]
    callers: tuple[tuple[str, Number], ...]  # the user's own frames, whatever ran below them; py-spy's threads
    dense_share: Number  # of the time in matrix products, the part in dense kernels
    conversion_share: Number  # of the time that anything ran: conversion and sort
    cost: Cost
    ended: tuple[int, ...] = ()  # processes that ended meanwhile
    done: bool = False


class _Looker:
    """Looks 20 times a second at which threads of a process run. Reads ``/proc``; the target feels nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.looks = self.idle = 0
        self.running: dict[int, int] = {}
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}

    def look(self) -> None:
        states = thread_states(self.pid)
        if not states or any(state == "t" for state, _ in states.values()):
            return  # a sampler holds it still: that look tells nothing
        self.looks += 1
        self.idle += not any(state == "R" for state, _ in states.values())
        for tid, (state, cpu) in states.items():
            self.first.setdefault(tid, cpu)
            self.last[tid] = cpu
            self.running[tid] = self.running.get(tid, 0) + (state == "R")


class Watch:
    """Watches ``pids`` (and with ``with_children`` what they started) until :meth:`stop`.

    Raises :class:`NoProcess` for a PID that does not exist. ``start`` raises :class:`NothingToSee` when no sampler may
    look at any of them. ``snapshot`` may be called from any thread at any time.
    """

    def __init__(
        self,
        pids: list[int],
        *,
        sampler: Choice = "auto",
        rate_hz: float = 10,
        gentle: bool = False,
        with_children: bool = False,
        on_command: OnCommand | None = None,
        planned_s: float | None = None,
    ) -> None:
        self._planned = planned_s
        catalogue()  # a broken rule file is told now, not in a thread
        self.rate_hz, self.gentle = rate_hz, gentle
        wanted = list(dict.fromkeys(pids))
        for pid in wanted:
            if who(pid) is None:
                raise NoProcess(f"process {pid} does not exist (or has ended); list candidates with: pgrep -af python")
        if with_children:
            wanted += [c for pid in list(wanted) for c in children(pid) if c not in wanted]
        self.targets = tuple(w for pid in wanted if (w := who(pid)) is not None)
        self._spies = [] if sampler == "perf" else [
            PySpy(w.pid, rate_hz, gentle=gentle, on_command=on_command) for w in self.targets
        ]  # fmt: skip
        self._perfs = [] if sampler == "py-spy" else [Perf(w.pid, on_command=on_command) for w in self.targets]
        self._lookers = [_Looker(w.pid) for w in self.targets]
        self._meters = [PauseMeter(w.pid) for w in self.targets]
        self._stacks, self._leaves = Tally(), Tally()
        self._missing: dict[tuple[str, str], Missing] = {}
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self._threads: list[threading.Thread] = []
        self._begin = 0.0
        self._end: float | None = None
        self._looked: set[int] = set()  # processes of which py-spy ended a run
        self._failed: set[int] = set()  # processes that py-spy began with and could not read

    def cost(self) -> Cost:
        """What the watching will cost, said before it starts."""
        return self._cost()

    def start(self) -> None:
        """Begin. Raises :class:`NothingToSee`."""
        spies, perfs = [], []
        for spy in self._spies:
            if (missing := spy.available()) is None:
                spies.append(spy)
            else:
                self._note(missing)
        for perf in self._perfs:
            try:
                perf.start()
                perfs.append(perf)
            except SamplerError as e:
                self._note(e.missing)
        self._spies, self._perfs = spies, perfs
        if not spies and not perfs:
            raise NothingToSee(tuple(self._missing.values()))
        self._begin = time.monotonic()
        for meter in self._meters if spies and not self.gentle else ():
            meter.__enter__()
        self._thread(self._look, "look")
        for spy in spies:
            self._thread(partial(self._spy, spy), f"py-spy {spy.pid}")

    def stop(self) -> None:
        """End all samplers and wait for what they saw. Idempotent."""
        if self._end is None:
            self._end = time.monotonic()
        self.interrupt()
        for spy in self._spies:
            spy.interrupt()
        for t in self._threads:
            t.join(15)
        for meter in self._meters:
            meter.__exit__(None, None, None)
        for perf in self._perfs:
            perf.close()
        self._drain()

    def interrupt(self) -> None:
        """Ask for the end without waiting; safe in a signal handler. :meth:`snapshots` then gives its last one."""
        self._halt.set()

    def snapshots(self, seconds: float | None = None, every: float = 1.0) -> Iterator[Snapshot]:
        """Snapshots about ``every`` seconds until ``seconds`` are over, all targets ended, or :meth:`stop`.

        The last one has ``done`` set and holds all samples. Ends the watch when the consumer leaves off.
        """
        try:
            while not self._halt.is_set():
                left = math.inf if seconds is None else self._begin + seconds - time.monotonic()
                if not any(alive(w.pid) for w in self.targets):
                    break
                if left <= 0:
                    if left < -_PATIENCE_S or not self._expecting():
                        break
                    left = every
                self._halt.wait(min(every, left))
                if not self._halt.is_set() and left > every:
                    yield self.snapshot()
        finally:
            self.stop()
        yield self.snapshot()

    def _expecting(self) -> bool:
        """Whether nothing was seen so far only because py-spy is not through its first run: on a busy host it starts slowly."""
        self._drain()
        with self._lock:
            return not self._stacks.n and not self._leaves.n and any(
                s.pid not in self._failed and s.pid not in self._looked and alive(s.pid) for s in self._spies
            )  # fmt: skip

    def snapshot(self) -> Snapshot:
        self._drain()
        elapsed = (self._end or time.monotonic()) - self._begin if self._begin else 0.0
        with self._lock:
            missing = list(self._missing.values())
            tallies = {}
            records = []
            if any(spy.pid not in self._failed for spy in self._spies):
                tallies["py-spy"] = self._stacks
                pause = self._pause()
                records.append(SamplerRecord("py-spy", self.rate_hz, self._stacks.n, pause))
            if self._perfs:
                tallies["perf"] = self._leaves
                records.append(SamplerRecord("perf", self._perfs[0].rate_hz, self._leaves.n, 0.0))
            if self.gentle and self._spies:
                tallies, missing = self._gentle(tallies, missing)
            ran = merge(tallies, records, missing)
            looks, idle = sum(k.looks for k in self._lookers), sum(k.idle for k in self._lookers)
            threads = self._thread_shares()
            callers = self._callers()
        return Snapshot(
            elapsed_s=elapsed,
            targets=self.targets,
            table=_with_waiting(ran, idle, looks),
            threads=threads,
            callers=callers,
            dense_share=_dense(ran),
            conversion_share=_sum(ran, ("conversion", "sort")),
            cost=self._cost(),
            ended=tuple(w.pid for w in self.targets if not alive(w.pid)),
            done=self._end is not None,
        )

    # the observers

    def _thread(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _look(self) -> None:
        while not self._halt.wait(1 / _LOOKS_HZ):
            for looker in self._lookers:
                looker.look()

    def _spy(self, spy: PySpy) -> None:
        run = 0
        while not self._halt.is_set() and alive(spy.pid):
            runs = (_GENTLE_RUN,) if self.gentle else _RUNS_BESIDE_PERF if self._perfs else _RUNS_ALONE
            seconds = runs[min(run, len(runs) - 1)]
            if run == 0 and self._perfs and self._planned is not None and self._planned <= _LONGEST_ONE_RUN:
                seconds = max(1.0, self._planned - STARTUP_S)  # one start is enough
            try:
                stacks = spy.collect(seconds)
            except SamplerError as e:
                self._note(e.missing)
                with self._lock:
                    self._failed.add(spy.pid)
                return
            with self._lock:
                self._stacks.add(stacks)
                self._looked.add(spy.pid)
            run += 1

    def _drain(self) -> None:
        fresh = [s for perf in self._perfs for s in perf.read()]
        with self._lock:
            self._leaves.add(fresh)

    def _note(self, missing: Missing) -> None:
        with self._lock:
            self._missing[missing.what, missing.why] = missing

    # what they saw

    def _gentle(self, tallies: dict[str, Tally], missing: list[Missing]) -> tuple[dict[str, Tally], list[Missing]]:
        """Python frames cannot tell one kernel from another: they give callers, and perf alone gives the paths."""
        stacks = tallies.pop("py-spy")
        missing = [
            *missing,
            Missing("native frames", "--gentle reads Python frames only; without it py-spy sees kernels"),
        ]
        top = Tally()
        if "perf" in tallies and self._leaves.n:
            return tallies, missing
        for key, counts in stacks.by_thread.items():
            n = sum(counts.values())
            top.by_thread[key]["unknown"] += n
            top.threads["unknown"].add(key)
            top.by_path["unknown"] += n
            top.n += n
        for path in stacks.by_path:
            top.callers["unknown"] += stacks.callers[path]
        return {"py-spy": top}, missing

    def _thread_shares(self) -> tuple[ThreadShare, ...]:
        out = []
        for looker in self._lookers:
            for tid, running in looker.running.items():
                if not looker.looks:
                    continue
                key = (looker.pid, tid)
                counts = self._leaves.by_thread.get(key) or self._stacks.by_thread.get(key)
                n = sum(counts.values()) if counts else 0
                if not running and not n:
                    continue
                paths = tuple((p, c / n) for p, c in counts.most_common()) if counts else ()
                out.append(ThreadShare(looker.pid, tid, _comm(looker.pid, tid), share(running, looker.looks), paths))
        return tuple(sorted(out, key=lambda t: (-(t.busy.value or 0), t.pid, t.tid)))

    def _callers(self) -> tuple[tuple[str, Number], ...]:
        total: Counter[str] = Counter()
        for counts in self._stacks.callers.values():
            total.update(counts)
        return tuple((name, share(hits, self._stacks.n)) for name, hits in total.most_common(8))

    def _pause(self) -> float | None:
        if self.gentle:
            return 0.0
        shares = [s for m in self._meters if (s := m.share()) is not None]
        return max(shares) if shares else None

    def _cost(self) -> Cost:
        spying = bool(self._spies)
        forecast = max([s.forecast() for s in self._spies], default=0.0)
        if self.gentle or not spying:
            text = "no pauses: " + (
                "Python frames are read without stopping the process" if spying else "perf stops no thread"
            )
            return Cost(forecast, Number(0.0, quality="estimated", reason="this way of sampling stops no thread"), text)
        text = (
            f"py-spy stops the process about 2 ms a sample: {forecast:.0%} at {self.rate_hz:g} samples/s, "
            "and up to half a second in its first two, while it reads symbols; --gentle or --sampler perf stop nothing"
        )
        looks = sum(m.looks for m in self._meters)
        if looks < 100:
            return Cost(forecast, unavailable("not measured yet"), text)
        return Cost(forecast, share(sum(m.stopped for m in self._meters), looks), text)


def _comm(pid: int, tid: int) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8", errors="replace") as f:
            return f.read().rstrip("\n")
    except OSError:
        return ""


def _with_waiting(table: TimeTable, idle: int, looks: int) -> TimeTable:
    """The table of running time, scaled to all time: ``wait`` is when no thread of the process ran."""
    if not looks or not idle:
        return table
    low, high = wilson(idle, looks)
    idle_share = idle / looks
    rows = []
    for row in table.paths:
        if row.path == "wait" or row.share.value is None:
            idle_share += (row.share.value or 0.0) * (1 - idle / looks)
            continue
        ci = row.share.ci or (row.share.value, row.share.value)
        scaled = row.share.value * (1 - idle / looks)
        interval = (round(ci[0] * (1 - high), 4), round(ci[1] * (1 - low), 4))
        rows.append(msgspec.structs.replace(row, share=msgspec.structs.replace(row.share, value=scaled, ci=interval)))
    interval = (round(low, 4), round(min(1.0, high + idle_share - idle / looks), 4))
    rows.append(PathShare("wait", Number(idle_share, interval, looks), (), (), 0))
    rows.sort(key=lambda r: -(r.share.value or 0.0))
    return msgspec.structs.replace(table, paths=tuple(rows))


def _sum(table: TimeTable, paths: tuple[str, ...]) -> Number:
    total = sum(r.share.value or 0.0 for r in table.paths if r.path in paths)
    n = max([r.share.n or 0 for r in table.paths], default=0)
    return share(round(total * n), n)


def _dense(table: TimeTable) -> Number:
    """Dense product time over all product time; unavailable while no product was seen."""
    n = max([r.share.n or 0 for r in table.paths], default=0)
    dense = sum(r.share.value or 0.0 for r in table.paths if r.path == "dense")
    sparse = sum(r.share.value or 0.0 for r in table.paths if r.path in PRODUCTS)
    products = round((dense + sparse) * n)
    if not products:
        return unavailable("no matrix product was seen")
    return share(min(products, round(dense * n)), products)
