"""Scheduling, beyond the field cases: threads, rows, the host and the backward pass."""

from __future__ import annotations

import torch
from blocks import Csr, batches, csr, noise, pruned
from torch import nn

# scheduling.thread-oversubscription: the same code, started with more threads than there are cores. Threads wait asleep on
# both sides, as services on shared hosts have them: waiting awake, it is whoever else runs that decides what two threads cost.


class Gates(nn.Module):
    """A stack of gates; ``width`` decides over how many threads each elementwise op is split."""

    def __init__(self, depth, width):
        super().__init__()
        self.scale = nn.Parameter(1 + 0.01 * noise(depth, width, seed=5), requires_grad=False)

    def forward(self, x):
        for scale in self.scale:
            x = x + torch.sigmoid(x * scale) * 0.1
        return x


def crowded_module():
    """A sparse projection before gates so wide that each op is split over all six threads."""
    return nn.Sequential(Csr(pruned(2560, 320, 0.9, seed=1)), Gates(10, 2560))


def crowded_module_inputs():
    return batches(80, 320)


def crowded_closure():
    weight = csr(pruned(448, 448, 0.96, seed=3))

    def step(x):
        for _ in range(24):
            x = torch.sigmoid(weight @ x)
        return x

    return step


def crowded_closure_inputs():
    return batches(448, 16)


# scheduling.parallel-overhead: dozens of regions that are just large enough to be split


def tiny_module():
    return Gates(32, 512)


def tiny_module_inputs():
    return batches(80, 512)


def tiny_closure():
    weight = csr(pruned(448, 448, 0.97, seed=6))

    def step(x):
        for _ in range(24):
            x = torch.tanh(weight @ x)
        return x

    return step


def tiny_closure_inputs():
    return batches(448, 16)


# scheduling.host-bound: many small calls from Python where one would do


class Heads(nn.Module):
    """A product for each of 96 small experts, one call after the other, or all in one."""

    def __init__(self, together):
        super().__init__()
        self.together = together
        self.register_buffer("experts", noise(96, 16, 24, seed=7))

    def forward(self, x):
        parts = x.view(-1, 96, 24)
        if self.together:
            return torch.einsum("bei,eoi->beo", parts, self.experts).flatten(1)
        return torch.cat([torch.relu(parts[:, i] @ self.experts[i].t()) * 1.0 for i in range(96)], 1)


class HeadsTogether(Heads):
    def forward(self, x):
        return torch.relu(super().forward(x))


def host_module_failing():
    return Heads(together=False)


def host_module_comparator():
    return HeadsTogether(together=True)


def host_module_inputs():
    return batches(4, 96 * 24)


def host_closure_failing():
    """Rows are normalised one by one."""

    def step(x):
        rows = []
        for row in x:
            centred = row - row.mean()
            rows.append(centred / (centred.pow(2).mean() + 1e-5).sqrt())
        return torch.stack(rows)

    return step


def host_closure_comparator():
    def step(x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()

    return step


def host_closure_inputs():
    return batches(160, 64)


# scheduling.row-imbalance: the first rows hold all of the non-zeros


def _skewed(rows, columns, blocks, seed, spread):
    """As many 16x16 blocks either over all rows alike or in the first eighth of them, for kernels that split rows evenly."""
    held = (rows if spread else rows // 8) // 16
    place = pruned(held, columns // 16, 1 - blocks / (held * columns // 16), seed=seed) != 0
    weight = torch.zeros(rows, columns)
    weight[: held * 16] = noise(held * 16, columns, seed=seed) * place.repeat_interleave(16, 0).repeat_interleave(16, 1)
    return weight.to_sparse_bsr((16, 16))


class Ranker(nn.Module):
    """Two block-sparse projections of one request's features."""

    def __init__(self, spread):
        super().__init__()
        self.register_buffer("up", _skewed(4096, 2048, 4000, 8, spread))
        self.register_buffer("down", _skewed(2048, 4096, 4000, 9, spread))

    def forward(self, x):
        return self.down @ torch.relu(self.up @ x)


def skew_module_failing():
    return Ranker(spread=False)


def skew_module_comparator():
    return Ranker(spread=True)


def skew_module_inputs():
    return [(x[0],) for (x,) in batches(1, 2048, count=4)]


def skew_closure_failing():
    weight = _skewed(4096, 4096, 8000, 10, False)
    return lambda x: weight @ x


def skew_closure_comparator():
    weight = _skewed(4096, 4096, 8000, 10, True)
    return lambda x: weight @ x


def skew_closure_inputs():
    return [(x[0],) for (x,) in batches(1, 4096, count=4)]


# scheduling.backward-transpose: the transpose of a frozen sparse weight, made anew on each backward


class Frozen(torch.autograd.Function):
    """``W x`` whose backward has a transpose at hand."""

    @staticmethod
    def forward(context, x, weight, flipped):
        context.flipped = flipped
        return weight @ x

    @staticmethod
    def backward(context, gradient):
        return context.flipped @ gradient, None, None


class Adapter(nn.Module):
    """A trained scale in front of a frozen sparse projection."""

    def __init__(self, cached):
        super().__init__()
        weight = pruned(1400, 1000, 0.93, seed=11)
        self.register_buffer("weight", csr(weight))
        self.register_buffer("flipped", csr(weight.t().contiguous()) if cached else None)
        self.scale = nn.Parameter(torch.ones(1000))

    def forward(self, x):
        self.scale.grad = None
        with torch.enable_grad():
            scaled = (x * self.scale).t()
            if self.flipped is None:
                out = self.weight @ scaled
            else:
                out = Frozen.apply(scaled, self.weight, self.flipped)
            loss = out.pow(2).mean()
            loss.backward()
        return loss.detach(), self.scale.grad.clone()


def transpose_module_failing():
    return Adapter(cached=False)


def transpose_module_comparator():
    return Adapter(cached=True)


def transpose_module_inputs():
    return batches(12, 1000)


def _prompt_tuner(cached):
    weight = pruned(1300, 900, 0.95, seed=12)
    frozen = csr(weight)
    flipped = csr(weight.t().contiguous())
    prompt = torch.zeros(900, 1).requires_grad_(True)

    def train(x):
        prompt.grad = None
        with torch.enable_grad():
            moved = x + prompt
            out = Frozen.apply(moved, frozen, flipped) if cached else torch.sparse.mm(frozen, moved)
            out.abs().mean().backward()
        return prompt.grad.clone()

    return train


def transpose_closure_failing():
    return _prompt_tuner(cached=False)


def transpose_closure_comparator():
    return _prompt_tuner(cached=True)


def transpose_closure_inputs():
    return [(x.t().contiguous(),) for (x,) in batches(10, 900)]
