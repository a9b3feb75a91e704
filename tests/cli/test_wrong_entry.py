"""A workload file whose entries exist but give what cannot be stepped: bad input, told in one line, not a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.forked import Done, command

CODE = """
import torch

def model(): return torch.nn.Linear(4, 4)
def nothing(): pass
def no_inputs(): return []
def broken(): raise ValueError("my own")
"""
FILE = """
[failing]
entry = "serving.py:{}"
[comparator]
entry = "serving.py:{}"
[inputs]
entry = "serving.py:{}"
"""


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (("nothing", "model", "model"), "failing: build: entry 'serving.py:nothing': it returned NoneType; expected an nn"),
        (("model", "nothing", "model"), "comparator: build: entry 'serving.py:nothing': it returned NoneType; expected an"),
        (("model", "model", "no_inputs"), "it returned no inputs; expected at least one argument tuple"),
    ],
)
def test_what_only_running_shows_of_a_workload_is_one_line_of_bad_input(
    tmp_path: Path, entries: tuple[str, str, str], says: str
) -> None:
    done = investigate(tmp_path, entries)
    assert done.code == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"sparsetui: {tmp_path}/w.toml: ")
    assert says in last
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_an_error_of_the_users_own_code_is_evidence_and_no_bad_input(tmp_path: Path) -> None:
    done = investigate(tmp_path, ("model", "broken", "model"))
    assert done.code == 3
    assert "my own" in done.stdout


def investigate(folder: Path, entries: tuple[str, str, str]) -> Done:
    (folder / "serving.py").write_text(CODE)
    (folder / "w.toml").write_text(FILE.format(*entries))
    argv = ["investigate", str(folder / "w.toml"), "--headless", "--budget", "5", "--sessions", str(folder / "s")]
    return command(argv, cwd=folder, timeout=60.0)
