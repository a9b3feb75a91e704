"""The engine: a real investigation in a process of its own, that leaves nothing behind however either side ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_pair import pair

from sparsetui.runner.api import Cancelled, Update
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.tui.engine.far import EngineError, FarRunner
from sparsetui.workload.spec import Workload, load


def workload(folder: Path, failing: str = "build") -> Workload:
    return load(pair(folder, failing))


def family(pid: int) -> set[int]:
    """The engine and all that it has started, by pid."""
    return {pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))}


def wait(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


def gone(pids: set[int]) -> bool:
    return not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids)


@pytest.fixture
def made() -> Iterator[list[FarRunner]]:
    runners: list[FarRunner] = []
    yield runners
    for runner in runners:
        runner.close()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Exception]]:
    caught: list[Exception] = []

    def body() -> None:
        try:
            work()
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, caught


def test_a_stage_runs_there_is_followed_here_and_leaves_no_process(tmp_path: Path, made: list[FarRunner]) -> None:
    heard: list[Update] = []
    store = Store(tmp_path / "store")
    made.append(FarRunner(workload(tmp_path), store, budget_s=20, listener=heard.append))
    runner = made[-1]
    runner.run_stage("ingress")
    state = runner.state()
    assert {e.probe for e in state.evidence} >= {"lock", "inventory"}
    assert store.open(state.id).writing.startswith(f"process {runner.process.pid} "), "the engine is the one writer"
    assert any(c["pid"] == runner.process.pid for c in state.commands), "the log of commands names the engine too"
    assert any(u.live.running and u.live.phase == "inventory" for u in heard)
    assert heard[-1].state.events == state.events
    there = family(runner.process.pid)
    assert len(there) > 1, "the workers are the engine's"
    assert not (there - {runner.process.pid}) & {p.pid for p in psutil.Process().children()}
    runner.close()
    wait(lambda: gone(there), 10)
    assert not store.open(state.id).writing, "the session was given back"
    with pytest.raises(EngineError, match="has been ended"):
        runner.run_stage("ingress")


def test_cancel_reaches_a_run_and_the_engine_goes_on(tmp_path: Path, made: list[FarRunner]) -> None:
    made.append(FarRunner(workload(tmp_path, "slow"), Store(tmp_path / "store"), budget_s=60))
    runner = made[-1]
    thread, caught = in_thread(runner.run_all)
    wait(lambda: any(p.name == "build" for p in runner.state().phases))
    runner.cancel()
    thread.join(20)
    assert [type(e) for e in caught] == [Cancelled]
    assert runner.state().interrupted == "cancelled"
    runner.assign("runtime systems architect", "@ann")
    assert runner.state().owners["runtime systems architect"] == "@ann"


def test_a_killed_engine_is_one_line_and_takes_no_worker_along(tmp_path: Path, made: list[FarRunner]) -> None:
    store = Store(tmp_path / "store")
    made.append(FarRunner(workload(tmp_path, "slow"), store, budget_s=60))
    runner = made[-1]
    thread, caught = in_thread(runner.run_all)
    wait(lambda: any(p.name == "build" for p in runner.state().phases) and len(family(runner.process.pid)) > 1)
    there = family(runner.process.pid)
    runner.process.kill()
    thread.join(20)
    assert isinstance(caught[0], EngineError)
    assert "killed by signal 9" in str(caught[0])
    assert not runner.alive
    wait(lambda: gone(there), 20)
    with pytest.raises(EngineError, match="killed by signal 9"):
        runner.run_stage("ingress")
    runner.cancel()  # of what has ended: nothing, and no error, for an app that ends does this too
    with store.writer(runner.state().id) as writer:
        assert writer.state().commands, "a dead engine holds no lock, and what it wrote is there"


HOST = """\
import sys
from pathlib import Path
from sparsetui.session.store import Store
from sparsetui.tui.engine.far import FarRunner
from sparsetui.workload.spec import load

runner = FarRunner(load(sys.argv[1]), Store(Path(sys.argv[2])), budget_s=60)
print(runner.process.pid, runner.state().id, flush=True)
runner.run_all()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_the_engine_saves_and_ends_when_its_app_is_killed_or_itself_is_told_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    workload(tmp_path, "slow")
    store = Store(tmp_path / "store")
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path / "slow.toml"), str(store.root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert host.stdout is not None
        pid, id = host.stdout.readline().split()
        state: Callable[[], SessionState] = lambda: store.open(id).state()  # noqa: E731
        wait(lambda: any(p.name == "build" for p in state().phases) and len(family(int(pid))) > 1)
        there = family(int(pid))
        os.kill(host.pid if number == signal.SIGKILL else int(pid), number)
        wait(lambda: gone(there), 20)
        assert state().interrupted == "cancelled", "what had been measured is kept, and why it ended"
        assert not store.open(id).writing
    finally:
        host.kill()
        host.wait()


def test_a_session_that_somebody_else_writes_is_refused_in_one_line(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.create("tiny") as writer, pytest.raises(EngineError, match="writ"):
        FarRunner(workload(tmp_path), store, session=writer.id)


def test_closure_is_recorded_where_the_workload_is_gone(tmp_path: Path, made: list[FarRunner]) -> None:
    store = Store(tmp_path / "store")
    with store.create("tiny") as writer:
        id = writer.id
    made.append(FarRunner(None, store, session=id))
    clerk: Any = made[-1]
    clerk.sign("runtime systems architect", "ann", "read it")
    with pytest.raises(EngineError, match="reason"):
        clerk.waive("matrix", "", "ann")
    clerk.waive("matrix", "no second format", "ann")
    gates = {g.gate: g.state for g in clerk.evaluate_gates("ann")}
    clerk.close()
    state = store.open(id).state()
    assert state.signoffs[0]["who"] == "ann"
    assert gates["matrix"] == "waived"
    assert state.closed is None, "open gates keep it from closing"
