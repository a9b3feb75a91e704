"""What the command refuses before it touches a cluster, each in one line with exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from script import workload


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["w.toml", "--matrix"], "--address is needed"),
        (["w.toml", "--matrix", "--playbook", "dense-fallback-audit", "--address", "local"], "follows no playbook"),
        (["--matrix", "--attach", "a:1,b:2", "--address", "local"], "--attach"),
        (["--matrix", "--address", "local"], "needs a WORKLOAD.toml"),
        (["w.toml", "--matrix", "--address", "127.0.0.1:1", "--headless"], "nobody answers there"),
        (["w.toml", "--matrix", "--address", "127.0.0.1:1", "--session", "no-such-session"], "no-such-session"),
    ],
)
def test_a_wrong_use_is_one_line(tmp_path: Path, options: list[str], why: str) -> None:
    workload(tmp_path)
    argv = [sys.executable, "-m", "sparsetui", "fleet", *options, "--sessions", "s"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert why in last
    assert last.startswith("sparsetui: ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("**/ledger.jsonl"))
