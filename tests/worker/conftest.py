from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sparsetui.worker.faults import Fault, WorkerFault
from sparsetui.worker.handle import Launch, Server

CASES = Path(__file__).parent / "cases"
CEILING = 3 * 2**29  # 1.5 GiB


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One warm server for all tests: a replica that dies must not cost the others anything."""
    launch = Launch(
        folder=CASES,
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(CASES), "PYTHONDONTWRITEBYTECODE": "1"},
        memory_bytes=CEILING,
        label="failing",
    )
    with Server(launch, tmp_path_factory.mktemp("scratch")) as running:
        yield running
        assert running.pid is not None
        assert psutil.Process(running.pid).children(recursive=True) == []


@pytest.fixture
def fault(server: Server) -> Callable[..., Fault]:
    """Build one entry of ``bad.py`` that must fail, and return how it did."""

    def run(entry: str, deadline_s: float = 20.0) -> Fault:
        with (
            server.spawn({"entry": f"bad.py:{entry}", "inputs": {"shape": [1]}}) as replica,
            pytest.raises(WorkerFault) as raised,
        ):
            replica.call("build", deadline_s=deadline_s)
        assert "\n" not in raised.value.fault.message
        return raised.value.fault

    return run


def _gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends in time; a zombie that waits for a foreign parent counts as ended."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False


@pytest.fixture
def gone() -> Callable[..., bool]:
    return _gone
