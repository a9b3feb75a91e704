"""One watched process and all that observes it."""

from __future__ import annotations

from sparsetui.ingest.samplers import Perf, PySpy
from sparsetui.ingest.samplers.proc import PauseMeter, Who, thread_states
from sparsetui.ingest.snapshots import Life


class Target:
    """One process and all that observes it."""

    def __init__(self, who: Who, spy: PySpy | None, perf: Perf | None, came_s: float) -> None:
        self.who, self.spy, self.perf = who, spy, perf
        self.looker, self.meter = Looker(who.pid), PauseMeter(who.pid)
        self.came_s = came_s
        self.ended_s: float | None = None

    @property
    def life(self) -> Life:
        return Life(self.who.pid, self.who.cmdline, self.came_s, self.ended_s)


class Looker:
    """Looks 20 times a second at which threads of a process run. Reads ``/proc``; the target feels nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.looks = self.idle = 0
        self.running: dict[int, int] = {}

    def look(self) -> None:
        states = thread_states(self.pid)
        if not states or any(state == "t" for state, _ in states.values()):
            return  # a sampler holds it still: that look tells nothing
        self.looks += 1
        self.idle += not any(state == "R" for state, _ in states.values())
        for tid, (state, _) in states.items():
            self.running[tid] = self.running.get(tid, 0) + (state == "R")
