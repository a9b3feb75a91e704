"""Twins of pruned layers that run dense: what each would take in its sparse form, and had whole channels been pruned instead.

One step is recorded, and each of its signatures (op, shapes, settings, dtype, non-zeros to a power of two) is timed on the tensors
that ran: the dense op as it is, its sparse form of the same weights, and the same op with as many of its output channels
(of an LSTM: of its hidden units) as leave the same share of non-zeros. Forms take turns, so that a busy host slows all alike.
"""

from __future__ import annotations

import time
from typing import AbstractSet, Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Tuple

import torch

from . import identity, layers, optable, recurrent, tensors, unfolded
from .census import eligible
from .context import Context
from .interventions import csr_twin
from .interventions.products import Call, multiply, take_apart
from .interventions.twins import constants
from .mode import Mode
from .outputs import relative_error, tolerance
from .step import seeded, stepper
from .unfolded import NoForm

DENSE, CHANNELS = "dense", "channels"
_MOST_STEPS = 4  # that are recorded, each on an input of its own
_MOST = 12  # signatures that are timed, the longest first
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 60
_LEAST_MS = 0.25  # of one reading: shorter ops are repeated
_Form = Callable[[], Any]


class _Seen:
    """The calls of one signature: the first one's arguments, with how many there were and how long all took."""

    def __init__(
        self, kind: str, func: Any, args: Any, kwargs: Dict[str, Any], weight: torch.Tensor, name: str
    ) -> None:
        self.kind, self.func, self.args, self.kwargs, self.weight = kind, func, args, kwargs, weight
        self.names = {name}
        self.calls, self.ns = 0, 0


class _Recorder(Mode):  # type: ignore[no-untyped-call]
    """Notes the ops of the wanted kinds that have a pruned strided constant."""

    def __init__(self, ctx: Context, wanted: AbstractSet[str]) -> None:
        super().__init__()
        self.wanted, self.seen = wanted, dict[Hashable, _Seen]()
        self._held, self._recurrent = constants(ctx), layers.recurrent_weights(ctx)
        self._names: Dict[Hashable, str] = ctx.state.get("constant_names", {})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = self._pruned(optable.family(optable.base_name(func)), args, kwargs)
        begin = time.perf_counter_ns()
        out = func(*args, **kwargs)
        if found is not None:
            kind, w = found
            key = (func, _form((args, kwargs)), tensors.nonzeros(w).bit_length())
            name = self._names.get(identity.identity(w)) or self._names.get(tensors.key(w) or -1) or ""
            seen = self.seen.setdefault(key, _Seen(kind, func, args, kwargs, w, name))
            seen.names.add(name)
            seen.calls += 1
            seen.ns += time.perf_counter_ns() - begin
        return out

    def _pruned(self, family: str, args: Any, kwargs: Dict[str, Any]) -> Optional[Tuple[str, torch.Tensor]]:
        if family not in ("product", "conv", "recurrent"):
            return None
        held = [t for t in tensors.flatten((args, kwargs), 3) if t.dim() >= 2 and t.layout == torch.strided
                and any(k in self._held for k in identity.storages(t)) and t.is_floating_point()]  # fmt: skip
        if not held:
            return None
        w = max(held, key=lambda t: t.numel())
        flat = (int(w.shape[0]), w[0].numel()) if family == "conv" else None
        kind = layers.kind(family, w, self._recurrent)
        return (kind, w) if kind in self.wanted and eligible(w, tensors.zero_fraction(w), flat) else None


def _form(obj: Any) -> Hashable:
    if isinstance(obj, torch.Tensor):
        return (tuple(obj.shape), obj.dtype, obj.layout)
    if isinstance(obj, (list, tuple)):
        return tuple(_form(o) for o in obj)
    if isinstance(obj, dict):
        return tuple(sorted((k, _form(v)) for k, v in obj.items()))
    return repr(obj)


def families(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """One row a signature of the kinds in ``kinds`` (see :mod:`.layers`): median ms of each form, what the best one saves a call
    with its interval (95 % where rounds are many, from their order), and ``calls`` a step. ``covers`` is the share of their time
    in the step that was timed here: ops may be so slow that some signatures are left out."""
    recorder = _Recorder(ctx, frozenset(str(k) for k in args.get("kinds", ())))
    run = stepper(ctx)
    seconds = float(args.get("seconds", 2.0))
    begin = time.perf_counter()
    with run.mode(), seeded(), recorder:
        for steps in range(1, min(_MOST_STEPS, len(ctx.inputs)) + 1):
            run(steps - 1)
            if time.perf_counter() - begin > seconds:
                break
    found = sorted(recorder.seen.values(), key=lambda s: -s.ns)
    whole, timed, rows = sum(s.ns for s in found), 0, list[Dict[str, Any]]()
    end = time.perf_counter() + 2 * seconds
    with torch.no_grad():
        for s in found[:_MOST]:
            rows.append(dict(_row(s, seconds * s.ns / whole), calls=s.calls / steps))
            timed += s.ns
            ctx.emit({"families": len(rows), "of": min(len(found), _MOST)})
            if time.perf_counter() > end:
                break
    return {"rows": rows, "covers": timed / whole if whole else 1.0, "left_out": len(found) - len(rows),
            "summary": _summary(rows)}  # fmt: skip


def _summary(rows: List[Dict[str, Any]]) -> str:
    if not rows:
        return "no pruned layer of these kinds runs dense"
    names = sorted({f for r in rows for f in r["forms"]}, key=lambda f: (f != DENSE, f))
    sums = {f: sum(r["calls"] * r["forms"].get(f, r["forms"][DENSE]) for r in rows) for f in names}
    return "; ".join("%s %.3g ms a step" % (f, sums[f]) for f in names)


def _row(s: _Seen, seconds: float) -> Dict[str, Any]:
    forms: Dict[str, _Form] = {DENSE: lambda: s.func(*s.args, **s.kwargs)}
    refused: Dict[str, str] = {}
    makers = ((_SPARSE[s.kind], _sparse), (CHANNELS, _channels))
    for name, make in makers:
        try:
            form = make(s)
            error = _error(forms[DENSE](), form()) if name != CHANNELS else 0.0
            if error > tolerance([s.weight]):
                raise NoForm("its result differs by %.2g" % error)
            form()
            forms[name] = form
        except (NoForm, RuntimeError) as e:
            refused[name] = (str(e).splitlines() or [type(e).__name__])[0][:160]
    times = _interleaved(forms, seconds)
    med = {f: sorted(t)[len(t) // 2] for f, t in times.items()}
    best = min(med, key=lambda f: med[f])
    gains = sorted(d - b for d, b in zip(times[DENSE], times[best]))
    n = len(gains)
    k = max(0, int((n - 1.96 * n**0.5) / 2))
    nnz = tensors.nonzeros(s.weight)
    return {"op": optable.base_name(s.func), "kind": s.kind, "weights": sorted(x for x in s.names if x)[:12],
            "shape": list(s.weight.shape), "dtype": tensors.dtype(s.weight), "nnz": nnz, "zeros": 1 - nnz / s.weight.numel(),
            "forms": med, "refused": refused, "best": best, "saves_ms": [gains[k], gains[n // 2], gains[n - 1 - k]],
            "n": n}  # fmt: skip


def _error(want: Any, got: Any) -> float:
    pairs = list(zip(tensors.flatten(want), tensors.flatten(got)))
    return relative_error(*pairs[0]) if pairs else 0.0


def _interleaved(forms: Dict[str, _Form], seconds: float) -> Dict[str, List[float]]:
    """ms a call of each form, by round; the order turns from round to round."""
    reps = {}
    for name, f in forms.items():
        begin = time.perf_counter()
        f()
        reps[name] = max(1, min(50, int(_LEAST_MS / max(1e-3, (time.perf_counter() - begin) * 1e3))))
    times: Dict[str, List[float]] = {name: [] for name in forms}
    end = time.perf_counter() + seconds
    for n in range(_MOST_ROUNDS):
        for name in forms if n % 2 else reversed(list(forms)):
            begin = time.perf_counter()
            for _ in range(reps[name]):
                forms[name]()
            times[name].append((time.perf_counter() - begin) / reps[name] * 1e3)
        if n + 1 >= _LEAST_ROUNDS and time.perf_counter() > end:
            break
    return times


_SPARSE = {"conv": "unfold + CSR", "recurrent": "CSR", "batched": "CSR"}


def _sparse(s: _Seen) -> _Form:
    if s.kind == "conv":
        c = unfolded.take_apart(s.func, s.args, s.kwargs)
        matrix = unfolded.matrix(c.weight, c.groups)
        return lambda: unfolded.run(c, matrix)
    if optable.family(optable.base_name(s.func)) == "recurrent":
        layer = recurrent.take_apart(s.func, s.args, s.kwargs)
        pair = [tensors.compressed(w, "csr") if eligible(w, tensors.zero_fraction(w)) else w
                for w in (layer.w_in, layer.w_hidden)]  # fmt: skip
        return lambda: recurrent.run(layer, pair[0], pair[1])
    return _sparse_product(s)


class _Product(NamedTuple):
    call: Call
    side: int


def _product(s: _Seen) -> _Product:
    call = take_apart(optable.base_name(s.func), s.args, s.kwargs)
    if call is None:
        raise NoForm("%s is not taken apart" % optable.base_name(s.func))
    return _Product(call, 0 if call.left is s.weight else 1)


def _sparse_product(s: _Seen) -> _Form:
    call, side = _product(s)
    twin = csr_twin.make(s.weight, side)
    if twin is None:
        raise NoForm("its weight has no CSR twin")
    return lambda: multiply(call, side, twin)


def _kept(s: _Seen, channels: int) -> int:
    return max(1, round(channels * tensors.nonzeros(s.weight) / s.weight.numel()))


def _channels(s: _Seen) -> _Form:
    """The dense op with fewer output channels, at the same share of non-zeros."""
    if s.kind == "conv":
        return _narrow_conv(s)
    if optable.family(optable.base_name(s.func)) == "recurrent":
        return _narrow_layer(s)
    call, side = _product(s)
    axis = -1 if side else -2
    kept = _kept(s, int(s.weight.shape[axis]))
    small = s.weight.narrow(axis, 0, kept).contiguous()
    left, right = (call.left, small) if side else (small, call.right)
    acc = call.acc
    if acc is None:
        return lambda: torch.matmul(left, right)
    if acc.dim() >= -axis and acc.shape[axis] == s.weight.shape[axis]:
        acc = acc.narrow(axis, 0, kept)
    return lambda: torch.addmm(acc, left, right, beta=call.beta, alpha=call.alpha)


def _narrow_conv(s: _Seen) -> _Form:
    named = unfolded.bind(s.func, s.args, s.kwargs)
    x: Any = named.get("input", named.get("self"))
    w, bias, groups = s.weight, named.get("bias"), int(named.get("groups", 1))
    if named.get("transposed") or "transpose" in optable.base_name(s.func):  # its channels are the second axis
        if groups > 1:
            raise NoForm("the channels of a grouped transposed convolution are not told apart")
        kept = _kept(s, int(w.shape[1]))
        less = {"weight": w[:, :kept].contiguous(), "bias": None if bias is None else bias[:kept].contiguous()}
        return _called(s.func, {k: less.get(k, v) for k, v in named.items()})
    each = int(w.shape[0]) // groups  # output channels of a group
    if each > 1:
        kept = max(1, round(_kept(s, int(w.shape[0])) / groups))
        small = w.reshape(groups, each, *w.shape[1:])[:, :kept].reshape(groups * kept, *w.shape[1:]).contiguous()
    else:  # a group has one channel: whole groups go, with the input that they read
        groups = _kept(s, groups)
        small, x = w[:groups].contiguous(), x.narrow(-w.dim() + 1, 0, groups * int(w.shape[1])).contiguous()
    less = {
        "weight": small,
        "bias": None if bias is None else bias[: small.shape[0]].contiguous(),
        "groups": groups,
        "input": x,
        "self": x,
    }
    return _called(s.func, {k: less.get(k, v) for k, v in named.items()})


def _narrow_layer(s: _Seen) -> _Form:
    layer = recurrent.take_apart(s.func, s.args, s.kwargs)
    nnz = tensors.nonzeros(layer.w_in) + tensors.nonzeros(layer.w_hidden)
    wide, n = int(layer.w_in.shape[1]), layer.hidden
    # 4 h (in + h) weights at h hidden units
    kept = max(1, min(n, round((-wide + (wide**2 + nnz) ** 0.5) / 2)))
    named = unfolded.bind(s.func, s.args, s.kwargs)
    less: Dict[str, Any] = {"hidden_size": kept, "weight0": layer.w_in[: 4 * kept].contiguous(),
                            "weight1": layer.w_hidden[: 4 * kept, :kept].contiguous()}  # fmt: skip
    less.update({k: named[k][: 4 * kept].contiguous() for k in ("weight2", "weight3")})
    less.update({k: named[k][..., :kept].contiguous() for k in ("hx_", "cx_")})
    return _called(s.func, {k: less.get(k, v) for k, v in named.items()})


def _called(func: Any, named: Dict[str, Any]) -> _Form:
    args = [named[str(a.name)] for a in func._schema.arguments if not a.kwarg_only]
    kwargs = {str(a.name): named[str(a.name)] for a in func._schema.arguments if a.kwarg_only}
    return lambda: func(*args, **kwargs)
