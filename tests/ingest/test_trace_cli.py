"""``sparsetui import`` as a command: output, exit codes, the session it leaves, and names that mean harm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sparsetui.cli.import_ import import_
from sparsetui.ingest import traces
from sparsetui.ingest.errors import IngestError
from sparsetui.session.store import Store

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/] | a | b |\n# head\u202e‮ ![i](http://e) \u009b31m"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    app = typer.Typer()
    app.command()(import_)

    def call(*argv: object) -> Any:
        return CliRunner().invoke(app, [*map(str, argv), "--sessions", str(tmp_path / "sessions")])

    return call


def kernel(name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {"stream": 7}}


def write(tmp_path: Path, events: list[dict[str, Any]], name: str = "t.json") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_data_to_stdout_narration_to_stderr_and_a_session(tmp_path: Path, run: Any) -> None:
    path = write(tmp_path, [kernel("ampere_sgemm_128x64_nn", 0, 90), kernel("mystery", 90, 10)])
    done = run(path, "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert [(p["path"], p["share"]["value"]) for p in told["paths"]] == [("dense", 0.9), ("unknown", 0.1)]
    assert told["files"][0]["events"] == 2
    assert told["cannot_answer"]
    assert told["session"] in done.stderr
    state = Store(tmp_path / "sessions").open(told["session"]).state()
    (evidence,) = state.evidence
    assert evidence.source["sha256"] == told["files"][0]["sha256"]
    assert evidence.source["file"] == str(path)
    assert evidence.figures["sparse_rate"].value == 0.0
    assert state.native is not None
    assert state.native.paths[0].path == "dense"
    assert state.unanswered
    assert "import" in state.sections


def test_into_a_session_that_exists(tmp_path: Path, run: Any) -> None:
    path = write(tmp_path, [kernel("ampere_sgemm_128x64_nn", 0, 90)])
    first = json.loads(run(path, "--json").stdout)["session"]
    second = run(path, "--session", first, "-q")
    assert second.exit_code == 0
    assert second.stderr == ""
    assert len(Store(tmp_path / "sessions").open(first).state().evidence) == 2
    assert run(path, "--session", "nosuch").exit_code == 2


def test_a_comparison_leaves_a_budget(tmp_path: Path, run: Any) -> None:
    slow = write(tmp_path, [kernel("void cusparse::csrmm_kernel", 0, 300)], "slow.json")
    fast = write(tmp_path, [kernel("ampere_sgemm_128x64_nn", 0, 100)], "fast.json")
    told = json.loads(run(slow, "--against", fast, "--json").stdout)
    assert told["comparison"]["budget"]["gap_ms"]["value"] == pytest.approx(0.2)
    state = Store(tmp_path / "sessions").open(told["session"]).state()
    assert [e.variant for e in state.evidence] == ["failing", "comparator", None]
    assert state.budget is not None
    text = run(slow, "--against", fast).stdout
    assert "budget of the difference" in text
    assert "only here" in text


def test_hostile_names_reach_no_terminal(tmp_path: Path, run: Any) -> None:
    path = write(
        tmp_path, [kernel(HOSTILE, 0, 5), {**kernel(HOSTILE, 0, 9), "cat": "cpu_op"}], "\x1b[31mred\u202e.json"
    )
    stack = tmp_path / "s.txt"
    stack.write_text(HOSTILE.replace("\n", " ") + " 4\n")
    for argv in ((path,), (stack,), (path, "--against", path)):
        done = run(*argv)
        assert done.exit_code == 0
        for text in (done.stdout, done.stderr):
            assert not [c for c in text if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c in "\u202e\u2066"]
        assert not [line for line in done.stdout.splitlines() if line.startswith("# head")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.json", b""),
        ("text.md", b"# nothing here\n"),
        ("bin.json", b"\x00\x01\xff" * 50),
        ("half.json", b'{"traceEvents": [{"ph'),
        ("zip.zip", b"PK\x03\x04broken"),
        ("gz.json.gz", b"\x1f\x8bbroken"),
        ("deep.json", b"[" * 200_000),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, run: Any, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = run(path)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert name in done.stderr
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)


def test_what_is_no_file_is_exit_2(tmp_path: Path, run: Any) -> None:
    for path in (tmp_path / "absent.json", tmp_path, Path("/dev/zero")):
        done = run(path)
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1


def test_an_empty_trace_answers_nothing(tmp_path: Path, run: Any) -> None:
    assert run(write(tmp_path, [])).exit_code == 3


def test_a_bad_rule_file_is_named(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSETUI_KERNELS", str(tmp_path / "absent.toml"))
    done = run(write(tmp_path, [kernel("x", 0, 1)]))
    assert done.exit_code == 2
    assert "absent.toml" in done.stderr


@pytest.mark.parametrize("end", [KeyboardInterrupt, IngestError("no trace"), MemoryError])
def test_a_file_that_is_given_up_is_not_read_to_its_end(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    """Its digest would take minutes here: a terabyte that is hardly there."""
    path = write(tmp_path, [kernel("x", 0, 1)])
    os.truncate(path, 1 << 40)

    def ended(*_: Any, **__: Any) -> Any:
        raise end

    monkeypatch.setattr(traces, "inspect", ended)
    began = time.monotonic()
    done = run(path)
    assert time.monotonic() - began < 20
    assert done.exit_code == (130 if end is KeyboardInterrupt else 2)
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
