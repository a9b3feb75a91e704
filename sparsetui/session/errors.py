"""What can go wrong with a saved session, each as one line that a person can act on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SessionError(Exception):
    """The root of all errors of this package; its text is one line, fit for a terminal after ``clean``."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFoundError(SessionError):
    """No session (or more than one) answers to a name."""


class LockedError(SessionError):
    """Another process is writing to the session."""


class DamagedError(SessionError):
    """Bytes are not what their hash says, or not what they must be."""


class StorageError(SessionError):
    """The file system refused: full, read-only, not permitted, failing."""


class RefusedError(SessionError):
    """An archive holds something that no exported session holds."""


_WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would exceed the size limit of this process or file system",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.EISDIR: "it is a folder, not a file",
    errno.ELOOP: "it is a symbolic link, which a session never holds",
    errno.EEXIST: "it exists already",
    errno.ENOTEMPTY: "it exists already",
    errno.EIO: "the device reported an input/output error",
    errno.EMFILE: "too many open files in this process",
    errno.ENFILE: "too many open files on this host",
    errno.ENAMETOOLONG: "the name is too long",
}


def why(error: OSError) -> str:
    """The cause of an ``OSError`` in words."""
    return _WHY.get(error.errno or 0, error.strerror or str(error) or type(error).__name__)


@contextmanager
def storage(doing: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` inside into a :class:`StorageError`: what was being done, where, and why it failed."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{path}: cannot {doing}: {why(e)}") from e
