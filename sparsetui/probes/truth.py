"""Truth checks: every op with a sparse operand against the same op on dense tensors, and the first non-finite tensor."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

import torch

from . import optable, tensors
from .census import Owners
from .context import Context
from .mode import Mode
from .outputs import TOLERANCE, relative_error
from .step import seeded, stepper

_MOST_OPS = 400
_LARGEST = 1 << 26  # entries of a sparse operand that may still be made dense
_MASKING = {"where", "masked_fill", "masked_fill_", "triu", "tril", "triu_", "tril_"}


class _Truth(Mode):  # type: ignore[no-untyped-call]
    """Re-runs ops that touch sparse tensors on dense copies, and looks at every floating output for NaN and Inf."""

    def __init__(self, owners: Owners, deadline: float) -> None:
        super().__init__()
        self.owners, self.deadline = owners, deadline
        self.checked = 0
        self.wrong: List[Dict[str, Any]] = []
        self.nonfinite: Optional[Dict[str, Any]] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ins = list(tensors.flatten((args, kwargs), 3))
        sparse = any(tensors.is_sparse(t) for t in ins)
        name = optable.base_name(func)
        expected = (
            self._expected(func, args, kwargs)
            if sparse and self._worth(name, func, max(t.numel() for t in ins))
            else None
        )
        out = func(*args, **kwargs)
        if expected is not None and self._compare(name, out, expected, ins):
            self.wrong[-1]["mended"] = self._mended(func, args, kwargs, expected)
        if self.nonfinite is None:
            self._look(name, out, ins)
        return out

    def _worth(self, name: str, func: Any, size: int) -> bool:
        fam = optable.family(name)
        if self.checked >= _MOST_OPS or size > _LARGEST or time.perf_counter() >= self.deadline:
            return False
        return (not func._schema.is_mutable
                and fam not in ("view", "alloc", "build", "validate") and not optable.is_random(name))  # fmt: skip

    def _expected(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*_dense(args), **_dense(kwargs))
        except Exception:  # whatever it raises:
            return None  # the op has no dense form (an accessor of indices, say)

    def _compare(self, name: str, out: Any, expected: Any, ins: List[torch.Tensor]) -> bool:
        """Whether the op went wrong, and was noted."""
        if not (isinstance(out, torch.Tensor) and isinstance(expected, torch.Tensor)) or out.shape != expected.shape:
            return False
        self.checked += 1
        got, expected = _dense(out), _dense(expected)
        if got.dtype != expected.dtype or not (got.is_floating_point() or got.is_complex()):
            return False
        # 0 * inf is NaN in the dense product and absent in the sparse one: that is the non-finite input's doing
        if any(not bool(torch.isfinite(tensors.values(t)).all()) for t in ins if t.is_floating_point()):
            return False
        error = relative_error(expected, got)
        tolerance = TOLERANCE.get(tensors.dtype(got), 1e-3)
        wrong = error > tolerance and len(self.wrong) < 20
        if wrong:
            self.wrong.append({"op": name, "module": self.owners.current(), "place": self.owners.place(),
                               "error": min(error, 1e300), "tolerance": tolerance,
                               "layouts": [tensors.layout(t) for t in ins[:4]]})  # fmt: skip
        return wrong

    def _mended(self, func: Any, args: Any, kwargs: Any, expected: Any) -> Optional[float]:
        """The error of the same op on the same operands, sorted and coalesced; None where it cannot be run on those."""
        try:
            out = _dense(func(*_ordered(args), **_ordered(kwargs)))
        except Exception:  # whatever it raises: then nothing is proved
            return None
        return min(relative_error(_dense(expected), out), 1e300)

    def _look(self, name: str, out: Any, ins: List[torch.Tensor]) -> None:
        for t in tensors.flatten(out, 3):
            if t.is_floating_point() and t.layout == torch.strided and not bool(torch.isfinite(t).all()):
                if optable.family(name) == "alloc" or _meant(name, t, ins):
                    return  # fresh memory may hold anything
                clean = all(bool(torch.isfinite(tensors.values(i)).all()) for i in ins if i.is_floating_point())
                self.nonfinite = {"op": name, "module": self.owners.current(), "place": self.owners.place(),
                                  "inputs_finite": clean, "nan": int(torch.isnan(t).sum()), "numel": int(t.numel())}  # fmt: skip
                return


def _meant(name: str, out: torch.Tensor, ins: List[torch.Tensor]) -> bool:
    """Whether nothing but -inf came out, of a masking op or of operands that hold it: scores are masked so."""
    if bool(torch.isnan(out).any()) or bool((out == float("inf")).any()):
        return False
    return optable.short(name) in _MASKING or any(
        bool((tensors.values(i) == float("-inf")).any()) for i in ins if i.is_floating_point()
    )


def _dense(obj: Any) -> Any:
    return tensors.changed(obj, lambda t: t.to_dense() if tensors.is_sparse(t) else t)


def _ordered(obj: Any) -> Any:
    """The same with every sparse tensor made anew from its dense form: sorted, and without duplicates."""
    return tensors.changed(obj, lambda t: _made_anew(t) if tensors.is_sparse(t) else t)


def _made_anew(t: torch.Tensor) -> torch.Tensor:
    if t.layout == torch.sparse_coo:
        return t.to_dense().to_sparse(t.sparse_dim())
    block = tuple(int(n) for n in t.values().shape[1:3]) if t.layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return t.to_dense().to_sparse(layout=t.layout, blocksize=block)


def truth(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """``wrong``: ops whose result differs from the dense one by more than the dtype's tolerance, first first, each with
    what is left of the error where its operands are sorted and coalesced (``mended``);
    ``nonfinite``: the first op that produced NaN or Inf, or None."""
    run = stepper(ctx)
    deadline = time.perf_counter() + float(args.get("seconds", 3.0))
    with Owners(ctx.fn) as owners, run.mode(), seeded():
        mode = _Truth(owners, deadline)
        for i in range(min(2, len(ctx.inputs))):
            with mode:
                run(i)
    text = "%d ops with sparse operands equal their dense twins" % mode.checked
    if mode.wrong:
        text = "%s differs from its dense twin by %.2g" % (mode.wrong[0]["op"], mode.wrong[0]["error"])
    elif mode.nonfinite:
        text = "%s is the first op with a non-finite result" % mode.nonfinite["op"]
    return {"checked": mode.checked, "wrong": mode.wrong, "nonfinite": mode.nonfinite, "summary": text}
