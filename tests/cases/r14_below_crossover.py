"""R14: right kernel and layout, and too little sparsity for this machine."""

from __future__ import annotations

from blocks import Csr, FeedForward, batches, csr, linear, pruned


def _weights():
    return pruned(768, 576, 0.52, seed=1), pruned(576, 768, 0.52, seed=2)


def module_failing():
    return FeedForward(*(Csr(weight) for weight in _weights()))


def module_comparator():
    return FeedForward(*(linear(weight) for weight in _weights()))


def module_inputs():
    return batches(80, 576)


def closure_failing():
    weight = csr(pruned(700, 820, 0.54, seed=3))
    return lambda x: (weight @ x.t()).t()


def closure_comparator():
    weight = pruned(700, 820, 0.54, seed=3)
    return lambda x: x @ weight.t()


def closure_inputs():
    return batches(72, 820)
