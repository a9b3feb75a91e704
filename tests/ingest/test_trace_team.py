"""Decoding beside helper processes: the same tables with any number of them, and whatever becomes of them."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sparsetui.ingest.events import reader, source, team
from sparsetui.ingest.events.reader import Reading, decode_within, read
from sparsetui.ingest.events.table import Table
from sparsetui.ingest.traces import inspect

HEAD = '{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8},\n  "traceEvents": [\n'


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK", 40_000)


def events(n: int = 4000) -> list[str]:
    """Host ops, launches, kernels and marks on many lanes; every few events bring a name that no earlier one had."""
    random.seed(5)
    out = []
    for i in range(n):
        at = {"pid": i % 3, "tid": f"stream {i % 7}" if i % 5 == 0 else i % 11, "ts": 1e6 + 3.5 * i}
        if i % 5 == 0:
            more: dict[str, Any] = {"cat": "kernel", "name": f"void sgemm_{i // 50}", "dur": 2.25,
                                    "args": {"correlation": i, "est. achieved occupancy %": i % 100}}  # fmt: skip
        elif i % 5 == 1:
            more = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1, "args": {"correlation": i - 1}}
        elif i % 17 == 0:
            more = {"cat": "fwdbwd", "name": "fwdbwd"}
        else:
            shape = [[i % 9 + 1, 16], [16, random.randrange(1, 4)]]
            more = {"cat": "cpu_op", "name": "aten::mm" if i % 3 else f"aten::op_{i // 40}", "dur": 3,
                    "args": {"Input Dims": shape, "Input Strides": [[16, 1], []]}}  # fmt: skip
        out.append(json.dumps({"ph": "s" if more["cat"] == "fwdbwd" else "X", **at, **more}))
    return out


def trace(path: Path, lines: list[str]) -> Path:
    text = (HEAD + ",\n".join(lines) + "\n]}").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def told(path: Path, helpers: int) -> bytes:
    return msgspec.json.encode(inspect(path, helpers=helpers))


def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills up with the maker of each table as it is handed out."""
    seen: list[int] = []
    done = team._done

    def spy(line: Any, reader: Any) -> Any:
        for table, by in done(line, reader):
            seen.append(by)
            yield table, by

    monkeypatch.setattr(team, "_done", spy)
    return seen


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_any_number_of_helpers_tells_the_same(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = trace(tmp_path / name, events()), jobs(monkeypatch)
    alone = told(path, 0)
    assert json.loads(alone)["events"] == 4000
    assert set(made) == {team.OWN}
    for helpers in (1, 3):
        made.clear()
        assert told(path, helpers) == alone
        assert 1 in made, "no block was decoded by a helper"


@pytest.mark.parametrize("damage", ["cut", "unescaped", "garbage", "closed early", "second list"])
def test_damage_is_mended_as_without_helpers(tmp_path: Path, damage: str) -> None:
    lines = events()
    if damage == "unescaped":
        lines[1500] = lines[1500].replace('"ph": "X"', '"ph": "X", "note": "a "quoted" word"')
    elif damage == "garbage":
        lines[700:702] = ["\x00\x01 {", "}"]
    elif damage == "closed early":
        lines[2000] += "]}"
    path = trace(tmp_path / "t.json", lines)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20_000])
    elif damage == "second list":
        path.write_bytes(path.read_bytes() + trace(tmp_path / "u.json", lines[:50]).read_bytes())
    patient = Reading(path)
    count = sum(len(batch) for batch in read(path, patient))
    assert patient.damaged
    assert patient.events == count > 1000
    for helpers in (0, 2):
        reading = Reading(path)
        made = [table for table, _ in team.tables(path, reading, None, helpers)]
        assert reading == patient
        assert sum(len(t) + t.incomplete for t in made) > 0
    assert told(path, 2) == told(path, 0)


def test_blocks_of_a_helper_that_ends_are_decoded_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "t.json", events())
    alone, made = told(path, 0), jobs(monkeypatch)
    given, give = [], team.Helper.give

    def killing(self: team.Helper, *args: Any) -> Any:
        job = give(self, *args)
        given.append(job)
        if len(given) == team.SLOTS:
            self._process.kill()
            self._process.wait()
        return job

    monkeypatch.setattr(team.Helper, "give", killing)
    assert told(path, 2) == alone
    assert min(made) < -1, "no block was taken back"


def test_a_block_can_be_decoded_again_where_its_decoder_ended_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the brackets that it put around the events: they must not make the block look damaged."""
    text = b",\n  " + ",\n".join(events(50)).encode()
    space = bytearray(b"\0" + text + b"\0")
    with monkeypatch.context() as ended:
        ended.setattr(reader, "_EVENTS", None)
        with pytest.raises(AttributeError):
            decode_within(space, 1, 1 + len(text))
    assert b"[" in space[:8]
    assert len(decode_within(space, 1, 1 + len(text)) or ()) == 50


def test_an_odd_search_path_costs_no_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "t.json", events())
    alone, made = told(path, 0), jobs(monkeypatch)
    monkeypatch.setattr(sys, "path", [*sys.path, None, tmp_path, b"x", "a\0b"])
    assert told(path, 1) == alone
    assert 1 in made
    monkeypatch.setattr(sys, "path", [*sys.path, "\ud800"])
    assert told(path, 1) == alone


@pytest.mark.parametrize("program", ["", None, "/bin/false"])
def test_without_an_interpreter_to_start_it_goes_on_alone(
    tmp_path: Path, program: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace(tmp_path / "t.json", events(400))
    alone = told(path, 0)
    monkeypatch.setattr(sys, "executable", program)
    assert told(path, 2) == alone


def test_helpers_write_no_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process was told of it (-B) does not reach an isolated one."""
    package = tmp_path / "sparsetui"
    shutil.copytree(Path(source.__file__).parents[2], package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    path, made = trace(tmp_path / "t.json", events()), jobs(monkeypatch)
    told(path, 1)
    assert 1 in made
    assert not list(package.rglob("__pycache__"))


def test_progress_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is read a second time, from its beginning."""
    lines, shares = events(), list[float]()
    lines[3000] = lines[3000].replace('"ph": "X"', '"ph": "X", "note": "a "quoted" word"')
    path = trace(tmp_path / "t.json", lines)
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=iter(range(10_000)).__next__))
    p = inspect(path, progress=lambda done, _: shares.append(done), helpers=0)
    assert p["salvage"]["lost_events"] == 1
    assert shares == sorted(shares)
    assert len(shares) == len(set(shares)) > 10


def test_a_helper_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "t.json", events())
    alone, made = told(path, 0), jobs(monkeypatch)
    monkeypatch.setattr(team, "_PATIENCE_S", 0.2)
    give = team.Helper.give

    def stopping(self: team.Helper, *args: Any) -> Any:
        os.kill(self._process.pid, signal.SIGSTOP)
        return give(self, *args)

    monkeypatch.setattr(team.Helper, "give", stopping)
    assert told(path, 1) == alone
    assert min(made) < -1


@pytest.mark.parametrize("missing", ["memfd_create", "Popen"])
def test_without_memory_or_processes_to_share_it_goes_on_alone(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace(tmp_path / "t.json", events(400))
    alone = told(path, 0)

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(team.os if missing == "memfd_create" else team.subprocess, missing, refused)
    assert told(path, 2) == alone


def test_helpers_end_when_their_reader_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, started = trace(tmp_path / "t.json", events()), []
    start = team.Helper.__init__

    def noting(self: team.Helper, number: int) -> None:
        start(self, number)
        started.append(self._process)

    monkeypatch.setattr(team.Helper, "__init__", noting)
    rows = team.tables(path, Reading(path), None, helpers=2)
    assert isinstance(next(rows)[0], Table)
    rows.close()
    assert len(started) == 2
    assert all(p.returncode is not None for p in started)


def test_a_helper_ends_with_a_reader_that_is_killed(tmp_path: Path) -> None:
    """Its socket is closed then, whatever else happened."""
    helper = team.Helper(1)
    helper._told.close()
    assert helper._process.wait(20) == 0
    helper.memory.close()


def test_a_small_file_takes_no_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    start = team.Team.__init__
    monkeypatch.setattr(team.Team, "__init__", lambda self, n: (asked.append(n), start(self, 0))[1])
    path = trace(tmp_path / "t.json", events(5))
    inspect(path)
    monkeypatch.setattr(team, "WORTH", 10)
    monkeypatch.setattr(team, "cores", lambda: 16)
    inspect(path)
    assert asked == [0, team.MOST]
