"""A session that was carried to another machine tells the same there, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsetui.session.store import Store

EXAMPLES = sorted((Path(__file__).parents[2] / "sessions").glob("example-*"))


def _sparsetui(*args: str, cwd: Path, **env: str) -> bytes:
    got = subprocess.run([sys.executable, "-m", "sparsetui", *args], cwd=cwd, capture_output=True, timeout=60,
                         env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **env})  # fmt: skip
    assert got.returncode == 0, got.stderr.decode()
    return got.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_the_memo_is_the_same_in_every_form_after_export_and_import(example: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    packed = tmp_path / "moved.tar.gz"
    _sparsetui("sessions", "export", str(example), "-o", str(packed), cwd=here)
    elsewhere = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "COLUMNS": "40", "HOME": str(there), "NO_COLOR": "1"}
    _sparsetui("sessions", "import", str(packed), "--sessions", str(there), cwd=there, **elsewhere)
    assert Store(there).verify(example.name).ok
    for form in ("md", "html", "json", "chat", "issue"):
        was = _sparsetui("memo", str(example), "--format", form, cwd=here)
        now = _sparsetui("memo", example.name, "--sessions", str(there), "--format", form, cwd=there, **elsewhere)
        assert now == was, form
        assert was
    assert (there / example.name / "memo.md").read_bytes() == (example / "memo.md").read_bytes()
    _sparsetui(
        "sessions", "export", example.name, "--sessions", str(there), "-o", str(there / "again.tar.gz"), cwd=there
    )
    assert (there / "again.tar.gz").read_bytes() == packed.read_bytes()
