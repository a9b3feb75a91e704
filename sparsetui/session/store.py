"""Where sessions are kept: create, find, list, delete, move and check them."""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
from pathlib import Path

import msgspec
import platformdirs

from sparsetui.session import archive
from sparsetui.session.errors import NotFoundError, SessionError, StorageError, storage
from sparsetui.session.files import make_folder, open_regular, sync_folder
from sparsetui.session.folder import (
    HEAD,
    HEADER,
    LEDGER,
    LOCK,
    is_session,
    new_header,
    new_id,
    read_header,
    write_header,
)
from sparsetui.session.ledger import read_head, read_line
from sparsetui.session.lock import Lock, writing
from sparsetui.session.reader import Reader
from sparsetui.session.state import Event, Folder
from sparsetui.session.verify import VerifyReport, verify
from sparsetui.session.writer import Writer

__all__ = ["Reader", "SessionSummary", "Store", "VerifyReport", "Writer", "default_root"]


def default_root() -> Path:
    """``./sessions`` if it exists, else the user data folder."""
    here = Path("sessions")
    return here if here.is_dir() else platformdirs.user_data_path("sparsetui") / "sessions"


class SessionSummary(msgspec.Struct, frozen=True):
    """One line of a list of sessions. Times are ISO 8601 UTC; what is not known is an empty text."""

    id: str
    path: str
    title: str = ""
    workload: str = ""
    host: str = ""
    created: str = ""
    updated: str = ""
    events: int = 0
    status: str = ""  # of the verdict
    mechanism: str = ""
    owner: str = ""  # who owns the mechanism, or the role when nobody was named
    writing: str = ""  # who writes to it now
    interrupted: str = ""
    closed: str = ""  # by whom
    damage: str = ""  # why it cannot be read

    def matches(self, text: str) -> bool:
        """Whether every word of ``text`` occurs in one of the fields, in any case."""
        hay = "\n".join(str(getattr(self, f)) for f in self.__struct_fields__ if f not in ("path", "events")).casefold()
        return all(word in hay for word in text.casefold().split())


Summaries = list[SessionSummary]


class Store:
    """The sessions below one folder. ``readonly`` refuses all that would write."""

    def __init__(self, root: Path | None = None, readonly: bool = False) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.readonly = readonly

    def create(self, workload: str, title: str = "") -> Writer:
        """A new session for the workload of that name, open for writing; its first event is written.

        Raises :class:`StorageError`.
        """
        self._writable()
        make_folder(self.root)
        header = new_header(title or workload)
        with storage("create a session", self.root):
            while True:
                path = self.root / new_id(workload, header.created)
                try:
                    os.mkdir(path, 0o700)
                    break
                except FileExistsError:
                    continue
            sync_folder(self.root)
        writer = None
        try:
            write_header(path, header)
            writer = Writer(path)
            body = {"title": header.title, "workload": workload, "host": header.host, "tool": header.tool}
            writer.append("session", body)
        except BaseException:
            if writer is not None:
                writer.close()
            shutil.rmtree(path, ignore_errors=True)  # nothing was acknowledged yet
            raise
        return writer

    def find(self, ref: str | Path) -> Path:
        """The folder of a session, by its id, a unique beginning, end or part of it, or a path.

        Raises :class:`NotFoundError` that names what is there instead.
        """
        ref = str(ref)
        here = is_session(Path(os.path.expanduser(ref)))
        if "/" in ref or ref in (".", "..") or (here and not is_session(self.root / ref)):
            if here:
                return Path(os.path.expanduser(ref)).resolve()
            raise NotFoundError(f"{ref[:200]}: not a session's folder (it holds no {HEADER})")
        names = [p.name for p in _folders(self.root)]
        part = any(c.isalnum() for c in ref)  # a mere dash is in every name, and names nothing
        for matches in (
            [n for n in names if n == ref],
            [n for n in names if part and n.startswith(ref)],
            [n for n in names if part and n.endswith(ref)],
            [n for n in names if part and ref in n],
        ):
            if len(matches) == 1:
                return (self.root / matches[0]).resolve()
            if matches:
                some = ", ".join(sorted(matches)[:5])
                raise NotFoundError(f"{ref[:200]}: {len(matches)} sessions have that in their name: {some}")
        newest = max(names, default="")
        hint = f"; the newest is {newest}" if newest else "; there is none yet"
        raise NotFoundError(f"{ref[:200]}: no such session in {self.root}{hint}")

    def open(self, ref: str | Path) -> Reader:
        """A session for reading, also while another process writes it."""
        return Reader(self.find(ref))

    def writer(self, ref: str | Path) -> Writer:
        """A session for going on with. Raises :class:`LockedError` while another process writes it."""
        self._writable()
        return Writer(self.find(ref))

    def list(self, text: str = "") -> Summaries:
        """All sessions, newest first, or those that match every word of ``text``. One that is damaged is listed so."""
        found = [summary for path in _folders(self.root) if (summary := summarise(path)).matches(text)]
        return sorted(found, key=lambda s: (s.created, s.id), reverse=True)

    def delete(self, ref: str | Path) -> str:
        """Remove a session for good and return its id. Raises :class:`LockedError` while it is being written."""
        self._writable()
        path = self.find(ref)
        lock = Lock(path / LOCK, path.name, "")
        try:
            gone = path.with_name(f".deleted-{secrets.token_hex(6)}")
            with storage("delete", path):
                os.rename(path, gone)  # at once out of every list, whatever happens to the rest
                shutil.rmtree(gone)
        finally:
            lock.release()
        return path.name

    def export(self, ref: str | Path, dest: Path) -> Path:
        """Pack a session into one file, the same bytes each time. Returns ``dest``."""
        return archive.export(self.find(ref), dest)

    def import_(self, file: Path) -> Path:
        """Take a session from a file that ``export`` wrote, after checking all of it. Returns its folder."""
        self._writable()
        make_folder(self.root)
        return archive.unpack_session(file, self.root)

    def verify(self, ref: str | Path) -> VerifyReport:
        """Check every byte of a session. Reads only."""
        return verify(self.find(ref))

    def _writable(self) -> None:
        if self.readonly:
            raise StorageError(f"{self.root}: opened read-only; nothing is written")


def _folders(root: Path) -> list[Path]:
    with storage("list the sessions", root):
        try:
            entries = list(os.scandir(root))
        except FileNotFoundError:
            return []
    return [Path(e.path) for e in entries if not e.name.startswith(".") and e.is_dir() and is_session(Path(e.path))]


def summarise(path: Path) -> SessionSummary:
    """What a list shows of the session in ``path``: from its head when that is current, else from its ledger's ends."""
    try:
        found, events = _from_head(path) or _from_ledger(path)
        header = read_header(path)
    except SessionError as e:
        return SessionSummary(id=path.name, path=str(path), damage=e.message)
    return SessionSummary(
        id=path.name,
        path=str(path),
        title=header.title,
        workload=found.get("workload", ""),
        host=header.host,
        created=header.created,
        updated=found.get("updated", ""),
        events=events,
        status=found.get("status", ""),
        mechanism=found.get("mechanism", ""),
        owner=found.get("who") or found.get("role", ""),
        writing=writing(path / LOCK),
        interrupted=found.get("interrupted", ""),
        closed=found.get("closed", ""),
    )


def _from_head(path: Path) -> tuple[dict[str, str], int] | None:
    head = read_head(path / HEAD)
    if head is None or not head.summary:
        return None
    with storage("read the ledger", path / LEDGER):
        size = os.lstat(path / LEDGER).st_size
    return (head.summary, head.seq + 1) if size == head.size else None


def _from_ledger(path: Path) -> tuple[dict[str, str], int]:
    """The same from the first line, the last, and the last of those that a list shows, found backwards."""
    folder, count = Folder(path.name), 0
    with storage("read the ledger", path / LEDGER):
        fd = open_regular(path / LEDGER)
        with os.fdopen(fd, "rb"):
            if not os.fstat(fd).st_size:
                return {}, 0
            with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
                end = data.rfind(b"\n") + 1
                starts = {0, data.rfind(b"\n", 0, max(end - 1, 0)) + 1}
                starts |= {_last_of(data, kind, end) for kind in ("result", "owner", "interrupted", "closed")}
                for start in sorted(starts):
                    event = _event_at(data, start) if start < end else None
                    if event is not None:
                        folder.feed(event)
                        count = event.seq + 1
    return folder.summary(), count


def _last_of(data: mmap.mmap, kind: str, end: int) -> int:
    """Where the line of the last event of ``kind`` starts; 0, the first line, when there is none."""
    while (at := data.rfind(f'"kind":"{kind}"'.encode(), 0, end)) >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        event = _event_at(data, start)
        if event is not None and event.kind == kind:
            return start
        end = start  # the words were inside a body
    return 0


def _event_at(data: mmap.mmap, start: int) -> Event | None:
    return read_line(data[start : data.find(b"\n", start)])
