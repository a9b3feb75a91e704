"""Interventions: the same code with one mechanism removed.

Each module in this package that defines ``INTERVENTION`` is one intervention; a new one is a new file. An intervention is
a set of dispatch rewrites (:mod:`.engine`), a setting, or another way of calling the step. It has two arms: ``on`` removes the
mechanism, ``control`` does all of the same bookkeeping and then calls the original op, so that the mode's own cost cancels
between the arms.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, ContextManager, Dict, List

import torch

from .. import tensors
from ..context import Context
from ..outputs import relative_error, run_outputs, tolerance
from .engine import Intervention

_SKIP = {"engine", "products", "folding", "twins", "recording", "chains", "plans", "attending"}


def registry() -> Dict[str, Intervention]:
    """Every intervention by id."""
    found: Dict[str, Intervention] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name not in _SKIP:
            one = importlib.import_module(f"{__name__}.{info.name}").INTERVENTION
            found[one.id] = one
    return found


def arm(ctx: Context, name: str) -> ContextManager[Any]:
    """The context of one arm: ``off``, ``control:ID`` or ``on:ID``. Twins are built once a replica and kept."""
    side, _, ident = name.partition(":")
    if side not in ("on", "control") or ident not in registry():
        raise ValueError(
            "no such arm: %r; expected off, control:ID or on:ID with one of %s" % (name, ", ".join(registry()))
        )
    live = ctx.state.setdefault("interventions", {})
    if ident not in live:
        live[ident] = registry()[ident].prepare(ctx)
    context: ContextManager[Any] = live[ident].arm(active=side == "on")
    return context


def check(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Outputs with the mechanism removed against the unmodified ones, from the same seed, on every input up to ``count``.

    ``equal`` is false where they differ by more than the dtype's tolerance; the intervention is void then. A step that does
    not repeat itself (it keeps state, or draws from an unseeded generator) cannot be checked in place: ``repeats`` says so.
    """
    ident = str(args["intervention"])
    count = min(int(args.get("count", 4)), len(ctx.inputs))
    off = run_outputs(ctx, count)
    again = run_outputs(ctx, count)
    on = _on(ctx, ident, count)
    tol = max([tolerance(o) for o in off] or [1e-3])
    drift = max([relative_error(a, b) for x, y in zip(off, again) for a, b in zip(x, y)] or [0.0])
    error = max([relative_error(a, b) for x, y in zip(off, on) for a, b in zip(x, y)] or [0.0])
    shapes = [len(x) == len(y) for x, y in zip(off, on)]
    live = ctx.state["interventions"][ident]
    return {"error": error if error != float("inf") else 1e300, "tolerance": tol, "repeats": drift <= tol,
            "equal": all(shapes) and error <= max(tol, 4 * drift), "applied": live.applied,
            "where": sorted(live.where)[:50], "notes": live.notes, "why": live.why, "reach": live.reach,
            "compared": sum(t.numel() for x in off for t in x),
            "dtypes": sorted({tensors.dtype(t) for x in off for t in x})}  # fmt: skip


def _on(ctx: Context, ident: str, count: int) -> List[List[torch.Tensor]]:
    """Outputs of the "on" arm. A code that views a product's result needs it laid out as the original op would have."""
    found: List[List[torch.Tensor]]
    try:
        with arm(ctx, "on:" + ident) as live:
            found = live.outputs(ctx, count)
            return found
    except RuntimeError as e:
        live = ctx.state["interventions"].get(ident)
        if "view size is not compatible" not in str(e) or getattr(live, "contiguous", True):
            raise
    live.contiguous = True
    live.notes.append("transposed results are copied, since the code views them")
    with arm(ctx, "on:" + ident) as live:
        found = live.outputs(ctx, count)
    return found
