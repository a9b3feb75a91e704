"""Watching live processes from outside: tables that fill while samples come, and what the watching costs.

Three observers run beside each other for each process: perf's cpu-clock event (every thread, no pause, read every
moment), py-spy (Python's threads with their callers, in runs that grow longer, because each start reads symbols and
stops the target meanwhile), and a look at ``/proc`` that tells waiting from running. With children wanted, a fourth looks
for new ones: worker pools replace their workers.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from sparsetui.evidence.records import Missing, Number, unavailable
from sparsetui.evidence.records import Sampler as SamplerRecord
from sparsetui.ingest.observed import Target
from sparsetui.ingest.samplers import Perf, PySpy, SamplerError, Tally, merge
from sparsetui.ingest.samplers.base import OnCommand, alive
from sparsetui.ingest.samplers.fold import catalogue, share
from sparsetui.ingest.samplers.proc import Who, children, runs, who
from sparsetui.ingest.samplers.pyspy import STARTUP_S
from sparsetui.ingest.snapshots import (
    PYTHON_ONLY,
    Cost,
    Life,
    Snapshot,
    ThreadShare,
    dense_of_products,
    together,
    with_waiting,
    without_kernels,
)

__all__ = ["Choice", "Cost", "Life", "NoProcess", "NothingToSee", "Snapshot", "ThreadShare", "Watch"]

Choice = Literal["auto", "py-spy", "perf"]

# Runs of py-spy: the first is short, for a table within three seconds; the later ones long, for each costs a start
# that stops the target for up to a second. Beside perf, which fills the table at once, there is no hurry.
_RUNS_ALONE = (1.0, 4.0, 12.0, 30.0, 60.0)
_RUNS_BESIDE_PERF = (4.0, 30.0, 120.0)
_LONGEST_ONE_RUN = 20.0
_GENTLE_RUN = 2.0  # without pauses a start costs the target nothing
_LOOKS_HZ = 20.0
_FOLLOW_S = 0.5  # between two looks for processes that came or ended
_MOST_SPIES = 8  # py-spies at a time: each takes a core for its first second; more processes than that take turns
_TURN_S = 4.0  # of each where they take turns
_MOST = 64  # processes watched at a time
_MOST_FOLLOWED = 1000  # in one watch, however long a pool replaces its workers
_PATIENCE_S = 20.0  # how much longer than asked a watch may take that has seen nothing yet


class NothingToSee(Exception):
    """No sampler may look at any of the processes; ``missing`` holds the reasons."""

    def __init__(self, missing: tuple[Missing, ...]) -> None:
        super().__init__("; ".join(f"{m.what}: {m.why}" for m in missing))
        self.missing = missing


class NoProcess(Exception):
    """A PID that does not exist; its text is one line."""


class Watch:
    """Watches ``pids`` (with ``with_children`` also what they started, and what they and these start later) until :meth:`stop`.

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
        self.sampler, self.rate_hz, self.gentle = sampler, rate_hz, gentle
        self._following, self._on_command = with_children, on_command
        wanted = list(dict.fromkeys(pids))
        for pid in wanted:
            if who(pid) is None:
                raise NoProcess(f"process {pid} does not exist (or has ended); list candidates with: pgrep -af python")
        self._missing: dict[tuple[str, str], Missing] = {}
        self._lock = threading.Lock()
        self._begin = 0.0
        self._end: float | None = None
        if with_children:
            more = [c for c in children(*wanted, without=os.getpid()) if c not in wanted]
            if len(wanted) + len(more) > _MOST:
                self._too_many()
            wanted += more[: max(0, _MOST - len(wanted))]
        self._targets = [self._target(w) for pid in wanted if (w := who(pid)) is not None]
        self._stacks, self._leaves = Tally(), Tally()
        self._halt = threading.Event()
        self._threads: list[threading.Thread] = []
        self._turns = threading.BoundedSemaphore(_MOST_SPIES)
        self._looked: set[int] = set()  # processes of which py-spy ended a run
        self._failed: set[int] = set()  # processes that py-spy began with and could not read

    @property
    def targets(self) -> tuple[Who, ...]:
        """All that are or were watched, in the order in which they were found."""
        return tuple(t.who for t in list(self._targets))

    def _target(self, who: Who) -> Target:
        spy = perf = None
        if self.sampler != "perf":
            spy = PySpy(who.pid, self.rate_hz, gentle=self.gentle, on_command=self._on_command)
        if self.sampler != "py-spy":
            perf = Perf(who.pid, on_command=self._on_command)
        return Target(who, spy, perf, time.monotonic() - self._begin if self._begin else 0.0)

    def cost(self) -> Cost:
        """What the watching will cost, said before it starts."""
        return self._cost()

    def start(self) -> None:
        """Begin. Raises :class:`NothingToSee`."""
        for t in self._targets:
            self._begin_with(t)
        if not any(t.spy or t.perf for t in self._targets):
            raise NothingToSee(tuple(self._missing.values()))
        self._begin = time.monotonic()
        for t in self._targets:
            self._observe(t)
        self._thread(self._look, "look")
        self._thread(self._follow, "follow")

    def _begin_with(self, t: Target, quietly: bool = False) -> None:
        """Keep the samplers that may look at it; why others may not is noted, but for one that is gone already if ``quietly``."""
        if t.spy is not None and (missing := t.spy.available()) is not None:
            t.spy = None
            if not quietly or runs(t.who):
                self._note(missing)
        if t.perf is not None:
            try:
                t.perf.start()
            except SamplerError as e:
                t.perf = None
                if not quietly or runs(t.who):
                    self._note(e.missing)

    def _observe(self, t: Target) -> None:
        if t.spy is None:
            return
        if not self.gentle:
            t.meter.__enter__()
        self._thread(partial(self._spy, t), f"py-spy {t.who.pid}")

    def stop(self) -> None:
        """End all samplers and wait for what they saw. Idempotent."""
        if self._end is None:
            self._end = time.monotonic()
        self.interrupt()
        with self._lock:
            threads = list(self._threads)  # none is begun any more
        for t in self._targets:
            if t.spy is not None:
                t.spy.interrupt()
        for thread in threads:
            thread.join(15)
        for t in self._targets:
            t.meter.__exit__(None, None, None)
            if t.perf is not None:
                t.perf.close()
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
                if not any(t.ended_s is None and runs(t.who) for t in list(self._targets)) or self._blind():
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

    def _blind(self) -> bool:
        """Whether no sampler is left that could see anything: each was refused or could not read its process."""
        with self._lock:
            return not self._following and not any(
                t.perf is not None or (t.spy is not None and t.who.pid not in self._failed) for t in self._targets
            )

    def _expecting(self) -> bool:
        """Whether nothing was seen so far only because py-spy is not through its first run: on a busy host it starts slowly."""
        self._drain()
        with self._lock:
            return not self._stacks.n and not self._leaves.n and any(
                t.spy is not None and t.who.pid not in self._failed | self._looked and t.ended_s is None and alive(t.who.pid)
                for t in list(self._targets)
            )  # fmt: skip

    def snapshot(self) -> Snapshot:
        self._drain()
        elapsed = (self._end or time.monotonic()) - self._begin if self._begin else 0.0
        targets = list(self._targets)
        for t in targets:
            self._see_end(t)
        with self._lock:
            missing = list(self._missing.values())
            tallies = {}
            records = []
            if any(t.spy is not None and t.who.pid not in self._failed for t in targets):
                tallies["py-spy"] = self._stacks
                pause = self._pause()
                records.append(SamplerRecord("py-spy", self.rate_hz, self._stacks.n, pause))
            perfs = [t.perf for t in targets if t.perf is not None]
            if perfs:
                tallies["perf"] = self._leaves
                records.append(SamplerRecord("perf", perfs[0].rate_hz, self._leaves.n, 0.0))
            if self.gentle and any(t.spy is not None for t in targets):
                missing.append(PYTHON_ONLY)
                stacks = tallies.pop("py-spy")
                if not ("perf" in tallies and self._leaves.n):
                    tallies = {"py-spy": without_kernels(stacks)}
            ran = merge(tallies, records, missing)
            looks, idle = sum(t.looker.looks for t in targets), sum(t.looker.idle for t in targets)
            threads = self._thread_shares()
            callers = self._callers()
        return Snapshot(
            elapsed_s=elapsed,
            targets=tuple(t.who for t in targets),
            table=with_waiting(ran, idle, looks),
            threads=threads,
            callers=callers,
            dense_share=dense_of_products(ran),
            conversion_share=together(ran, ("conversion", "sort")),
            cost=self._cost(),
            ended=tuple(t.who.pid for t in targets if t.ended_s is not None),
            done=self._end is not None,
            lives=tuple(t.life for t in targets),
        )

    # the observers

    def _thread(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            if self._halt.is_set():
                return
            self._threads = [t for t in self._threads if t.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _look(self) -> None:
        while not self._halt.wait(1 / _LOOKS_HZ):
            for t in list(self._targets):
                if t.ended_s is None:
                    t.looker.look()

    def _follow(self) -> None:
        """See who ends, and with children wanted who comes; what is over gives its descriptors back at once."""
        while not self._halt.wait(_FOLLOW_S):
            living = []
            for t in list(self._targets):
                if t.ended_s is None and not self._see_end(t):
                    living.append(t)
                elif t.perf is not None and t.ended_s is not None:
                    t.perf.close()
            if self._following:
                self._adopt(living)

    def _see_end(self, t: Target) -> bool:
        """Whether it is over; the moment is noted once."""
        if t.ended_s is None and self._begin and not runs(t.who):
            t.ended_s = (self._end or time.monotonic()) - self._begin
        return t.ended_s is not None

    def _adopt(self, living: list[Target]) -> None:
        known = {t.who.pid for t in living}
        for pid in children(*known, without=os.getpid()):
            if pid in known or (found := who(pid)) is None:
                continue
            if len(known) >= _MOST or len(self._targets) >= _MOST_FOLLOWED:
                self._too_many()
                return
            known.add(pid)
            t = self._target(found)
            self._begin_with(t, quietly=True)
            self._targets.append(t)
            self._observe(t)

    def _too_many(self) -> None:
        why = f"at most {_MOST} processes are watched at a time, and {_MOST_FOLLOWED} in one watch; name those that matter"
        self._note(Missing("further children", why))

    def _spy(self, t: Target) -> None:
        spy = t.spy
        assert spy is not None
        run = 0
        while not self._halt.is_set() and alive(spy.pid):
            if not self._turns.acquire(timeout=0.2):
                continue
            try:
                stacks = spy.collect(self._length(run, t.perf is not None))
            except SamplerError as e:
                with self._lock:
                    self._failed.add(spy.pid)
                if not t.came_s or runs(t.who):  # a worker that came and went is told by its end
                    self._note(e.missing)
                return
            finally:
                self._turns.release()
            with self._lock:
                self._stacks.add(stacks)
                self._looked.add(spy.pid)
            run += 1

    def _length(self, run: int, beside_perf: bool) -> float:
        """Seconds of the next run of py-spy."""
        runs_ = (_GENTLE_RUN,) if self.gentle else _RUNS_BESIDE_PERF if beside_perf else _RUNS_ALONE
        seconds = runs_[min(run, len(runs_) - 1)]
        if run == 0 and beside_perf and self._planned is not None and self._planned <= _LONGEST_ONE_RUN:
            spent = time.monotonic() - self._begin if self._begin else 0.0
            seconds = max(1.0, self._planned - spent - STARTUP_S)  # one start is enough
        living = sum(t.spy is not None and t.ended_s is None for t in list(self._targets))
        return min(seconds, _TURN_S) if living > _MOST_SPIES else seconds

    def _drain(self) -> None:
        fresh = [s for t in list(self._targets) if t.perf is not None for s in t.perf.read()]
        with self._lock:
            self._leaves.add(fresh)

    def _note(self, missing: Missing) -> None:
        with self._lock:
            self._missing[missing.what, missing.why] = missing

    # what they saw

    def _thread_shares(self) -> tuple[ThreadShare, ...]:
        out = []
        for looker in [t.looker for t in self._targets]:
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
        shares = [s for t in self._targets if (s := t.meter.share()) is not None]
        return max(shares) if shares else None

    def _cost(self) -> Cost:
        spies = [t.spy for t in list(self._targets) if t.spy is not None]
        spying = bool(spies)
        forecast = max([s.forecast() for s in spies], default=0.0)
        if self.gentle or not spying:
            text = "no pauses: " + (
                "Python frames are read without stopping the process" if spying else "perf stops no thread"
            )
            return Cost(forecast, Number(0.0, quality="estimated", reason="this way of sampling stops no thread"), text)
        text = (
            f"py-spy stops the process about 2 ms a sample: {forecast:.0%} at {self.rate_hz:g} samples/s, "
            "and up to a second in all whenever it starts, soon once a minute or less, while it reads symbols; "
            "--gentle or --sampler perf stop nothing"
        )
        meters = [t.meter for t in list(self._targets)]
        looks = sum(m.looks for m in meters)
        if looks < 100:
            return Cost(forecast, unavailable("not measured yet"), text)
        return Cost(forecast, share(sum(m.stopped for m in meters), looks), text)


def _comm(pid: int, tid: int) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8", errors="replace") as f:
            return f.read().rstrip("\n")
    except OSError:
        return ""
