"""Scratch folders that outlive their owner are found and removed by the next one.

Who uses a scratch folder holds a shared lock on a file in it, which the kernel drops with the process, however it
ends. A folder whose lock can be had exclusively has no owner; that is true across containers too, where a process id
says nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "sparsetui-"
_LOCK = ".lock"
_UNUSED_S = 10.0  # an empty folder without a lock that is this old was made by someone who did not live to use it


def hold(folder: Path) -> int:
    """Claim ``folder``, making it where it is missing; returns a descriptor to close when it is no longer used.

    Raises ``OSError``.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def sweep(place: Path) -> list[Path]:
    """Remove the scratch folders in ``place`` that nobody holds, of this user only; returns them. Never raises."""
    removed = []
    with suppress(OSError):
        for folder in sorted(place.glob(f"{PREFIX}*")):
            if _abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _abandoned(folder: Path) -> bool:
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        try:
            fd = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return not os.listdir(folder) and time.time() - found.st_mtime > _UNUSED_S
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(fd)
        return True
    except OSError:
        return False  # held, or not ours to touch
