"""Trials: one intervention against its control arm, inside one process, with its outputs checked first."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from sparsetui.diagnosis.stats import ArmRound, Block
from sparsetui.runner.journal import Journal
from sparsetui.worker.handle import Replica

_BLOCK_MS = 40.0
_LEAST, _MOST = 2, 200
LEAST, MOST = 4, 16  # cycles


def steps_for(step_ms: float) -> int:
    return min(_MOST, max(_LEAST, math.ceil(_BLOCK_MS / max(step_ms, 1e-3))))


def take_cycle(
    replica: Replica,
    intervention: str,
    label: str,
    number: int,
    steps: int,
    deadline_s: Callable[[], float],
    cancel: threading.Event,
    journal: Journal,
) -> ArmRound:
    """One cycle off, control, on, on, control, off. The warm-up of each block lets the arm's twins settle in the caches."""
    names = ("off", f"control:{intervention}", f"on:{intervention}")
    order = (0, 1, 2, 2, 1, 0) if number % 2 == 0 else (2, 1, 0, 0, 1, 2)
    args: dict[str, Any] = {"arms": [names[i] for i in order], "count": steps, "warm": 2, "start": number * steps}
    got = replica.call("arms", args, deadline_s=deadline_s(), cancel=cancel)
    arms: list[list[Block]] = [[], [], []]
    for at, (arm, block) in enumerate(zip(order, got["blocks"], strict=True)):
        arms[arm].append(Block(names[arm], label, at, block["times_ms"], block["conditions"]))
        journal.latency(("off", "control", "without")[arm], sorted(block["times_ms"])[len(block["times_ms"]) // 2])
    return ArmRound(off=arms[0], control=arms[1], intervened=arms[2])
