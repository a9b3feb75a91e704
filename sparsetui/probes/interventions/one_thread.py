"""The step runs on one thread."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch

from ..context import Context
from .engine import Intervention, Setting


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _prepare(ctx: Context) -> Setting:
    return Setting(lambda active: threads(1) if active else contextlib.nullcontext())


INTERVENTION = Intervention("one-thread", "the step runs on one thread", _prepare)
