"""Samplers: what a live process is doing, seen from outside, behind one interface.

py-spy reads Python and native frames together and stops its target for each sample; perf reads the leaf of every thread
and stops none. Both end in the same time table (:mod:`sparsetui.ingest.samplers.fold`).
"""

from __future__ import annotations

import threading
from typing import Literal

from sparsetui.evidence.records import Missing, TimeTable
from sparsetui.evidence.records import Sampler as SamplerRecord
from sparsetui.ingest.samplers.base import Frame, OnCommand, Sampler, SamplerError, Stack
from sparsetui.ingest.samplers.fold import Tally, blend, table
from sparsetui.ingest.samplers.perf import Perf
from sparsetui.ingest.samplers.proc import PauseMeter
from sparsetui.ingest.samplers.pyspy import PySpy

__all__ = [
    "Frame",
    "OnCommand",
    "Perf",
    "PySpy",
    "Sampler",
    "SamplerError",
    "Stack",
    "Tally",
    "blend",
    "sample_native",
    "table",
]

Prefer = Literal["py-spy", "perf", "both"]
LAYOUTS = Missing("layouts", "sampling shows what ran, not the tensors it ran on; the census of an investigation does")
SHORT = Missing(
    "short calls", "what lasts much less than the sampling interval is seen by its share only, not call by call"
)
WORKERS = Missing(
    "OpenMP worker threads", "py-spy sees Python's threads only; perf sees all, where the host permits it"
)
CALLERS = Missing("Python frames", "perf sees the leaf function only; py-spy sees the Python code that led there")


def sample_native(
    pid: int,
    seconds: float,
    rate_hz: float = 10,
    *,
    on_command: OnCommand | None = None,
    prefer: Prefer = "both",
) -> TimeTable:
    """Sample ``pid`` for about ``seconds`` and return where its CPU time went.

    ``rate_hz`` is py-spy's; perf always takes 99 samples/s of each running thread. With ``"both"`` they run at the same
    time. A sampler that cannot work is named in ``unavailable``; when none can, ``paths`` is empty. Never raises for a
    refused or vanished process. py-spy needs about a second more than ``seconds`` to read symbols.
    """
    missing: list[Missing] = []
    tallies: dict[str, Tally] = {}
    records: list[SamplerRecord] = []
    lock = threading.Lock()

    def take(sampler: Sampler) -> None:
        tally = Tally()
        try:
            with PauseMeter(pid) as meter:
                tally.add(sampler.collect(seconds))
            pause = meter.share() if sampler.name == "py-spy" else 0.0
        except SamplerError as e:
            with lock:
                missing.append(e.missing)
            return
        with lock:
            tallies[sampler.name] = tally
            records.append(SamplerRecord(sampler.name, sampler.rate_hz, tally.n, pause))

    samplers: list[Sampler] = []
    if prefer in ("py-spy", "both"):
        samplers.append(PySpy(pid, rate_hz, on_command=on_command))
    if prefer in ("perf", "both"):
        samplers.append(Perf(pid, on_command=on_command))
    threads = [threading.Thread(target=take, args=(s,), daemon=True) for s in samplers]
    for t in threads:
        t.start()
    try:
        for t in threads:
            t.join()
    except BaseException:
        for s in samplers:
            s.interrupt()
        for t in threads:
            t.join(10)
        raise
    return merge(tallies, sorted(records, key=lambda r: r.name, reverse=True), missing)


def merge(tallies: dict[str, Tally], records: list[SamplerRecord], missing: list[Missing]) -> TimeTable:
    """One table of what the samplers saw; what none of them can see is said."""
    stacks, leaves = tallies.get("py-spy"), tallies.get("perf")
    limits = [*missing, LAYOUTS, SHORT]
    if stacks and stacks.n and leaves and leaves.n:
        return blend(stacks, leaves, records, limits)
    if stacks and stacks.n:
        return table(stacks, records, [*limits, WORKERS])
    if leaves and leaves.n:
        return table(leaves, records, [*limits, CALLERS])
    if tallies and not missing:
        limits.insert(0, Missing("samples", "the process did not run during the watch: it waits; watch it under load"))
    return TimeTable((), tuple(records), tuple(limits))
