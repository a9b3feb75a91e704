"""What a watch of live processes tells at a moment, and the arithmetic from samples to it."""

from __future__ import annotations

import msgspec

from sparsetui.evidence.records import Missing, Number, PathShare, TimeTable, unavailable
from sparsetui.ingest.samplers import Tally
from sparsetui.ingest.samplers.fold import share, wilson
from sparsetui.ingest.samplers.proc import Who

PRODUCTS = ("sparse-csr", "sparse-csr-rhs", "sparse-csc", "sparse-coo", "sparse-bsr", "sparse-nm")


class ThreadShare(msgspec.Struct, frozen=True):
    """One thread: how much of the time it ran (``busy``), and on what while it ran."""

    pid: int
    tid: int
    name: str
    busy: Number
    paths: tuple[tuple[str, float], ...] = ()  # (path, share of the thread's samples), largest first


class Life(msgspec.Struct, frozen=True):
    """When a watched process came and went, in seconds since the watch began; 0 for one that was there."""

    pid: int
    cmdline: str
    came_s: float = 0.0
    ended_s: float | None = None  # None: it runs on


class Cost(msgspec.Struct, frozen=True):
    """What the watching does to its targets: the share of time they stand still."""

    forecast: float
    measured: Number
    text: str


class Snapshot(msgspec.Struct, frozen=True):
    """All that is known after ``elapsed_s`` seconds; nothing in it changes any more."""

    elapsed_s: float
    targets: tuple[Who, ...]
    table: TimeTable
    threads: tuple[ThreadShare, ...]
    callers: tuple[tuple[str, Number], ...]  # the user's own frames, whatever ran below them; py-spy's threads
    dense_share: Number  # of the time in matrix products, the part in dense kernels
    conversion_share: Number  # of the time that anything ran: conversion and sort
    cost: Cost
    ended: tuple[int, ...] = ()  # processes that ended meanwhile
    done: bool = False
    lives: tuple[Life, ...] = ()  # of all targets, in the order of ``targets``


def without_kernels(stacks: Tally) -> Tally:
    """Python frames alone cannot tell one kernel from another: they give the callers, and ``unknown`` ran below them."""
    top = Tally()
    for key, counts in stacks.by_thread.items():
        n = sum(counts.values())
        top.by_thread[key]["unknown"] += n
        top.threads["unknown"].add(key)
        top.by_path["unknown"] += n
        top.n += n
    for path in stacks.by_path:
        top.callers["unknown"] += stacks.callers[path]
    return top


PYTHON_ONLY = Missing("native frames", "--gentle reads Python frames only; without it py-spy sees kernels")


def with_waiting(table: TimeTable, idle: int, looks: int) -> TimeTable:
    """The table of running time, scaled to all time: ``wait`` is when no thread of the process ran."""
    if not looks or not idle:
        return table
    low, high = wilson(idle, looks)
    idle_share = idle / looks
    rows = []
    for row in table.paths:
        if row.path == "wait" or row.share.value is None:
            idle_share += (row.share.value or 0.0) * (1 - idle / looks)
            continue
        ci = row.share.ci or (row.share.value, row.share.value)
        scaled = row.share.value * (1 - idle / looks)
        interval = (round(ci[0] * (1 - high), 4), round(ci[1] * (1 - low), 4))
        rows.append(msgspec.structs.replace(row, share=msgspec.structs.replace(row.share, value=scaled, ci=interval)))
    interval = (round(low, 4), round(min(1.0, high + idle_share - idle / looks), 4))
    rows.append(PathShare("wait", Number(idle_share, interval, looks), (), (), 0))
    rows.sort(key=lambda r: -(r.share.value or 0.0))
    return msgspec.structs.replace(table, paths=tuple(rows))


def together(table: TimeTable, paths: tuple[str, ...]) -> Number:
    total = sum(r.share.value or 0.0 for r in table.paths if r.path in paths)
    n = max([r.share.n or 0 for r in table.paths], default=0)
    return share(round(total * n), n)


def dense_of_products(table: TimeTable) -> Number:
    """Dense product time over all product time; unavailable while no product was seen."""
    n = max([r.share.n or 0 for r in table.paths], default=0)
    dense = sum(r.share.value or 0.0 for r in table.paths if r.path == "dense")
    sparse = sum(r.share.value or 0.0 for r in table.paths if r.path in PRODUCTS)
    products = round((dense + sparse) * n)
    if not products:
        return unavailable("no matrix product was seen")
    return share(min(products, round(dense * n)), products)
