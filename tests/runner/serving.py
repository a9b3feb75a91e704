"""The code of the workloads that the runner's and the fleet's tests investigate: small, real, and no file beside it is needed."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

torch.manual_seed(3)
_DENSE = torch.randn(640, 512) * (torch.rand(640, 512) >= 0.9)
WEIGHT = _DENSE.to_sparse_csr()

Step = Callable[[torch.Tensor], torch.Tensor]


def right() -> Step:
    return lambda x: (WEIGHT @ x.t()).t()


def wrong_side() -> Step:
    return lambda x: F.linear(x, WEIGHT)


def many_times() -> Step:
    """A release that does its work over and over: slower wherever it runs."""

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            out = (WEIGHT @ x.t()).t()
        return out

    return step


def dense() -> Step:
    return lambda x: x @ _DENSE.t()


_SECOND = torch.randn(96, 640) * (torch.rand(96, 640) >= 0.8)


def two_layers() -> torch.nn.Module:
    """Two products of different shapes, pruned and stored dense."""
    first, second = torch.nn.Linear(512, 640, bias=False), torch.nn.Linear(640, 96, bias=False)
    first.weight.data, second.weight.data = _DENSE.clone(), _SECOND.clone()
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


_FUTURE = torch.ones(512, 512).triu(1).bool()


def masked_by_hand() -> Step:
    """Attention of three heads over 512 places whose mask, softmax and products are ops of their own."""

    def step(x: torch.Tensor) -> torch.Tensor:
        q = x.reshape(3, 512, 16)
        scores = torch.bmm(q, q.transpose(1, 2)) * 0.25
        return torch.bmm(scores.masked_fill(_FUTURE, float("-inf")).softmax(-1), q)

    return step


def masked_in_one() -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        q = x.reshape(1, 3, 512, 16)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=~_FUTURE)[0]

    return step


def requests() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(48, 512, generator=g),) for _ in range(3)]


def raises() -> Step:
    raise ValueError("no \x1b[31mcheckpoint\x1b[0m here")


def exits() -> Step:
    sys.exit(4)


def crashes() -> Step:
    ctypes.string_at(0)
    return right()


def hangs() -> Step:
    while True:
        time.sleep(1)


def dies_later() -> Step:
    """Kills itself at its fortieth step, in the middle of a measurement."""
    done = [0]

    def step(x: torch.Tensor) -> torch.Tensor:
        done[0] += 1
        if done[0] > 40:
            os._exit(9)
        return (WEIGHT @ x.t()).t()

    return step
