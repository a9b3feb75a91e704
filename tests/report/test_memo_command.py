"""``sparsetui memo`` on sessions that really lie on disk."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from sparsetui.cli.memo import memo
from sparsetui.report.memo import render
from sparsetui.session.store import Store

app = typer.Typer()
app.command()(memo)


@pytest.fixture
def saved(sample: ModuleType, tmp_path: Path) -> tuple[Path, str]:
    """A session folder with the sample's events in its ledger, and its id."""
    root = tmp_path / "sessions"
    with Store(root).create("ranker", "ranker") as writer:
        for event in sample.events()[1:]:
            body = event.body
            if event.kind == "evidence":  # an artifact that is really there, as export checks it
                body = {**body, "sha256": writer.artifact({"of": body["id"]})}
            writer.append(event.kind, body)
        return root, writer.id


def test_the_memo_goes_to_stdout_as_the_state_renders(saved: tuple[Path, str]) -> None:
    root, ref = saved
    told = CliRunner().invoke(app, [ref, "--sessions", str(root)])
    assert told.exit_code == 0
    assert told.stdout == render(Store(root).open(ref).state())


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("md", "# NOT CLOSED"),
        ("html", "<!doctype html>"),
        ("json", "{"),
        ("chat", "NOT CLOSED"),
        ("issue", "# NOT CLOSED"),
    ],
)
def test_each_form_can_be_written_to_a_file(saved: tuple[Path, str], tmp_path: Path, form: str, begins: str) -> None:
    root, ref = saved
    out = tmp_path / "memo.out"
    told = CliRunner().invoke(app, [ref, "--sessions", str(root), "--format", form, "-o", str(out)])
    assert told.exit_code == 0, told.output
    assert told.stdout == ""
    assert out.read_text().startswith(begins)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_session_may_be_named_by_its_folder_and_redacted(saved: tuple[Path, str]) -> None:
    root, ref = saved
    told = CliRunner().invoke(app, [str(root / ref), "--format", "json", "--redact"])
    assert told.exit_code == 0
    assert json.loads(told.stdout)["verdict"]["mechanism"] == "kernel.wrong-orientation"
    assert "alice" not in told.stdout


def test_a_moved_session_gives_the_same_memo(saved: tuple[Path, str], tmp_path: Path) -> None:
    root, ref = saved
    first, other = Store(root), Store(tmp_path / "elsewhere")
    packed = first.export(ref, tmp_path / "session.tar.gz")
    moved = other.import_(packed)
    assert render(other.open(moved.name).state()) == render(first.open(ref).state())


@pytest.mark.parametrize("bad", ["no-such-session", "", "../..", "\x1b[2J"])
def test_an_unknown_session_gets_one_line(saved: tuple[Path, str], bad: str) -> None:
    told = CliRunner().invoke(app, [bad, "--sessions", str(saved[0])])
    assert told.exit_code == 2
    assert len(told.output.strip().splitlines()) == 1
    assert "\x1b" not in told.output


def test_a_file_that_cannot_be_written_gets_one_line(saved: tuple[Path, str], tmp_path: Path) -> None:
    root, ref = saved
    for target in (tmp_path, tmp_path / "no" / "such" / "memo.md"):
        told = CliRunner().invoke(app, [ref, "--sessions", str(root), "-o", str(target)])
        assert told.exit_code == 2
        assert len(told.output.strip().splitlines()) == 1


def test_a_damaged_session_is_said_to_be_damaged(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "sessions" / "example-wrong-orientation"
    copy = tmp_path / "copy"
    shutil.copytree(example, copy)
    argv = [sys.executable, "-m", "sparsetui", "memo", str(copy)]
    assert "damaged" not in subprocess.run(argv, capture_output=True, text=True, check=True).stderr
    artifact = next(copy.glob("artifacts/*/*.json.gz"))
    artifact.chmod(0o600)
    artifact.write_bytes(artifact.read_bytes() + b"xx")
    assert "this session is damaged" in subprocess.run(argv, capture_output=True, text=True, check=True).stderr
