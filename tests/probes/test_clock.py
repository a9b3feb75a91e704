"""What the clock and its neighbours take for the first call, for growth, for a repeat and for a roof."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_the_first_call_is_timed_although_another_pass_made_it(replica: Any) -> None:
    calls = []

    def step(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.05)
        return x + 1

    r = replica(step)
    r.ask("lock")  # steps once, before anybody settles
    settled = r.ask("settle", seconds=0.2)
    assert settled["cold_ms"] >= 50
    assert settled["step_ms"] < settled["cold_ms"]


def test_what_is_kept_shows_as_bytes_in_use(replica: Any) -> None:
    kept: list[Any] = []
    spare = [torch.zeros(4096) for _ in range(400)]  # room on the heap, so that resident memory need not grow
    del spare

    def leaks(x: Any) -> Any:
        kept.append(torch.zeros(4096))
        return x + 1

    grown = replica(leaks).ask("growth", steps=40)
    level = replica(lambda x: x + torch.zeros(4096).sum()).ask("growth", steps=40)
    if not grown["heap"]:
        pytest.skip("this C library does not tell how much is in use")
    assert grown["heap"][-1] - grown["heap"][0] >= 35 * 4096 * 4
    assert level["heap"][-1] - level["heap"][8] < 4096 * 4


def test_gradients_that_add_up_show_in_their_nonzeros(replica: Any) -> None:
    table = torch.nn.Embedding(500, 4, sparse=True)

    def train(x: Any) -> Any:
        with torch.enable_grad():
            table(torch.randint(0, 500, (8,))).sum().backward()
        return x

    grown = replica(train).ask("growth", steps=20)
    nnz, dropped = grown["grad_nnz"], grown["dropped"]["grad_nnz"]
    assert nnz[-1] - nnz[0] >= 10 * 8
    assert len(dropped) == 20
    assert max(dropped) <= 8  # of one step


def test_gradients_that_do_not_add_up_are_not_dropped_to_see(replica: Any) -> None:
    table = torch.nn.Embedding(500, 4, sparse=True)

    def train(x: Any) -> Any:
        with torch.enable_grad():
            table.weight.grad = None
            table(torch.arange(8)).sum().backward()
        return x

    replica(train).ask("growth", steps=20)  # the heap settles
    series = replica(train).ask("growth", steps=20)["grad_nnz"]
    assert set(series) == {8}


def test_what_makes_answers_repeat_is_named(replica: Any) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5))
    assert replica(layer.train()).ask("outputs", count=2)["steadied_by"] == "eval()"
    assert layer.training
    assert layer[1].training
    assert replica(layer.eval()).ask("outputs", count=2)["steadied_by"] == ""
    always = replica(lambda x: torch.nn.functional.dropout(x, 0.5, True)).ask("outputs", count=2)
    assert (always["repeats"], always["steadied_by"]) == (True, "")


def test_the_same_nan_is_the_same_answer(replica: Any) -> None:
    out = replica(lambda x: (x - x) / 0).ask("outputs", count=2)
    assert not out["finite"]
    assert out["repeats"]
    moving = iter(range(10**6))
    assert not replica(lambda x: (x - x) / 0 if next(moving) % 2 else x).ask("outputs", count=1)["repeats"]
    assert not replica(lambda x: x + next(moving)).ask("outputs", count=1)["repeats"]


def test_answers_that_follow_the_generator_are_told_from_those_that_do_not(replica: Any) -> None:
    drawn = replica(lambda x: torch.nn.functional.dropout(x, 0.5, True)).ask("outputs", count=2)
    assert drawn["repeats"]
    assert drawn["drawn_error"] > 0.1
    assert replica(lambda x: torch.nn.functional.dropout(x, 0.5, False)).ask("outputs", count=2)["drawn_error"] == 0.0


def test_a_block_tells_how_long_it_waited_for_a_cpu(replica: Any) -> None:
    import os
    import subprocess
    import sys

    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel does not keep how long threads wait")
    before = os.sched_getaffinity(0)
    core = min(before)
    busy = [
        sys.executable,
        "-c",
        f"import os; os.sched_setaffinity(0, {{{core}}}); print(1, flush=True)\nwhile True: pass",
    ]
    neighbour = subprocess.Popen(busy, stdout=subprocess.PIPE)
    try:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        os.sched_setaffinity(0, {core})
        w = torch.randn(300, 300)
        told = replica(lambda x: (x @ w @ w).sum(), (torch.randn(300, 300),)).ask("block", count=100)["conditions"]
    finally:
        os.sched_setaffinity(0, before)
        neighbour.kill()
        neighbour.wait()
    assert 0.0 < told["delay_s"] <= told["wall_s"]
    assert told["delay_s"] <= told["wall_s"] - told["cpu_s"] + 1e-6


def test_a_roof_is_not_made_of_page_faults(replica: Any) -> None:
    """The stream figure is a copy between vectors that are there: a copy into a fresh one may not reach it."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    r = replica(lambda x: x)
    roofs = r.ask("roofs", seconds=0.2)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert roofs["stream_gbs"] > 0
    assert faults < 3 * (64 << 20) // resource.getpagesize()  # the two vectors once, not one more on each copy
