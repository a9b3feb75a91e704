"""One core for both: single-threaded processes that take turns take them on the same core.

Cores of a shared host are not alike. A neighbour on the other half of a physical core slows one of ours by a third for as
long as it pleases, and two processes that the scheduler keeps on two cores differ by that much. On such a host the sd of one
round's log-ratio of identical processes was 0.15 with both free in blocks of 50 ms, 0.09 on one core, and 0.03 on one core in
blocks of 12 ms. The scheduler still chooses the core, anew for each cycle, so that a busy one is avoided.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

_LONE = 1.15  # CPU seconds a second of wall time, up to which a step counts as single-threaded


class Cores:
    """Where the threads of some processes may run. :meth:`free` puts back what they were allowed at first."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._allowed: dict[int, set[int]] = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                self._allowed[pid] = os.sched_getaffinity(pid)

    def gather(self, leader: int) -> int | None:
        """Keep all of them on the core where ``leader`` ran last; the core, or None where that is not allowed to all."""
        core = _last_core(leader)
        if core is None or not all(core in allowed for allowed in self._allowed.values()):
            return None
        self.keep(core)
        return core

    def keep(self, core: int) -> None:
        """Keep all of them on ``core``, whatever they were launched with."""
        for pid in self._allowed:
            _allow(pid, {core})

    def free(self) -> None:
        for pid, allowed in self._allowed.items():
            _allow(pid, allowed)


def level(pids: Iterable[int]) -> bool:
    """Give all of them the best priority that one has; whether any was changed. Not everybody may raise one."""
    nice: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            nice[pid] = os.getpriority(os.PRIO_PROCESS, pid)
    best, changed = min(nice.values(), default=0), False
    for pid in (p for p, n in nice.items() if n > best):
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(task), best)
                changed = True
    return changed


def lone(cpu_s: float, wall_s: float) -> bool:
    """Whether steps that took so much processor time were the work of one thread."""
    return wall_s > 0 and cpu_s / wall_s <= _LONE


def _allow(pid: int, cores: set[int]) -> None:
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                os.sched_setaffinity(int(task), cores)


def _last_core(pid: int) -> int | None:
    """The core that the process's main thread ran on last (field 39 of ``/proc/PID/stat``)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[36])
    except (OSError, ValueError, IndexError):
        return None
