from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparsetui.session.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "sessions")


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests about content: thousands of fsyncs would only wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def python() -> Iterator[Any]:
    """Start a Python process with a script and arguments; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(script: str, *args: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
