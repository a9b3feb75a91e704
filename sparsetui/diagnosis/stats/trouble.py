"""How much of its time a process was kept from its CPU, and whether that hit one variant more than the other.

Variants take turns within milliseconds, so what a host does to everybody hits both and cancels in their ratio. A gap can come of
it only where one of them is hit more: its launch has a lower priority, a cgroup with a quota, or cores that a neighbour shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from sparsetui.diagnosis.stats.intervals import robust_location
from sparsetui.evidence.records import Number

LEAST = 0.02  # of a block's time: less is the tool's own doing, and the timer's
_LEAST_ROUNDS = 3
_PRIOR_SD, _PRIOR_DF = 0.02, 2.0
_LEVEL = 0.95
_CLOCK = 0.05  # a core's clock moves so much with its temperature alone


class Trouble(msgspec.Struct, frozen=True):
    """Mean shares of the blocks' time, and what the failing variant lost beyond the comparator, over rounds of pairs."""

    failing: float
    comparator: float
    extra: Number
    stopped: int  # blocks of the failing variant that a CPU quota stopped

    @property
    def one_sided(self) -> bool:
        """The failing variant lost more in round after round, not by chance."""
        return self.extra.ci is not None and self.extra.ci[0] > 0.0 and (self.extra.value or 0.0) >= LEAST


def lost(block: Mapping[str, Any], best_mhz: float = 0.0) -> float | None:
    """The share of a block's wall time that was taken from it; ``None`` where the host tells nothing of that.

    It waited for a CPU, was stopped by a quota, its CPU was with another guest, or its clock was below the best seen. These
    overlap, so the largest counts.
    """
    wall = float(block.get("wall_s", 0.0))
    told = [float(block["steal"])] if "steal" in block else []
    told += [float(block[k]) / wall for k in ("delay_s", "stopped_s") if k in block and wall > 0]
    if best_mhz and block.get("freq_mhz"):
        slow = 1.0 - float(block["freq_mhz"]) / best_mhz
        told.append(slow if slow > _CLOCK else 0.0)
    return min(1.0, max(told)) if told else None


def best_clock(blocks: Sequence[Mapping[str, Any]]) -> float:
    """The fastest clock that any block saw, in MHz; 0 where none was told."""
    return max((float(b["freq_mhz"]) for b in blocks if b.get("freq_mhz")), default=0.0)


def trouble(blocks: Sequence[Mapping[str, Any]]) -> Trouble | None:
    """What the clock's blocks lived through; each holds ``round``, ``variant`` and its conditions. ``None`` where too few tell."""
    best = best_clock(blocks)
    shares: dict[str, dict[int, list[float]]] = {"failing": {}, "comparator": {}}
    for b in blocks:
        share = lost(b, best)
        if share is not None and b.get("variant") in shares:
            shares[b["variant"]].setdefault(int(b["round"]), []).append(share)
    mine, theirs = shares["failing"], shares["comparator"]
    both = sorted(set(mine) & set(theirs))
    if len(both) < _LEAST_ROUNDS:
        return None
    f, c = (np.array([np.mean(side[n]) for n in both]) for side in (mine, theirs))
    where = robust_location(f - c, prior_sd=_PRIOR_SD, prior_df=_PRIOR_DF)
    extra = Number(value=where.value, ci=where.interval(_LEVEL), n=len(both), unit="share of the blocks' time")
    stopped = sum(bool(b.get("throttled")) for b in blocks if b.get("variant") == "failing")
    return Trouble(float(f.mean()), float(c.mean()), extra, stopped)
