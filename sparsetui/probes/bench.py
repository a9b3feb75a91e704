"""The bench of a comparison of formats: its layers, their twins in each format, and the arms in which whole steps are run.

The step runs under the product rewrites of the interventions, one set of twins an arm, so that the mode's own cost is the same
in all of them.
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
from .interventions.products import ProductRewrite, Twin
from .outputs import run_outputs
from .pruning import Format, Unfit
from .scout import Layer, Scout
from .step import stepper

MOST_LAYERS = 48  # the largest by work; the rest runs as it is, the same in every arm
FAR = 0.1  # of the dense speed
MIXED = "mixed"
_MOST_INPUTS = 8  # steps that the scout looks at
_FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


class Bench:
    """Everything of one replica's comparison: its layers, its formats, and the arms that are ready to run."""

    def __init__(self, ctx: Context, most: int = MOST_LAYERS) -> None:
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

    def _scout(self) -> Tuple[Scout, int]:
        scout, run = Scout(self.ctx), stepper(self.ctx)
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
                except RuntimeError as e:
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
                "kind": f.kind if f else MIXED, "what": f.what if f else "the measured best format of each layer",
                "family": f.family if f else MIXED}  # fmt: skip

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
                            layer.times.setdefault(f, []).append(product_ms(layer.twins[f], other, layer.side))
                rounds += 1
        return {"rounds": rounds, "layers": [
            {"name": layer.name, "signature": layer.signature, "ms": {f: median(v) for f, v in layer.times.items()}}
            for layer in self.layers.values()]}  # fmt: skip

    @staticmethod
    def _hopeless(layer: Layer, f: str) -> bool:
        best = min(median(v) for v in layer.times.values())
        return median(layer.times[f]) > 4 * best

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
            own = {f: median(v) for f, v in layer.times.items() if f in among or f == start}
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


def product_ms(t: Twin, other: torch.Tensor, side: int) -> float:
    """One product's time; short ones are repeated until the clock's grain does not matter."""
    t0 = time.perf_counter_ns()
    pruning.product(t, other, side)
    once = (time.perf_counter_ns() - t0) / 1e6
    reps = max(1, min(50, int(0.5 / max(once, 1e-4))))
    t0 = time.perf_counter_ns()
    for _ in range(reps):
        pruning.product(t, other, side)
    return (time.perf_counter_ns() - t0) / 1e6 / reps


def median(v: List[float]) -> float:
    s = sorted(v)
    return (s[len(s) // 2] + s[(len(s) - 1) // 2]) / 2
