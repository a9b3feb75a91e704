"""Sessions as one file: a tar.gz that is the same bytes for the same session, and a reader that trusts none of it.

The reader takes plain files and folders with the names that a session has, and nothing else. It is written here, and
not left to a general unpacker, because everything that an archive may otherwise hold (links, devices, sparse files,
huge extension headers) is refused before it is acted upon.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from sparsetui.session.artifacts import NAME, Artifacts
from sparsetui.session.errors import DamagedError, RefusedError, SessionError, storage
from sparsetui.session.files import TEMPORARY, open_regular, read_regular, sync_folder, write_all, write_whole
from sparsetui.session.folder import ARTIFACTS, HEAD, HEADER, ID, LEDGER, LOCK, MEMO
from sparsetui.session.ledger import Head, Scan, encode_head
from sparsetui.session.reader import read_ledger
from sparsetui.session.state import Folder
from sparsetui.session.verify import verify

MAX_TOTAL = 2 << 30  # bytes unpacked
MAX_RATIO = 200  # unpacked bytes for each packed one, once beyond the slack
RATIO_SLACK = 16 << 20
MAX_MEMBERS = 20_000
_BLOCK = 512
_CHUNK = 1 << 16
_MAX_NAME = 4096
_MAX_MEMO = 64 << 20


def export(session: Path, dest: Path) -> Path:
    """Pack the session in ``session`` into the tar.gz ``dest``; the same session always gives the same bytes.

    A live writer may go on: the ledger is cut after its last whole line. Returns ``dest``.
    """
    temporary = dest.with_name(f"{TEMPORARY}{secrets.token_hex(6)}")
    with storage("write the archive", dest):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as f:
                _pack(session, f)
                f.flush()
                os.fsync(fd)
            os.rename(temporary, dest)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return dest


def _pack(session: Path, out: IO[bytes]) -> None:
    packed = _Deflate(out)
    with tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in _members(session):
            info = tarfile.TarInfo(f"{session.name}/{name}")
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    packed.finish()


def _members(session: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of all that belongs to a session, in the order in which they are packed."""
    with storage("read", session):
        yield HEADER, read_regular(session / HEADER, 1 << 16)
        data, found = read_ledger(session)
        data = data[: found.size]
        yield LEDGER, data
        if found.total and not found.damage:
            yield HEAD, _head(session.name, found)
        elif (session / HEAD).is_file():
            yield HEAD, read_regular(session / HEAD, 1 << 16)
        if (session / MEMO).is_file():
            yield MEMO, read_regular(session / MEMO, _MAX_MEMO)
        artifacts = Artifacts(session / ARTIFACTS)
        for sha in artifacts.stored():
            yield f"{ARTIFACTS}/{sha[:2]}/{sha}.json.gz", read_regular(artifacts.path(sha), MAX_TOTAL)


def _head(id: str, found: Scan) -> bytes:
    """The head that a whole ledger has: computed, so that neither an export nor an import depends on a stale one."""
    folder = Folder(id)
    folder.feed_all(found.events)
    return encode_head(Head(found.next_seq - 1, found.prev, found.size, folder.summary()))


class _Deflate(io.RawIOBase):
    """A gzip stream without a time or a name in its header."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._deflate = zlib.compressobj(6, zlib.DEFLATED, 31)

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self._out.write(self._deflate.compress(view))
        return view.nbytes

    def finish(self) -> None:
        self._out.write(self._deflate.flush())


def unpack_session(archive: Path, root: Path) -> Path:
    """Unpack ``archive`` below ``root`` and return the new session's folder.

    Nothing appears under its final name before every hash has been checked. Raises :class:`RefusedError` for content
    that no session has, :class:`DamagedError` for bytes that are not what their hash says, :class:`SessionError` when a
    session of that name is already there.
    """
    with storage("read the archive", archive):
        fd = open_regular(archive)
    with os.fdopen(fd, "rb") as f, _workspace(root) as work:
        top = _extract(_Inflate(f, archive), work)
        session = work / top
        unpacked = min(MAX_TOTAL, RATIO_SLACK + MAX_RATIO * os.fstat(fd).st_size)  # artifacts are packed once more
        report = verify(session, unpacked)
        if not report.ok:
            raise DamagedError(f"{archive}: the session in it is damaged: {report.problems[0]}")
        _, found = read_ledger(session)
        if found.total:  # lists believe the head's summary, so it is not taken from outside
            write_whole(session / HEAD, _head(top, found))
        final = root / top
        with storage("place the session", final):
            if final.exists():
                raise SessionError(f"{final}: a session of that name is already here; delete or rename it first")
            os.rename(session, final)
            sync_folder(root)
    return final


@contextmanager
def _workspace(root: Path) -> Iterator[Path]:
    work = root / f".import-{secrets.token_hex(6)}"
    with storage("create", work):
        os.mkdir(work, 0o700)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Inflate:
    """Reads a gzip stream within the limits on total size and on ratio."""

    def __init__(self, source: IO[bytes], name: Path) -> None:
        self._source, self._name = source, name
        self._inflate = zlib.decompressobj(wbits=31)
        self._buffer = bytearray()
        self._packed = self._total = 0

    def refuse(self, why: str) -> RefusedError:
        return RefusedError(f"{self._name}: {why}")

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes. Raises :class:`DamagedError` at the end of the stream."""
        while len(self._buffer) < size:
            if self._inflate.eof:
                raise DamagedError(f"{self._name}: the archive is cut short")
            pending = self._inflate.unconsumed_tail
            if not pending:
                pending = self._source.read(_CHUNK)
                self._packed += len(pending)
                if not pending:
                    raise DamagedError(f"{self._name}: the archive is cut short")
            try:
                data = self._inflate.decompress(pending, 16 * _CHUNK)
            except zlib.error as e:
                raise DamagedError(f"{self._name}: not a readable tar.gz archive: {e}") from e
            self._total += len(data)
            self._buffer += data
            if self._total > MAX_TOTAL:
                raise self.refuse(f"unpacks to more than the {MAX_TOTAL} bytes that are accepted")
            if self._total > RATIO_SLACK + MAX_RATIO * self._packed:
                raise self.refuse(f"unpacks to more than {MAX_RATIO} times its size")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data


def _extract(stream: _Inflate, work: Path) -> str:
    """Write all members below ``work``; return the name of the one top folder."""
    top, seen, long_name = "", set[str](), ""
    for count in range(MAX_MEMBERS + 1):
        block = stream.read(_BLOCK)
        if not block.strip(b"\0"):
            break
        if count == MAX_MEMBERS:
            raise stream.refuse(f"holds more than the {MAX_MEMBERS} members that are accepted")
        name, size, kind = _header(block, stream)
        name, long_name = long_name or name, ""
        if kind in (b"L", b"x"):
            if size > _MAX_NAME:
                raise stream.refuse(f"has a member name of {size} bytes")
            extra = _padded(stream, size)
            long_name = extra.rstrip(b"\0").decode("utf-8", "replace") if kind == b"L" else _pax_path(extra, stream)
            continue
        parts = _parts(name, stream)
        if kind == b"5" and not parts:  # "./", as some packers begin
            continue
        if not parts or (top and parts[0] != top):
            raise stream.refuse(f"holds {_shown(name)}; expected the files of one session in one folder")
        top = parts[0]
        inner = "/".join(parts[1:])
        if kind == b"5":
            if not re.fullmatch(rf"|{ARTIFACTS}(/[0-9a-f]{{2}})?", inner, re.ASCII):
                raise stream.refuse(f"holds a folder {_shown(name)}, which no session has")
            continue
        artifact = parts[1:2] == [ARTIFACTS] and NAME.fullmatch("/".join(parts[2:]))
        if not artifact and inner not in (HEADER, LEDGER, HEAD, MEMO, LOCK):
            raise stream.refuse(f"holds {_shown(name)}, which no session has")
        if inner in seen:
            raise stream.refuse(f"holds {_shown(name)} twice")
        seen.add(inner)
        _write_member(stream, work / top / inner, size, keep=inner != LOCK)
    if HEADER not in seen or LEDGER not in seen:
        raise stream.refuse(f"holds no session: {HEADER} or {LEDGER} is missing")
    return top


def _header(block: bytes, stream: _Inflate) -> tuple[str, int, bytes]:
    """Name, size and type of a member; any type but a plain file, a folder or a longer name is refused."""
    try:
        want = int(block[148:156].strip(b" \0") or b"0", 8)
        size = int(block[124:136].strip(b" \0") or b"0", 8)
    except ValueError:
        raise stream.refuse("is not a tar archive with plain headers") from None
    if want != sum(block) - sum(block[148:156]) + 8 * 32:
        raise DamagedError(f"{stream.refuse('a header in the archive does not match its checksum')}")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    kind = block[156:157].replace(b"\0", b"0")
    text = name.decode("utf-8", "replace")
    if kind not in (b"0", b"5", b"L", b"x"):
        kinds = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe"}
        raise stream.refuse(f"holds {kinds.get(kind, 'a special member')} ({_shown(text)}), which no session has")
    if size < 0 or size > MAX_TOTAL:
        raise stream.refuse(f"says that {_shown(text)} has {size} bytes; at most {MAX_TOTAL} are accepted")
    return text, size if kind != b"5" else 0, kind


def _pax_path(extra: bytes, stream: _Inflate) -> str:
    """The ``path`` of a pax header; one that changes a member's kind or size is refused, the rest is ignored."""
    path = ""
    while extra:
        length, _, rest = extra.partition(b" ")
        if not length.isdigit() or not len(length) + 1 < int(length) <= len(extra):
            raise stream.refuse("has a malformed extended header")
        key, _, value = rest[: int(length) - len(length) - 1].partition(b"=")
        if key == b"path":
            path = value.rstrip(b"\n").decode("utf-8", "replace")
        elif key in (b"size", b"linkpath") or key.startswith(b"GNU.sparse"):
            raise stream.refuse(f"has an extended header with {_shown(key.decode('ascii', 'replace'))}")
        extra = extra[int(length) :]
    return path


def _parts(name: str, stream: _Inflate) -> list[str]:
    """The parts of a member's name. An absolute name, ``..`` or a name that no session has is refused."""
    parts = list(PurePosixPath(name).parts)
    if name.startswith("/") or ".." in parts or "\\" in name:
        raise stream.refuse(f"holds {_shown(name)}, which leads out of the session's folder")
    if not all(ID.fullmatch(p) for p in parts):
        raise stream.refuse(f"holds {_shown(name)}, which no session has")
    return parts


def _padded(stream: _Inflate, size: int) -> bytes:
    return stream.read(-(-size // _BLOCK) * _BLOCK)[:size]


def _write_member(stream: _Inflate, path: Path, size: int, *, keep: bool) -> None:
    fd = -1
    with storage("unpack", path):
        if keep:
            for folder in reversed(path.parents[: len(path.parts)]):
                if not folder.exists():
                    os.mkdir(folder, 0o700)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            left = size
            while left:
                data = stream.read(min(left, _CHUNK))
                left -= len(data)
                if keep:
                    write_all(fd, data)
            if keep:
                os.fsync(fd)
        finally:
            if fd >= 0:
                os.close(fd)
    stream.read(-size % _BLOCK)


def _shown(name: str) -> str:
    return repr(name[:120])
