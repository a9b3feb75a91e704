"""As many threads as the process may really use: its affinity, cut by the cgroup's CPU quota."""

from __future__ import annotations

import contextlib
import os

from ..context import Context
from ..lock import quota_cores
from ..step import threads
from .engine import Intervention, Setting


def usable() -> int:
    cores = len(os.sched_getaffinity(0))
    quota = quota_cores()
    return max(1, min(cores, int(quota)) if quota else cores)


def _prepare(ctx: Context) -> Setting:
    return Setting(lambda active: threads(usable()) if active else contextlib.nullcontext())


INTERVENTION = Intervention("right-threads", "no more threads than usable cores", _prepare)
