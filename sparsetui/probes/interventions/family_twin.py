"""Pruned layers of kinds that have no sparse path run as sparse products: convolutions as unfold + CSR, recurrent layers and cells
and stacks of matrices on the CSR twins of their weights."""

from __future__ import annotations

from functools import partial
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Tuple

import torch

from .. import identity, layers, optable, recurrent, tensors, unfolded
from ..census import eligible
from ..context import Context
from ..unfolded import NoForm
from . import csr_twin
from .engine import Handler, Intervention, Rewrites
from .products import ProductRewrite
from .twins import Twin, Twins

_Taken = Tuple[List[Twin], Callable[[], Any]]  # the twins of a call, and what runs in its place


class Layers(Twins):
    """The handler of convolutions and of recurrent layers that arrive as one op."""

    def match(self, name: str, func: Any) -> Optional[Handler]:
        take = {"conv": self._conv, "recurrent": self._recurrent}.get(optable.family(name))
        if take is None:
            return None
        forms = take

        def handle(func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
            if not any(self._pruned(t) for t in tensors.flatten((args, kwargs), 3)):
                return NotImplemented
            try:
                twins, run = forms(func, args, kwargs)
            except NoForm as e:
                self.note("no twin: %s" % e)
                return NotImplemented
            if not twins or not active:
                return NotImplemented
            try:
                out = run()
            except RuntimeError as e:
                for twin in twins:
                    self.give_up(twin, e)
                return NotImplemented
            self.applied()
            return out

        return handle

    def _pruned(self, t: torch.Tensor) -> bool:
        return t.dim() >= 2 and t.layout == torch.strided and bool(self.keys(t))

    def _csr(self, w: torch.Tensor, make: Callable[[], Twin], matrix: Tuple[int, int], what: int) -> Optional[Twin]:
        """The twin of a weight that is sparse enough as ``matrix``; ``what`` tells forms of one weight apart."""
        keys = self.keys(w)
        if not keys or w.layout != torch.strided or not w.is_floating_point():
            return None
        return self.twin((identity.identity(w), what), w, keys[0],
                         lambda: make() if eligible(w, tensors.zero_fraction(w), matrix) else None)  # fmt: skip

    def _conv(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> _Taken:
        c = unfolded.take_apart(func, args, kwargs)
        twin = self._csr(c.weight, lambda: Twin(unfolded.matrix(c.weight, c.groups)),
                         (int(c.weight.shape[0]), c.weight[0].numel()), c.groups)  # fmt: skip
        if twin is None:
            return [], lambda: NotImplemented
        return [twin], lambda: unfolded.run(c, twin.matrix)

    def _recurrent(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> _Taken:
        layer = recurrent.take_apart(func, args, kwargs)
        pair = [
            self._csr(w, partial(_whole, w), (int(w.shape[0]), int(w.shape[1])), 0)
            for w in (layer.w_in, layer.w_hidden)
        ]
        used = [t.matrix if t is not None else w for t, w in zip(pair, (layer.w_in, layer.w_hidden))]

        def run() -> Any:
            out, h, c = recurrent.run(layer, used[0], used[1])
            shape = unfolded.bind(func, args, kwargs)["hx_"].shape
            return out, h.reshape(shape), c.reshape(shape), out.new_empty(0)  # nothing goes back through it

        return [t for t in pair if t is not None], run


def _whole(w: torch.Tensor) -> Twin:
    return Twin(tensors.compressed(w, "csr"))


def _make(w: torch.Tensor, side: int, of_layers: AbstractSet[int]) -> Optional[Twin]:
    """Of products, those of stacks and of recurrent cells: plain ones have a sparse path."""
    return csr_twin.make(w, side) if layers.kind("product", w, of_layers) != "product" else None


def _prepare(ctx: Context) -> Rewrites:
    whole, products = Layers(ctx), ProductRewrite(ctx, partial(_make, of_layers=layers.recurrent_weights(ctx)))
    r = Rewrites([whole.match, products.match])
    whole.owner = products.owner = r
    r.on_write += [whole.wrote, products.wrote]
    return r


INTERVENTION = Intervention("family-twin", "layers without a sparse path run as sparse products", _prepare)
