"""The step runs on one thread."""

from __future__ import annotations

import contextlib

from ..context import Context
from ..step import threads
from .engine import Intervention, Setting


def _prepare(ctx: Context) -> Setting:
    return Setting(lambda active: threads(1) if active else contextlib.nullcontext())


INTERVENTION = Intervention("one-thread", "the step runs on one thread", _prepare)
