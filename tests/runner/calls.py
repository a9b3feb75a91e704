"""Steps of many small calls and of few large ones, for investigations of what a call costs."""

from __future__ import annotations

from collections.abc import Callable

import torch

Step = Callable[[torch.Tensor], torch.Tensor]
_PARTS, _WIDTH = 80, 12
_G = torch.Generator().manual_seed(5)
_SCALE = torch.rand(_PARTS, _WIDTH, generator=_G) + 0.5
_LARGE = torch.randn(1200, 1200, generator=_G) / 35
_SMALL = _LARGE[:, :400].contiguous()


def _in_parts(x: torch.Tensor) -> torch.Tensor:
    parts = x[:, : _PARTS * _WIDTH].view(len(x), _PARTS, _WIDTH)
    return torch.cat([torch.tanh(parts[:, i] * _SCALE[i] + 1.0) for i in range(_PARTS)], 1)


def _at_once(x: torch.Tensor) -> torch.Tensor:
    parts = x[:, : _PARTS * _WIDTH].view(len(x), _PARTS, _WIDTH)
    return torch.tanh(parts * _SCALE + 1.0).flatten(1)


def many_calls() -> Step:
    return _in_parts


def few_calls() -> Step:
    return _at_once


def wide_product() -> Step:
    """A row times a weight that does not fit the caches: all of its time is reading the weight."""
    return lambda x: torch.relu(torch.relu(x @ _LARGE) @ _LARGE)


def narrow_product() -> Step:
    return lambda x: torch.relu(x @ _SMALL)


def many_calls_and_wide() -> Step:
    return lambda x: torch.cat([_in_parts(x), x @ _LARGE], 1)


def many_calls_and_narrow() -> Step:
    return lambda x: torch.cat([_in_parts(x), x @ _SMALL], 1)


def requests() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 1200, generator=g),) for _ in range(4)]
