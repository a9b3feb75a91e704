"""The append-only ledger: one event a line, each line naming the sha256 of the line before.

An append is acknowledged after write and fsync. Beside the ledger lies ``ledger.head``: the sequence number, hash and
length that were acknowledged last. It is an index and no truth (it is not fsynced and may lag), but it lets a reader
tell three things apart that the chain alone cannot: a torn line that nobody was promised, an acknowledged line that was
cut off, and a last line that was altered.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.evidence.records import to_json
from sparsetui.session.errors import DamagedError, StorageError, storage, why
from sparsetui.session.files import open_regular, read_regular, write_all
from sparsetui.session.state import Event

MAX_LEDGER = 2 << 30
_HEAD_WIDTH = 1024

_decode = msgspec.json.Decoder(Event).decode
_decode_all = msgspec.json.Decoder(Event).decode_lines
_BAD = (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError)


def now() -> str:
    """The time as the ledger writes it: ISO 8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Head(msgspec.Struct, frozen=True):
    """What was acknowledged last: event ``seq`` with hash ``sha256``, ending at byte ``size``.

    ``summary`` saves a list of sessions from reading each ledger.
    """

    seq: int
    sha256: str
    size: int
    summary: dict[str, str] = {}


def encode_head(head: Head) -> bytes:
    """A line of fixed width with its own checksum, so that it can be rewritten in place in one write."""
    body = msgspec.json.encode(head)
    if len(body) > _HEAD_WIDTH - 16:
        body = msgspec.json.encode(msgspec.structs.replace(head, summary={}))
    return f"{zlib.crc32(body):08x} ".encode() + body.ljust(_HEAD_WIDTH - 10) + b"\n"


def decode_head(data: bytes) -> Head | None:
    """The head, or ``None`` when it is damaged (then the ledger is read without it)."""
    body = data[9:].rstrip()
    try:
        if int(data[:8], 16) != zlib.crc32(body):
            return None
        return msgspec.json.decode(body, type=Head)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was written. ``line`` counts from 1; ``seq`` is the event's number where known."""

    line: int
    seq: int | None
    why: str

    def __str__(self) -> str:
        return f"line {self.line}{'' if self.seq is None else f' (event {self.seq})'}: {self.why}"


@dataclass
class Scan:
    """What a ledger holds. ``size`` is the length of the whole lines; ``torn`` that of an unended last line."""

    events: list[Event] = field(default_factory=list)
    total: int = 0
    size: int = 0
    torn: int = 0
    torn_acknowledged: bool | None = False  # None: without a head it cannot be known
    damage: tuple[Damage, ...] = ()
    next_seq: int = 0
    prev: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each thing a reader must be told."""
        lines = [str(d) for d in self.damage]
        if self.torn:
            promise = {False: "it was never acknowledged", True: "it had been acknowledged", None: "no head to compare"}
            lines.append(f"torn last line of {self.torn} bytes dropped: {promise[self.torn_acknowledged]}")
        return tuple(lines)


def scan(data: bytes, head: Head | None) -> Scan:
    """Read a ledger's bytes: every event that is whole, and every damage. Never raises on content.

    A line is left out when it is no event, or when its hash is not what a sound successor (or the head) says.
    """
    lines = data.split(b"\n")
    torn = len(lines.pop())
    size = len(data) - torn
    try:
        events = _decode_all(data if not torn else data[:size])
    except _BAD:
        events = []
    prev, seq = "", 0
    sound = len(events) == len(lines)
    if sound:
        for raw, event in zip(lines, events, strict=True):
            if event.prev != prev or event.seq != seq:
                sound = False
                break
            prev, seq = sha256(raw).hexdigest(), seq + 1
    if sound and lines and head is not None and head.size == size:
        sound = (head.sha256, head.seq) == (prev, seq - 1)
    damage: list[Damage] = []
    if not sound:
        events, damage = _examine(lines, head if head is not None and head.size == size else None)
        prev = sha256(lines[-1]).hexdigest()
        seq = max((e.seq for e in events), default=-1) + 1
        damage = damage or [Damage(len(lines), None, "the chain does not hold")]
    torn_acknowledged: bool | None = False if head is not None else None
    if head is not None and head.size >= max(size, 1):
        # the next line names what was acknowledged, so that a loss or an alteration stays visible for good
        prev, seq = head.sha256, head.seq + 1
        if head.size > size:
            torn_acknowledged = True
            lost = _range(events[-1].seq + 1 if events else 0, head.seq)
            damage.append(Damage(len(lines) + 1, None, f"{lost} acknowledged, but missing at the end"))
    return Scan(events, len(lines), size, torn, torn_acknowledged, tuple(damage), seq, prev)


def _range(first: int, last: int) -> str:
    return f"event {first} was" if first >= last else f"events {first} to {last} were"


@dataclass
class _Piece:
    line: int
    raw: bytes
    event: Event | None


def _pieces(lines: Sequence[bytes]) -> tuple[list[_Piece], list[Damage]]:
    """Lines with their events; lines that a damaged newline glued together are taken apart again."""
    pieces: list[_Piece] = []
    damage: list[Damage] = []
    for number, raw in enumerate(lines, 1):
        event = read_line(raw)
        glued: list[_Piece] = []
        while event is None and (cut := _glued_at(raw)):
            glued.append(_Piece(number, raw[cut:], read_line(raw[cut:])))
            damage.append(Damage(number, None, "two lines run into one: the newline between them is damaged"))
            raw = raw[: cut - 1]
            event = read_line(raw)
        pieces += [_Piece(number, raw, event), *reversed(glued)]
    return pieces, damage


def _glued_at(raw: bytes) -> int:
    """Where the last event inside ``raw`` starts; 0 when there is none. Looks at a few places only: lines can be huge."""
    cut = len(raw)
    for _ in range(16):
        cut = raw.rfind(b'{"seq":', 1, cut)
        if cut < 2:
            return 0
        if read_line(raw[cut:]) is not None:
            return cut
    return 0


def read_line(raw: bytes) -> Event | None:
    """The event of one line without its newline, or ``None`` when it is none."""
    try:
        return _decode(raw)
    except _BAD:
        return None


def _examine(lines: Sequence[bytes], head: Head | None) -> tuple[list[Event], list[Damage]]:
    """Tell sound lines from altered ones, last to first: a line is judged by the sound line after it.

    A line whose successor is damaged too is kept: nothing speaks against it.
    """
    pieces, damage = _pieces(lines)
    verdicts: list[bool | None] = [None] * len(pieces)  # True sound, False altered, None nothing known
    for i in range(len(pieces) - 1, -1, -1):
        event = pieces[i].event
        if event is None:
            verdicts[i] = False
            damage.append(Damage(pieces[i].line, None, "not an event"))
            continue
        digest = sha256(pieces[i].raw).hexdigest()
        if i + 1 == len(pieces):
            verdicts[i] = None if head is None else head.sha256 == digest
        elif (after := pieces[i + 1].event) is not None and verdicts[i + 1] is not False:
            follows = after.seq == event.seq + 1
            if after.prev == digest:
                verdicts[i] = True
            elif verdicts[i + 1] and (follows or not _follows_before(pieces, i)):
                verdicts[i] = False
            elif follows or after.seq <= event.seq:
                damage.append(Damage(pieces[i + 1].line, after.seq, "its link to the line before does not hold"))
            if not follows and after.seq > event.seq and verdicts[i] is not False:
                gap = _range(event.seq + 1, after.seq - 1)
                damage.append(Damage(pieces[i + 1].line, after.seq, f"{gap} lost before this line"))
        if verdicts[i] is False:
            damage.append(Damage(pieces[i].line, event.seq, "altered: its hash is not the one recorded after it"))
    first = pieces[0].event
    if first is not None and verdicts[0] is not False and (first.seq or first.prev):
        damage.append(Damage(1, first.seq, "not the first event: what came before it is missing"))
    events = [p.event for p, v in zip(pieces, verdicts, strict=True) if p.event is not None and v is not False]
    return events, sorted(damage, key=lambda d: d.line)


def _follows_before(pieces: Sequence[_Piece], i: int) -> bool:
    """Whether piece ``i`` carries the number that its predecessor leads to (unknown counts as yes)."""
    event, before = pieces[i].event, pieces[i - 1].event if i else None
    if event is None or (i and before is None):
        return True
    return event.seq == (before.seq + 1 if before else 0)


def read_head(path: Path) -> Head | None:
    """The head beside the ledger at ``path``; ``None`` when there is none or it is damaged."""
    try:
        return decode_head(read_regular(path, 2 * _HEAD_WIDTH))
    except (OSError, DamagedError):
        return None


def encode_body(kind: str, body: Any) -> bytes:
    """``body`` as JSON; lone surrogates (from undecodable output of user code) become ``?``.

    Raises ``ValueError`` for what JSON cannot hold.
    """
    try:
        return to_json(body)
    except (TypeError, OverflowError, RecursionError, msgspec.EncodeError) as e:
        raise ValueError(f"a {kind} event cannot be written as JSON: {e}") from e


@dataclass(frozen=True)
class _Tail:
    """Where the next line goes. Replaced as a whole, so that an interrupt between two statements leaves no half."""

    size: int
    seq: int
    prev: str


class LedgerWriter:
    """Appends to a ledger. The caller holds the session's lock and calls from one thread at a time."""

    def __init__(self, path: Path, head_path: Path) -> None:
        """Open or create the ledger; a torn last line is cut off on disk before anything is appended.

        ``scan`` then tells what was found. Raises :class:`StorageError`.
        """
        self.path = path
        with storage("open the ledger", path):
            self._fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._head_fd = -1
        try:
            with storage("read the ledger", path), os.fdopen(os.dup(self._fd), "rb") as f:
                data = f.read()
            self.scan = scan(data, read_head(head_path))
            if self.scan.torn:
                with storage("cut off the torn last line", path):
                    os.ftruncate(self._fd, self.scan.size)
                    os.fsync(self._fd)
            self._tail = _Tail(self.scan.size, self.scan.next_seq, self.scan.prev)
            self._dirty = False
            with storage("open", head_path):
                self._head_fd = open_regular(head_path, os.O_RDWR | os.O_CREAT)
        except BaseException:
            self.close()
            raise

    @property
    def next_seq(self) -> int:
        return self._tail.seq

    def append(self, kind: str, body: bytes) -> Event:
        """Write one event durably and return it. On any failure the ledger is cut back to its last whole line."""
        tail = self._tail
        raw = msgspec.Raw(body)
        line = msgspec.json.encode(Event(seq=tail.seq, time=now(), kind=kind, body=raw, prev=tail.prev))
        event = _decode(line)
        if self._dirty:
            self._cut_back()
            if self._dirty:
                raise StorageError(f"{self.path}: cannot append: a partial line could not be removed")
        try:
            write_all(self._fd, line + b"\n")
            os.fsync(self._fd)
        except OSError as e:
            self._cut_back()
            raise StorageError(f"{self.path}: cannot append to the ledger: {why(e)}") from e
        except BaseException:
            self._cut_back()
            raise
        self._tail = _Tail(tail.size + len(line) + 1, tail.seq + 1, sha256(line).hexdigest())
        return event

    def write_head(self, summary: dict[str, str]) -> None:
        """Note what is acknowledged. Never fails: a head that lags costs a reader nothing but certainty."""
        tail = self._tail
        try:
            os.pwrite(self._head_fd, encode_head(Head(tail.seq - 1, tail.prev, tail.size, summary)), 0)
        except OSError:
            pass

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._tail.size)
            self._dirty = False
        except OSError:
            self._dirty = True

    def close(self) -> None:
        """Close the files. Idempotent."""
        for fd in (self._fd, self._head_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._head_fd = -1
