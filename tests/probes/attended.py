"""Attention in many ops, in the forms that code has it, and what of it runs under an arm."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsetui.probes.interventions import arm

IDENT = "fuse-attention"
S = 24
SEEN = torch.ones(S, S).tril().bool()
HIDDEN = ~SEEN
INF = float("-inf")


class Ran(TorchDispatchMode):
    """Counts the ops that reach it: entered before an arm, those that the arm lets through."""

    def __init__(self):
        super().__init__()
        self.ops = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def ran(r, side, i=0):
    """The ops of one step under an arm."""
    with Ran() as seen, torch.no_grad():
        if side == "off":
            r.ctx.fn(*r.ctx.inputs[i])
        else:
            with arm(r.ctx, f"{side}:{IDENT}") as live:
                live.begin()
                r.ctx.fn(*r.ctx.inputs[i])
    return seen.ops


def live(r):
    return r.ctx.state["interventions"][IDENT]


def qkv(*shape, n=3, dtype=torch.float32):
    return [tuple(torch.randn(*(shape or (2, 4, S, 16)), dtype=dtype) for _ in range(3)) for _ in range(n)]


def scores(q, k):
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def where(q, k, v):
    return torch.where(SEEN, scores(q, k), INF).softmax(-1) @ v


def filled(q, k, v):
    return scores(q, k).masked_fill(HIDDEN, torch.finfo(q.dtype).min).softmax(-1) @ v


def filled_in_place(q, k, v):
    return scores(q, k).masked_fill_(HIDDEN, INF).softmax(-1) @ v


def added(q, k, v):
    return (scores(q, k) + torch.zeros(S, S, dtype=q.dtype).masked_fill_(HIDDEN, INF)).softmax(-1) @ v


def large_and_negative(q, k, v):
    return (scores(q, k) - 1e4 * HIDDEN.to(q.dtype)).softmax(-1) @ v


def made_each_step(q, k, v):
    return scores(q, k).masked_fill(torch.ones(S, S).tril() == 0, INF).softmax(-1) @ v


def multiplied_and_divided_again(q, k, v):
    p = scores(q, k).softmax(-1) * SEEN
    return (p / p.sum(-1, keepdim=True)) @ v


def by_hand(q, k, v):
    s = scores(q, k).masked_fill_(HIDDEN, INF)
    s -= s.amax(-1, keepdim=True)
    e = s.exp_()
    return (e / e.sum(-1, keepdim=True)) @ v


def exp_times_mask(q, k, v):
    e = scores(q, k).exp() * SEEN
    return (e / e.sum(-1, keepdim=True)) @ v


def logs(q, k, v):
    s = scores(q, k).masked_fill(HIDDEN, INF)
    return (s - s.logsumexp(-1, keepdim=True)).exp() @ v


def einsum(q, k, v):
    s = torch.einsum("...qd,...kd->...qk", q, k).div_(4.0)
    return torch.einsum("...qk,...kd->...qd", torch.where(SEEN, s, INF).softmax(-1), v)


def in_float32(q, k, v):
    return scores(q, k).masked_fill(HIDDEN, INF).softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def with_slopes(q, k, v):
    """A bias that falls with distance, besides the mask."""
    at = torch.arange(S)
    bias = (-0.25 * (at[:, None] - at[None]).abs()).to(q.dtype)
    return (scores(q, k) + bias + torch.triu(torch.full((S, S), INF, dtype=q.dtype), 1)).softmax(-1) @ v


def into_a_buffer(q, k, v):
    s = scores(q, k)
    made = torch.full_like(s, INF)
    made[..., SEEN] = s[..., SEEN]
    return made.softmax(-1) @ v


def number_as_tensor(q, k, v):
    least = torch.tensor(torch.finfo(q.dtype).min, dtype=q.dtype)
    return torch.where(SEEN, scores(q, k), least).softmax(-1) @ v


# code -> how many of its ops do not run in float32, the product that makes the scores among them
FORMS = {
    where: 5,
    filled: 4,
    filled_in_place: 4,
    added: 6,
    large_and_negative: 6,
    made_each_step: 7,
    multiplied_and_divided_again: 6,
    by_hand: 8,
    exp_times_mask: 6,
    logs: 6,
    einsum: 5,
    in_float32: 4,
    with_slopes: 11,
    into_a_buffer: 6,
    number_as_tensor: 4,
}
LEFT_OUT = {
    "_softmax",
    "where",
    "masked_fill",
    "masked_fill_",
    "exp",
    "exp_",
    "div",
    "amax",
    "triu",
    "tril",
    "eq",
    "logsumexp",
}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, hidden):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
        return x + self.out((scores(q, k).masked_fill(hidden, INF).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Three layers that share one mask, made at the start of each step."""

    def __init__(self, also=False):
        super().__init__()
        self.layers, self.also = nn.ModuleList(Layer() for _ in range(3)), also

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        for layer in self.layers:
            x = layer(x, hidden)
        return x + hidden.sum() if self.also else x
