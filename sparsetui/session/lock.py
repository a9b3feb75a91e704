"""One writer at a time. The kernel holds the lock and drops it when its owner dies; the file only says who that is."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

import msgspec

from sparsetui.session.errors import DamagedError, LockedError, storage
from sparsetui.session.files import open_regular, read_regular

_PATIENCE_S = 0.3  # a writer that is just closing gets this long


class Owner(msgspec.Struct, frozen=True):
    """Who holds, or held, the lock. ``started`` is the process's start in clock ticks, so that a reused pid shows."""

    pid: int
    host: str
    started: int = 0
    since: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether that process still runs; for another host that cannot be seen, and it is taken to."""
        return not self.here or _started(self.pid) == self.started


def _started(pid: int) -> int:
    """Field 22 of ``/proc/PID/stat``; -1 when the process is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return -1


def read_owner(path: Path) -> Owner | None:
    """Who is named in the lock file; ``None`` when it was released properly or does not exist."""
    try:
        return msgspec.json.decode(read_regular(path, 4096), type=Owner)
    except (OSError, DamagedError, msgspec.DecodeError, RecursionError):
        return None


def writing(path: Path) -> str:
    """``process N on HOST`` while a live writer is named in the lock file, else an empty text."""
    owner = read_owner(path)
    return str(owner) if owner is not None and owner.alive else ""


class Lock:
    """An exclusive ``flock`` on the file ``path``, held until :meth:`release` or the death of the process.

    ``left_by`` names an earlier owner that died without releasing.
    """

    def __init__(self, path: Path, session: str, since: str) -> None:
        """Take the lock. Raises :class:`LockedError` that names the present owner."""
        with storage("open the lock", path):
            self._fd = open_regular(path, os.O_RDWR | os.O_CREAT)
        self.left_by: Owner | None = None
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while not self._try(path):
                if time.monotonic() > deadline:
                    who = read_owner(path) or "another process"
                    raise LockedError(f"session {session} is being written by {who}; look at it read-only meanwhile")
                time.sleep(0.02)
            self.left_by = read_owner(path)
            me = Owner(os.getpid(), socket.gethostname(), _started(os.getpid()), since)
            with storage("write the lock", path):
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, msgspec.json.encode(me), 0)
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def _try(self, path: Path) -> bool:
        with storage("lock", path):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            os.ftruncate(fd, 0)
        except OSError:
            pass
        finally:
            os.close(fd)
