"""Twins of constant operands: made once, kept until their operand is written to, and given up where this build cannot run them.

A twin is made once per (identity, version, side). Only constants and inputs get twins: an operand made afresh on each step
would have to be converted on each step.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, NamedTuple, Optional, Tuple

import torch

from .. import identity, tensors
from ..census import census
from ..context import Context
from .engine import Rewrites

_MOST_REMADE = 8


class Twin(NamedTuple):
    """A replacement operand. ``transposed`` means that it stands for the right operand's transpose, on the left side.
    ``rows`` puts the rows of a permuted twin's product back in place; ``batch`` holds a batched operand's matrices; with
    ``cast`` the product is computed in the twin's dtype and its result cast back."""

    matrix: torch.Tensor
    transposed: bool = False
    rows: Optional[torch.Tensor] = None
    batch: Tuple[torch.Tensor, ...] = ()
    cast: bool = False


def constants(ctx: Context) -> Dict[int, torch.Tensor]:
    """Storage key -> tensor of the model's constants, sparse ones with all their parts; found by a short census where none
    was taken here. Whoever keeps the keys has to keep the tensors too: the key of a dead storage is given to another."""
    if "constants" not in ctx.state:
        census(ctx, {"steps": 1})
    return {k: t for t in ctx.state["constants"].values() for k in identity.storages(t)}


class _Kept(NamedTuple):
    """A twin, the operand that it stands for (kept, so that its storages' keys stay its own) and that one's state then."""

    twin: Optional[Twin]
    operand: torch.Tensor
    state: Tuple[int, ...]


class Twins:
    """The twins of one intervention in one replica."""

    def __init__(self, ctx: Context) -> None:
        self.allowed = constants(ctx)
        self.allowed.update({k: t for t in tensors.flatten(ctx.inputs) for k in identity.storages(t)})
        self.names: Dict[Hashable, str] = ctx.state.get("constant_names", {})
        self.twins: Dict[Hashable, _Kept] = {}
        self.remade: Dict[Hashable, int] = {}
        self.owner: Optional[Rewrites] = None

    def wrote(self, k: int) -> None:
        """The step wrote into a storage: what was made of it is void."""
        if k in self.allowed and self.twins:
            for slot in [s for s, kept in self.twins.items() if k in identity.storages(kept.operand)]:
                del self.twins[slot]
                self.remade[slot] = self.remade.get(slot, 0) + 1

    def keys(self, w: torch.Tensor) -> Tuple[int, ...]:
        """The storages of an operand that may have a twin; empty for any other."""
        keys = identity.storages(w)
        return tuple(keys) if all(k in self.allowed for k in keys) else ()

    def twin(self, slot: Any, w: torch.Tensor, k: int, make: Callable[[], Optional[Twin]]) -> Optional[Twin]:
        """The twin of ``w`` under ``slot``, whose first part is its identity; ``None`` where ``make`` has none for it."""
        state = identity.versions(w)
        kept = self.twins.get(slot)
        if kept is None or kept.state != state:
            if kept is not None:
                self.remade[slot] = self.remade.get(slot, 0) + 1
            if self.remade.get(slot, 0) > _MOST_REMADE:
                return None  # it changes all the time: a twin would have to be made all the time
            try:
                twin = make()
            except RuntimeError as e:
                twin = None
                self.no_twin(tensors.describe(w), e)
            kept = self.twins[slot] = _Kept(twin, w.detach(), state)
            if kept.twin is not None and self.owner is not None:
                self.owner.where.add(self.names.get(slot[0]) or self.names.get(k) or "constant")
        return kept.twin

    def give_up(self, twin: Twin, e: RuntimeError) -> None:
        for slot, kept in self.twins.items():
            if kept.twin is twin:
                self.twins[slot] = kept._replace(twin=None)
        self.no_twin(tensors.describe(twin.matrix), e)

    def no_twin(self, what: Dict[str, Any], e: Exception) -> None:
        self.note("no twin for %s %s: %s" % (what["dtype"], what["layout"], (str(e).splitlines() or [""])[0][:160]))

    def note(self, text: str) -> None:
        if self.owner is not None and text not in self.owner.notes and len(self.owner.notes) < 20:
            self.owner.notes.append(text)

    def applied(self) -> None:
        if self.owner is not None:
            self.owner.applied += 1
