"""R09: values and 64-bit indices together take more bytes than the dense weight."""

from __future__ import annotations

import torch
from blocks import Csr, FeedForward, batches, csr, linear, pruned


def module_failing():
    return FeedForward(*(Csr(csr(weight, torch.int64)) for weight in _weights()))


def module_comparator():
    return FeedForward(*(linear(weight) for weight in _weights()))


def _weights():
    return pruned(1536, 1024, 0.5, seed=1), pruned(1024, 1536, 0.5, seed=2)


def module_inputs():
    return batches(1, 1024)


def closure_failing():
    weight = csr(pruned(1664, 1216, 0.55, seed=3), torch.int64)
    return lambda x: (weight @ x.t()).t()


def closure_comparator():
    weight = pruned(1664, 1216, 0.55, seed=3)
    return lambda x: torch.nn.functional.linear(x, weight)


def closure_inputs():
    return batches(1, 1216)
