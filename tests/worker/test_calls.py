"""Asking a replica: answers, progress, deadlines, inputs, and what it runs under."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import CallCancelled, Launch, Server

CASES = Path(__file__).parent / "cases"


def ask(server: Server, verb: str, args: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    full = {"entry": "good.py:linear", "inputs": {"shape": [2, 4]}, "verbs": "table:VERBS", **spec}
    with server.spawn(full) as replica:
        replica.call("build", deadline_s=30)
        return replica.call(verb, args, deadline_s=30)


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ({"entry": "good.py:tensors"}, [[[3, 4]], [[1, 4]]]),
        ({"entry": "good.py:one_tuple"}, [[[2], 3]]),
        ({"entry": "good.py:generator"}, [[[1, 4]]] * 3),
        ({"shape": [2, 5]}, [[[2, 5]]]),
        ({"shape": [[2, 5], [3]]}, [[[2, 5], [3]]]),
    ],
)
def test_inputs_become_argument_tuples(server: Server, inputs: dict[str, Any], shapes: list[Any]) -> None:
    assert ask(server, "look", inputs=inputs)["inputs"] == shapes


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"entry": "good.py:nothing"}, "returned no inputs"),
        ({"entry": "good.py:none"}, "returned None"),
        ({"entry": "good.py:NUMBER"}, "cannot be called"),
        ({"shape": [2], "dtype": "float33"}, "has no dtype 'float33'"),
    ],
)
def test_bad_inputs_are_told_in_one_line(server: Server, inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(WorkerFault, match=says) as raised:
        ask(server, "look", inputs=inputs)
    assert raised.value.fault.type == "LoadError"


def test_every_dtype_that_a_workload_may_name_can_be_drawn(server: Server) -> None:
    from sparsetui.workload.spec import DTYPES

    for dtype in DTYPES:
        assert ask(server, "look", inputs={"shape": [3], "dtype": dtype})["dtypes"] == [[f"torch.{dtype}"]]


def test_unseeded_inputs_are_the_same_whatever_the_builder_drew(server: Server) -> None:
    sums = [
        ask(server, "look", entry=f"good.py:{entry}", inputs={"entry": "good.py:tensors"})["sums"]
        for entry in ("linear", "function", "Service.build")
    ]
    assert sums[0] == sums[1] == sums[2]


def test_a_replica_runs_as_the_service_would(server: Server) -> None:
    seen = ask(server, "look", threads=2)
    folder = str(server.launch.folder)
    assert seen["cwd"] == folder
    assert seen["path0"] == folder
    assert seen["ours_on_path"] == []
    assert seen["resolved"] == "resolved"  # how a probe finds the quality entry
    assert seen["threads"] == 2
    assert seen["main"] is None
    assert seen["modules"] == []  # nothing of our own environment is loaded there
    assert seen["stdin"] == "/dev/null"


def test_progress_is_heard_in_order_and_before_the_answer(server: Server) -> None:
    heard: list[dict[str, Any]] = []
    with server.spawn({"entry": "good.py:linear", "verbs": "table:VERBS"}) as replica:
        assert replica.call("progress", {"n": 50}, deadline_s=20, on_message=heard.append) == {"n": 50}
    assert heard == [{"step": i} for i in range(50)]


def test_state_lasts_from_verb_to_verb_and_not_beyond_a_replica(server: Server) -> None:
    with server.spawn({"entry": "good.py:linear", "verbs": "table:VERBS"}) as replica:
        assert [replica.call("state", deadline_s=5)["n"] for _ in range(2)] == [1, 2]
    assert ask(server, "state") == {"n": 1}


def test_numpy_values_and_odd_text_can_be_answered(server: Server) -> None:
    answer = ask(server, "numpy_answer")
    assert answer["scalar"] == 0.5
    assert answer["array"] == [0, 1, 2]
    assert math.isnan(answer["nan"])
    assert answer["odd"] == "?"


def test_a_large_answer_arrives_and_a_too_large_one_is_a_fault(server: Server) -> None:
    assert len(ask(server, "large", {"n": 5_000_000})["text"]) == 5_000_000
    with pytest.raises(WorkerFault, match="larger than the limit"):
        ask(server, "large", {"n": 65 * 2**20})


def test_an_answer_that_is_no_json_is_a_fault(server: Server) -> None:
    with pytest.raises(WorkerFault, match="no_answer"):
        ask(server, "no_answer")


def test_an_unknown_verb_is_named(server: Server) -> None:
    with pytest.raises(WorkerFault, match="no verb 'frobnicate'; known are build"):
        ask(server, "frobnicate")


def test_the_last_message_is_part_of_a_timeout_and_cannot_move_the_cursor(server: Server) -> None:
    with pytest.raises(WorkerFault) as raised, server.spawn({"entry": "x", "verbs": "table:VERBS"}) as replica:
        replica.call("stall", deadline_s=0.5)
    assert raised.value.fault.kind == "timeout"
    assert "last" in raised.value.fault.message
    assert raised.value.fault.message.isprintable()


def test_cancel_breaks_a_call_off(server: Server) -> None:
    cancel = threading.Event()
    with server.spawn({"entry": "x", "verbs": "table:VERBS"}) as replica:
        with pytest.raises(CallCancelled):
            replica.call("stall", deadline_s=60, on_message=lambda _: cancel.set(), cancel=cancel)
        assert not replica.alive
        with pytest.raises(WorkerFault):
            replica.call("ping", deadline_s=5)


def test_a_listener_that_raises_ends_the_replica_and_is_heard(server: Server) -> None:
    def broken(_: dict[str, Any]) -> None:
        raise LookupError("mine")

    with server.spawn({"entry": "x", "verbs": "table:VERBS"}) as replica:
        with pytest.raises(LookupError, match="mine"):
            replica.call("progress", {"n": 1}, deadline_s=5, on_message=broken)
        assert not replica.alive


def test_replicas_of_one_server_are_apart(server: Server) -> None:
    spec = {"entry": "good.py:linear", "verbs": "table:VERBS"}
    with server.spawn(spec) as one, server.spawn(spec) as two:
        one.call("state", deadline_s=5)
        assert two.call("state", deadline_s=5) == {"n": 1}
        with pytest.raises(WorkerFault):
            one.call("stall", deadline_s=0.3)
        assert two.call("state", deadline_s=5) == {"n": 2}


def test_a_derived_variant_has_its_sparse_tensors_made_dense(server: Server) -> None:
    spec = {"entry": "good.py:sparse_everywhere", "inputs": {"shape": [1]}, "derive": "dense"}
    with server.spawn(spec) as replica:
        answer = replica.call("build", deadline_s=20)
    assert answer["densified"] == 6


def test_consent_to_ptrace_can_be_given_and_taken_back(server: Server) -> None:
    with server.spawn({"entry": "good.py:linear"}) as replica:
        given = replica.allow_ptrace()
        assert replica.allow_ptrace(False) == given


def test_a_server_imports_the_compiler_once_for_all_its_replicas(tmp_path: Path) -> None:
    launch = Launch(folder=CASES, env={"OMP_NUM_THREADS": "1"}, label="failing")
    spec = {"entry": "good.py:linear", "inputs": {"shape": [2, 4]}}
    with Server(launch, tmp_path) as own:
        with own.spawn(spec) as first:
            first.call("build", deadline_s=30)
            assert first.call("imported", deadline_s=30) == {"modules": []}
        own.warm(["torch._dynamo", "torch._no_such_part"])
        with own.spawn(spec, deadline_s=60) as second:
            second.call("build", deadline_s=30)
            assert second.call("imported", deadline_s=30) == {"modules": ["torch._dynamo"]}
        assert own.pid is not None
        assert psutil.Process(own.pid).children(recursive=True) == []
