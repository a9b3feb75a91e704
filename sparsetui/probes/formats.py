"""The formats of a trade-off matrix, as whole steps of the workload: every product weight really pruned, really converted.

The step runs under the product rewrites of the interventions, one set of twins an arm, so that the mode's own cost is the same
in all of them. Only weights and shapes that the workload itself multiplies by are used. The tool calls the verb several times
(``do``) and keeps the budget: scout, prepare, layers, mix, outputs, quality, precision, conversions, steps, curve.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Tuple

import torch

from . import identity, pruning, tensors, walk
from .clock import Conditions
from .context import Context
from .energy import meter
from .interventions.engine import Rewrites
from .interventions.products import Call, ProductRewrite, Twin
from .outputs import quality as user_metric
from .outputs import run_outputs
from .pruning import Format, Unfit
from .step import stepper

_MOST_LAYERS = 48  # the largest by work; the rest runs as it is, the same in every arm
_LEAST = 256  # entries of a weight below which no format can matter
_MOST_INPUTS = 8  # steps that the scout looks at
_FAR = 0.1  # of the dense speed
_MIXED = "mixed"


class Layer:
    """One constant 2-D operand of the step's products: ``w`` is [out, in], dense; ``other`` the shape it meets."""

    def __init__(self, name: str, side: int, operand: torch.Tensor, other: torch.Tensor) -> None:
        self.name, self.side = name, side
        self.operand = operand  # kept, so that its storages' keys stay its own
        dense = operand.detach()
        dense = dense.to_dense() if tensors.is_sparse(dense) else dense
        self.w = (dense if side == 0 else dense.t()).contiguous()
        self.other, self.dtype = list(other.shape), other.dtype
        self.met: Dict[Tuple[int, ...], int] = {}  # calls by shape of the other operand
        self.calls = 0
        self.target = 0.0
        self.twins: Dict[str, Twin] = {}
        self.unfit: Dict[str, str] = {}
        self.times: Dict[str, List[float]] = {}

    def settle(self, steps: int) -> None:
        """Of the shapes that it met, the one with most work stands for it; calls become those of one step."""
        widest: Tuple[int, ...] = max(self.met, key=self._met_work)
        self.other = list(widest)
        self.calls = max(1, round(self.calls / steps))

    def _met_work(self, shape: Tuple[int, ...]) -> int:
        return self.met[shape] * _numel(shape)

    @property
    def signature(self) -> str:
        wide = self.other[0] if self.side == 1 else (self.other[1] if len(self.other) > 1 else 1)
        return "%d x %d, width %d" % (self.w.shape[0], self.w.shape[1], wide)

    @property
    def work(self) -> int:
        return self.calls * self.w.numel() * (_numel(self.other) // max(1, self.w.shape[1]))

    def describe(self) -> Dict[str, Any]:
        return {"name": self.name, "side": self.side, "shape": list(self.w.shape), "calls": self.calls,
                "zeros": tensors.zero_fraction(self.w), "target": self.target, "signature": self.signature,
                "dtype": tensors.dtype(self.w), "device": self.w.device.type, "unfit": self.unfit,
                "work": self.work}  # fmt: skip


_FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


class _Scout(ProductRewrite):
    """Changes nothing; notes every product of one steady step that has a constant weight."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx, lambda w, side: None)
        for t in tensors.flatten(ctx.inputs):
            for k in identity.storages(t):
                self.allowed.pop(k, None)
        self.layers: Dict[Hashable, Layer] = {}

    def find(self, call: Call, sides: Tuple[int, ...] = (0, 1)) -> Tuple[int, Optional[Twin]]:
        if len(sides) < 2:
            return 0, None  # one matrix of a batch is no layer of its own
        for side, w, other in ((1, call.right, call.left), (0, call.left, call.right)):
            keys = identity.storages(w)
            if (w.dim() != 2 or other.dim() > 2 or tensors.is_sparse(other) or not keys or not w.is_floating_point()
                    or w.numel() < _LEAST or min(w.shape) < 2 or any(k not in self.allowed for k in keys)):  # fmt: skip
                continue
            slot = (identity.identity(w), side)
            found = self.layers.get(slot)
            if found is None:
                name = self.names.get(slot[0]) or self.names.get(keys[0]) or "constant %d" % (len(self.layers) + 1)
                found = self.layers[slot] = Layer(name, side, w, other)
            found.calls += 1
            found.met[tuple(other.shape)] = found.met.get(tuple(other.shape), 0) + 1
            return side, None
        return 0, None


class Bench:
    """Everything of one replica's comparison: its layers, its formats, and the arms that are ready to run."""

    def __init__(self, ctx: Context, most: int = _MOST_LAYERS) -> None:
        self.ctx = ctx
        # fused attention layers hide their products; a sparse weight could not take that path anyway
        self.unfused = any(isinstance(m, _FUSED) for m in walk.held_objects(ctx.fn)) and hasattr(torch.backends, "mha")
        scout, seen = self._scout()
        for layer in scout.layers.values():
            layer.settle(seen)
        hot = sorted(scout.layers.items(), key=lambda kv: -kv[1].work)[:most]
        self.layers: Dict[Hashable, Layer] = dict(hot)
        self.hot = self.layers
        self.left_out = len(scout.layers) - len(hot)
        self.formats: Dict[str, Format] = {}
        self.arms: Dict[str, Rewrites] = {}
        self.choice: Dict[str, Dict[Hashable, str]] = {}  # by arm: slot -> format

    def _scout(self) -> Tuple[_Scout, int]:
        scout, run = _Scout(self.ctx), stepper(self.ctx)
        mode = Rewrites([scout.match])
        scout.owner = mode
        seen = min(len(self.ctx.inputs), _MOST_INPUTS)
        with run.mode(), self.entered(mode):
            for i in range(seen):
                run(i)
        return scout, seen

    @contextlib.contextmanager
    def entered(self, live: Optional[Rewrites]) -> Iterator[None]:
        """Inside an arm; without one, the plain step. Either without fused encoder layers where those hide the products."""
        mha = torch.backends.mha if self.unfused else None
        before = mha.get_fastpath_enabled() if mha else True
        if mha:
            mha.set_fastpath_enabled(False)
        try:
            with live.arm(True) if live is not None else contextlib.nullcontext():
                yield
        finally:
            if mha:
                mha.set_fastpath_enabled(before)

    # -- arms ----------------------------------------------------------------------------------------------------

    def add_arm(self, name: str, choice: Dict[Hashable, str]) -> Rewrites:
        """An arm in which each layer runs on the twin of its format; a layer without one runs as its dense masked twin."""
        self.choice[name] = choice
        layers = self.layers

        def make(w: torch.Tensor, side: int) -> Optional[Twin]:
            slot = (identity.identity(w), side)
            layer = layers.get(slot)
            if layer is None:
                return None
            fmt = choice[slot]
            if fmt == "dense" and layer.operand.layout == torch.strided:
                return None  # the original op, as the code calls it
            return layer.twins[fmt]

        rewrite = ProductRewrite(self.ctx, make)
        arm = Rewrites([rewrite.match])
        rewrite.owner = arm
        arm.on_write.append(rewrite.wrote)
        self.arms[name] = arm
        return arm

    def fallback(self, fmt: str, layer: Layer) -> str:
        """What a layer runs on in the arm of a format that it does not have: the same zeros in a strided tensor."""
        name = "dense:" + self.formats[fmt].family
        if name not in layer.twins:
            try:
                mask = self.formats[fmt].mask(layer.w, layer.target)
            except Unfit:
                mask = pruning.unstructured(layer.w, layer.target)
            layer.twins[name] = Twin((layer.w * mask) if layer.side == 0 else (layer.w * mask).t())
        return name

    def prepare(
        self, targets: Dict[str, float], sizes: List[int], say: Callable[[str, int, int], None], only: str = ""
    ) -> Dict[str, Any]:
        """Every format of the layers; with ``only``, of those with this signature, and the other layers' twins are let go."""
        if only:
            self.layers = {slot: layer for slot, layer in self.hot.items() if layer.signature == only}
            if not self.layers:
                raise ValueError("no product of the step is %s" % only)
            for layer in self.hot.values():
                layer.twins, layer.unfit, layer.times = {}, {}, {}
            self.arms, self.choice = {}, {}
        for layer in self.layers.values():
            layer.target = float(targets.get(layer.name, 0.0))
        self.formats = {f.id: f for f in pruning.catalogue(sizes)}
        refused: Dict[str, str] = {}
        for n, f in enumerate(self.formats.values()):
            say(f.id, n, len(self.formats))
            for layer in self.layers.values():
                if f.id != "dense" and layer.target <= 0:
                    layer.unfit[f.id] = "it is not pruned"
                    continue
                try:
                    t = pruning.twin(f, layer.w, layer.target, layer.side)
                    other = torch.zeros(layer.other, dtype=layer.dtype, device=layer.w.device)
                    pruning.product(t, other, layer.side)  # a build may lack the kernel
                    layer.twins[f.id] = t
                except Unfit as e:
                    layer.unfit[f.id] = str(e)
                except (RuntimeError, NotImplementedError) as e:
                    layer.unfit[f.id] = "no product kernel: " + (str(e).splitlines() or [""])[0][:140]
            if not any(f.id in layer.twins for layer in self.layers.values()):
                refused[f.id] = next((layer.unfit[f.id] for layer in self.layers.values() if layer.target > 0),
                                     "no weight is pruned")  # fmt: skip
                continue
            self.add_arm(f.id, {slot: f.id if f.id in layer.twins else self._instead(f.id, layer)
                                for slot, layer in self.layers.items()})  # fmt: skip
        return {"refused": refused, "arms": {a: self.account(a) for a in self.arms},
                "layers": [layer.describe() for layer in self.layers.values()], "left_out": self.left_out}  # fmt: skip

    def _instead(self, fmt: str, layer: Layer) -> str:
        return "dense" if layer.target <= 0 else self.fallback(fmt, layer)

    def account(self, arm: str) -> Dict[str, Any]:
        """Bytes of an arm's weights, and which of its calls fall back to a dense product although the weight is pruned."""
        total = {"values": 0, "indices": 0, "dense": 0}
        calls = dense = 0
        left: List[str] = []
        for slot, layer in self.layers.items():
            t = layer.twins[self.choice[arm][slot]]
            b = pruning.stored(t)
            total["values"] += b["values"]
            total["indices"] += b["indices"]
            total["dense"] += tensors.nbytes(layer.w)
            if layer.target > 0 and self.choice[arm][slot] != "dense":
                calls += layer.calls
                if not pruning.is_sparse(t):
                    dense += layer.calls
                    left.append(layer.name)
        f = self.formats.get(arm)
        return {"bytes": total, "calls": calls, "dense_calls": dense, "fell_back": left[:20],
                "kind": f.kind if f else _MIXED, "what": f.what if f else "the measured best format of each layer",
                "family": f.family if f else _MIXED}  # fmt: skip

    # -- each layer's own product --------------------------------------------------------------------------------

    def time_layers(self, seconds: float) -> Dict[str, Any]:
        """Every format of every layer on its own shape, in turn within each round; rounds until the time is up."""
        rng = torch.Generator().manual_seed(0)
        todo = []
        for layer in self.layers.values():
            other = torch.randn(layer.other, generator=rng).to(layer.dtype).to(layer.w.device)
            names = [f for f in layer.twins if f in self.formats]
            todo.append((layer, other, names))
        end, rounds = time.perf_counter() + seconds, 0
        with torch.no_grad():
            while rounds < 3 or (time.perf_counter() < end and rounds < 60):
                for layer, other, names in todo:
                    for f in names if rounds % 2 else names[::-1]:
                        if rounds < 4 or rounds % 4 == 0 or not self._hopeless(layer, f):
                            layer.times.setdefault(f, []).append(_product_ms(layer.twins[f], other, layer.side))
                rounds += 1
        return {"rounds": rounds, "layers": [
            {"name": layer.name, "signature": layer.signature, "ms": {f: _median(v) for f, v in layer.times.items()}}
            for layer in self.layers.values()]}  # fmt: skip

    @staticmethod
    def _hopeless(layer: Layer, f: str) -> bool:
        best = min(_median(v) for v in layer.times.values())
        return _median(layer.times[f]) > 4 * best

    def set_mix(self, name: str, formats: List[str]) -> Dict[str, Any]:
        """The arm ``name`` with the given format of each layer, in their order: what another replica has found best."""
        self.add_arm(name, dict(zip(self.layers, formats)))
        return {"account": self.account(name)}

    def add_masked(self, fmt: str) -> None:
        """The arm ``masked:FORMAT``: the zeros of a format that has no kernel here, in strided tensors, for its outputs alone."""
        self.add_arm("masked:" + fmt, {slot: self._instead(fmt, layer) for slot, layer in self.layers.items()})

    def mix(self, name: str, among: List[str], start: str) -> Dict[str, Any]:
        """The arm ``name`` with the measured best format of each layer. A layer leaves ``start`` only for one that its own
        product measured faster beyond 5 %, so that what cannot be told apart stays uniform."""
        choice: Dict[Hashable, str] = {}
        for slot, layer in self.layers.items():
            own = {f: _median(v) for f, v in layer.times.items() if f in among or f == start}
            base = self.choice[start][slot]
            best = min(own, key=lambda f: own[f]) if own else base
            kept = own.get(base)
            choice[slot] = best if kept is None or own[best] < 0.95 * kept else base
        same = next((a for a, c in self.choice.items() if c == choice and a != name), None)
        self.add_arm(name, choice)
        return {"same_as": same, "account": self.account(name),
                "choice": [{"layer": layer.name, "format": choice[slot]} for slot, layer in self.layers.items()]}  # fmt: skip

    # -- whole steps ---------------------------------------------------------------------------------------------

    def outputs_of(self, arm: str, count: int) -> List[List[torch.Tensor]]:
        live = self.arms[arm]
        try:
            with self.entered(live):
                return run_outputs(self.ctx, count, live.begin)
        except RuntimeError as e:
            if "view size is not compatible" not in str(e) or live.contiguous:
                raise
        live.contiguous = True
        with self.entered(live):
            return run_outputs(self.ctx, count, live.begin)

    def block(self, arm: str, start: int, count: int, warm: int) -> Dict[str, Any]:
        run, clock = stepper(self.ctx), time.perf_counter_ns
        cuda = any(layer.w.is_cuda for layer in self.layers.values())
        watch = meter(self.ctx)
        live = self.arms.get(arm)
        times: List[float] = []
        with run.mode(), self.entered(live):
            for i in range(start - warm, start):
                run(i)
            cond = Conditions()
            joules = watch.read()
            for i in range(start, start + count):
                t0 = clock()
                run(i)
                if cuda:
                    torch.cuda.synchronize()
                times.append((clock() - t0) / 1e6)
            spent = watch.since(joules)
        return {"arm": arm, "times_ms": [round(t, 6) for t in times], "conditions": dict(cond.since(), joules=spent)}


def _product_ms(t: Twin, other: torch.Tensor, side: int) -> float:
    """One product's time; short ones are repeated until the clock's grain does not matter."""
    t0 = time.perf_counter_ns()
    pruning.product(t, other, side)
    once = (time.perf_counter_ns() - t0) / 1e6
    reps = max(1, min(50, int(0.5 / max(once, 1e-4))))
    t0 = time.perf_counter_ns()
    for _ in range(reps):
        pruning.product(t, other, side)
    return (time.perf_counter_ns() - t0) / 1e6 / reps


def _numel(shape: Any) -> int:
    out = 1
    for n in shape:
        out *= int(n)
    return out


def _median(v: List[float]) -> float:
    s = sorted(v)
    return (s[len(s) // 2] + s[(len(s) - 1) // 2]) / 2


# The verb


def formats(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """One task of the comparison, by ``do``; ``scout`` comes first, then ``prepare``. Times are in ms, sizes in bytes."""
    tasks = {"scout": _scout, "prepare": _prepare, "layers": _layers, "mix": _mix, "outputs": _outputs, "quality": _quality,
             "precision": _precision, "conversions": _conversions, "steps": _steps, "curve": _curve}  # fmt: skip
    name = str(args.get("do", ""))
    if name not in tasks:
        raise ValueError("formats: no task %r; known are %s" % (name, ", ".join(tasks)))
    return tasks[name](ctx, args)


def _bench(ctx: Context, most: int = _MOST_LAYERS) -> Bench:
    b = ctx.state.get("bench")
    if b is None:
        b = ctx.state["bench"] = Bench(ctx, most)
    return b


def _scout(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """The step's product weights with their zeros, largest work first, and which energy counters can be read."""
    b = _bench(ctx, int(args.get("most", _MOST_LAYERS)))
    m = meter(ctx)
    return {"layers": [layer.describe() for layer in b.layers.values()], "left_out": b.left_out, "unfused": b.unfused,
            "energy": {"sources": m.sources, "missing": m.missing}}  # fmt: skip


def _prepare(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    def say(fmt: str, n: int, of: int) -> None:
        ctx.emit({"format": fmt, "done": n, "of": of})

    blocks = [int(b) for b in args.get("blocks", (4, 8, 16, 32))]
    return _bench(ctx).prepare(dict(args["targets"]), blocks, say, str(args.get("only", "")))


def _layers(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    return _bench(ctx).time_layers(float(args["seconds"]))


def _mix(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    if "choice" in args:
        return _bench(ctx).set_mix(str(args.get("name", _MIXED)), [str(f) for f in args["choice"]])
    return _bench(ctx).mix(str(args.get("name", _MIXED)), [str(f) for f in args["among"]], str(args["start"]))


def _outputs(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Drift of each arm's outputs against the dense arm's, one entry an input; an arm whose step raises says why."""
    b, count = _bench(ctx), max(1, min(int(args.get("count", 4)), len(ctx.inputs)))
    want = b.outputs_of("dense", count)
    out: Dict[str, Any] = {}
    for arm in args["arms"]:
        try:
            if str(arm).startswith("masked:") and arm not in b.arms:
                b.add_masked(str(arm)[len("masked:") :])
            got = b.outputs_of(str(arm), count)
            found = [pruning.drift(x, y) for x, y in zip(want, got)]
            out[arm] = {"per_input": [d for d in found if d is not None],
                        "finite": all(bool(torch.isfinite(t).all()) for o in got for t in o if pruning.floats(t))}  # fmt: skip
        except (RuntimeError, NotImplementedError, ValueError) as e:
            out[arm] = {"error": (str(e).splitlines() or [type(e).__name__])[0][:200]}
        ctx.emit({"outputs": len(out), "of": len(args["arms"])})
    return {"arms": out}


def _quality(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """The user's metric with the step running in each arm."""
    b = _bench(ctx)
    out: Dict[str, Any] = {}
    end = time.perf_counter() + float(args.get("seconds", 10.0))
    for arm in args["arms"]:
        if out and time.perf_counter() > end:
            break
        try:
            if str(arm).startswith("masked:") and arm not in b.arms:
                b.add_masked(str(arm)[len("masked:") :])
            with b.entered(b.arms[str(arm)]):
                out[arm] = user_metric(ctx, {"entry": args["entry"]})["metrics"]
        except (RuntimeError, NotImplementedError) as e:
            out[arm] = {"error": (str(e).splitlines() or [type(e).__name__])[0][:200]}
        ctx.emit({"quality": len(out), "of": len(args["arms"])})
    return {"arms": out}


def _precision(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """The same zeros at each dtype: weights rounded to it, once dense and once pruned, so that dtype and zeros are told apart."""
    b, count = _bench(ctx), max(1, min(int(args.get("count", 2)), len(ctx.inputs)))
    want = b.outputs_of("dense", count)
    out = []
    for dt in (torch.float32, torch.bfloat16, torch.float16):
        row: Dict[str, Any] = {"dtype": tensors.dtype(torch.empty(0, dtype=dt))}
        for what in ("dense", "pruned"):
            choice: Dict[Hashable, str] = {}
            for slot, layer in b.layers.items():
                mask = pruning.unstructured(layer.w, layer.target) if what == "pruned" and layer.target > 0 else None
                w = layer.w if mask is None else layer.w * mask
                w = w.to(dt).to(layer.w.dtype)
                choice[slot] = name = "precision"
                layer.twins[name] = Twin(w if layer.side == 0 else w.t())
            b.add_arm("precision", choice)
            found = [pruning.drift(x, y) for x, y in zip(want, b.outputs_of("precision", count))]
            row[what] = [d for d in found if d is not None]
        out.append(row)
    b.arms.pop("precision", None)
    b.choice.pop("precision", None)
    for layer in b.layers.values():
        layer.twins.pop("precision", None)
    return {"rows": out}


def _conversions(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Conversions a step of each arm, in the code and hidden inside products, by ``torch.profiler``."""
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as torch_profile

    from . import optable
    from .profile import _MARK, summarise

    b, run, steps = _bench(ctx), stepper(ctx), int(args.get("steps", 2))
    out: Dict[str, Any] = {}
    for arm in args["arms"]:
        live = b.arms[arm]
        with run.mode(), torch_profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
            for i in range(steps):
                with record_function(_MARK), b.entered(live):
                    run(i)
        found = summarise(list(prof.events()), steps)
        open_ = sum(r["calls"] for r in found["rows"] if not r["within"]
                    and optable.family(r["op"]) in ("conversion", "densify"))  # fmt: skip
        hidden = sum(h["calls"] for h in found["hidden"])
        copies = sum(c["calls"] for c in found["copies_in_products"])
        out[arm] = {"per_step": (open_ + hidden) / steps, "index_copies_per_step": copies / steps,
                    "ops": sorted({h["op"] for h in found["hidden"]})[:8]}  # fmt: skip
        ctx.emit({"conversions": len(out), "of": len(args["arms"])})
    return {"arms": out, "steps": steps}


def _steps(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """One block of each arm in the order given: ``arms`` [{arm, count}]; ``alone`` is the step without any mode."""
    b, start, warm = _bench(ctx), int(args.get("start", 0)), int(args.get("warm", 1))
    out = []
    for one in args["arms"]:
        out.append(b.block(str(one["arm"]), start, int(one["count"]), warm))
        ctx.emit({"arm": one["arm"], "done": len(out), "of": len(args["arms"])})
    return {"blocks": out}


def _curve(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Each format against dense over sparsity, on the shape of one layer with that weight's own values: ratios dense / format,
    one a round, within ``seconds``."""
    b = _bench(ctx)
    layer = list(b.layers.values())[int(args["layer"])]
    rng = torch.Generator().manual_seed(0)
    other = torch.randn(layer.other, generator=rng).to(layer.dtype).to(layer.w.device)
    grid = [float(s) for s in args.get("grid", (0.5, 0.7, 0.8, 0.9, 0.95, 0.98))]
    dense = pruning.twin(b.formats["dense"], layer.w, 0.0, layer.side)
    points: List[Dict[str, Any]] = []
    each = float(args["seconds"]) / max(1, len(grid))
    with torch.no_grad():
        for n, s in enumerate(grid):
            twins: Dict[str, Twin] = {}
            for f in b.formats.values():
                if f.id in ("dense", "2:4") or f.id not in layer.twins:
                    continue
                try:
                    twins[f.id] = pruning.twin(f, layer.w, s, layer.side)
                except Unfit:
                    continue
            ratios: Dict[str, List[float]] = {f: [] for f in twins}
            end, rounds = time.perf_counter() + each, 0
            while rounds < 3 or (time.perf_counter() < end and rounds < 25):
                base = _product_ms(dense, other, layer.side)
                for name, t in twins.items():
                    if rounds and ratios[name][0] < _FAR:
                        continue  # far from any crossover: once is enough
                    ratios[name].append(base / _product_ms(t, other, layer.side))
                base = _product_ms(dense, other, layer.side)
                rounds += 1
            points.append({"sparsity": s, "speedup": ratios})
            ctx.emit({"point": n + 1, "of": len(grid)})
    return {"signature": layer.signature, "name": layer.name, "points": points}
