"""One step, long enough that a neighbour's time slices fall into each call, built alike by every variant."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WEIGHT = torch.randn(420, 420, generator=torch.Generator().manual_seed(4)) / 20


def build() -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = torch.tanh(x @ _WEIGHT)
        return x

    return step


def requests() -> list[tuple[torch.Tensor]]:
    return [(torch.randn(16, 420, generator=torch.Generator().manual_seed(1)),)]
