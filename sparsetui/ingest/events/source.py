"""Bytes of a file from outside, as UTF-8 text in chunks: unpacked, decoded, limited, with progress."""

from __future__ import annotations

import codecs
import os
import stat
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from sparsetui.ingest.errors import IngestError

# A profiler trace packs 20 to 40 times; a bomb packs 1000 times.
MAX_RATIO = 250
RATIO_FROM = 64 << 20  # small files of one repeated event may pack better than that
MAX_UNPACKED = 64 << 30
CHUNK = 4 << 20
_PIECE = 8 << 10  # compressed bytes at a time, so that damage costs little

Progress = Callable[[float, float], None]  # share done (0..1), seconds left


def readable_file(path: Path) -> int:
    """The size of ``path`` in bytes. Raises :class:`IngestError` if it is no regular file that we may read."""
    try:
        info = path.stat()
    except OSError as e:
        raise IngestError(f"{path}: cannot be read ({e.strerror or e})") from None
    except ValueError as e:  # a NUL in the name
        raise IngestError(f"{path}: no such file ({e})") from None
    if not stat.S_ISREG(info.st_mode):
        raise IngestError(f"{path}: not a regular file; a file is accepted, not a folder, device or pipe")
    if info.st_size == 0:
        raise IngestError(f"{path}: the file is empty")
    if not os.access(path, os.R_OK):
        raise IngestError(f"{path}: cannot be read (permission denied)")
    return info.st_size


class Source:
    """The text of one file in chunks. ``cut`` says why the bytes ended early, if they did."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.size = readable_file(path)
        self.cut: str | None = None
        self.encoding = "utf-8"
        self._progress = progress
        self._read = 0
        self._unpacked = 0
        self._started = self._told = time.monotonic()
        self._known = 0  # bytes of which progress was told by an earlier reader of the file

    def again(self) -> Source:
        """The same file, from its beginning; progress is told only of what was not read before."""
        anew = Source(self.path, self._progress)
        anew._started, anew._known = self._started, max(self._known, self._read)
        return anew

    def chunks(self) -> Iterator[bytes]:
        """UTF-8 text in pieces of a few MB. Invalid UTF-8 passes through as it is. Raises :class:`IngestError`."""
        try:
            with self.path.open("rb") as file:
                yield from self._decoded(self._bytes(file))
        except OSError as e:
            raise IngestError(f"{self.path}: cannot be read ({e.strerror or e})") from None

    def _bytes(self, file: IO[bytes]) -> Iterator[bytes]:
        head = file.read(4)
        file.seek(0)
        if head[:2] == b"\x1f\x8b":
            yield from self._gunzip(file)
        elif head == b"PK\x03\x04":
            yield from self._unzip(file)
        else:
            while data := file.read(CHUNK):
                self._tell(len(data))
                yield data

    def _gunzip(self, file: IO[bytes]) -> Iterator[bytes]:
        unpack, inside = zlib.decompressobj(31), False
        whole = bytearray()
        while data := file.read(_PIECE):
            self._tell(len(data))
            while data:
                before = unpack.copy()
                try:
                    out = unpack.decompress(data, CHUNK)
                except zlib.error as e:
                    yield bytes(whole) + _bytewise(before, data)
                    self.cut = f"the gzip stream is damaged after {self._unpacked} unpacked bytes ({_short(e)})"
                    return
                inside = True
                self._count(len(out))
                whole += out
                if len(whole) >= CHUNK:
                    yield bytes(whole)
                    whole.clear()
                data = unpack.unconsumed_tail
                if unpack.eof:
                    data = self._behind(unpack.unused_data, file)
                    unpack, inside = zlib.decompressobj(31), False
                    if data[:2] != b"\x1f\x8b":  # nothing, or nothing that was packed
                        file.seek(0, 2)
                        break
        if whole:
            yield bytes(whole)
        if inside:
            self.cut = f"the gzip stream ends early, after {self._unpacked} unpacked bytes"

    def _behind(self, data: bytes, file: IO[bytes]) -> bytes:
        """What follows a member of gzip: the next one, of which ``data`` may hold but a byte, behind zeros that pad."""
        data = data.lstrip(b"\0")
        while len(data) < 2 and (more := file.read(_PIECE)):
            self._tell(len(more))
            data = (data + more).lstrip(b"\0")
        return data

    def _unzip(self, file: IO[bytes]) -> Iterator[bytes]:
        try:
            archive = zipfile.ZipFile(file)
            members = [m for m in archive.infolist() if not m.is_dir()]
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as e:
            raise IngestError(f"{self.path}: a damaged zip archive ({_short(e)})") from None
        if len(members) != 1:
            raise IngestError(f"{self.path}: a zip archive of {len(members)} files; one trace in a zip is accepted")
        try:
            with archive.open(members[0]) as member:
                while data := member.read(CHUNK):
                    self._read = min(self.size, file.tell())
                    self._tell(0)
                    self._count(len(data))
                    yield data
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as e:
            self.cut = f"the zip member is damaged after {self._unpacked} bytes ({_short(e)})"

    def _count(self, n: int) -> None:
        self._unpacked += n
        if self._unpacked > RATIO_FROM and self._unpacked > MAX_RATIO * max(self._read, 1):
            raise IngestError(
                f"{self.path}: unpacks to more than {MAX_RATIO} times its size, like a bomb; at most {MAX_RATIO} is accepted"
            )
        if self._unpacked > MAX_UNPACKED:
            raise IngestError(f"{self.path}: unpacks to more than {MAX_UNPACKED >> 30} GiB, which is not accepted")

    def _decoded(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same text as UTF-8, without a byte order mark."""
        first = next(pieces, b"")
        while len(first) < 4 and (more := next(pieces, b"")):
            first += more
        self.encoding = encoding_of(first[:64])
        if self.encoding == "utf-8":
            yield first[3:] if first.startswith(codecs.BOM_UTF8) else first
            yield from pieces
            return
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        yield decoder.decode(first).lstrip("\ufeff").encode("utf-8", "replace")
        for piece in pieces:
            yield decoder.decode(piece).encode("utf-8", "replace")
        yield decoder.decode(b"", True).encode("utf-8", "replace")

    def _tell(self, n: int) -> None:
        self._read += n
        if self._progress is None or self._read <= self._known:
            return
        now = time.monotonic()
        if now - self._told > 0.2:
            self._told = now
            done = min(self._read / self.size, 1.0)
            self._progress(done, (now - self._started) * (1 - done) / max(done, 1e-6))


def encoding_of(head: bytes) -> str:
    """``utf-8``, ``utf-16-le`` and so on, by byte order mark, else by where the zero bytes stand."""
    for mark, name in (
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if head.startswith(mark):
            return name
    if len(head) >= 4 and head[0] and not head[1] and head[2] and not head[3]:
        return "utf-16-le"
    if len(head) >= 4 and not head[0] and head[1] and not head[2] and head[3]:
        return "utf-16-be"
    return "utf-8"


def _bytewise(unpack: zlib._Decompress, data: bytes) -> bytes:
    """What can still be had from the piece in which a stream is damaged."""
    out = bytearray()
    try:
        for i in range(len(data)):
            out += unpack.decompress(data[i : i + 1], CHUNK)
    except zlib.error:
        pass
    return bytes(out)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
