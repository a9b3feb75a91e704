"""Keeping two processes on one core, and giving back what they had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sparsetui.runner.cores import Cores, level, lone

THREADED = "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print('up', flush=True)"


@pytest.fixture
def pair() -> Iterator[list[subprocess.Popen[str]]]:
    made = [
        subprocess.Popen([sys.executable, "-c", THREADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for p in made:
        assert p.stdout is not None
        assert p.stdout.readline() == "up\n"
    yield made
    for p in made:
        p.communicate()


def masks(pid: int) -> list[set[int]]:
    return [os.sched_getaffinity(int(t)) for t in os.listdir(f"/proc/{pid}/task")]


def test_all_threads_of_both_share_a_core_and_get_back_what_they_had(pair: list[subprocess.Popen[str]]) -> None:
    before = [masks(p.pid) for p in pair]
    assert all(len(m) == 2 for m in before)
    cores = Cores(p.pid for p in pair)
    core = cores.gather(pair[0].pid)
    assert core is not None
    assert [masks(p.pid) for p in pair] == [[{core}, {core}]] * 2
    cores.free()
    assert [masks(p.pid) for p in pair] == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all there is")
def test_a_core_that_one_may_not_use_is_not_forced_on_it(pair: list[subprocess.Popen[str]]) -> None:
    one, other = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(pair[0].pid, {one})
    os.sched_setaffinity(pair[1].pid, {other})
    cores = Cores(p.pid for p in pair)
    assert cores.gather(pair[0].pid) is None
    assert os.sched_getaffinity(pair[1].pid) == {other}
    cores.free()
    assert os.sched_getaffinity(pair[1].pid) == {other}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all there is")
def test_a_core_can_be_kept_that_the_launch_did_not_allow(pair: list[subprocess.Popen[str]]) -> None:
    one, other = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(pair[0].pid, {one})
    before = [os.sched_getaffinity(p.pid) for p in pair]
    cores = Cores(p.pid for p in pair)
    cores.keep(other)
    assert [masks(p.pid) for p in pair] == [[{other}, {other}]] * 2
    cores.free()
    assert [os.sched_getaffinity(p.pid) for p in pair] == before


def test_a_lower_priority_is_levelled_for_all_threads_where_that_is_allowed(pair: list[subprocess.Popen[str]]) -> None:
    os.setpriority(os.PRIO_PROCESS, pair[0].pid, 7)
    tasks = [int(t) for t in os.listdir(f"/proc/{pair[0].pid}/task")]
    best = os.getpriority(os.PRIO_PROCESS, pair[1].pid)
    if not level(p.pid for p in pair):
        assert os.getpriority(os.PRIO_PROCESS, pair[0].pid) == 7
        pytest.skip("this user may not raise a priority")
    assert {os.getpriority(os.PRIO_PROCESS, t) for t in tasks} == {best}
    assert os.getpriority(os.PRIO_PROCESS, pair[1].pid) == best
    assert not level(p.pid for p in pair)


def test_processes_that_are_gone_are_left_alone() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    cores = Cores([gone.pid])
    assert cores.gather(gone.pid) is None
    cores.free()


def test_lone_is_one_thread_and_no_more() -> None:
    assert lone(1.0, 1.0)
    assert lone(0.2, 1.0)
    assert not lone(1.9, 1.0)
    assert not lone(0.0, 0.0)
