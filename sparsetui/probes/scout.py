"""The scout: which constant weights the step's products have, the shapes they meet, and how much work each is."""

from __future__ import annotations

from typing import Any, Dict, Hashable, List, Optional, Tuple

import torch

from . import identity, tensors
from .context import Context
from .interventions.products import Call, ProductRewrite, Twin

_LEAST = 256  # entries of a weight below which no format can matter


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


class Scout(ProductRewrite):
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


def _numel(shape: Any) -> int:
    out = 1
    for n in shape:
        out *= int(n)
    return out
