"""Size and length: many events, many sessions, many modules, many cycles. Figures are returned, not judged by the clock."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil

from sparsetui.session.store import Store
from tests.torture.rig import Rig, running, sound, workload


def many_events(folder: Path, count: int) -> float:
    """Seconds to open a session of ``count`` events, in this process."""
    store = Store(folder / "sessions")
    fsync, os.fsync = os.fsync, lambda _: None  # only to build it
    try:
        with store.create("long") as w:
            for i in range(count - 1):
                w._ledger.append("log", b'{"source": "t", "text": "%d"}' % i)
    finally:
        os.fsync = fsync
    began = time.perf_counter()
    state = store.open(w.id).state()
    took = time.perf_counter() - began
    assert state.events == count
    return took


def many_sessions(folder: Path, count: int) -> float:
    """Seconds to list ``count`` sessions."""
    store = Store(folder / "sessions")
    fsync, os.fsync = os.fsync, lambda _: None
    try:
        for i in range(count):
            store.create(f"w{i % 17}").close()
    finally:
        os.fsync = fsync
    began = time.perf_counter()
    found = store.list()
    took = time.perf_counter() - began
    assert len(found) == count
    return took


def many_modules(folder: Path, budget: float, slack: float = 1.0) -> tuple[dict[str, float], list[str]]:
    """A model of 2,000 modules within the budget's bounds."""
    with running(Rig(folder)) as rig:
        began = time.monotonic()
        rig.start(workload(folder, "many_modules", "many_modules", inputs="small_requests"), budget)
        try:
            code = rig.wait(slack * (1.25 * budget + 60))
        except Exception:
            return {}, ["it did not end"]
        wall = time.monotonic() - began
        problems = rig.gone() + sound(rig.sessions)
        if code not in (0, 3):
            problems.append(f"exit code {code} for an identical pair: {rig.err[-300:]}")
        spent = float(rig.result()["spent"]["total"])
        if spent > slack * (1.25 * budget + 10):
            problems.append(f"spent {spent:.1f} s of {budget:g} s")
        return {"wall_s": wall, "spent_s": spent, "exit": float(code)}, problems


def soak(folder: Path, cycles: int, fast: bool) -> tuple[dict[str, float], list[str]]:
    """Open, run, close, ``cycles`` times in this process: memory, descriptors, threads and children after the first
    quarter against the end. ``fast`` only starts, forks and ends workers; else a stage of a real investigation runs."""
    from sparsetui.runner.investigation import Investigation
    from sparsetui.workload.spec import load

    spec = load(workload(folder, "fine"))
    me, seen = psutil.Process(), []
    for i in range(cycles):
        run = Investigation(spec, Store(folder / "sessions"), budget_s=5)
        try:
            if fast or i % 4:
                run.lab.gear.start(60)
                run.lab.gear.pair(60)
            else:
                run.run_stage("ingress")
        finally:
            run.close()
        with Store(folder / "sessions").writer(run.writer.id) as again:
            again.append("note", {"text": "opened again"})
        seen.append(
            (me.memory_info().rss / 2**20, me.num_fds(), threading.active_count(), len(me.children(recursive=True)))
        )
    early, late = seen[max(1, cycles // 4)], seen[-1]
    figures = {"cycles": float(cycles), "rss_mib_early": early[0], "rss_mib_late": late[0], "fds_early": float(early[1]),
               "fds_late": float(late[1]), "threads": float(late[2]), "children": float(late[3])}  # fmt: skip
    problems = sound(folder / "sessions")
    if late[0] > early[0] + 20 + 0.2 * cycles:
        problems.append(f"memory grew from {early[0]:.0f} to {late[0]:.0f} MiB in {cycles} cycles")
    if late[1] > early[1] + 2:
        problems.append(f"descriptors grew from {early[1]} to {late[1]}")
    if late[2] > early[2] + 1:
        problems.append(f"threads grew from {early[2]} to {late[2]}")
    if late[3]:
        problems.append(f"{late[3]} processes are left")
    return figures, problems
