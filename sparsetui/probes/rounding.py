"""The dtype alone: the step as it is, with every floating operand and result rounded to a narrower dtype and back."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch

from . import optable, tensors
from .context import Context
from .mode import Mode
from .outputs import run_outputs

_LEFT = {"view", "build", "validate"}  # nothing is computed there


class _Rounded(Mode):  # type: ignore[no-untyped-call]
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def _round(self, t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point() or t.element_size() <= self._dtype.itemsize:
            return t
        return t.to(self._dtype).to(t.dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable or optable.family(optable.base_name(func)) in _LEFT:
            return func(*args, **kwargs)
        out = func(*tensors.changed(args, self._round), **tensors.changed(kwargs, self._round))
        return tensors.changed(out, self._round)


def rounding(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """How far rounding to ``dtype`` moves this variant's own answers: ``moved`` is the relative L2 distance of its outputs
    over up to four inputs. The zeros stay where they are: nothing but the dtype changes. A product of narrow operands is taken
    to add up in the wider dtype, as such kernels do.
    """
    narrow = getattr(torch, str(args.get("dtype") or ""), None)
    if not isinstance(narrow, torch.dtype) or not narrow.is_floating_point:
        return {"moved": None, "summary": "no floating dtype to round to"}
    count = min(4, max(1, len(ctx.inputs)))
    plain = run_outputs(ctx, count)
    with _Rounded(narrow):
        rounded = run_outputs(ctx, count)
    moved = _distance(plain, rounded)
    text = "rounded to %s, the outputs move by %s" % (args["dtype"], "?" if moved is None else "%.3g" % moved)
    return {"moved": moved, "summary": text}


def _distance(a: List[List[torch.Tensor]], b: List[List[torch.Tensor]]) -> Optional[float]:
    """Mean over steps of |a - b| / |a|, over all outputs of a step where both are finite; None if there is none."""
    per: List[float] = []
    for x, y in zip(a, b):
        if not x or [t.shape for t in x] != [t.shape for t in y]:
            continue
        u, v = (torch.cat([t.reshape(-1).to(torch.float64) for t in side]) for side in (x, y))
        keep = torch.isfinite(u) & torch.isfinite(v)
        norm = float(u[keep].norm())
        if norm > 0:
            per.append(float((u[keep] - v[keep]).norm()) / norm)
    return sum(per) / len(per) if per else None
