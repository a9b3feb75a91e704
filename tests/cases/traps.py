"""Pairs whose right answer is no mechanism, or another one than the eye falls on."""

from __future__ import annotations

import torch
from blocks import Csr, FeedForward, batches, csr, linear, noise, pruned
from torch import nn

# dense was chosen because it is faster here, and nothing claims otherwise


def dense_module_failing():
    return FeedForward(linear(pruned(704, 512, 0.45, seed=1)), linear(pruned(512, 704, 0.45, seed=2)))


def dense_module_comparator():
    return FeedForward(linear(noise(704, 512, seed=1)), linear(noise(512, 704, seed=2)))


def dense_module_inputs():
    return batches(64, 512)


def dense_closure_failing():
    weight = pruned(900, 640, 0.4, seed=3)
    return lambda x: torch.relu(x @ weight.t())


def dense_closure_comparator():
    weight = noise(900, 640, seed=3)
    return lambda x: torch.relu(x @ weight.t())


def dense_closure_inputs():
    return batches(56, 640)


# the two are one


def same_module():
    return FeedForward(Csr(pruned(832, 576, 0.9, seed=4)), Csr(pruned(576, 832, 0.9, seed=5)))


def same_module_inputs():
    return batches(24, 576)


def same_closure():
    weight = csr(pruned(1100, 760, 0.93, seed=6))
    return lambda x: (weight @ x.t()).t()


def same_closure_inputs():
    return batches(40, 760)


# 64-bit indices on a product so large that narrowing them costs nothing


def _wide(index):
    return FeedForward(Csr(csr(pruned(288, 224, 0.85, seed=7), index)), Csr(csr(pruned(224, 288, 0.85, seed=8), index)))


def index_module_failing():
    return _wide(torch.int64)


def index_module_comparator():
    return _wide(torch.int32)


def index_module_inputs():
    return batches(1600, 224, count=4)


def index_closure_failing():
    weight = csr(pruned(320, 256, 0.8, seed=9), torch.int64)
    return lambda x: (weight @ x.t()).t()


def index_closure_comparator():
    weight = csr(pruned(320, 256, 0.8, seed=9))
    return lambda x: (weight @ x.t()).t()


def index_closure_inputs():
    return batches(1400, 256, count=4)


# quality fell while execution is clean


def _teacher():
    return noise(40, 480, seed=10)


def _student(fraction):
    """A linear classifier: the teacher's own weights, pruned."""
    teacher = _teacher()
    limit = teacher.abs().flatten().kthvalue(int(fraction * teacher.numel())).values
    return teacher * (teacher.abs() > limit)


def _classifier(fraction):
    trunk = torch.eye(480) + 0.01 * pruned(480, 480, 0.95, seed=11)
    return nn.Sequential(Csr(trunk), Csr(_student(fraction)))


def quality_module_failing():
    return _classifier(0.985)


def quality_module_comparator():
    return _classifier(0.6)


def quality_closure_failing():
    weight = csr(_student(0.99))
    return lambda x: (weight @ x.t()).t()


def quality_closure_comparator():
    weight = csr(_student(0.5))
    return lambda x: (weight @ x.t()).t()


def quality_inputs():
    return batches(256, 480)


def agreement(model):
    """Share of held-out rows for which the student chooses what the teacher chooses."""
    x = noise(2000, 480, seed=12) * 480**0.5
    with torch.no_grad():
        wanted = (x @ _teacher().t()).argmax(1)
        return {"agreement": float((model(x).argmax(1) == wanted).float().mean())}
