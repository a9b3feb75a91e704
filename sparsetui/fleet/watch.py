"""One host's part of watching a run from outside: ``python -m sparsetui.fleet.watch`` looks at one process and reports.

Messages are those of :mod:`sparsetui.fleet.host`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import msgspec

from sparsetui.diagnosis.ranks import Rank
from sparsetui.evidence.records import TimeTable, to_json
from sparsetui.evidence.text import clean
from sparsetui.fleet.records import HostState

WAITING = frozenset({"collective", "barrier", "wait"})  # paths of the time table in which a rank waits for others


class WatchJob(msgspec.Struct, frozen=True):
    """Which process of which host, and for how long."""

    host: str
    pid: int
    seconds: float = 10.0
    gentle: bool = False


class RankReport(msgspec.Struct, frozen=True):
    """What was seen of one process. ``busy`` is the share of the time in which its busiest thread ran."""

    host: str
    pid: int = 0
    state: HostState = "done"
    why: str = ""
    cmdline: str = ""
    table: TimeTable = TimeTable()
    busy: float | None = None
    samples: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.host}:{self.pid}"

    def rank(self) -> Rank:
        """Shares of wall time: not running is waiting, and so is running in a collective, a barrier or a wait."""
        within = sum(p.share.value or 0.0 for p in self.table.paths if p.path in WAITING)
        busy = 1.0 if self.busy is None else self.busy
        work = busy * max(0.0, 1.0 - within)
        return Rank(self.name, work, 1.0 - work, host=self.host, samples=self.samples or None)


def watch(job: WatchJob) -> RankReport:
    """Watch the process. Never raises: what goes wrong is the report's ``state`` and ``why``."""
    from sparsetui.evidence.kernels import CatalogueError
    from sparsetui.ingest.attach import NoProcess, NothingToSee, Watch

    began = time.monotonic()
    try:
        seen = Watch([job.pid], gentle=job.gentle, planned_s=job.seconds)
        seen.start()
    except (NoProcess, NothingToSee, CatalogueError) as e:
        return RankReport(job.host, job.pid, "refused", clean(e, 400))
    try:
        *_, last = seen.snapshots(job.seconds)
    finally:
        seen.stop()
    if not last.table.paths:
        return RankReport(job.host, job.pid, "refused", f"nothing of process {job.pid} was seen in {job.seconds:g} s")
    running = [t.busy.value for t in last.threads if t.busy.value is not None]
    return RankReport(
        job.host, job.pid, cmdline=clean(last.targets[0].cmdline, 200) if last.targets else "", table=last.table,
        busy=min(1.0, max(running)) if running else None, samples=sum(s.samples for s in last.table.samplers),
        seconds=time.monotonic() - began,
    )  # fmt: skip


def main() -> int:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job: Any = msgspec.json.decode(sys.stdin.buffer.readline(), type=WatchJob)
    out.write(to_json({"report": watch(job)}).decode() + "\n")
    out.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
