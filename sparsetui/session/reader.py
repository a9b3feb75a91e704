"""The reading side of a session: works beside a live writer, and with whatever is whole of a damaged one."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from sparsetui.session.artifacts import Artifacts
from sparsetui.session.errors import DamagedError, storage
from sparsetui.session.files import open_regular
from sparsetui.session.folder import ARTIFACTS, HEAD, LEDGER, LOCK, MEMO
from sparsetui.session.ledger import MAX_LEDGER, Damage, Scan, read_head, read_line, scan
from sparsetui.session.lock import writing
from sparsetui.session.state import Event, Folder, SessionState, no_collection


def read_ledger(folder: Path) -> tuple[bytes, Scan]:
    """The bytes and the scan of the ledger in ``folder``; a ledger that does not exist yet is empty.

    Raises :class:`StorageError`, or :class:`DamagedError` for something that cannot be a ledger.
    """
    head = read_head(folder / HEAD)  # before the ledger: a live writer lets the head lag, never lead
    path = folder / LEDGER
    with storage("read the ledger", path):
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            return b"", scan(b"", head)
        with os.fdopen(fd, "rb") as f:
            if os.fstat(fd).st_size > MAX_LEDGER:
                raise DamagedError(f"{path}: longer than the {MAX_LEDGER} bytes that are accepted")
            data = f.read()
    with no_collection():
        return data, scan(data, head)


class Reader:
    """A session as it was when opened; :meth:`follow` brings it up to date."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self._artifacts = Artifacts(path / ARTIFACTS)
        self._load()

    def _load(self) -> None:
        _, found = read_ledger(self.path)
        self._events, self._offset, self._last = found.events, found.size, found.prev
        self._notes = list(found.notes)
        self._lines = found.total
        self._folder: Folder | None = None

    @property
    def damage(self) -> tuple[str, ...]:
        """What is not as it was written, one line each; empty for a whole session."""
        return tuple(self._notes)

    @property
    def writing(self) -> str:
        """``process N on HOST`` while somebody writes to the session, else an empty text."""
        return writing(self.path / LOCK)

    def events(self) -> tuple[Event, ...]:
        """All whole events seen so far, in order."""
        return tuple(self._events)

    def state(self) -> SessionState:
        """The fold of all events seen so far."""
        if self._folder is None:
            self._folder = Folder(self.id)
            self._folder.feed_all(self._events)
        return self._folder.state()

    def artifact(self, sha: str) -> bytes:
        """The JSON bytes of an artifact, checked against its name. Raises :class:`SessionError`."""
        return self._artifacts.read(sha)

    def memo(self) -> str | None:
        """The memo as it was last written, or ``None``."""
        path = self.path / MEMO
        with storage("read the memo", path):
            try:
                fd = open_regular(path)
            except FileNotFoundError:
                return None
            with os.fdopen(fd, "rb") as f:
                return f.read().decode("utf-8", "replace")

    def follow(self) -> list[Event]:
        """The events that were acknowledged since the last call (or since opening); an empty list when there are none.

        A line still being written is left for the next call.
        """
        path = self.path / LEDGER
        with storage("read the ledger", path):
            try:
                fd = open_regular(path)
            except FileNotFoundError:
                return []
            with os.fdopen(fd, "rb") as f:
                size = os.fstat(fd).st_size
                if size == self._offset:
                    return []
                f.seek(self._offset)
                data = f.read()
        whole = data[: data.rfind(b"\n") + 1] if size > self._offset else b""
        first = read_line(whole[: whole.find(b"\n")]) if whole else None
        if size < self._offset or (whole and (first is None or first.prev != self._last)):
            # a line that had been read was taken back, because its fsync failed: nothing read so far can be built on
            seen = self._events
            self._load()
            same = 0
            while same < min(len(seen), len(self._events)) and seen[same] == self._events[same]:
                same += 1
            return self._events[same:]
        fresh = self._take(whole)
        self._offset += len(whole)
        return fresh

    def _take(self, whole: bytes) -> list[Event]:
        fresh: list[Event] = []
        for raw in whole.split(b"\n")[:-1]:
            self._lines += 1
            found = read_line(raw)
            if found is None:
                self._notes.append(str(Damage(self._lines, None, "not an event")))
            else:
                if found.prev != self._last:
                    self._notes.append(str(Damage(self._lines, found.seq, "its link to the line before does not hold")))
                fresh.append(found)
            self._last = sha256(raw).hexdigest()
        self._events.extend(fresh)
        if self._folder is not None:
            for event in fresh:
                self._folder.feed(event)
        return fresh
