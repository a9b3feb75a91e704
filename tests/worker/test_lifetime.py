"""Nothing outlives the tool, however it ends."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import sparsetui.worker.child
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Launch, Server

CASES = Path(__file__).parent / "cases"
Gone = Callable[..., bool]

TOOL = """
import sys, time
from pathlib import Path
from sparsetui.worker.handle import Launch, Server
folder = Path(sys.argv[1])
server = Server(Launch(folder=folder, env={"PYTHONPATH": str(folder)}), sys.argv[2]).start()
idle = server.spawn({"entry": "good.py:linear"})
busy = server.spawn({"entry": "good.py:linear", "verbs": "table:VERBS"})
daemon = busy.call("start_daemon", deadline_s=20)["pid"]
print(server.pid, idle.pid, busy.pid, daemon, flush=True)
END
"""


STALL = "busy.call('stall', deadline_s=600, on_message=lambda m: print('stalled', flush=True))"


def run_tool(end: str, scratch: Path) -> tuple[subprocess.Popen[str], list[int]]:
    tool = subprocess.Popen(
        [sys.executable, "-c", TOOL.replace("END", end), str(CASES), str(scratch)], stdout=subprocess.PIPE, text=True
    )
    assert tool.stdout is not None
    pids = [int(p) for p in tool.stdout.readline().split()]
    assert len(pids) == 4
    if end is STALL:
        assert tool.stdout.readline() == "stalled\n"
    return tool, pids


def test_kill_dash_nine_of_the_tool_leaves_no_process(tmp_path: Path, gone: Gone) -> None:
    tool, pids = run_tool(STALL, tmp_path)
    assert all(psutil.pid_exists(p) for p in pids)
    tool.send_signal(signal.SIGKILL)
    tool.wait()
    assert [p for p in pids if not gone(p)] == []


def test_kill_dash_nine_of_tool_and_server_at_once_leaves_no_replica(tmp_path: Path, gone: Gone) -> None:
    tool, pids = run_tool(STALL, tmp_path)
    server, idle, busy, daemon = pids
    try:
        os.kill(server, signal.SIGSTOP)
        tool.send_signal(signal.SIGKILL)
        tool.wait()
        os.kill(server, signal.SIGKILL)
        assert gone(idle)
        assert gone(busy)
    finally:
        os.kill(daemon, signal.SIGKILL)  # nobody is left who could know of it


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise SystemError", "del server, idle, busy; time.sleep(600)"])
def test_an_end_without_close_leaves_no_process(tmp_path: Path, gone: Gone, end: str) -> None:
    tool, pids = run_tool(end, tmp_path)
    try:
        assert [p for p in pids if not gone(p)] == []
    finally:
        tool.kill()
        tool.wait()


def test_close_ends_busy_replicas_and_their_daemons(tmp_path: Path, gone: Gone) -> None:
    launch = Launch(folder=CASES, env={"PYTHONPATH": str(CASES)})
    faults: list[WorkerFault] = []
    stalled = threading.Event()
    with Server(launch, tmp_path) as server:
        replica = server.spawn({"entry": "good.py:linear", "verbs": "table:VERBS"})
        daemon = replica.call("start_daemon", deadline_s=20)["pid"]

        def stall() -> None:
            try:
                replica.call("stall", deadline_s=60, on_message=lambda _: stalled.set())
            except WorkerFault as why:
                faults.append(why)

        caller = threading.Thread(target=stall)
        caller.start()
        assert stalled.wait(20)
    caller.join(10)
    assert not caller.is_alive()
    assert faults[0].fault.kind == "signal"
    assert gone(replica.pid)
    assert gone(daemon)
    server.close()  # again


def test_closing_a_replica_ends_what_it_started_and_spares_the_others(server: Server, gone: Gone) -> None:
    spec = {"entry": "good.py:linear", "verbs": "table:VERBS"}
    with server.spawn(spec) as one, server.spawn(spec) as two:
        mine = one.call("start_daemon", deadline_s=20)["pid"]
        other = two.call("start_daemon", deadline_s=20)["pid"]
        one.close()
        assert gone(mine)
        assert psutil.pid_exists(other)
        assert two.call("ping", deadline_s=5)["pid"] == two.pid


def test_many_replicas_leave_no_descriptor_and_no_thread(server: Server) -> None:
    def cycle() -> None:
        with server.spawn({"entry": "good.py:linear"}) as replica:
            replica.call("ping", deadline_s=10)

    def held() -> tuple[int, int, int]:
        gc.collect()
        server.captured()  # the hub has done all that was asked of it before
        assert server.pid is not None
        theirs = psutil.Process(server.pid).num_fds()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), theirs

    cycle()
    before = held()
    for _ in range(25):
        cycle()
    assert held() == before


def test_every_process_is_announced(tmp_path: Path) -> None:
    heard: list[dict[str, object]] = []
    with Server(Launch(folder=CASES, label="failing"), tmp_path, heard.append) as server:
        replica = server.spawn({"entry": "good.py:linear"})
        assert [c["pid"] for c in heard] == [server.pid, replica.pid]
    assert heard[0]["argv"] == [sys.executable, str(CASES.parents[2] / "sparsetui/worker/child/bootstrap.py")]


def test_a_server_whose_import_of_torch_takes_long_ends_with_its_tool(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\nfor _ in range(600):\n    time.sleep(0.1)\n")
    bootstrap = Path(sparsetui.worker.child.__file__).with_name("bootstrap.py")
    ours, theirs = socket.socketpair()
    with theirs:
        server = subprocess.Popen(
            [sys.executable, str(bootstrap), "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
    try:
        assert b"hello" in ours.recv(4096)
        ours.close()
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait()
