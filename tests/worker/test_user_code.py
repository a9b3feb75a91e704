"""What user code may do to a worker, and what becomes of it: one clear result each time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psutil
import pytest

from sparsetui.worker.capture import HEAD, TAIL
from sparsetui.worker.faults import Fault, WorkerFault
from sparsetui.worker.handle import Server

Fails = Callable[..., Fault]


def build(server: Server, entry: str, **spec: object) -> dict[str, object]:
    with server.spawn({"entry": f"good.py:{entry}", "inputs": {"shape": [1, 4]}, **spec}) as replica:
        return replica.call("build", deadline_s=30)


def test_an_exception_is_told_with_its_place_and_output(fault: Fails) -> None:
    f = fault("raises")
    assert (f.kind, f.type, f.verb, f.label) == ("exception", "ValueError", "build", "failing")
    assert f.message.startswith("failing: build: ValueError: no such weights (")
    assert f.message.endswith("bad.py:14 raises)")
    assert f.stdout_tail == "about to fail\n"
    assert f.stderr_tail == "on stderr\n"
    assert "in raises" in f.traceback
    assert "sparsetui" not in f.traceback


def test_an_exception_whose_text_raises_is_still_told(fault: Fails) -> None:
    assert fault("raises_odd").type == "Odd"


def test_the_message_of_a_fault_cannot_move_the_cursor(fault: Fails) -> None:
    assert fault("raises_escape").message.isprintable()


def test_keyboard_interrupt_in_user_code_is_its_exception(fault: Fails) -> None:
    assert fault("interrupts").type == "KeyboardInterrupt"


def test_what_is_not_callable_is_named(fault: Fails) -> None:
    assert "returned int; expected an nn.Module or a callable" in fault("not_callable").message


def test_sys_exit(fault: Fails) -> None:
    f = fault("sys_exit")
    assert (f.kind, f.exit_code) == ("exit", 3)
    assert "sys.exit(3)" in f.message


def test_os_exit(fault: Fails) -> None:
    f = fault("os_exit")
    assert (f.kind, f.exit_code) == ("exit", 7)


def test_a_segfault_tells_its_signal_and_its_python_stack(fault: Fails) -> None:
    f = fault("segfault")
    assert (f.kind, f.signal) == ("signal", "SIGSEGV")
    assert "in segfault" in f.traceback
    assert "worker/child" not in f.traceback


@pytest.mark.parametrize("entry", ["python_loop", "sleeps", "c_loop"])
def test_a_hang_ends_at_the_deadline_and_tells_where_it_hung(fault: Fails, entry: str) -> None:
    f = fault(entry, deadline_s=1.0)
    assert f.kind == "timeout"
    assert f"in {entry}" in f.traceback
    assert '"doing": "build"' in f.message
    assert f.seconds < 5


def test_a_hang_that_ignores_every_signal_ends_too(fault: Fails) -> None:
    f = fault("ignores_everything", deadline_s=1.0)
    assert (f.kind, f.signal) == ("timeout", "SIGKILL")


def test_unbounded_allocation_meets_the_ceiling(fault: Fails) -> None:
    f = fault("allocates")
    assert f.kind == "memory"
    assert "1.50 GiB" in f.message


def test_one_allocation_too_many_is_the_codes_own_exception(server: Server) -> None:
    with server.spawn({"entry": "bad.py:wants_too_much"}) as replica:
        with pytest.raises(WorkerFault) as raised:
            replica.call("build", deadline_s=20)
        f = raised.value.fault
        assert (f.kind, f.type) == ("memory", "RuntimeError")
        assert "in wants_too_much" in f.traceback
        assert replica.alive


def test_memory_that_forks_share_counts_once(server: Server) -> None:
    assert build(server, "shares_memory")["inputs"] == 1


def test_memory_of_child_processes_counts(fault: Fails) -> None:
    f = fault("allocates_in_children")
    assert f.kind == "memory"
    assert "the ceiling is 1.50 GiB" in f.message


def test_a_fork_bomb_is_stopped(fault: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsetui.worker.memory.MOST_PROCESSES", 40)
    monkeypatch.setattr("sparsetui.worker.replica.MOST_PROCESSES", 40)
    f = fault("fork_bomb")
    assert f.kind == "signal"
    assert "fork bomb guard" in f.message


def test_closing_low_descriptors_does_no_harm(server: Server) -> None:
    with server.spawn({"entry": "good.py:closes_low_descriptors", "inputs": {"shape": [1]}}) as replica:
        assert replica.call("build", deadline_s=20)["inputs"] == 1
        assert replica.captured()[0] == "before\n"


def test_closing_every_descriptor_is_told(fault: Fails) -> None:
    f = fault("closes_all_descriptors")
    assert f.kind in {"protocol", "exit"}


def test_garbage_on_the_message_pipe_is_told(fault: Fails) -> None:
    f = fault("writes_garbage", deadline_s=10)
    assert f.kind == "protocol"
    assert "garbage" in f.message


def test_a_fork_inside_the_builder_stays_silent(server: Server) -> None:
    with server.spawn({"entry": "good.py:forks", "inputs": {"shape": [1]}}) as replica:
        heard: list[dict[str, object]] = []
        assert replica.call("build", deadline_s=20, on_message=heard.append)["inputs"] == 1
        assert replica.call("ping", deadline_s=5)["pid"] == replica.pid
        assert [m["doing"] for m in heard] == ["build", "inputs"]


def test_a_daemon_of_the_builder_dies_with_it(server: Server, fault: Fails) -> None:
    f = fault("daemonises")
    assert (f.kind, f.exit_code) == ("exit", 0)
    assert server.pid is not None
    assert psutil.Process(server.pid).children(recursive=True) == []


def test_handlers_folder_and_start_method_are_the_codes_own(server: Server) -> None:
    with server.spawn({"entry": "good.py:restless", "inputs": {"entry": "good.py:tensors"}}) as replica:
        assert replica.call("build", deadline_s=20)["inputs"] == 2
        assert replica.call("ping", deadline_s=5)["built"] is True


def test_a_gigabyte_of_output_blocks_nothing_and_is_kept_at_both_ends(server: Server) -> None:
    with server.spawn({"entry": "good.py:chatty", "inputs": {"shape": [1]}}) as replica:
        replica.call("build", deadline_s=60)
        out, err = replica.captured()
    assert out.startswith("first line\n")
    assert out.endswith("last line\n")
    assert "bytes not kept" in out
    assert len(out) < HEAD + TAIL + 100
    assert len(err) < HEAD + TAIL + 100


def test_a_replica_answers_on_after_its_code_raised(server: Server) -> None:
    with server.spawn({"entry": "bad.py:raises", "verbs": "table:VERBS"}) as replica:
        for _ in range(2):
            with pytest.raises(WorkerFault):
                replica.call("build", deadline_s=20)
        with pytest.raises(WorkerFault) as raised:
            replica.call("exits", deadline_s=5)
        assert raised.value.fault.kind == "exit"
        assert replica.alive
        assert replica.call("ping", deadline_s=5)["pid"] == replica.pid


def test_threads_that_never_end_do_not_delay_the_end(server: Server) -> None:
    replica = server.spawn({"entry": "good.py:linear", "verbs": "table:VERBS"})
    replica.call("endless_thread", deadline_s=5)
    replica.close()
    assert not psutil.pid_exists(replica.pid)


def test_a_killed_server_is_told_and_takes_its_replicas_along(
    server: Server, tmp_path: object, gone: Callable[..., bool]
) -> None:
    with contextlib.closing(Server(server.launch, str(tmp_path))) as own:
        own.start()
        replica = own.spawn({"entry": "bad.py:kills_the_server", "inputs": {"shape": [1]}})
        other = own.spawn({"entry": "good.py:linear", "inputs": {"shape": [1, 4]}})
        with pytest.raises(WorkerFault) as raised:
            replica.call("build", deadline_s=20)
        assert "fork server was killed" in raised.value.fault.message
        with pytest.raises(WorkerFault):
            other.call("ping", deadline_s=5)
        with pytest.raises(WorkerFault) as again:
            own.spawn({"entry": "good.py:linear"})
        assert again.value.fault.kind == "launch"
    assert gone(replica.pid)
    assert gone(other.pid)


def test_a_death_is_noticed_while_a_fork_keeps_the_pipe_open(server: Server) -> None:
    with server.spawn({"entry": "good.py:linear", "verbs": "table:VERBS"}) as replica:
        with pytest.raises(WorkerFault) as raised:
            replica.call("fork_that_holds_on", deadline_s=20)
        assert raised.value.fault.exit_code == 5
        assert raised.value.fault.seconds < 10
