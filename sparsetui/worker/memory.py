"""How much memory and how many processes a replica and its descendants hold, and how much they may."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil

from sparsetui.worker.child.limits import children

MOST_PROCESSES = 512  # of one replica; more is taken for a fork bomb
_REFRESH_S = 0.25
_HOST_RESERVE = 0.03  # of all memory; with less left there is no time to count carefully
_PAGE = os.sysconf("SC_PAGE_SIZE")


def default_ceiling() -> int:
    """80 % of what this host, and the cgroup it runs in, still have to give, in bytes."""
    free = psutil.virtual_memory().available
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, max(0, int(Path(limit).read_text()) - int(Path(used).read_text())))
        except (OSError, ValueError):  # no such cgroup version, or "max"
            continue
    return int(free * 0.8)


class Tree:
    """A replica with its descendants. They are looked up now and then, and their memory each time it is asked for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pids: tuple[int, ...] = (pid,)
        self._looked = 0.0
        self._weighed: int | None = None  # as of the last weighing, in bytes
        self._weighing = threading.Event()

    def refresh(self, now: float) -> int:
        """The number of processes, looked up again if the last look is older than a quarter of a second."""
        if now - self._looked >= _REFRESH_S:
            self._looked = now
            self.pids = tuple(descendants(self.pid, MOST_PROCESSES + 1))
        return len(self.pids)

    def bytes_used(self, ceiling: int) -> int:
        """Memory of all in bytes. Pages that forks share are counted once if it matters, that is above ``ceiling``.

        That count is slow, and slower still against processes that keep forking, so it is made in a thread of its own;
        until it is done the sum is taken to be at the ceiling, unless the host itself runs out.
        """
        total = sum(_statm(pid) for pid in self.pids)
        if total <= ceiling or len(self.pids) == 1:
            self._weighed = None
            return total
        memory = psutil.virtual_memory()
        if memory.available < _HOST_RESERVE * memory.total:
            return total
        if not self._weighing.is_set():
            self._weighing.set()
            threading.Thread(target=self._weigh, name="sparsetui-worker-weigh", daemon=True).start()
        return ceiling if self._weighed is None else min(total, self._weighed)

    def _weigh(self) -> None:
        self._weighed = sum(_pss(pid) for pid in self.pids)
        self._weighing.clear()


def descendants(pid: int, most: int = 10_000) -> list[int]:
    """``pid`` and everything below it, nearest first, ``most`` of them at the most."""
    found = [pid]
    for parent in found:
        found += children(parent)
        if len(found) >= most:
            break
    return found[:most]


def _statm(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as f:
            return int(f.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            for line in f:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return _statm(pid)
