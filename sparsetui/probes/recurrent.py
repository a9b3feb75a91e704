"""A recurrent layer that arrives as one op, as the products that it is: an LSTM over a sequence, with sparse weights."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch

from .unfolded import NoForm, bind

_LSTM = 2  # of the modes that torch numbers its recurrent layers by


class Lstm(NamedTuple):
    """One direction of one layer. ``x`` is [steps, batch, in]; ``w_in`` [4 * hidden, in] and ``w_hidden`` [4 * hidden, hidden]
    hold the gates in, forget, cell, out; ``h`` and ``c`` are [batch, hidden]."""

    x: torch.Tensor
    w_in: torch.Tensor
    w_hidden: torch.Tensor
    bias: Optional[torch.Tensor]
    h: torch.Tensor
    c: torch.Tensor
    reverse: bool

    @property
    def hidden(self) -> int:
        return int(self.w_hidden.shape[1])


def take_apart(func: Any, args: Any, kwargs: Dict[str, Any]) -> Lstm:
    """Raises :class:`NoForm` where the op is no LSTM layer of floats, or may have to be gone back through."""
    a = bind(func, args, kwargs)
    if "weight0" not in a or int(a.get("mode", -1)) != _LSTM or len(a.get("batch_sizes") or ()):
        raise NoForm("%s is no LSTM over whole sequences" % func._schema.name)
    if torch.is_grad_enabled():
        raise NoForm("a backward pass may need what the layer keeps to itself")
    h, c = a["hx_"], a["cx_"]
    bias = a["weight2"] + a["weight3"] if a.get("has_biases") else None
    return Lstm(a["input"], a["weight0"], a["weight1"], bias, h.reshape(-1, h.shape[-1]), c.reshape(-1, c.shape[-1]),
                bool(a["reverse"]))  # fmt: skip


def run(layer: Lstm, w_in: torch.Tensor, w_hidden: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(outputs [steps, batch, hidden], last h, last c)``; either weight may be CSR. States are kept as [hidden, batch], so that
    a sparse weight stands on the left."""
    steps, batch, n = layer.x.shape[0], layer.x.shape[1], layer.hidden
    whole = torch.mm(w_in, layer.x.reshape(steps * batch, -1).t())
    if layer.bias is not None:
        whole += layer.bias[:, None]
    h, c = layer.h.t().contiguous(), layer.c.t()
    out = layer.x.new_empty(steps, batch, n)
    for t in reversed(range(steps)) if layer.reverse else range(steps):
        gates = torch.mm(w_hidden, h).add_(whole[:, t * batch : (t + 1) * batch])
        some = gates[: 2 * n].sigmoid_()
        c = some[n:] * c + some[:n] * gates[2 * n : 3 * n].tanh_()
        h = gates[3 * n :].sigmoid_() * c.tanh()
        out[t] = h.t()
    return out, h.t().contiguous(), c.t().contiguous()
