"""The census: every op of the step with layouts, dtypes, shapes and owner, by ``TorchDispatchMode``.

It also knows which operands are constants (see :mod:`.tracker`). Work whose every tensor operand is constant or derived from
constants is the same on each step and could have been done once; that is what mask recompute, repeated conversions and
per-step decompression have in common.

Aggregates are streamed: memory grows with the number of distinct (op, place, operands), never with the number of calls.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import AbstractSet, Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch
from torch.overrides import TorchFunctionMode

from . import identity, layers, optable, tensors, walk
from .context import Context
from .mode import Mode
from .step import NEEDS_GRAD, stepper
from .tracker import Constant, Tracker

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


class CensusMode(Mode):  # type: ignore[no-untyped-call]
    """Counts and times every op below autograd."""

    def __init__(self, owners: Owners, tracker: Tracker, recurrent: AbstractSet[int] = frozenset()) -> None:
        super().__init__()
        self.owners, self.tracker, self.recurrent = owners, tracker, recurrent
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
        except RuntimeError as e:  # the code may catch it and take another way: that is worth knowing
            self.failed(name, ins, e)
            raise
        ns = time.perf_counter_ns() - t0
        outs = list(tensors.flatten(out, 3))
        written = identity.written(func, args, kwargs)
        origin = self.tracker.produced(name, outs, ins, consts, optable.is_random(name), written)
        if self.counting:
            self.calls += 1
            self._count(name, func, ins, consts, layouts, outs, origin, ns)
        self.mode_ns += time.perf_counter_ns() - begin - ns
        return out

    def failed(self, name: str, ins: List[torch.Tensor], e: Exception) -> Optional[Dict[str, Any]]:
        """Note an op or function that raised; its row, unless there are too many."""
        k = (name, self.owners.current(), self.owners.place(), tuple(tensors.layout(t) for t in ins[:4]))
        row = self.failures.get(k)
        if row is None and len(self.failures) < 200:
            row = self.failures[k] = {"op": name, "module": k[1], "place": k[2], "calls": 0, "counted": 0,
                                      "operands": [tensors.describe(t) for t in ins[:4]],
                                      "error": (str(e).splitlines() or [""])[0][:200]}  # fmt: skip
        if row is not None:
            row["calls"] += 1
            row["counted"] += int(self.counting)
        return row

    def _count(self, name: str, func: Any, ins: List[torch.Tensor], consts: List[Optional[Constant]],
               layouts: List[str], outs: List[torch.Tensor], origin: Optional[Constant], ns: int) -> None:  # fmt: skip
        fam = optable.family(name, getattr(func, "tags", ()))
        backward = torch._C._current_graph_task_id() != -1
        shapes = tuple((tuple(t.shape), tensors.dtype(t)) for t in ins[:4])
        k = (name, self.owners.current(), self.owners.place(), backward, tuple(layouts[:4]), shapes,
             tuple(None if c is None else (c.name, c.derived) for c in consts[:4]),
             self._apart(ins, consts) if fam in ("product", "conv", "recurrent") else ())  # fmt: skip
        row = self.rows.get(k)
        if row is None:
            if len(self.rows) >= _MAX_ROWS:
                self.dropped += 1
                return
            row = self.rows[k] = self._new_row(name, fam, k, ins, consts, layouts, outs, origin)
        row["calls"] += 1
        row["ns"] += ns
        row["max_ns"] = max(row["max_ns"], ns)
        row["min_ns"] = min(row["min_ns"] or ns, ns)

    def _new_row(self, name: str, fam: str, k: Tuple[Any, ...], ins: List[torch.Tensor],
                 consts: List[Optional[Constant]], layouts: List[str], outs: List[torch.Tensor],
                 origin: Optional[Constant]) -> Dict[str, Any]:  # fmt: skip
        row: Dict[str, Any] = {
            "op": name, "family": fam, "module": k[1], "place": k[2], "backward": k[3], "calls": 0, "ns": 0, "max_ns": 0,
            "min_ns": 0,
            "operands": [dict(tensors.describe(t), const=c is not None, name=c.name if c else "",
                              derived=c.derived if c else "", blank=bool(c and c.blank), source=c.source if c else None)
                         for t, c in zip(ins[:4], consts)],
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
                row["layer"] = layers.kind(fam, ins[pair[weight_at]], self.recurrent)
        else:
            row["path"] = optable.path(name, fam, layouts, None)
            if fam in ("conv", "recurrent"):
                big = [(t, c) for t, c in zip(ins, consts) if _weighty(t, c)]
                if big:
                    t, c = max(big, key=lambda tc: tc[0].numel())
                    row["weight"], row["layer"] = self._weight(t, c), fam
                    if fam == "conv" and t.dim() > 2:
                        row["weight"]["eligible"] = eligible(t, row["weight"]["zeros"], _unfolded(t))
        if optable.short(name) in optable.LOOKUPS and consts and _weighty(ins[0], consts[0]):
            row["lookup"] = self._weight(ins[0], consts[0])
        if fam == "pointwise":
            row["hides"] = _hides(ins, outs)
        if fam in ("conversion", "densify", "build") and ins:
            row["source"] = dict(tensors.describe(ins[0]), nnz=_nnz(ins[0]))
        return row

    def _apart(self, ins: List[torch.Tensor], consts: List[Optional[Constant]]) -> Tuple[float, ...]:
        """What tells constants apart that are alike in all else, one of which may have been left out of the pruning: of parts
        of one stacked weight their zero fractions, to a tenth; of those without a name their number."""
        out: List[float] = []
        for t, c in zip(ins[:4], consts):
            if c is not None and not c.derived and _weighty(t, c):
                out += [] if c.name else [c.number]
                out += [round(_zeros(t, c), 1)] if t.numel() != c.tensor.numel() else []
        return tuple(out)

    def _weight(self, t: torch.Tensor, c: Optional[Constant]) -> Dict[str, Any]:
        zeros = _zeros(t, c)
        b = tensors.bytes_by_part(t)
        return {"name": c.name if c else "", "derived": c.derived if c else "activation", "zeros": zeros,
                "nnz": _nnz(t), "layout": tensors.layout(t), "dtype": tensors.dtype(t), "shape": list(t.shape),
                "index_dtype": _index_dtype(t), "bytes": b, "eligible": eligible(t, zeros),
                "const": c is not None, "number": c.number if c is not None else 0}  # fmt: skip


def _zeros(t: torch.Tensor, c: Optional[Constant]) -> float:
    """The zero fraction of a view of a constant, counted once."""
    if c is None:
        return tensors.zero_fraction(t)
    view = (identity.identity(t), identity.versions(t))
    if view not in c.zeros:
        c.zeros[view] = tensors.zero_fraction(t)
    return c.zeros[view]


def _unfolded(t: torch.Tensor) -> Tuple[int, int]:
    """The matrix that a convolution's kernel is, as a product over unfolded patches sees it."""
    return int(t.shape[0]), int(t.numel() // max(1, t.shape[0]))


def eligible(t: torch.Tensor, zeros: float, matrix: Optional[Tuple[int, int]] = None) -> bool:
    """Whether an operand is sparse enough that a sparse form could ever pay: its CSR form with int32 indices takes fewer
    bytes than the dense one (density below itemsize / (itemsize + 4)), or it is in a sparse layout already. ``matrix`` is
    its shape as a matrix where that is not its last two dimensions."""
    if tensors.is_sparse(t):
        return True
    if t.dim() < 2 or min(matrix or t.shape[-2:], default=0) < 2:
        return False
    item = t.element_size()
    return zeros > 1.0 - item / (item + 4.0)


def _weighty(t: torch.Tensor, c: Optional[Constant]) -> bool:
    return (
        c is not None
        and t.dim() >= 2
        and (t.is_floating_point() or t.is_complex() or t.dtype in (torch.int8, torch.uint8))
    )


_GONE = -104.0  # exp() of less is 0 in float32
_LARGEST_MASK = 1 << 26


def _hides(ins: List[torch.Tensor], outs: List[torch.Tensor]) -> bool:
    """Whether an operand masks the rows of the result: by booleans, or by numbers that exp() makes 0."""
    for t in ins:
        if t.layout != torch.strided or t.dim() < 2:
            continue
        if t.dtype == torch.bool:
            return True
        wide = bool(outs) and t.is_floating_point() and t.shape[-1:] == outs[0].shape[-1:]
        if wide and 0 < t.numel() <= _LARGEST_MASK and float(t.detach().min()) < _GONE:
            return True
    return False


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


def names_of(ctx: Context) -> Dict[Hashable, str]:
    """Name of every tensor that the callable holds, by storage key and by identity (cached in the replica)."""
    if "names" not in ctx.state:
        held = walk.held_tensors(ctx.fn)
        names: Dict[Hashable, str] = {}
        names.update(list(tensors.named(held).items()))
        for name, t in held:
            names.setdefault(identity.identity(t), name)
        names.pop(None, None)
        ctx.state["names"] = names
    known: Dict[Hashable, str] = ctx.state["names"]
    return known


def census(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Run ``steps`` steps under the mode. Plain steps come first, so that whatever the code caches is there, and two traced
    ones that are not counted, which find what the step itself writes to. Returns rows over all counted steps, and the mode's
    own cost as its observer effect."""
    run = stepper(ctx)
    steps = max(1, int(args.get("steps", 4)))
    tracker = Tracker(dict(names_of(ctx)))
    seconds = float(args.get("seconds", 5.0))
    with Owners(ctx.fn) as owners, run.mode():
        plain, plain_ns = _repeat(steps, seconds / 2, lambda i: run(i))
        mode = CensusMode(owners, tracker, layers.recurrent_weights(ctx))

        def traced(i: int) -> Any:
            tracker.begin(ctx.inputs[i % len(ctx.inputs)])
            owners.stack.clear()
            with mode:
                return run(i)

        mode.counting = False
        for i in range(min(2, steps)):
            traced(i)
        tracker.settle()
        mode.counting, mode.mode_ns = True, 0
        out: List[Any] = []

        def counted(i: int) -> None:
            out[:] = [traced(i)]
            ctx.emit({"census": i + 1, "of": steps})

        done, traced_ns = _repeat(steps, seconds, counted)
    rows = sorted(mode.rows.values(), key=lambda r: -r["ns"])
    steady = {k: c for k, c in tracker.constants.items() if not tracker.is_mutated(c)}
    ctx.state["calls_per_step"] = mode.calls // done
    ctx.state["constants"] = {k: c.tensor for k, c in steady.items()}
    ctx.state["constant_names"] = {k: c.name for k, c in tracker.constants.items()}
    for c in tracker.constants.values():
        for k in identity.storages(c.tensor)[:1]:
            ctx.state["constant_names"].setdefault(k, c.name)
    return {
        "rows": rows, "failed": list(mode.failures.values()), "steps": done, "calls": mode.calls, "dropped": mode.dropped,
        "grad": run.grad,
        "observer": {"plain_ms": plain_ns / plain / 1e6, "traced_ms": traced_ns / done / 1e6},
        "outputs": [tensors.describe(t) for t in tensors.flatten(out)][:8],
        "constants": [dict(tensors.describe(c.tensor), name=c.name, mutated=tracker.is_mutated(c))
                      for c in tracker.constants.values()][:2000] + _written_to(tracker),
    }  # fmt: skip


def _repeat(steps: int, seconds: float, once: Callable[[int], Any]) -> Tuple[int, int]:
    """``once(i)`` for up to ``steps`` steps within ``seconds``, at least one; how many, and their time in ns."""
    deadline = time.perf_counter() + seconds
    begin = time.perf_counter_ns()
    for i in range(steps):
        once(i)
        if time.perf_counter() > deadline:
            break
    return i + 1, time.perf_counter_ns() - begin


def _written_to(tracker: Tracker) -> List[Dict[str, Any]]:
    """The tensors that the step writes to."""
    return [dict(tensors.describe(t), name=tracker.name(t, k), mutated=True) for k, t in tracker.targets.items()][:2000]


class _Raised(TorchFunctionMode):
    """Notes the innermost torch function that raises before any op is dispatched, as code in front of the dispatcher may
    (inference tensors, argument checks). ``mode_only`` tells that the same call runs outside ``inference_mode``."""

    def __init__(self, census: CensusMode) -> None:
        super().__init__()
        self.census = census
        self.told: Optional[Exception] = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = len(self.census.failures)
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as e:
            if e is not self.told and len(self.census.failures) == before:
                self.told = e
                ins = list(tensors.flatten((args, kwargs or {}), 3))
                row = self.census.failed("torch::" + str(getattr(func, "__name__", func)), ins, e)
                if row is not None and torch.is_inference_mode_enabled():
                    row["mode_only"] = _runs_outside_inference(func, args, kwargs or {})
            self.told = e
            raise


def _runs_outside_inference(func: Any, args: Any, kwargs: Dict[str, Any]) -> bool:
    try:
        with torch.inference_mode(False), torch.no_grad():
            func(*args, **kwargs)
    except Exception:  # it fails there too, in whatever way
        return False
    return True


def _autopsy(ctx: Context, grad: bool) -> Tuple[List[Dict[str, Any]], str]:
    with Owners(ctx.fn) as owners, torch.set_grad_enabled(grad):
        mode = CensusMode(owners, Tracker(dict(names_of(ctx))))
        mode.tracker.begin(ctx.inputs[0])
        for watching in (mode, contextlib.nullcontext()):  # what fails in front of the dispatcher may pass under a mode
            try:
                with watching, _Raised(mode):
                    ctx.fn(*ctx.inputs[0])
            except Exception as e:  # the user's code: whatever it raises is what is asked for
                first = (str(e).splitlines() or [""])[0]
                texts = _texts(e)
                fatal = [f for f in mode.failures.values() if any(f["error"] in t for t in texts)]
                return fatal, "%s: %s" % (type(e).__name__, first[:300])
    return [], ""


def _texts(e: Optional[BaseException]) -> List[str]:
    """What an exception says, and those that it was raised out of."""
    out: List[str] = []
    while e is not None and len(out) < 20:
        out.append(str(e))
        e = e.__cause__ or e.__context__
    return out


def autopsy(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Step once where the step is known to raise, and name the op that raised, with its operands.

    ``failed`` holds the ops that led to the step's end, in the order in which they first raised: not those whose exceptions the
    code caught to take another way, and none where it came from Python code.
    """
    found = _autopsy(ctx, grad=False)
    if any(mark in found[1] for mark in NEEDS_GRAD):  # a training step has no graph to go back through there
        found = _autopsy(ctx, grad=True)
    failed, error = found
    text = (
        "%s raised: %s" % (failed[-1]["op"], failed[-1]["error"]) if failed else error or "it did not raise this time"
    )
    return {"failed": failed, "error": error, "summary": text}
