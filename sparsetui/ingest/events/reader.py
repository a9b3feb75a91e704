"""Events of a trace file in batches, of whatever size the file is: fast where it is sound, patient where it is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.salvage import Walk, walk
from sparsetui.ingest.events.source import Progress, Source

_HEAD = 32 << 20  # everything before the first event must fit in this
_TAIL = 1 << 20
_FIRST = 1 << 18  # what shows how events are separated in a file
_LONGEST_BLOCK = 64 << 20
_HOPELESS = (
    5_000  # events beyond repair, a millisecond each, before a file that holds more of them than whole ones is given up
)
_SPACE = re.compile(rb"[\s,]*")
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_RANK = re.compile(rb"""["']rank["']\s*:\s*(\d{1,9})""")
_WORLD = re.compile(rb"""["']world_size["']\s*:\s*(\d{1,9})""")
_DEVICE = re.compile(rb"""\\?["']name\\?["']\s*:\s*\\?["']([^"'\\]{1,80})\\?["']""")
_VERSION = re.compile(
    rb'"(schemaVersion|cuda_driver_version|hip_driver_version|record_shapes|with_stack)"\s*:\s*(\d{1,9})'
)


class Args(msgspec.Struct, gc=False):
    """The few arguments that anything is read from. The types are checked later: a wrong one must not cost the rest."""

    correlation: Any = None
    occupancy: Any = msgspec.field(name="est. achieved occupancy %", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=msgspec.Raw())


class Event(msgspec.Struct, gc=False):
    """One event of the Chrome trace format; ``ts`` and ``dur`` in microseconds."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    tdur: Any = None
    args: Args | None = None


@dataclass
class Reading:
    """What became of a file while it was read."""

    path: Path
    events: int = 0
    repaired: int = 0
    lost: int = 0
    cut: str | None = None  # why reading stopped early
    cut_byte: int | None = None
    cut_line: int | None = None
    first_lost_byte: int | None = None
    first_lost_line: int | None = None
    last_good: str | None = None
    rank: int | None = None
    world_size: int | None = None
    devices: list[str] = field(default_factory=list)
    header: dict[str, int] = field(default_factory=dict)
    bare_list: bool = False
    encoding: str = "utf-8"

    @property
    def damaged(self) -> bool:
        return bool(self.repaired or self.lost or self.cut)


_EVENTS = msgspec.json.Decoder(list[Event])


def read(path: Path, reading: Reading, progress: Progress | None = None) -> Iterator[list[Event]]:
    """The events of ``path`` in batches, in file order; ``reading`` fills up meanwhile.

    Raises :class:`IngestError` when the file is no trace at all.
    """
    source = Source(path, progress)
    yield from Reader(source, reading).batches()
    finish(path, reading, source)


def finish(path: Path, reading: Reading, source: Source) -> None:
    """What is known only once ``source`` has been read to its end."""
    reading.encoding = source.encoding
    wanted = [at for at in (reading.cut_byte, reading.first_lost_byte) if at is not None]
    if wanted:  # a damaged file is read once more for its line numbers, so that a sound one need not count them
        lines = _lines_at(path, wanted)
        reading.cut_line = lines.get(reading.cut_byte) if reading.cut_byte is not None else None
        reading.first_lost_line = lines.get(reading.first_lost_byte) if reading.first_lost_byte is not None else None


class Reader:
    """Cuts a text into events: in bulk where it is sound, one by one where it is not."""

    def __init__(self, source: Source, reading: Reading) -> None:
        self.source, self.out = source, reading
        self.base = 0  # byte in the text at which the buffer begins
        self.separator = b""

    def batches(self) -> Iterator[list[Event]]:
        chunks = self.source.chunks()
        yield from self.serially(self.open(chunks), chunks)

    def serially(self, buffer: bytes, chunks: Iterator[bytes]) -> Iterator[list[Event]]:
        """The events in ``buffer``, which begins inside the list of events, and all that follow it."""
        ended = False
        for chunk in chunks:
            buffer += chunk
            events, used, ended = self._take(buffer)
            if events:
                yield events
            buffer = self.drop(buffer, used)
            if ended:
                break
        if not ended:
            events, used, ended = self._finish(buffer)
            if events:
                yield events
            buffer = self.drop(buffer, used)
        self._close(buffer, chunks, ended)

    def open(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the first event; what is known of the run stands before it."""
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            text = buffer.lstrip()
            if text[:1] == b"[":
                self.out.bare_list = True
                return self.drop(buffer, len(buffer) - len(text) + 1)
            found = _ARRAY.search(buffer)
            if found:
                self._about(buffer[: found.start()])
                return self.drop(buffer, found.end())
            if len(buffer) > _HEAD:
                break
            if text and text[:1] != b"{":
                break
        raise IngestError(
            f"{self.source.path}: no traceEvents in it; a PyTorch profiler (Chrome trace) JSON or a list of its events is accepted"
        )

    def _about(self, text: bytes) -> None:
        out = self.out
        if (m := _RANK.search(text)) and out.rank is None:
            out.rank = int(m[1])
        if (m := _WORLD.search(text)) and out.world_size is None:
            out.world_size = int(m[1])
        at = text.find(b"deviceProperties")
        if at >= 0 and not out.devices:
            out.devices = [d.decode("utf-8", "replace") for d in _DEVICE.findall(text[at : at + 65536])][:16]
        for m in _VERSION.finditer(text):
            out.header[m[1].decode()] = int(m[2])

    def _take(self, buffer: bytes) -> tuple[list[Event], int, bool]:
        """Events from a buffer to which more will come: (events, bytes used, the array was closed)."""
        at = self.boundary(buffer)
        if at > 0:
            events = decode(buffer, at)
            if events is not None:
                self.sound(len(events), last(events))
                return events, at, False
        if len(buffer) < 64 << 10:  # too little to say anything
            return [], 0, False
        return self._walk(buffer, final=False)

    def boundary(self, text: bytes | bytearray, begin: int = 0, end: int | None = None) -> int:
        """Just behind the last event that surely ends in ``text[begin:end]``, or 0."""
        if not self.separator:
            self._learn(bytes(text[begin : begin + _FIRST]))
            if not self.separator:
                return 0
        return text.rfind(self.separator, begin, end) + 1

    def _learn(self, buffer: bytes) -> None:
        """What stands between two events in this file, e.g. ``},\\n  {\\n    "ph"``."""
        text = buffer[:_FIRST].decode("latin-1")
        state, pieces = Walk(), []
        for piece in walk(text, state, final=False):
            pieces.append(piece)
            if len(pieces) == 2:
                break
        if len(pieces) == 2 and all(p.value and not p.repaired for p in pieces):
            first = re.match(r'\{\s*"\w+"', text[pieces[1].start :])
            if first:
                self.separator = text[pieces[0].end - 1 : pieces[1].start + first.end()].encode("latin-1")

    def _finish(self, buffer: bytes) -> tuple[list[Event], int, bool]:
        """The rest of the file: all but its end in one go, the end event by event."""
        events: list[Event] = []
        used = 0
        if not self.separator:  # of a small file nothing was taken yet
            self._learn(buffer)
        if len(buffer) > _TAIL:
            at = self.boundary(buffer[:-_TAIL])
            bulk = decode(buffer, at) if at else None
            if bulk is not None:
                self.sound(len(bulk), last(bulk))
                events, used = bulk, at
        kept = self.base
        more, further, ended = self._walk(self.drop(buffer, used), final=True)
        self.base = kept
        return events + more, used + further, ended

    def sound(self, count: int, last: str) -> None:
        """So many events were decoded in bulk, the last of which is told as ``last``."""
        self.out.events += count
        self.out.last_good = last or self.out.last_good

    def _walk(self, buffer: bytes, *, final: bool) -> tuple[list[Event], int, bool]:
        out, state = self.out, Walk()
        text = buffer.decode("latin-1")
        events: list[Event] = []
        for piece in walk(text, state, final=final):
            out.events += piece.value is not None
            if piece.value is not None:
                events.append(_event(piece.value))
                out.repaired += piece.repaired
                continue
            if final and piece.end >= len(text):
                self._cut("the text ends inside an event", piece.start)
                break
            out.lost += 1
            if out.first_lost_byte is None:
                out.first_lost_byte = self.base + piece.start
            if out.lost > _HOPELESS and out.lost > out.events:
                raise IngestError(
                    f"{self.source.path}: byte {out.first_lost_byte}: beyond repair, and so are {out.lost} events "
                    f"beside {out.events} that are whole; a trace that is mostly whole is accepted"
                )
        if final and not state.ended and out.cut is None:
            self._cut("the list of events is not closed", state.at)
        if not final and state.at == 0 and len(text) > _LONGEST_BLOCK:
            raise IngestError(
                f"{self.source.path}: byte {self.base}: an event longer than {_LONGEST_BLOCK >> 20} MiB is not accepted"
            )
        out.last_good = last(events) or out.last_good
        return events, state.at, state.ended

    def _cut(self, why: str, at: int) -> None:
        out = self.out
        out.cut, out.cut_byte = why, self.base + at

    def _close(self, rest: bytes, chunks: Iterator[bytes], ended: bool) -> None:
        """What stands behind the events: the rank may, and so may the reason for an early end."""
        found, border = self._further(rest, 0), rest[-64:]
        before = len(rest)
        for chunk in chunks:
            found = found or self._further(border + chunk, before - len(border))
            before, border = before + len(chunk), (border + chunk)[-64:]
            if len(rest) < _TAIL:
                rest += chunk
        self._about(rest)
        if found and ended:
            self._cut(*found)
        elif self.source.cut and not ended:
            self.out.cut = self.source.cut
        elif self.source.cut:
            self.out.cut, self.out.cut_byte = self.source.cut, self.base + len(rest)

    def _further(self, text: bytes, offset: int) -> tuple[str, int] | None:
        """Events behind the end of their list: in another one (two files in one, or a key that occurs twice), or in none."""
        again = re.match(rb"\s*\[", text) if self.out.bare_list and not offset else _ARRAY.search(text)
        loose = text.find(self.separator) if self.separator else -1
        if again and (loose < 0 or again.start() <= loose):
            return "a second list of events follows, which is not read", offset + again.start()
        if loose >= 0:
            return "the list of events is closed, but more follow, which are not read", offset + loose
        return None

    def drop(self, buffer: bytes, used: int) -> bytes:
        self.base += used
        return buffer[used:]


def _lines_at(path: Path, places: list[int]) -> dict[int, int]:
    """The line (from 1) on which each byte of the text stands."""
    out: dict[int, int] = {}
    base, line = 0, 1
    for chunk in Source(path).chunks():
        for at in places:
            if base <= at <= base + len(chunk):
                out.setdefault(at, line + chunk.count(b"\n", 0, at - base))
        if base > max(places):
            break
        base += len(chunk)
        line += chunk.count(b"\n")
    return out


def decode(buffer: bytes, end: int) -> list[Event] | None:
    """The events in ``buffer[:end]``, or None if they are not sound JSON."""
    start = _first(buffer, 0, end)
    return _decoded(b"".join((b"[", memoryview(buffer)[start:end], b"]")))


def decode_within(space: bytearray | memoryview, begin: int, end: int) -> list[Event] | None:
    """The same for ``space[begin:end]``, without a copy: the bytes before and behind become brackets for as long.

    Commas before the first event become spaces. So a block whose decoder ended on the way can be decoded once more.
    """
    start = _first(space, begin, end)
    space[begin:start] = b" " * (start - begin)
    before, behind = space[begin - 1], space[end]
    space[begin - 1], space[end] = ord("["), ord("]")
    with memoryview(space) as view:
        events = _decoded(view[begin - 1 : end + 1])
    space[begin - 1], space[end] = before, behind
    return events


def _first(text: bytes | bytearray | memoryview, begin: int, end: int) -> int:
    """Where the first event begins: behind spaces and commas."""
    space = _SPACE.match(text, begin, end)
    return space.end() if space else begin


def _decoded(text: bytes | memoryview) -> list[Event] | None:
    try:
        return _EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _event(value: dict[str, Any]) -> Event:
    args = value.get("args")
    made = None
    if isinstance(args, dict):
        dims, strides = args.get("Input Dims"), args.get("Input Strides")
        made = Args(
            args.get("correlation"),
            args.get("est. achieved occupancy %"),
            _raw(dims),
            _raw(strides),
        )
    keys = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "tdur")
    return Event(**{k: value.get(k) for k in keys}, args=made)


def _raw(value: Any) -> msgspec.Raw:
    if not isinstance(value, list):
        return msgspec.Raw()
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.Raw()


def last(events: list[Event]) -> str:
    """The last of some events in words; nothing for none."""
    return f"{str(events[-1].name)[:80]} at {events[-1].ts}" if events else ""
