"""The code of the workloads that the fleet's tests investigate: small, real, and no file beside it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F

torch.manual_seed(3)
_DENSE = torch.randn(640, 512) * (torch.rand(640, 512) >= 0.9)
WEIGHT = _DENSE.to_sparse_csr()

Step = Callable[[torch.Tensor], torch.Tensor]


def right() -> Step:
    return lambda x: (WEIGHT @ x.t()).t()


def many_times() -> Step:
    """A release that does its work over and over: slower wherever it runs."""

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            out = (WEIGHT @ x.t()).t()
        return out

    return step


def wrong_side() -> Step:
    return lambda x: F.linear(x, WEIGHT)


def requests() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(48, 512, generator=g),) for _ in range(3)]


def where() -> str:
    return os.getcwd()


_SECOND = torch.randn(96, 640) * (torch.rand(96, 640) >= 0.8)


def two_layers() -> torch.nn.Module:
    """Two products of different shapes, pruned and stored dense."""
    first, second = torch.nn.Linear(512, 640, bias=False), torch.nn.Linear(640, 96, bias=False)
    first.weight.data, second.weight.data = _DENSE.clone(), _SECOND.clone()
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)
