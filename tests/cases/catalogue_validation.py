"""Validation, beyond the field cases: precision, wrong and non-finite results, bits that differ, claims timed cold, slow tails."""

from __future__ import annotations

import time

import torch
from blocks import Csr, FeedForward, batches, csr, linear, noise, pruned
from torch import nn

# validation.precision: bfloat16 against float32 at the same zeros


class Regressor(nn.Module):
    """Predicts a small difference of two large sums, which few mantissa bits cannot hold."""

    def __init__(self, dtype):
        super().__init__()
        weight = pruned(96, 512, 0.6, seed=1)
        self.plus = linear((weight + 0.02 * pruned(96, 512, 0.6, seed=1)).to(dtype))
        self.minus = linear(weight.to(dtype))
        self.dtype = dtype

    def forward(self, x):
        x = x.to(self.dtype)
        return ((self.plus(x) - self.minus(x)) * 50).float()


def precision_module_failing():
    return Regressor(torch.bfloat16)


def precision_module_comparator():
    return Regressor(torch.float32)


def precision_module_inputs():
    return batches(8, 512)


def error(model):
    """Mean absolute error against the exact difference."""
    x = noise(256, 512, seed=2) * 512**0.5
    wanted = x @ pruned(96, 512, 0.6, seed=1).t()
    with torch.no_grad():
        return {"error": float((model(x) - wanted).abs().mean())}


def _softmax_step(dtype):
    """Keys and logits in the given dtype: near ties are decided by rounding."""
    keys = pruned(400, 256, 0.7, seed=3).to(dtype)
    return lambda x: torch.softmax(30 * (x.to(dtype) @ keys.t()), -1).float()


def precision_closure_failing():
    return _softmax_step(torch.bfloat16)


def precision_closure_comparator():
    return _softmax_step(torch.float32)


def precision_closure_inputs():
    return batches(8, 256)


# validation.non-finite: a pruned weight meets an infinity, and 0 * inf is NaN where the zero is stored


def inf_module_failing():
    return _LogFeatures(sparse=False)


def inf_module_comparator():
    return _LogFeatures(sparse=True)


class _LogFeatures(nn.Module):
    """Logarithms of counts; the columns whose count may be zero were pruned away."""

    def __init__(self, sparse):
        super().__init__()
        weight = pruned(64, 300, 0.85, seed=4)
        weight[:, ::5] = 0
        self.project = Csr(weight) if sparse else linear(weight)

    def forward(self, counts):
        return self.project(counts.log())


def inf_module_inputs():
    made = []
    for (x,) in batches(24, 300):
        counts = x.abs().ceil()
        counts[:, ::5] = (x[:, ::5] > 1).float()
        made.append((counts,))
    return made


def _attention(stable):
    weight = csr(pruned(384, 384, 0.9, seed=5))

    def step(x):
        scores = 40 * (weight @ x.t()).t()
        if stable:
            return scores.softmax(-1)
        grown = scores.exp()
        return grown / grown.sum(-1, keepdim=True)

    return step


def inf_closure_failing():
    return _attention(stable=False)


def inf_closure_comparator():
    return _attention(stable=True)


def inf_closure_inputs():
    return batches(24, 384)


# validation.nondeterminism: the step draws from a generator that nobody seeds, or looks at the clock


class Sampled(nn.Module):
    """Scores a sample of the candidates; the sampler is seeded from the system, or by the request."""

    def __init__(self, seeded):
        super().__init__()
        self.body = Csr(pruned(800, 512, 0.9, seed=6))
        self.seeded = seeded
        self.generator = torch.Generator()
        self.generator.seed()

    def forward(self, x):
        if self.seeded:
            self.generator.manual_seed(7)
        keep = torch.rand(800, generator=self.generator) < 0.9
        return self.body(x) * keep


def dice_module_failing():
    return Sampled(seeded=False)


def dice_module_comparator():
    return Sampled(seeded=True)


def dice_module_inputs():
    return batches(24, 512)


def _dithered(offset):
    weight = csr(pruned(700, 600, 0.9, seed=8))

    def step(x):
        out = (weight @ x.t()).t()
        return torch.floor(out * 256 + offset()) / 256

    return step


def dice_closure_failing():
    return _dithered(lambda: time.perf_counter_ns() % 1009 / 1009)


def dice_closure_comparator():
    return _dithered(lambda: 0.5)


def dice_closure_inputs():
    return batches(20, 600)


# validation.wrong-result: repeated entries, made in the step, under a function that is not linear


def _edges(seed, nodes=500, count=6000):
    draw = torch.Generator().manual_seed(seed)
    source, target = torch.randint(0, nodes, (2, count), generator=draw)
    order = (source * nodes + target).argsort()
    return source[order], target[order], torch.randn(count, generator=draw)


class GraphLayer(nn.Module):
    """Messages along weighted edges, of which some are listed twice; negative weights are clipped."""

    def __init__(self, merge, nodes=500):
        super().__init__()
        self.nodes = nodes
        source, target, weight = _edges(9, nodes)
        if merge:
            merged = torch.sparse_coo_tensor(torch.stack([source, target]), weight, (nodes, nodes)).coalesce()
            (source, target), weight = merged.indices(), merged.values()
        self.register_buffer(
            "crow", torch.cat([torch.zeros(1).long(), source.bincount(minlength=nodes).cumsum(0)]).int()
        )
        self.register_buffer("target", target.int())
        self.register_buffer("weight", weight)

    def forward(self, x):
        adjacency = torch.sparse_csr_tensor(self.crow, self.target, self.weight, (self.nodes, self.nodes))
        return torch.relu(adjacency) @ x


def wrong_module_failing():
    return GraphLayer(merge=False)


def wrong_module_comparator():
    return GraphLayer(merge=True)


def wrong_module_inputs():
    return [(noise(500, 24, seed=100 + i) * 5,) for i in range(6)]


def _assembled(merge):
    source, target, weight = _edges(10, 400, 5000)
    index = torch.stack([source, target])

    def step(x):
        made = torch.sparse_coo_tensor(index, weight, (400, 400), is_coalesced=None if merge else True)
        made = made.coalesce()
        return torch.sparse.mm(torch.tanh(made), x)

    return step


def wrong_closure_failing():
    return _assembled(merge=False)


def wrong_closure_comparator():
    return _assembled(merge=True)


def wrong_closure_inputs():
    return [(noise(400, 96, seed=100 + i) * 10,) for i in range(6)]


# validation.cold-start: the release's first call builds its tables, and the speed-up was taken from that call


class Lazy(nn.Module):
    """Prepares its weights on the first request, or when it is built."""

    def __init__(self, early):
        super().__init__()
        self.body = FeedForward(Csr(pruned(960, 640, 0.92, seed=11)), Csr(pruned(640, 960, 0.92, seed=12)))
        self.table = None
        if early:
            self.prepare()

    def prepare(self):
        self.table = torch.linalg.inv(torch.eye(900) + 0.1 * noise(900, 900, seed=13)).abs().sum()

    def forward(self, x):
        if self.table is None:
            self.prepare()
        return self.body(x) * self.table


def cold_module_failing():
    return Lazy(early=True)


def cold_module_comparator():
    return Lazy(early=False)


def cold_module_inputs():
    return batches(32, 640)


def _lazy(early):
    raw = pruned(1500, 1100, 0.93, seed=14)
    kept = {"weight": csr(raw)} if early else {}

    def step(x):
        if "weight" not in kept:
            kept["weight"] = csr(raw)
        return (kept["weight"] @ x.t()).t()

    return step


def cold_closure_failing():
    return _lazy(early=True)


def cold_closure_comparator():
    return _lazy(early=False)


def cold_closure_inputs():
    return batches(4, 1100)


# validation.tail-only: every 16th step does the work that the others put off


class Buffered(nn.Module):
    """Counts are folded into the index on every 16th request, or a sixteenth of them on each."""

    def __init__(self, every):
        super().__init__()
        self.body = Csr(pruned(640, 480, 0.9, seed=15))
        self.every = every
        self.calls = 0
        self.register_buffer("counts", noise(160_000, seed=16))

    def forward(self, x):
        out = self.body(x)
        self.calls += 1
        if self.calls % self.every == 0:
            out = out + 0 * self.counts.sort().values[:640]
        return out


def tail_module_failing():
    return Buffered(every=16)


def tail_module_comparator():
    return Buffered(every=10**9)


def tail_module_inputs():
    return batches(24, 480)


def _flushing(write):
    """A tally of answers, which is emptied after every 16th of them."""
    weight = csr(pruned(560, 560, 0.9, seed=17))
    seen = []

    def step(x):
        out = torch.relu((weight @ x.t()).t())
        seen.append(float(out[0, 0]))
        if len(seen) == 16:
            write(seen)
            seen.clear()
        return out

    return step


def tail_closure_failing():
    return _flushing(lambda seen: "".join(f"{value:.12f}" for value in seen * 200))


def tail_closure_comparator():
    return _flushing(lambda seen: "".join(f"{value:.12f}" for value in seen))


def tail_closure_inputs():
    return batches(20, 560)
