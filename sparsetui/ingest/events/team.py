"""Events of a file as tables, decoded on several cores: here, and in helper processes beside this one.

Nothing depends on the helpers. What a helper held when it ended is decoded here; from a block that is not sound on, the file
is read again by a reader that takes it event by event. Numbers are given in the order of the file, so that the result is the
same with any number of helpers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sparsetui.ingest.events.decoder import INTO, MESSAGE, SLOT, SLOTS, UNSOUND
from sparsetui.ingest.events.reader import Reader, Reading, decode_within, finish, last
from sparsetui.ingest.events.source import Progress, Source
from sparsetui.ingest.events.table import Table, Tabling, unpack
from sparsetui.probes import cgroup

WORTH = 24 << 20  # bytes of a file (packed or not) from which a helper gains more than its start costs
MOST = 3  # helpers; one process can hardly take in what more of them decode
OWN, PATIENT = 0, -1  # numbers of this process' tablings: of whole blocks, and of what is taken event by event
_LONGEST_LINE = 24  # tables that are held until those before them are decoded
_PATIENCE_S = 60.0  # for a block that a helper holds
_CODE = """
import sys
sys.dont_write_bytecode, sys.path[:] = True, sys.argv[2:]
from sparsetui.ingest.events.decoder import serve
serve(int(sys.argv[1]))
"""


@dataclass
class Job:
    """The block that begins at byte ``base`` of the text: its table once it is decoded, by the tabling number ``by``."""

    base: int
    by: int = OWN
    table: Table | None = None
    events: int = 0
    last: str = ""
    unsound: bool = False


class Gone(Exception):
    """A helper has ended."""


class Helper:
    """One process beside this one. Raises OSError where it, or memory to share with it, is not to be had."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.held: dict[int, tuple[Job, int]] = {}  # by slot: the job and the bytes of its block
        with contextlib.ExitStack() as undo:
            memory = os.memfd_create("sparsetui-events")
            undo.callback(os.close, memory)
            os.truncate(memory, SLOTS * SLOT)
            self.memory = mmap.mmap(memory, SLOTS * SLOT)
            self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(theirs.close)
            path = [p for p in sys.path if isinstance(p, str) and "\0" not in p]  # no import looks into any others
            self._process = subprocess.Popen(
                [sys.executable or "", "-I", "-c", _CODE, str(memory), *path], stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[memory], start_new_session=True,
            )  # fmt: skip

    def give(self, space: bytearray, end: int, base: int) -> Job | None:
        """The job of decoding ``space[1:end]`` there; None where it has no room. Raises :class:`Gone`."""
        slot = next((s for s in range(SLOTS) if s not in self.held), None)
        if slot is None:
            return None
        with memoryview(space) as view:
            self.memory[slot * SLOT : slot * SLOT + end] = view[:end]
        try:
            self._told.send(MESSAGE.pack(slot, end - 1))
        except OSError:
            raise Gone from None
        job = Job(base, self.number)
        self.held[slot] = job, end - 1
        return job

    def fetch(self, *, wait: bool) -> None:
        """Take what is ready, or with ``wait`` at least one table. Raises :class:`Gone`."""
        while self.held:
            self._told.settimeout(_PATIENCE_S if wait else 0.0)
            try:
                message = self._told.recv(MESSAGE.size)
            except BlockingIOError:
                return
            except OSError:  # it takes longer than anybody would wait, or the connection is broken
                raise Gone from None
            if not message:
                raise Gone
            wait = False
            slot, size = MESSAGE.unpack(message)
            job, _ = self.held.pop(slot)
            if size == UNSOUND:
                job.unsound = True
                continue
            start = slot * SLOT + INTO
            with memoryview(self.memory) as view:
                told = unpack(view[start : start + size])
            job.events, job.last, job.table = told.events, told.last, told.table()

    def close(self) -> None:
        self._told.close()
        self._process.kill()
        self._process.wait()
        self.memory.close()


class Team:
    """This process and its helpers. ``with`` ends them."""

    def __init__(self, helpers: int) -> None:
        self.own = Tabling()
        self.helpers: list[Helper] = []
        # no memfd here, no further process, or a path that cannot be told to one: then without
        with contextlib.suppress(OSError, AttributeError, ValueError):
            for number in range(1, helpers + 1):
                self.helpers.append(Helper(number))

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self.helpers:
            helper.close()
        self.helpers.clear()

    def give(self, space: bytearray, end: int, base: int) -> Job:
        """Have ``space[1:end]`` decoded: by a helper that has room, else here and now."""
        for helper in list(self.helpers):
            try:
                helper.fetch(wait=False)
                if job := helper.give(space, end, base):
                    return job
            except Gone:
                self._lost(helper)
        job = Job(base)
        _decode(job, self.own, space, 1, end)
        return job

    def wait(self, job: Job) -> None:
        """Until the job is done."""
        while job.table is None and not job.unsound:
            helper = next(h for h in self.helpers if h.number == job.by)
            try:
                helper.fetch(wait=True)
            except Gone:
                self._lost(helper)

    def _lost(self, helper: Helper) -> None:
        """Decode here what a helper held when it ended; its blocks are still where they were put."""
        self.helpers.remove(helper)
        tabling, left = Tabling(), sorted(helper.held.items(), key=lambda item: item[1][0].base)
        with memoryview(helper.memory) as view:
            for slot, (job, size) in left:
                job.by = -1 - helper.number
                _decode(job, tabling, view, slot * SLOT + 1, slot * SLOT + 1 + size)
        helper.close()


def _decode(job: Job, tabling: Tabling, space: bytearray | memoryview, begin: int, end: int) -> None:
    """Do the job on ``space[begin:end]`` here."""
    events = decode_within(space, begin, end)
    if events is None:
        job.unsound = True
    else:
        job.events, job.last, job.table = len(events), last(events), tabling.table(events)


def tables(
    path: Path, reading: Reading, progress: Progress | None, helpers: int | None = None
) -> Iterator[tuple[Table, int]]:
    """The timed events of ``path`` in tables, in file order, each with the number of the tabling that made it.

    ``reading`` fills up meanwhile. ``helpers`` processes decode beside this one (default: as many as gain from it). Raises
    :class:`IngestError` when the file is no trace at all.
    """
    source = Source(path, progress)
    if helpers is None:
        helpers = min(MOST, cores() - 1) if source.size >= WORTH else 0
    reader, chunks = Reader(source, reading), source.chunks()
    first = reader.open(chunks)
    with Team(helpers) as team:
        rest = yield from _in_bulk(reader, chain([first], chunks), team)
    patient = Tabling()
    for events in reader.serially(b"", rest):
        yield patient.table(events), PATIENT
    finish(path, reading, reader.source)


def _in_bulk(
    reader: Reader, chunks: Iterator[bytes], team: Team
) -> Generator[tuple[Table, int], None, Iterator[bytes]]:
    """The tables of all blocks up to the first that is not sound; returns the text from there on."""
    space, end = bytearray(INTO), 1  # text stands from the second byte to ``end``
    line: deque[Job] = deque()
    more = b""
    for chunk in chunks:
        if end + len(chunk) >= INTO:
            more = chunk
            break
        space[end : end + len(chunk)] = chunk
        end += len(chunk)
        at = reader.boundary(space, 1, end)
        if at <= 1:
            continue
        line.append(team.give(space, at, reader.base))
        left = bytes(space[at:end])
        space[1 : 1 + len(left)] = left
        end = 1 + len(left)
        reader.base += at - 1
        if len(line) > _LONGEST_LINE:
            team.wait(line[0])
        yield from _done(line, reader)
        if line and line[0].unsound:
            break
    while line and not line[0].unsound:
        team.wait(line[0])
        yield from _done(line, reader)
    if line:
        return _again(reader, line[0].base)
    return chain([bytes(space[1:end]), more], chunks)


def _done(line: deque[Job], reader: Reader) -> Iterator[tuple[Table, int]]:
    """The jobs at the head of the line that are done."""
    while line and (table := line[0].table) is not None:
        job = line.popleft()
        reader.sound(job.events, job.last)
        yield table, job.by


def _again(reader: Reader, base: int) -> Iterator[bytes]:
    """The text from byte ``base`` on, read anew."""
    reader.base, reader.source = base, reader.source.again()
    for chunk in reader.source.chunks():
        if len(chunk) > base:
            yield chunk[base:]
        base = max(0, base - len(chunk))


def cores() -> int:
    """Cores that this process may keep busy: those it may run on, cut by the quota of its cgroup."""
    allowed, granted = len(os.sched_getaffinity(0)), cgroup.quota()[0]
    return allowed if granted is None else max(1, min(allowed, int(granted)))
