"""Size: many events, many sessions, many modules. Figures are returned, not judged by the clock."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

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
        except subprocess.TimeoutExpired:
            return {}, ["it did not end"]
        wall = time.monotonic() - began
        problems = rig.gone() + sound(rig.sessions)
        if code not in (0, 3):
            problems.append(f"exit code {code} for an identical pair: {rig.err[-300:]}")
        spent = float(rig.result()["spent"]["total"])
        if spent > slack * (1.25 * budget + 10):
            problems.append(f"spent {spent:.1f} s of {budget:g} s")
        return {"wall_s": wall, "spent_s": spent, "exit": float(code)}, problems
