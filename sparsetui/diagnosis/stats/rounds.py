"""Blocks and rounds as the clock pass measures them, and their reduction to one log-ratio per pair of processes.

The unit of evidence is the *pair of processes*, not the block and not the step: two processes that run identical code
keep a steady offset of about ±2 %, so a thousand steps in one pair of processes are one observation of the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from sparsetui.diagnosis.stats.intervals import Floats, median


class Block(msgspec.Struct, frozen=True):
    """Consecutive steps of one process, timed with nothing attached.

    ``times_ms`` holds one wall time per step; ``order`` is the block's place in the round's interleaving (any
    increasing numbers, shared by all variants or arms of the round); ``replica`` names the process.
    """

    variant: str
    replica: str
    order: int
    times_ms: Sequence[float]
    conditions: dict[str, Any] = {}


class Round(msgspec.Struct, frozen=True):
    """One failing and one comparator process, measured in interleaved (ABBA) blocks."""

    failing: list[Block]
    comparator: list[Block]


class ArmRound(msgspec.Struct, frozen=True):
    """One cycle of an intervention inside one process: the step as it is, under a pass-through mode, and rewritten."""

    off: list[Block]
    control: list[Block]
    intervened: list[Block]


def block_median(block: Block) -> float:
    """Median step time of a block in ms; NaN when it holds no positive finite time."""
    times = np.asarray(block.times_ms, dtype=np.float64)
    times = times[np.isfinite(times) & (times > 0)]
    return median(times) if times.size else math.nan


class RoundLevel(msgspec.Struct, frozen=True):
    """A round reduced to natural logs of ms; ``log_ratio`` is the centre of ``pairs``, those of adjacent blocks."""

    failing: float
    comparator: float
    log_ratio: float
    pairs: tuple[float, ...]
    blocks: int
    failing_id: frozenset[str]
    comparator_id: frozenset[str]


def reduce_round(round_: Round) -> RoundLevel | None:
    """The round's levels, or ``None`` if a side has no usable block.

    Blocks of the two sides are paired in order of time, so that whatever the host does slowly cancels inside a pair;
    the centre over the pairs is their Hodges-Lehmann estimate, so that a block hit by a neighbour does not move it.
    """
    sides: list[list[tuple[int, float]]] = []
    for blocks in (round_.failing, round_.comparator):
        usable = [(b.order, m) for b in blocks if not math.isnan(m := block_median(b))]
        if not usable:
            return None
        sides.append(sorted(usable))
    failing, comparator = (np.log([m for _, m in side]) for side in sides)
    pairs = pair_adjacent([(o, m, True) for o, m in sides[0]] + [(o, m, False) for o, m in sides[1]])
    level_f, level_c = median(failing), median(comparator)
    return RoundLevel(
        failing=level_f,
        comparator=level_c,
        log_ratio=walsh_median(np.asarray(pairs)) if pairs else level_f - level_c,
        pairs=tuple(pairs),
        blocks=len(failing) + len(comparator),
        failing_id=frozenset(b.replica for b in round_.failing),
        comparator_id=frozenset(b.replica for b in round_.comparator),
    )


def pair_adjacent(blocks: Iterable[tuple[int, float, bool]]) -> list[float]:
    """Log-ratios numerator/denominator of neighbours in time; ``(order, median, is_numerator)`` in any order.

    ABBA becomes AB and BA. A block whose neighbour is of its own side (because one was lost) waits for the next of the
    other side; what never finds a partner is left out.
    """
    pairs: list[float] = []
    waiting: list[tuple[float, bool]] = []
    for _, time, numerator in sorted(blocks):
        if waiting and waiting[-1][1] != numerator:
            other = waiting.pop()[0]
            pairs.append(math.log(time / other) if numerator else math.log(other / time))
        else:
            waiting.append((time, numerator))
    return pairs


def walsh_median(x: Floats) -> float:
    """Hodges-Lehmann estimate: the median of all pairwise means, each value with itself included."""
    i, j = np.triu_indices(x.size)
    return median((x[i] + x[j]) / 2.0)


def pair_noise(pairs: Iterable[Sequence[float]]) -> float:
    """Variance that block noise leaves in the centre of one round's (or cycle's) pairs: the median of var/m over rounds.

    Zero when no round has two pairs, which is no measurement at all and not a claim of silence.
    """
    shares = [float(np.var(p, ddof=1)) / len(p) for p in pairs if len(p) > 1]
    return median(np.asarray(shares)) if shares else 0.0


def clusters(levels: Sequence[RoundLevel]) -> list[list[RoundLevel]]:
    """Rounds grouped so that no process is in two groups: rounds that share a process are one observation."""
    groups: list[tuple[set[tuple[str, str]], list[RoundLevel]]] = []
    for level in levels:
        keys = {("f", r) for r in level.failing_id} | {("c", r) for r in level.comparator_id}
        members = [level]
        rest = []
        for known, held in groups:
            if known & keys:
                keys |= known
                members = held + members
            else:
                rest.append((known, held))
        groups = [*rest, (keys, members)]
    return [members for _, members in groups]
