"""Outputs of the step, for drift and for the checks of interventions; and the user's own quality metric."""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch

from . import tensors, walk
from .context import Context
from .step import seeded, stepper, threads

# largest relative deviation (of the largest output) that a re-ordered sum may show at a dtype
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 4e-2, "float16": 1e-2, "complex64": 1e-3, "complex128": 1e-9}

_OTHER_SEED = 20_260_101


def run_outputs(
    ctx: Context, count: int, begin: Optional[Callable[[], None]] = None, seed: int = 0
) -> List[List[torch.Tensor]]:
    """The output tensors of ``count`` steps from a fixed seed, dense, detached; ``begin`` is called before each."""
    run = stepper(ctx)
    out = []
    with run.mode(), seeded(seed):
        for i in range(count):
            if begin is not None:
                begin()
            out.append([plain(t) for t in tensors.flatten(run(i))])
    return out


def plain(t: torch.Tensor) -> torch.Tensor:
    """A copy of an output that shares nothing with the step: dense and detached."""
    t = t.detach()
    t = t.to_dense() if tensors.is_sparse(t) else t
    return t.clone()


def outputs(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Write the outputs of up to ``count`` inputs to scratch as one float64 ``.npy`` a step.

    They are had twice from one seed, to see whether bits repeat, and once from another, to see whether answers are drawn.
    Where they do not repeat, or are drawn, ``steadied_by`` says what makes them repeat to the bit, if anything here does.
    """
    count = min(int(args.get("count", 8)), max(1, len(ctx.inputs)))
    first = run_outputs(ctx, count)
    again = run_outputs(ctx, count)
    _, drawn = _agree(first, run_outputs(ctx, count, seed=_OTHER_SEED))
    files, shapes, finite = [], [], True
    for i, outs in enumerate(first):
        flat = [t.reshape(-1).to(torch.float64) if not t.is_complex() else torch.view_as_real(t).reshape(-1).to(torch.float64)
                for t in outs]  # fmt: skip
        arr = torch.cat(flat).cpu().numpy() if flat else np.zeros(0)
        finite = finite and bool(np.isfinite(arr).all())
        path = os.path.join(ctx.scratch, f"out-{args.get('tag', 'x')}-{i}.npy")
        np.save(path, arr, allow_pickle=False)
        files.append(path)
        shapes.append([list(t.shape) for t in outs])
    same, worst = _agree(first, again)
    steadied = "" if same and drawn == 0.0 else _steadied_by(ctx, min(count, 2), drawn > 0.0)
    return {"files": files, "shapes": shapes, "finite": finite, "repeats": same, "repeat_error": min(worst, 1e300),
            "steadied_by": steadied,
            "drawn_error": min(drawn, 1e300), "dtypes": [tensors.dtype(t) for t in (first[0] if first else [])]}  # fmt: skip


def _steadied_by(ctx: Context, count: int, drawn: bool) -> str:
    """The first remedy under which two runs (from two seeds where answers are drawn) agree to the bit; "" if none does."""
    alone = ("one thread", lambda _: threads(1))
    for name, remedy in (("eval()", _evaluating), ("deterministic algorithms", _deterministic), alone):
        try:
            with remedy(ctx):
                a = run_outputs(ctx, count)
                b = run_outputs(ctx, count, seed=_OTHER_SEED if drawn else 0)
                if _agree(a, b)[0]:
                    return name
        except Exception:  # the remedy is not to be had for this code: an op without a deterministic form, say
            continue
    return ""


@contextlib.contextmanager
def _evaluating(ctx: Context) -> Iterator[None]:
    """Every module that is in training mode is put into evaluation mode; LookupError where there is none."""
    training = [m for m in walk.held_objects(ctx.fn) if isinstance(m, torch.nn.Module) and m.training]
    if not training:
        raise LookupError("no module is in training mode")
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


@contextlib.contextmanager
def _deterministic(ctx: Context) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _agree(a: List[List[torch.Tensor]], b: List[List[torch.Tensor]]) -> Tuple[bool, float]:
    same, worst = True, 0.0
    for x, y in zip(a, b):
        for s, t in zip(x, y):
            if s.shape != t.shape:
                return False, math.inf
            same = same and _same(s, t)
            worst = max(worst, relative_error(s, t))
    return same, worst


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the bit; a NaN in the same place is the same answer."""
    if bool(torch.equal(a, b)):
        return True
    if a.dtype != b.dtype or not (a.is_floating_point() or a.is_complex()):
        return False
    return bool(torch.equal(a.isnan(), b.isnan())) and bool(torch.equal(a[~a.isnan()], b[~b.isnan()]))


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """max |a - b| over the largest magnitude of a; 0 for empty tensors, inf where finiteness differs."""
    if a.shape != b.shape:
        return math.inf
    if a.numel() == 0:
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return 0.0 if bool(torch.equal(a, b)) else 1.0
    fa, fb = torch.isfinite(a), torch.isfinite(b)
    if not bool(torch.equal(fa, fb)):
        return math.inf
    if not bool(fa.any()):
        return 0.0
    top = float(a[fa].abs().max())
    diff = float((a[fa].to(torch.float64 if not a.is_complex() else torch.complex128) - b[fa]).abs().max())
    return diff / top if top > 0 else (0.0 if diff == 0 else math.inf)


def tolerance(outs: List[torch.Tensor]) -> float:
    return max([TOLERANCE.get(tensors.dtype(t), 1e-3) for t in outs] or [1e-3])


def quality(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Call the user's quality entry with the built callable; returns its metrics as floats."""
    fn = ctx.state["resolve"](str(args["entry"]))
    run = stepper(ctx)
    with run.mode():
        result = fn(ctx.fn)
    if not isinstance(result, dict) or not result:
        raise TypeError("the quality entry must return {metric: float}, got %s" % type(result).__name__)
    return {"metrics": {str(k): float(v) for k, v in result.items()}}
