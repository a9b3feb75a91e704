"""The profile pass: the profiler sees the ops nested inside a kernel call, which a dispatch mode cannot.

It drives the engine under ``torch.profiler`` (``torch.autograd.profiler`` over Kineto) itself: the wrapper adds schedules and
exporters that are not wanted here, and imports all of ``torch._inductor`` when it starts.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Tuple

import torch

from . import optable
from .context import Context
from .step import stepper

_MOST_EVENTS = 10_000
_MARK = "sparsetui::step"


def profile(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Profile ``steps`` steps, but no more than two of a step with thousands of ops.

    Rows: op, calls, self and total ms, and for nested ops the op they were called from.
    """
    from torch.autograd.profiler import profile as kineto
    from torch.autograd.profiler import record_function

    run = stepper(ctx)
    # an event costs torch some 0.15 ms to sort out, and an op is five events or so
    per_step = 5 * int(ctx.state.get("calls_per_step", 0))
    steps = max(2, min(int(args.get("steps", 6)), _MOST_EVENTS // max(1, per_step)))
    with run.mode():
        times = []
        for i in range(steps):
            t0 = time.perf_counter()
            run(i)
            times.append((time.perf_counter() - t0) * 1e3)
        plain = sorted(times)[steps // 2]
        op_us = _op_cost_us()
        with kineto(use_kineto=True, record_shapes=True, profile_memory=bool(args.get("memory", True)), **_device()) as prof:
            for i in range(steps):
                with record_function(_MARK):
                    run(i)
    return dict(
        summarise(list(prof.function_events or ()), steps),
        observer={"plain_ms": plain},
        best_ms=min(times),
        op_us=op_us,
        grad=run.grad,
    )


def _device() -> Dict[str, Any]:
    """The flag that adds the accelerator's kernels; its name changed with torch 2.4."""
    if not torch.cuda.is_available():
        return {}
    import inspect

    from torch.autograd.profiler import profile as kineto

    return {"use_device": "cuda"} if "use_device" in inspect.signature(kineto.__init__).parameters else {"use_cuda": True}


def _op_cost_us() -> float:
    """What one call of an op costs whatever its size: Python, dispatch and allocation of an op on a single number."""
    one, best = torch.zeros(1), float("inf")
    for _ in range(8):
        t0 = time.perf_counter()
        for _ in range(100):
            torch.add(one, one)
        best = min(best, (time.perf_counter() - t0) / 100 * 1e6)
    return best


def summarise(events: List[Any], steps: int) -> Dict[str, Any]:
    """Fold the event tree: self time by (op, outermost op above it), nested conversions by the product that hides them."""
    rows: Dict[Tuple[str, str, bool], Dict[str, Any]] = {}
    hidden: Dict[Tuple[str, str, bool], Dict[str, Any]] = {}
    wall_us = cover_us = 0.0
    biggest: Dict[str, int] = {}
    copies: Dict[Tuple[str, Tuple[int, ...]], Dict[str, Any]] = {}
    ops = [e for e in events if _is_op(e)]
    for e in events:
        if e.name == _MARK:
            wall, cover = e.time_range.elapsed_us(), sum(c.time_range.elapsed_us() for c in e.cpu_children)
            wall_us, cover_us = wall_us + wall, cover_us + cover
    for e in ops:
        parents = _parents(e)
        above = [p.name for p in parents if _is_op(p)]  # without marks and modules
        top = above[-1] if above else ""
        backward = any("Backward" in p.name for p in parents)
        k = (e.name, top, backward)
        r = rows.setdefault(
            k, {"op": e.name, "within": top, "backward": backward, "calls": 0, "self_ms": 0.0, "total_ms": 0.0}
        )
        r["calls"] += 1
        r["self_ms"] += e.self_cpu_time_total / 1e3
        r["total_ms"] += e.cpu_time_total / 1e3
        mem = int(getattr(e, "cpu_memory_usage", 0) or 0)
        if mem > 0:
            biggest[e.name] = max(biggest.get(e.name, 0), mem)
        fam = optable.family(e.name)
        product = next((p for p in reversed(above) if optable.family(p) == "product"), None)
        if product is not None:
            if fam in ("conversion", "sort", "densify", "validate") and not _nested_same(above):
                h = hidden.setdefault((product, e.name, backward), {"product": product, "op": e.name, "calls": 0, "total_ms": 0.0,
                                                          "backward": backward})  # fmt: skip
                h["calls"] += 1
                h["total_ms"] += e.cpu_time_total / 1e3
            elif e.name == "aten::_to_copy":
                shape = tuple(e.input_shapes[0]) if e.input_shapes and e.input_shapes[0] else ()
                c = copies.setdefault(
                    (product, shape), {"product": product, "shape": list(shape), "calls": 0, "total_ms": 0.0}
                )
                c["calls"] += 1
                c["total_ms"] += e.cpu_time_total / 1e3
    table = sorted(rows.values(), key=lambda r: -r["self_ms"])
    return {"steps": steps, "rows": table[:2000], "hidden": list(hidden.values()), "copies_in_products": list(copies.values()),
            "wall_ms": wall_us / steps / 1e3, "in_ops_ms": cover_us / steps / 1e3, "alloc": biggest,
            "events": len(ops)}  # fmt: skip


def _is_op(e: Any) -> bool:
    """An op by its namespace; a range that the user's code marks may be named alike, and is none."""
    return "::" in e.name and not getattr(e, "is_user_annotation", False) and e.name != _MARK


def _parents(e: Any) -> List[Any]:
    """What an event lies within, innermost first."""
    out = []
    p = e.cpu_parent
    while p is not None:
        out.append(p)
        p = p.cpu_parent
    return out


def _nested_same(above: List[str]) -> bool:
    """Whether a conversion sits inside another one, whose total already counts it."""
    inner = []
    for n in above:
        if optable.family(n) == "product":
            break
        inner.append(n)
    return any(optable.family(n) in ("conversion", "sort", "densify") for n in inner)
