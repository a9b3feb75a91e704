"""Artifacts: the JSON of what a probe saw, stored under the sha256 of its bytes and compressed.

The name is the proof: nothing is handed out whose bytes do not hash to it.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from sparsetui.session.errors import DamagedError, SessionError, storage
from sparsetui.session.files import TEMPORARY, make_folder, read_regular, write_whole

MAX_ARTIFACT = 256 << 20  # bytes of JSON
MAX_COMPRESSED = 256 << 20

NAME = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{62})\.json\.gz", re.ASCII)
_SHA = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Artifacts:
    """The folder ``artifacts/`` of one session."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, sha: str) -> Path:
        """Where the artifact ``sha`` lies. Raises :class:`SessionError` for anything but 64 hex digits."""
        if not _SHA.fullmatch(sha):
            raise SessionError(f"not an artifact's name: {sha[:80]!r}; expected a sha256 of 64 hex digits")
        return self.root / sha[:2] / f"{sha}.json.gz"

    def put(self, data: bytes) -> str:
        """Store ``data`` durably and return its sha256. The same bytes are stored once; a damaged copy is replaced."""
        if len(data) > MAX_ARTIFACT:
            raise SessionError(f"an artifact of {len(data)} bytes exceeds the {MAX_ARTIFACT} that a session holds")
        sha = sha256(data).hexdigest()
        path = self.path(sha)
        try:
            if path.exists() and self.read(sha) == data:
                return sha
        except SessionError:
            pass
        make_folder(path.parent)
        write_whole(path, gzip.compress(data, compresslevel=6, mtime=0))
        return sha

    def read(self, sha: str, limit: int = MAX_ARTIFACT) -> bytes:
        """The JSON bytes of ``sha``, at most ``limit``; :class:`DamagedError` when they are not what the name says."""
        path = self.path(sha)
        with storage("read the artifact", path):
            packed = read_regular(path, MAX_COMPRESSED)
        data = unpack(packed, min(limit, MAX_ARTIFACT), str(path))
        if sha256(data).hexdigest() != sha:
            raise DamagedError(f"{path}: its content does not have the sha256 of its name")
        return data

    def stored(self) -> Iterator[str]:
        """The names of all artifacts in the folder, sorted."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir() and not folder.is_symlink():
                for file in sorted(folder.iterdir()):
                    if match := NAME.fullmatch(f"{folder.name}/{file.name}"):
                        yield match[2]

    def sweep(self) -> None:
        """Remove temporary files that a killed writer left behind. For the holder of the lock only."""
        with storage("tidy up", self.root):
            for left in (*self.root.glob(f"{TEMPORARY}*"), *self.root.glob(f"*/{TEMPORARY}*")):
                left.unlink(missing_ok=True)


def unpack(packed: bytes, limit: int, name: str) -> bytes:
    """Decompress one gzip member of at most ``limit`` bytes. Raises :class:`DamagedError`."""
    inflate = zlib.decompressobj(wbits=31)
    try:
        data = inflate.decompress(packed, limit + 1)
    except zlib.error as e:
        raise DamagedError(f"{name}: is not readable gzip: {e}") from e
    if len(data) > limit:
        raise DamagedError(f"{name}: unpacks to more than the {limit} bytes that are accepted")
    if not inflate.eof:
        raise DamagedError(f"{name}: is cut short")
    if inflate.unused_data:
        raise DamagedError(f"{name}: has {len(inflate.unused_data)} bytes after its end")
    return data
