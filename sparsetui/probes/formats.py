"""The formats of a trade-off matrix, as whole steps of the workload: every product weight really pruned, really converted.

Only weights and shapes that the workload itself multiplies by are used. The tool calls the verb several times (``do``) and keeps
the budget: scout, prepare, layers, mix, outputs, quality, precision, conversions, steps, curve.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Hashable, List

import torch

from . import pruning, tensors
from .bench import FAR, MIXED, MOST_LAYERS, Bench, product_ms
from .context import Context
from .energy import meter
from .interventions.products import Twin
from .outputs import quality as user_metric
from .pruning import Unfit
from .step import stepper


def formats(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """One task of the comparison, by ``do``; ``scout`` comes first, then ``prepare``. Times are in ms, sizes in bytes."""
    tasks = {"scout": _scout, "prepare": _prepare, "layers": _layers, "mix": _mix, "outputs": _outputs, "quality": _quality,
             "precision": _precision, "conversions": _conversions, "steps": _steps, "curve": _curve}  # fmt: skip
    name = str(args.get("do", ""))
    if name not in tasks:
        raise ValueError("formats: no task %r; known are %s" % (name, ", ".join(tasks)))
    return tasks[name](ctx, args)


def _bench(ctx: Context, most: int = MOST_LAYERS) -> Bench:
    b = ctx.state.get("bench")
    if b is None:
        b = ctx.state["bench"] = Bench(ctx, most)
    return b


def _scout(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """The step's product weights with their zeros, largest work first, and which energy counters can be read."""
    b = _bench(ctx, int(args.get("most", MOST_LAYERS)))
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
        return _bench(ctx).set_mix(str(args.get("name", MIXED)), [str(f) for f in args["choice"]])
    return _bench(ctx).mix(str(args.get("name", MIXED)), [str(f) for f in args["among"]], str(args["start"]))


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
        except (RuntimeError, ValueError) as e:
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
        except RuntimeError as e:
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
                base = product_ms(dense, other, layer.side)
                for name, t in twins.items():
                    if rounds and ratios[name][0] < FAR:
                        continue  # far from any crossover: once is enough
                    ratios[name].append(base / product_ms(t, other, layer.side))
                base = product_ms(dense, other, layer.side)
                rounds += 1
            points.append({"sparsity": s, "speedup": ratios})
            ctx.emit({"point": n + 1, "of": len(grid)})
    return {"signature": layer.signature, "name": layer.name, "points": points}
