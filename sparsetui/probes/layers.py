"""What kind of layer a constant operand belongs to: a sparse path may be there for one kind and not for another.

Kinds: ``conv``, ``recurrent`` (a layer as one op, or one of the products that a layer or cell is made of), ``batched`` (a stack of
matrices), and ``product`` for all others.
"""

from __future__ import annotations

from typing import AbstractSet, Set

import torch

from . import identity, walk
from .context import Context

_RECURRENT = (torch.nn.RNNBase, torch.nn.RNNCellBase)


def kind(family: str, w: torch.Tensor, recurrent: AbstractSet[int]) -> str:
    """The kind of layer of an op of ``family`` with the constant ``w``; ``recurrent`` as of :func:`recurrent_weights`."""
    if family != "product":
        return family
    if any(k in recurrent for k in identity.storages(w)):
        return "recurrent"
    if w.dim() == 3 and w.shape[0] > 1 and (w.layout != torch.strided or w.stride(0) != 0):
        return "batched"
    return "product"


def recurrent_weights(ctx: Context) -> Set[int]:
    """Storage keys of the matrices that recurrent layers and cells hold (cached in the replica)."""
    if "recurrent_weights" not in ctx.state:
        held = [m for m in walk.held_objects(ctx.fn) if isinstance(m, _RECURRENT)]
        ctx.state["recurrent_weights"] = {k for m in held for p in m.parameters(recurse=False) if p.dim() == 2
                                          for k in identity.storages(p)}  # fmt: skip
    found: Set[int] = ctx.state["recurrent_weights"]
    return found
