"""A real pair of tiny variants, for tests that start processes: one builds at once, ``slow`` for longer than any test."""

from __future__ import annotations

from pathlib import Path

SERVING = """\
import time, torch

def build():
    torch.manual_seed(0)
    return torch.nn.Linear(16, 16)

def slow():
    time.sleep(60)
"""
PAGE = """\
[workload]
name = "tiny"
[failing]
entry = "serving.py:{}"
threads = 1
[comparator]
entry = "serving.py:build"
threads = 1
[inputs]
shape = [2, 16]
"""


def pair(folder: Path, failing: str = "build") -> Path:
    """The workload file of the pair in ``folder``; ``failing`` is ``build`` or ``slow``."""
    (folder / "serving.py").write_text(SERVING)
    path = folder / f"{failing}.toml"
    path.write_text(PAGE.format(failing))
    return path
