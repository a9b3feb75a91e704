"""The census: every op of the step with layouts, dtypes, shapes and owner, by ``TorchDispatchMode``.

It also knows which operands are constants. A tensor that no op of the step produced and that is no input existed before the
step: it is a constant (a weight, a mask, a cache), wherever the code keeps it. Work whose every tensor operand is constant or
derived from constants is the same on each step and could have been done once; that is what mask recompute, repeated
conversions and per-step decompression have in common.

Aggregates are streamed: memory grows with the number of distinct (op, place, operands), never with the number of calls.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import optable, tensors, walk
from .context import Context
from .step import stepper

_MAX_ROWS = 20_000
_OURS = __file__.rsplit("/probes/", 1)[0]
_TORCH = torch.__file__.rsplit("/", 1)[0]


class Owners:
    """Which module's forward is running, by global forward hooks, and which line of the user's code called the op."""

    def __init__(self, root: Any) -> None:
        self.names = walk.owners(root)
        self.stack: List[str] = []
        self._handles: List[Any] = []
        self._places: Dict[Tuple[Any, int], str] = {}

    def __enter__(self) -> Owners:
        from torch.nn.modules import module as m

        self._handles = [m.register_module_forward_pre_hook(self._enter)]
        try:
            self._handles.append(m.register_module_forward_hook(self._leave, always_call=True))
        except TypeError:  # older torch has no always_call
            self._handles.append(m.register_module_forward_hook(self._leave))
        return self

    def __exit__(self, *_: Any) -> None:
        for h in self._handles:
            h.remove()

    def _enter(self, mod: Any, *_: Any) -> None:
        self.stack.append(self.names.get(id(mod)) or type(mod).__name__)

    def _leave(self, *_: Any) -> None:
        if self.stack:
            self.stack.pop()

    def current(self) -> str:
        return self.stack[-1] if self.stack else ""

    def place(self) -> str:
        """``file.py:line function`` of the innermost frame that is neither torch's nor ours."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if not (file.startswith((_TORCH, _OURS, "<"))):
                k = (code, frame.f_lineno)
                if k not in self._places:
                    self._places[k] = "%s:%d %s" % (file.rsplit("/", 1)[-1], frame.f_lineno, code.co_name)
                return self._places[k]
            frame = frame.f_back
        return ""


class Constant:
    """What the census knows of one constant operand."""

    __slots__ = ("derived", "name", "tensor", "version", "zeros")

    def __init__(self, name: str, tensor: torch.Tensor, derived: str) -> None:
        self.name, self.tensor, self.derived = name, tensor, derived
        self.zeros: Optional[float] = None
        self.version = tensors.version(tensor)


class Tracker:
    """Which storages are constant, derived from constants, or fresh in this step."""

    def __init__(self, names: Dict[int, str]) -> None:
        self.names = names
        self.fresh: Dict[int, Any] = {}  # storage key -> storage, kept alive so that keys are not reused in the step
        self.derived: Dict[int, Constant] = {}
        self.inputs: Dict[int, Any] = {}
        self.constants: Dict[int, Constant] = {}
        self.mutated: Dict[int, int] = {}  # constants that the step writes to (optimizers, caches)

    def begin(self, inputs: Any) -> None:
        self.fresh.clear()
        self.derived.clear()
        self.inputs = {k: t for t in tensors.flatten(inputs) for k in [tensors.key(t)] if k is not None}

    def of(self, t: torch.Tensor) -> Optional[Constant]:
        """The constant behind ``t``, or None for activations and inputs."""
        k = tensors.key(t)
        if k is None:
            return None
        if k in self.derived:
            return self.derived[k]
        if k in self.fresh or k in self.inputs or k in self.mutated:
            return None
        c = self.constants.get(k)
        if c is None:
            c = self.constants[k] = Constant(self.names.get(k, ""), t, "")
        elif t.layout != torch.strided and c.tensor.layout == torch.strided:
            c.tensor = t  # first seen through its values; the sparse tensor says more
        return c

    def produced(self, name: str, outs: List[torch.Tensor], ins: List[torch.Tensor], consts: List[Optional[Constant]],
                 random: bool, mutates: bool) -> Optional[Constant]:  # fmt: skip
        """Record the outputs of an op; returns the origin if they depend on constants only."""
        all_const = bool(ins) and all(c is not None for c in consts) and not random
        origin: Optional[Constant] = None
        if all_const:
            origin = max((c for c in consts if c is not None), key=lambda c: c.tensor.numel())
        in_keys = {tensors.key(t) for t in ins}
        for t in outs:
            k = tensors.key(t)
            if k is None:
                continue
            if k in in_keys:
                if mutates and not all_const:
                    self.derived.pop(k, None)
                    if k in self.constants:
                        self.mutated[k] = self.mutated.get(k, 0) + 1
                    self.fresh[k] = tensors.values(t).untyped_storage()
                continue  # a view: it shares its base's standing
            self.fresh[k] = tensors.values(t).untyped_storage()
            if all_const and origin is not None:
                self.derived[k] = Constant(origin.name, t, (origin.derived + ">" if origin.derived else "") + name)
            elif not ins and not random:
                self.derived[k] = Constant("", t, name)  # a factory: constant until something is written into it
            else:
                self.derived.pop(k, None)
        return origin


class CensusMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts and times every op below autograd."""

    def __init__(self, owners: Owners, tracker: Tracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners, self.tracker = owners, tracker
        self.rows: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
        self.calls = 0
        self.dropped = 0
        self.counting = True
        self.failures: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
        self.mode_ns = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begin = time.perf_counter_ns()
        name = optable.base_name(func)
        ins = list(tensors.flatten((args, kwargs), 3))
        consts = [self.tracker.of(t) for t in ins]
        layouts = [tensors.layout(t) for t in ins]
        t0 = time.perf_counter_ns()
        try:
            out = func(*args, **kwargs)
        except (
            RuntimeError,
            NotImplementedError,
        ) as e:  # the code may catch it and take another way: that is worth knowing
            self._failed(name, ins, e)
            raise
        ns = time.perf_counter_ns() - t0
        outs = list(tensors.flatten(out, 3))
        mutates = bool(func._schema.is_mutable)
        origin = self.tracker.produced(name, outs, ins, consts, optable.is_random(name), mutates)
        if self.counting:
            self.calls += 1
            self._count(name, func, ins, consts, layouts, outs, origin, ns)
        self.mode_ns += time.perf_counter_ns() - begin - ns
        return out

    def _failed(self, name: str, ins: List[torch.Tensor], e: Exception) -> None:
        k = (name, self.owners.current(), self.owners.place(), tuple(tensors.layout(t) for t in ins[:4]))
        row = self.failures.get(k)
        if row is None and len(self.failures) < 200:
            row = self.failures[k] = {"op": name, "module": k[1], "place": k[2], "calls": 0, "counted": 0,
                                      "operands": [tensors.describe(t) for t in ins[:4]],
                                      "error": (str(e).splitlines() or [""])[0][:200]}  # fmt: skip
        if row is not None:
            row["calls"] += 1
            row["counted"] += int(self.counting)

    def _count(self, name: str, func: Any, ins: List[torch.Tensor], consts: List[Optional[Constant]],
               layouts: List[str], outs: List[torch.Tensor], origin: Optional[Constant], ns: int) -> None:  # fmt: skip
        fam = optable.family(name, getattr(func, "tags", ()))
        backward = torch._C._current_graph_task_id() != -1
        shapes = tuple((tuple(t.shape), tensors.dtype(t)) for t in ins[:4])
        k = (name, self.owners.current(), self.owners.place(), backward, tuple(layouts[:4]), shapes,
             tuple(None if c is None else (c.name, c.derived) for c in consts[:4]))  # fmt: skip
        row = self.rows.get(k)
        if row is None:
            if len(self.rows) >= _MAX_ROWS:
                self.dropped += 1
                return
            row = self.rows[k] = self._new_row(name, fam, k, ins, consts, layouts, outs, origin)
        row["calls"] += 1
        row["ns"] += ns
        row["max_ns"] = max(row["max_ns"], ns)

    def _new_row(self, name: str, fam: str, k: Tuple[Any, ...], ins: List[torch.Tensor],
                 consts: List[Optional[Constant]], layouts: List[str], outs: List[torch.Tensor],
                 origin: Optional[Constant]) -> Dict[str, Any]:  # fmt: skip
        row: Dict[str, Any] = {
            "op": name, "family": fam, "module": k[1], "place": k[2], "backward": k[3], "calls": 0, "ns": 0, "max_ns": 0,
            "operands": [dict(tensors.describe(t), const=c is not None, name=c.name if c else "",
                              derived=c.derived if c else "") for t, c in zip(ins[:4], consts)],
            "outputs": [tensors.describe(t) for t in outs[:2]],
            "out_bytes": sum(_bytes(t) for t in outs),
            "constant": origin is not None, "origin": origin.name if origin else "",
            "sparse_at": None, "weight": None,
        }  # fmt: skip
        if fam == "product":
            left, right = optable.PRODUCTS[optable.short(name)]
            pair = [i for i in (left, right) if i < len(ins)]
            sides = [layouts[i] for i in pair]
            at = next((s for s, lay in enumerate(sides) if lay in tensors.SPARSE), None)
            row["sparse_at"], row["path"] = at, optable.path(name, fam, sides, at)
            row["sides"] = [dict(row["operands"][i], strides=_strides(ins[i])) if i < 4 else {} for i in pair]
            weight_at = (
                at if at is not None else next((s for s, i in enumerate(pair) if _weighty(ins[i], consts[i])), None)
            )
            if weight_at is not None:
                row["weight_at"] = weight_at
                row["weight"] = self._weight(ins[pair[weight_at]], consts[pair[weight_at]])
        else:
            row["path"] = optable.path(name, fam, layouts, None)
            if fam in ("conv", "recurrent"):
                big = [(t, c) for t, c in zip(ins, consts) if _weighty(t, c)]
                if big:
                    t, c = max(big, key=lambda tc: tc[0].numel())
                    row["weight"] = self._weight(t, c)
        if fam in ("conversion", "densify", "build") and ins:
            row["source"] = dict(tensors.describe(ins[0]), nnz=_nnz(ins[0]))
        return row

    def _weight(self, t: torch.Tensor, c: Optional[Constant]) -> Dict[str, Any]:
        zeros = c.zeros if c is not None and c.zeros is not None else tensors.zero_fraction(t)
        if c is not None:
            c.zeros = zeros
        b = tensors.bytes_by_part(t)
        return {"name": c.name if c else "", "derived": c.derived if c else "activation", "zeros": zeros,
                "nnz": _nnz(t), "layout": tensors.layout(t), "dtype": tensors.dtype(t), "shape": list(t.shape),
                "index_dtype": _index_dtype(t), "bytes": b, "eligible": eligible(t, zeros),
                "const": c is not None}  # fmt: skip


def eligible(t: torch.Tensor, zeros: float) -> bool:
    """Whether an operand is sparse enough that a sparse form could ever pay: its CSR form with int32 indices takes fewer
    bytes than the dense one (density below itemsize / (itemsize + 4)), or it is in a sparse layout already."""
    if tensors.is_sparse(t):
        return True
    if t.dim() < 2 or min(t.shape[-2:], default=0) < 2:
        return False
    item = t.element_size()
    return zeros > 1.0 - item / (item + 4.0)


def _weighty(t: torch.Tensor, c: Optional[Constant]) -> bool:
    return (
        c is not None
        and t.dim() >= 2
        and (t.is_floating_point() or t.is_complex() or t.dtype in (torch.int8, torch.uint8))
    )


def _strides(t: torch.Tensor) -> List[int]:
    return list(t.stride()) if t.layout == torch.strided else []


def _nnz(t: torch.Tensor) -> Optional[int]:
    return int(t._nnz()) if tensors.is_sparse(t) else None


def _index_dtype(t: torch.Tensor) -> Optional[str]:
    p = tensors.parts(t)
    idx = p.get("plain", p.get("indices"))
    return tensors.dtype(idx) if idx is not None else None


def _bytes(t: torch.Tensor) -> int:
    b = tensors.bytes_by_part(t)
    return b["values"] + b["indices"]


def names_of(ctx: Context) -> Dict[int, str]:
    """Storage key -> name of every tensor that the callable holds (cached in the replica)."""
    if "names" not in ctx.state:
        ctx.state["names"] = tensors.named(walk.held_tensors(ctx.fn))
    names: Dict[int, str] = ctx.state["names"]
    return names


def census(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Run ``steps`` steps under the mode. The first pass over the inputs finds which tensors the step itself writes to and is
    not counted. Returns rows per step, and the mode's own cost as its observer effect."""
    run = stepper(ctx)
    steps = int(args.get("steps", 4))
    tracker = Tracker(dict(names_of(ctx)))
    with Owners(ctx.fn) as owners, run.mode():
        mode = CensusMode(owners, tracker)
        mode.counting = False
        for i in range(min(2, steps)):
            tracker.begin(ctx.inputs[i % len(ctx.inputs)])
            with mode:
                run(i)
        mode.counting, mode.mode_ns = True, 0
        plain_ns = traced_ns = 0
        done = 0
        deadline = time.perf_counter() + float(args.get("seconds", 5.0))
        for i in range(steps):
            t0 = time.perf_counter_ns()
            run(i)
            t1 = time.perf_counter_ns()
            tracker.begin(ctx.inputs[i % len(ctx.inputs)])
            with mode:
                out = run(i)
            traced_ns += time.perf_counter_ns() - t1
            plain_ns += t1 - t0
            done += 1
            ctx.emit({"census": done, "of": steps})
            if time.perf_counter() > deadline:
                break
    rows = sorted(mode.rows.values(), key=lambda r: -r["ns"])
    ctx.state["constants"] = {k: c.tensor for k, c in tracker.constants.items() if k not in tracker.mutated}
    ctx.state["constant_names"] = {k: c.name for k, c in tracker.constants.items()}
    return {
        "rows": rows, "failed": list(mode.failures.values()), "steps": done, "calls": mode.calls, "dropped": mode.dropped, "grad": run.grad,
        "observer": {"plain_ms": plain_ns / done / 1e6, "traced_ms": traced_ns / done / 1e6},
        "outputs": [tensors.describe(t) for t in tensors.flatten(out)][:8],
        "constants": [dict(tensors.describe(c.tensor), name=c.name, mutated=k in tracker.mutated)
                      for k, c in tracker.constants.items()][:2000],
    }  # fmt: skip
