"""The few file operations a session is made of: private, durable, and never through a link or into a device."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from sparsetui.session.errors import DamagedError, storage

TEMPORARY = ".tmp-"


def make_folder(path: Path) -> None:
    """Create ``path`` and its missing parents, readable by the owner only; an existing folder is left as it is."""
    with storage("create the folder", path):
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for folder in reversed(missing):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:  # another process was faster
                pass
            else:
                sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` so that a reader sees the old file or the new one, never a part of it.

    A temporary name, fsync, rename, fsync of the folder.
    """
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}")
    with storage("write", path):
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_all(fd: int, data: bytes) -> None:
    """``os.write`` until all is written; a short write is continued, so that its cause surfaces as an ``OSError``."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open ``path`` if it is a plain file. A link, pipe or device is refused: not followed, read or waited for.

    Raises ``OSError``, or :class:`DamagedError` for anything that is not a plain file.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedError(f"{path}: is not a plain file")
    return fd


def read_regular(path: Path, limit: int) -> bytes:
    """All bytes of a plain file; :class:`DamagedError` beyond ``limit`` bytes, ``OSError`` as usual."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            raise DamagedError(f"{path}: {size} bytes, more than the {limit} that are accepted")
        parts = []
        while size > 0 and (part := os.read(fd, size)):  # what is written behind our back is not ours to read
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(fd)
