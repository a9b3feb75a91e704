"""Many cycles in one process: what is opened, run and closed must leave memory, descriptors, threads and children as they were.

    python -m tests.torture.soak FOLDER CYCLES

Four kinds take turns: a whole investigation with its memo, the start and end of workers, a watch of a live process, one stage
of an investigation. Each of them goes on with its session afterwards, as a person would. The process is one of its own, so that
nothing but the cycles shows in its figures.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from sparsetui.session.store import Store
from tests.torture.rig import sound, workload

KINDS = ("investigation", "workers", "watch", "stage")
GROWTH_MIB = 4.0  # beside what one cycle may add: the allocator's pages move by one or two from look to look
A_CYCLE_MIB = 0.05
LOOP = "print(1, flush=True)\nwhile True:\n    for i in range(10000): i * i"


class Look(NamedTuple):
    """What one cycle left behind, after a collection of garbage."""

    mib: float
    descriptors: int
    threads: int
    children: int


def run(folder: Path, cycles: int, kinds: tuple[str, ...] = KINDS) -> tuple[dict[str, float], list[str]]:
    """The cycles in a process of their own; its figures, and what was wrong."""
    argv = [sys.executable, "-m", "tests.torture.soak", str(folder), str(cycles), "--kinds", ",".join(kinds)]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {}, [f"the soak ended early (exit code {done.returncode}): {done.stderr[-600:]}"]
    return told["figures"], told["wrong"]


def soak(folder: Path, cycles: int, kinds: tuple[str, ...]) -> tuple[dict[str, float], list[str]]:
    from sparsetui.workload.spec import load

    spec, store = load(workload(folder, "fine")), Store(folder / "sessions")
    wrong: list[str] = []
    looks: list[Look] = []
    done: Counter[str] = Counter()
    began = time.monotonic()
    with target() as pid:
        me = psutil.Process()
        for i in range(cycles):
            kind = kinds[i % len(kinds)]
            wrong += [f"cycle {i}, {kind}: {w}" for w in once(kind, spec, store, pid)]
            done[kind] += 1
            looks.append(look(me, pid))
    figures = {"cycles": float(cycles), "seconds": time.monotonic() - began, **{k: float(n) for k, n in done.items()}}
    told, grown = growth(looks)
    return figures | told, wrong + grown + sound(store.root)


def once(kind: str, spec: Any, store: Store, pid: int) -> list[str]:
    """One cycle; what was wrong with it."""
    if kind == "watch":
        from sparsetui.ingest.attach import NothingToSee, Watch

        watch = Watch([pid], planned_s=1.0)
        try:
            watch.start()
        except NothingToSee:
            return []  # this host lets nobody look, and that leaves nothing behind either
        list(watch.snapshots(1.0, every=0.5))
        return []
    from sparsetui.report.jsonout import result_json
    from sparsetui.report.memo import render
    from sparsetui.runner.investigation import Investigation

    wrong = []
    investigation = Investigation(spec, store, budget_s=5)
    try:
        if kind == "investigation":
            result = investigation.run_all()
            if not result_json(result) or result.verdict.status not in ("no_fault", "cannot_answer"):
                wrong.append(f"{result.verdict.status} for two identical variants")
            investigation.save_memo(render(investigation.state()))
        elif kind == "stage":
            investigation.run_stage("ingress")
        else:
            investigation.lab.gear.start(60)
            investigation.lab.gear.pair(60)
    finally:
        investigation.close()
    with store.writer(investigation.writer.id) as again:
        again.append("note", {"text": "opened again"})
    return wrong


def look(me: psutil.Process, target_pid: int) -> Look:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    children = [c for c in me.children(recursive=True) if c.pid != target_pid]
    return Look(me.memory_info().rss / 2**20, me.num_fds(), threading.active_count(), len(children))


def growth(looks: list[Look]) -> tuple[dict[str, float], list[str]]:
    """The second quarter of the cycles against the last one: by then all has been imported and every cache is warm."""
    n = len(looks)
    first = max(1, n // 4)
    early, late = looks[first : max(n // 2, first + 1)], looks[-max(1, n // 4) :]
    mib = median(x.mib for x in early), median(x.mib for x in late)
    figures = {"mib_early": mib[0], "mib_late": mib[1]}
    wrong = []
    if mib[1] > mib[0] + GROWTH_MIB + A_CYCLE_MIB * n:
        wrong.append(f"memory grew from {mib[0]:.1f} to {mib[1]:.1f} MiB in {n} cycles")
    for what in ("descriptors", "threads", "children"):
        before, after = (max(getattr(x, what) for x in part) for part in (early, late))
        figures |= {f"{what}_early": float(before), f"{what}_late": float(after)}
        if after > before or (what == "children" and after):
            wrong.append(f"{what} grew from {before} to {after} in {n} cycles")
    return figures, wrong


@contextmanager
def target() -> Iterator[int]:
    """A process to watch."""
    child = subprocess.Popen([sys.executable, "-S", "-c", LOOP], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def main() -> None:
    ask = argparse.ArgumentParser(prog="python -m tests.torture.soak", description=__doc__)
    ask.add_argument("folder", type=Path)
    ask.add_argument("cycles", type=int)
    ask.add_argument("--kinds", default=",".join(KINDS))
    told = ask.parse_args()
    told.folder.mkdir(parents=True, exist_ok=True)
    figures, wrong = soak(told.folder, told.cycles, tuple(told.kinds.split(",")))
    print(json.dumps({"figures": figures, "wrong": wrong}))


if __name__ == "__main__":
    main()
