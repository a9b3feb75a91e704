"""What /proc alone tells of a process, at no cost to it: which threads run, whether a tracer holds it, its children."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Self

import msgspec

from sparsetui.ingest.samplers.base import owner_of


class Who(msgspec.Struct, frozen=True):
    """A process as its user knows it."""

    pid: int
    cmdline: str
    uid: int
    started: float = 0.0  # clock ticks after boot: tells a reused PID from the same process


def who(pid: int) -> Who | None:
    """The process ``pid``; ``None`` when there is none (or only its corpse)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            rest = f.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            raw = f.read(65536)
        uid = owner_of(pid)
    except OSError:
        return None
    if uid is None or len(rest) < 20 or rest[0] in (b"Z", b"X"):
        return None
    return Who(pid, raw.replace(b"\0", b" ").decode("utf-8", "replace").strip(), uid, float(rest[19]))


def runs(process: Who) -> bool:
    """Whether this very process still runs: not a corpse, and not another one that got its PID since."""
    now = who(process.pid)
    return now is not None and now.started == process.started


def children(*pids: int, without: int | None = None) -> list[int]:
    """All descendants of ``pids`` that run now, nearest first; ``without`` leaves out that process and all below it."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                rest = f.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(rest) > 1 and rest[0] not in (b"Z", b"X"):
            parents.setdefault(int(rest[1]), []).append(int(name))
    out: list[int] = []
    seen = set(pids)
    level = [p for p in pids if p != without]
    while level:
        level = sorted(c for p in level for c in parents.get(p, []) if c not in seen and c != without)
        seen.update(level)
        out += level
    return out


def thread_states(pid: int, most: int = 256) -> dict[int, tuple[str, float]]:
    """State letter and CPU seconds of each thread of ``pid`` (at most ``most`` threads)."""
    out: dict[int, tuple[str, float]] = {}
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return out
    tick = os.sysconf("SC_CLK_TCK")
    for tid in tids[:most]:
        try:
            with open(f"/proc/{pid}/task/{tid}/stat", "rb") as f:
                rest = f.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(rest) > 12:
            out[int(tid)] = (rest[0].decode("ascii", "replace"), (int(rest[11]) + int(rest[12])) / tick)
    return out


class PauseMeter:
    """Measures how much of the time a tracer holds ``pid`` still, by looking at its state 200 times a second.

    A thread stopped by ptrace shows the state ``t``. One look costs the observer some 20 µs and the target nothing.
    """

    def __init__(self, pid: int, rate_hz: float = 200) -> None:
        self.pid, self.interval = pid, 1 / rate_hz
        self.looks = 0
        self.stopped = 0
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._halt.set()
        if self._thread:
            self._thread.join(2)

    def _run(self) -> None:
        path = f"/proc/{self.pid}/stat"
        following = time.monotonic()
        while not self._halt.is_set():
            try:
                with open(path, "rb") as f:
                    state = f.read().rpartition(b")")[2].split(None, 1)[0]
            except (OSError, IndexError):
                return
            self.looks += 1
            self.stopped += state == b"t"
            following += self.interval
            delay = following - time.monotonic()
            if delay < 0:
                following = time.monotonic()
            self._halt.wait(max(delay, 0.001))

    def share(self) -> float | None:
        """The share of looks at which the target stood still; ``None`` before a hundred looks."""
        return self.stopped / self.looks if self.looks >= 100 else None
