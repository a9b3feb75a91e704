"""Serving a log: one worker, open loop. Requests arrive when the log says, whether the worker is ready or not."""

from __future__ import annotations

import contextlib
import time
from typing import Any, ContextManager, Dict, List

from . import tensors
from .clock import Conditions
from .context import Context
from .energy import meter
from .step import stepper

_SPIN_S = 0.0005  # sleeping is not exact; the last half millisecond is spent looking at the clock


def serve(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Serve ``arrivals`` (ms from the start, ascending), one after the other, and time each from its *intended* arrival.

    A request that comes while another one runs waits, and its wait counts. ``sizes`` (optional) pick the input whose number of
    elements has the same rank; without sizes, or where all inputs are of one size, requests take the inputs in turn from
    ``start`` on. ``arm`` is an intervention's arm. Stops ``seconds`` after the start at the latest: ``served`` says how far
    it came. Returns ``latency_ms``, ``service_ms`` (each one a request) and ``lag_ms``: how late idle starts were.
    """
    run = stepper(ctx)
    arrivals = [float(a) for a in args["arrivals"]]
    picks = choose(ctx, len(arrivals), args.get("sizes"), int(args.get("start", 0)))
    limit, name = float(args.get("seconds", 60.0)), str(args.get("arm", "off"))
    latency: List[float] = []
    service: List[float] = []
    late: List[float] = []
    clock, begin = time.perf_counter, None
    watch = meter(ctx)
    with run.mode(), _arm(ctx, name) as live:
        begin = getattr(live, "begin", None)
        for i in range(int(args.get("warm", 3))):
            run(i)
        cond, joules, told = Conditions(), watch.read(), 0.0
        origin = clock()
        for at, pick in zip(arrivals, picks):
            due = origin + at / 1e3
            now = clock()
            if now - origin > limit:
                break
            if now - told > 0.25:
                told = now
                ctx.emit({"served": len(latency), "of": len(arrivals)})
                now = clock()
            if now < due:
                if due - now > _SPIN_S:
                    time.sleep(due - now - _SPIN_S)
                while clock() < due:
                    pass
                late.append((clock() - due) * 1e3)
            if begin is not None:
                begin()
            t0 = clock()
            run(pick)
            t1 = clock()
            latency.append((t1 - due) * 1e3)
            service.append((t1 - t0) * 1e3)
        wall = clock() - origin
        spent = watch.since(joules)
    late.sort()
    return {"served": len(latency), "of": len(arrivals), "latency_ms": [round(t, 4) for t in latency],
            "service_ms": [round(t, 4) for t in service], "wall_s": wall, "lag_ms": late[len(late) // 2] if late else 0.0,
            "waited": len(latency) - len(late), "conditions": dict(cond.since(), joules=spent),
            "by": "size" if args.get("sizes") and _varied(ctx) else "turn"}  # fmt: skip


def _arm(ctx: Context, name: str) -> ContextManager[Any]:
    if name == "off":
        return contextlib.nullcontext()
    from .interventions import arm

    return arm(ctx, name)


def _elements(ctx: Context) -> List[int]:
    return [sum(t.numel() for t in tensors.flatten(one)) for one in ctx.inputs]


def _varied(ctx: Context) -> bool:
    return len(set(_elements(ctx))) > 1


def choose(ctx: Context, count: int, sizes: Any, start: int) -> List[int]:
    """The input of each request: by rank of its size among all sizes, or in turn."""
    n = len(ctx.inputs)
    if not sizes or not _varied(ctx):
        return [(start + i) % n for i in range(count)]
    by_size = _sorted(ctx)
    ordered = sorted(float(s) for s in sizes)
    rank: Dict[float, float] = {}
    for i, s in enumerate(ordered):
        rank.setdefault(s, i / max(1, len(ordered)))
    return [by_size[min(n - 1, int(rank[float(s)] * n))] for s in sizes[:count]]


def _sorted(ctx: Context) -> List[int]:
    known = _elements(ctx)
    return sorted(range(len(known)), key=lambda i: known[i])
