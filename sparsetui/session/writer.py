"""The writing side of a session: the only place where events and artifacts come to be."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from sparsetui.evidence.records import Evidence
from sparsetui.session.artifacts import Artifacts
from sparsetui.session.errors import SessionError
from sparsetui.session.files import write_whole
from sparsetui.session.folder import ARTIFACTS, HEAD, LEDGER, LOCK, MEMO
from sparsetui.session.ledger import LedgerWriter, encode_body, now
from sparsetui.session.lock import Lock
from sparsetui.session.state import Event, Folder, SessionState, read_body


class Writer:
    """Appends to one session, from any thread, while holding its lock. Close it, or use it in a ``with``."""

    def __init__(self, path: Path) -> None:
        """Take the session in ``path``, new or resumed.

        A torn last line is cut off; that, an earlier writer's death and any damage are recorded as ``fault`` events.
        Raises :class:`LockedError` while another writer is alive, or :class:`StorageError`.
        """
        self.path = path
        self.id = path.name
        self._mutex = threading.RLock()
        self._appending = False
        self._lock = Lock(path / LOCK, self.id, now())
        self._closed = False
        try:
            self._ledger = LedgerWriter(path / LEDGER, path / HEAD)
        except BaseException:
            self._lock.release()
            raise
        try:
            self._artifacts = Artifacts(path / ARTIFACTS)
            self._artifacts.sweep()
            self._folder = Folder(self.id)
            found = self._ledger.scan
            self._folder.feed_all(found.events)
            self._numbered = max((_number(e.id) for e in self.state().evidence), default=0)
            self._record_faults()
        except BaseException:
            self.close()
            raise

    def _record_faults(self) -> None:
        found, left_by = self._ledger.scan, self._lock.left_by
        known = {str(f.get("why", "")) for f in self.state().faults}
        if left_by is not None and found.total:
            self.append("fault", {"what": "the session was left by a writer that died", "why": str(left_by)})
        for note in found.notes:
            if note not in known:
                self.append("fault", {"what": "the ledger was damaged", "why": note})

    def append(self, kind: str, body: Any) -> Event:
        """Record one event; when this returns it is on the disk.

        ``body`` is anything msgspec encodes. Raises ``ValueError`` for a body that its kind does not take (nothing is
        written then), :class:`StorageError` when it could not be made durable (the ledger is then as it was).
        """
        raw = encode_body(kind, body)
        read_body(kind, msgspec.json.decode(raw))
        with self._mutex:
            if self._closed:
                raise SessionError(f"session {self.id} is closed for writing")
            if self._appending:  # a signal handler in the midst of an append; its line would land inside the other
                raise SessionError(f"session {self.id}: an event cannot be recorded from within another")
            self._appending = True
            try:
                event = self._ledger.append(kind, raw)
                self._folder.feed(event)
                self._ledger.write_head(self._folder.summary())
            finally:
                self._appending = False
        return event

    def artifact(self, content: Any) -> str:
        """Store ``content`` (JSON bytes, or anything msgspec encodes) and return its sha256."""
        data = content if isinstance(content, bytes) else encode_body("artifact", content)
        return self._artifacts.put(data)

    def read_artifact(self, sha: str) -> bytes:
        """The bytes of an artifact, verified by hash. Raises :class:`StorageError` where it is missing or damaged."""
        return self._artifacts.read(sha)

    def evidence(self, stage: str, probe: str, payload: Any, **fields: Any) -> Evidence:
        """Store ``payload`` as an artifact, then record the evidence that names it, numbered ``E01``, ``E02``, …

        ``fields`` are those of :class:`Evidence` (summary, quality, variant, seconds, figures, source). A ``payload``
        of ``None`` means that there is nothing to keep beside the figures.
        """
        sha = None if payload is None else self.artifact(payload)
        with self._mutex:
            number = self._numbered + 1
            record = Evidence(id=f"E{number:02d}", stage=stage, probe=probe, sha256=sha, **fields)
            self.append("evidence", record)
            self._numbered = number
        return record

    def state(self) -> SessionState:
        """The state after the last acknowledged event."""
        with self._mutex:
            return self._folder.state()

    def write_memo(self, text: str) -> Path:
        """Replace ``memo.md`` as a whole and return its path."""
        path = self.path / MEMO
        write_whole(path, text.encode("utf-8", "replace"))
        return path

    def close(self) -> None:
        """Give the session back to other writers. Idempotent, and safe from another thread."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._ledger.close()
                self._lock.release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _number(evidence: str) -> int:
    match = re.fullmatch(r"E(\d{1,9})", evidence, re.ASCII)
    return int(match[1]) if match else 0
