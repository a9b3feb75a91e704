"""Compiled callables: how many ops the compiler captured, against the same code with its sparse tensors made dense."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Tuple

import torch

from . import tensors, walk
from .context import Context
from .step import stepper


def compiled_parts(root: Any) -> List[Any]:
    """The ``torch.compile``\\ d modules and functions that ``root`` holds (or is)."""
    return [obj for obj in walk.held_objects(root)
            if type(obj).__name__ == "OptimizedModule" or getattr(obj, "_torchdynamo_orig_callable", None) is not None]  # fmt: skip


def compiled(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """``captured`` and ``dense_captured`` op counts, and step times of the dense twin compiled and eager (ms)."""
    parts = compiled_parts(ctx.fn)
    if not parts:
        return {"parts": 0, "summary": "nothing is compiled"}
    run = stepper(ctx)
    captured = _captured(ctx, run)
    swapped = _make_dense(ctx.fn)
    try:
        dense = _captured(ctx, run) if swapped else captured
        fast = _time(ctx, run, float(args.get("seconds", 2.0)) / 3)
        with _eager():
            slow = _time(ctx, run, float(args.get("seconds", 2.0)) / 3)
    finally:
        _put_back(ctx.fn, swapped)
    text = "%d ops captured, %d with dense weights" % (captured, dense)
    return {"parts": len(parts), "captured": captured, "dense_captured": dense, "swapped": len(swapped),
            "compiled_ms": fast, "eager_ms": slow, "summary": text}  # fmt: skip


def _captured(ctx: Context, run: Any) -> int:
    """Ops that Dynamo hands to a backend while one step runs, from a clean cache."""
    import torch._dynamo as dynamo

    counts: List[int] = []

    def counting(gm: Any, example: Any) -> Any:
        counts.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
        return gm.forward

    dynamo.reset()
    with run.mode():
        for obj in compiled_parts(ctx.fn):
            original = getattr(obj, "_orig_mod", None) or obj._torchdynamo_orig_callable
            calls = _calls(ctx, run, obj)
            for a, k in calls[:1]:
                torch.compile(original, backend=counting)(*a, **k)  # type: ignore[no-untyped-call]
    dynamo.reset()
    return sum(counts)


def _calls(ctx: Context, run: Any, obj: Any) -> List[Tuple[Any, Any]]:
    """The arguments that ``obj`` is called with in one step."""
    if obj is ctx.fn:
        return [(ctx.inputs[0], {})]
    seen: List[Tuple[Any, Any]] = []
    if isinstance(obj, torch.nn.Module):

        def keep(m: Any, a: Any, k: Any) -> None:
            seen.append((a, k))

        h = obj.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            run(0)
        finally:
            h.remove()
    else:
        seen.append((ctx.inputs[0], {}))
    return seen


def _make_dense(root: Any) -> Dict[int, torch.Tensor]:
    before: Dict[int, torch.Tensor] = {}

    def swap(t: torch.Tensor) -> Any:
        if not tensors.is_sparse(t):
            return None
        d = t.detach().to_dense()
        before[tensors.key(d) or id(d)] = t
        return d

    walk.replace_tensors(root, swap)
    return before


def _put_back(root: Any, before: Dict[int, torch.Tensor]) -> None:
    walk.replace_tensors(root, lambda t: before.get(tensors.key(t) or -1) if t.layout == torch.strided else None)


class _eager:
    def __enter__(self) -> None:
        self._ctx = torch.compiler.set_stance("force_eager") if hasattr(torch.compiler, "set_stance") else None
        if self._ctx is not None:
            self._ctx.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if self._ctx is not None:
            self._ctx.__exit__(*exc)


def _time(ctx: Context, run: Any, seconds: float) -> float:
    """Median step time in ms, after the compiler has had its first calls."""
    times: List[float] = []
    with run.mode():
        for i in range(3):
            run(i)
        end = time.perf_counter() + seconds
        while len(times) < 5 or time.perf_counter() < end:
            t0 = time.perf_counter()
            run(len(times))
            times.append((time.perf_counter() - t0) * 1e3)
    return sorted(times)[len(times) // 2]
