"""Execution, beyond the field cases: memory that grows, and indices that are narrowed on each call."""

from __future__ import annotations

import torch
from blocks import Csr, FeedForward, batches, csr, noise, pruned
from torch import nn

# execution.memory-growth: the step keeps something of each call


class Logged(nn.Module):
    """A scorer that remembers its last answers for a dashboard, or all of them."""

    def __init__(self, keep):
        super().__init__()
        self.body = FeedForward(Csr(pruned(640, 512, 0.9, seed=1)), Csr(pruned(512, 640, 0.9, seed=2)))
        self.keep = keep
        self.answers = []

    def forward(self, x):
        out = self.body(x)
        self.answers.append(out.clone())
        if self.keep:
            del self.answers[: -self.keep]
        return out


def leak_module_failing():
    return Logged(keep=0)


def leak_module_comparator():
    return Logged(keep=4)


def leak_module_inputs():
    return batches(24, 512)


def _embedder(clear):
    """A table that is trained on sparse gradients against drawn negatives; whoever forgets to clear them adds up entries."""
    table = nn.Embedding(6000, 16, sparse=True)
    with torch.no_grad():
        table.weight.copy_(noise(6000, 16, seed=3))

    def train(index):
        if clear:
            table.weight.grad = None
        negatives = torch.randint(0, 6000, (24,))
        with torch.enable_grad():
            loss = table(negatives).pow(2).mean() - table(index).pow(2).mean()
            loss.backward()
        return loss.detach()

    return train


def leak_closure_failing():
    return _embedder(clear=False)


def leak_closure_comparator():
    return _embedder(clear=True)


def leak_closure_inputs():
    return [(torch.randint(0, 6000, (24,), generator=torch.Generator().manual_seed(i)),) for i in range(6)]


# execution.index-copy: 64-bit indices under a narrow product


def wide_module_failing():
    return FeedForward(
        Csr(csr(pruned(2000, 1600, 0.9, seed=6), torch.int64)), Csr(csr(pruned(1600, 2000, 0.9, seed=7), torch.int64))
    )


def wide_module_comparator():
    return FeedForward(Csr(csr(pruned(2000, 1600, 0.9, seed=6))), Csr(csr(pruned(1600, 2000, 0.9, seed=7))))


def wide_module_inputs():
    return batches(3, 1600)


def _vector_step(index):
    weight = csr(pruned(1800, 2400, 0.88, seed=8), index)
    return lambda x: torch.mv(weight, x)


def wide_closure_failing():
    return _vector_step(torch.int64)


def wide_closure_comparator():
    return _vector_step(torch.int32)


def wide_closure_inputs():
    return [(noise(2400, seed=100 + i) * 49,) for i in range(8)]
