"""The workload's code on its way to the nodes: which files belong to it, their hashes, and one archive of them.

A node that has every file at the same path with the same content runs it there; to any other the archive travels through
Ray's object store, once a node. Ray's own ``working_dir`` is not used: it is one for a whole connection, so it would be
unpacked on nodes that need none, and it wants the dashboard's agent on each.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sparsetui.workload.spec import Workload

LARGEST = 256 << 20  # bytes that are shipped; what is larger belongs on the nodes' disks
_SKIPPED = frozenset({"__pycache__", "node_modules", "sessions", "venv"})


class BundleError(ValueError):
    """The folder cannot be shipped; one line that says why and what to do."""


class Manifest(msgspec.Struct, frozen=True):
    """``files`` maps paths relative to ``root`` to the sha256 of their content; ``bytes`` is their sum."""

    root: str
    files: dict[str, str]
    bytes: int
    outside: tuple[str, ...] = ()  # Python files of the workload that lie elsewhere: each node must have them

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(sorted(self.files.items()))).hexdigest()


def manifest(workload: Workload) -> Manifest:
    """What makes up ``workload``: all files of its folder but hidden ones, caches and virtual environments.

    Raises :class:`BundleError` where they cannot be read or are more than :data:`LARGEST`.
    """
    root = workload.folder
    files: dict[str, str] = {}
    total = 0
    try:
        for path in _files(root):
            total += path.stat().st_size
            if total > LARGEST:
                raise BundleError(
                    f"{root}: holds more than the {LARGEST >> 20} MiB that are shipped to nodes; "
                    "put the workload into a folder of its own, and large weights at a path that every node has"
                )
            files[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as e:
        raise BundleError(
            f"{e.filename or root}: {e.strerror}; every file of the workload's folder is shipped"
        ) from None
    outside = tuple(str(f) for f in workload.files() if not f.resolve().is_relative_to(root.resolve()))
    return Manifest(str(root), files, total, outside)


def _files(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        here = Path(folder)
        names[:] = sorted(n for n in names if not n.startswith(".") and n not in _SKIPPED
                          and not (here / n / "pyvenv.cfg").exists())  # fmt: skip
        for name in sorted(files):
            path = here / name
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def pack(found: Manifest) -> bytes:
    """A plain tar of the manifest's files, the same bytes each time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name in sorted(found.files):
            data = (Path(found.root) / name).read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o600
            packed.addfile(info, io.BytesIO(data))
    return out.getvalue()
