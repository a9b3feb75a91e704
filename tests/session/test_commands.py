"""``sparsetui sessions``: data on stdout, narration on stderr, exit codes that scripts rely on."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparsetui.cli.sessions import app
from sparsetui.evidence.records import Result as Answer
from sparsetui.evidence.records import Verdict
from sparsetui.session.folder import LEDGER
from sparsetui.session.store import Store


@pytest.fixture
def run(store: Store) -> Any:
    def call(*args: object, root: object = store.root) -> Result:
        return CliRunner().invoke(app, [*map(str, args), "--sessions", str(root)])

    return call


@pytest.fixture
def session(store: Store) -> Path:
    with store.create("ranker", "a \x1b[31mred\x1b[0m title") as w:
        w.evidence("kernel", "census", {"a": 1}, summary="12 ops\u202e")
        verdict = Verdict("fault", "wrong side", mechanism="kernel.wrong-orientation", confidence="confirmed")
        w.append("result", Answer(session=w.id, verdict=verdict))
    return w.path


def _one_line(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("sparsetui: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return str(result.stderr)


def test_list_as_text_and_as_json(run: Any, session: Path) -> None:
    text = run("list")
    assert text.exit_code == 0
    assert text.stdout.splitlines()[1].split()[0] == session.name
    assert "kernel.wrong-orientation" in text.stdout
    (found,) = json.loads(run("list", "ranker", "--json").stdout)
    assert (found["id"], found["status"], found["events"]) == (session.name, "fault", 3)
    assert json.loads(run("list", "nothing", "--json").stdout) == []
    none = run("list", "nothing")
    assert (none.stdout, none.exit_code) == ("", 0)
    assert "no session" in none.stderr


def test_show_prints_no_escape_that_we_did_not_write(run: Any, session: Path) -> None:
    result = run("show", "ranker")
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
    assert "\\x1b[31mred" in result.stdout
    assert "fault  kernel.wrong-orientation  confirmed" in result.stdout
    state = json.loads(run("show", session, "--json").stdout)
    assert state["result"]["verdict"]["status"] == "fault"
    assert state["title"] == "a \x1b[31mred\x1b[0m title"
    assert len(state["gates"]) == 10
    assert state["damage"] == []


def test_verify_exits_0_when_whole_and_1_when_damaged(run: Any, session: Path) -> None:
    assert run("verify", session.name).exit_code == 0
    path = session / LEDGER
    path.write_bytes(path.read_bytes().replace(b"12 ops", b"99 ops"))
    result = run("verify", session.name)
    assert result.exit_code == 1
    assert "line 2 (event 1): altered" in result.stdout
    report = json.loads(run("verify", session.name, "--json").stdout)
    assert (report["ok"], report["broken"][0]["line"]) == (False, 2)
    shown = run("show", session.name)
    assert shown.exit_code == 0
    assert "line 2 (event 1): altered" in shown.stderr


def test_export_import_and_delete(run: Any, session: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    assert run("export", session.name, "-o", file).stdout == f"{file}\n"
    assert "already here" in _one_line(run("import", file))
    moved = run("import", file, root=tmp_path / "other")
    assert moved.stdout == f"{tmp_path / 'other' / session.name}\n"
    assert "--yes" in _one_line(run("delete", session.name))
    assert run("delete", session.name, "--yes").stdout == f"{session.name}\n"
    assert not session.exists()


def test_an_export_of_a_damaged_session_warns(run: Any, session: Path, tmp_path: Path) -> None:
    (session / LEDGER).write_bytes((session / LEDGER).read_bytes()[:-30])
    result = run("export", session.name, "-o", tmp_path / "x.tar.gz")
    assert result.exit_code == 0
    assert "is damaged" in result.stderr
    assert "damaged" in _one_line(run("import", tmp_path / "x.tar.gz", root=tmp_path / "other"))


def test_open_without_a_terminal_says_what_to_use(run: Any, session: Path) -> None:
    assert f"sparsetui sessions show {session}" in _one_line(run("open", session.name))


@pytest.mark.parametrize("command", ["show", "open", "export", "verify", "delete"])
@pytest.mark.parametrize("ref", ["", "nope", "/etc", "..", "x" * 5000, "\x1b[2J"])
def test_what_is_not_there_is_one_line_in_every_command(run: Any, session: Path, command: str, ref: str) -> None:
    line = _one_line(run(command, ref))
    assert "\x1b" not in line
    assert len(line) < 800


@pytest.mark.parametrize("kind", ["missing", "folder", "binary", "empty", "unreadable"])
def test_what_cannot_be_imported_is_one_line(run: Any, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "x"
    if kind == "folder":
        file.mkdir()
    elif kind in ("binary", "empty"):
        file.write_bytes(os.urandom(3000) if kind == "binary" else b"")
    elif kind == "unreadable":
        file.symlink_to("/dev/zero")
    assert str(file) in _one_line(run("import", file))


def test_a_file_in_place_of_the_sessions_folder_is_one_line(run: Any, tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_bytes(b"")
    assert "not a folder" in _one_line(run("list", root=root))
    assert "not a folder" in _one_line(run("show", "x", root=root))


def test_delete_asks_on_a_terminal(session: Path) -> None:
    """On a real terminal: ``n`` keeps the session, ``y`` removes it."""
    for answer, left in ((b"n\n", True), (b"y\n", False)):
        main, other = pty.openpty()
        command = ["-c", "from sparsetui.cli.sessions import app; app()", "delete", str(session)]
        process = subprocess.Popen(
            [sys.executable, *command], stdin=other, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.close(other)
        os.write(main, answer)
        _, err = process.communicate(timeout=30)
        os.close(main)
        assert process.returncode == 0
        assert b"for good?" in err
        assert session.exists() == left
