"""The comparison of two variants over replicas: ratio, interval, A/A floor and verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from sparsetui.diagnosis.stats.intervals import Interval, robust_location, t_quantile
from sparsetui.diagnosis.stats.planning import LEAST_ROUNDS, decision_level
from sparsetui.diagnosis.stats.rounds import Round, RoundLevel, clusters, reduce_round
from sparsetui.evidence.records import Number, unavailable

Direction = Literal["slower", "faster", "same", "undecided"]

# Measured on the hosts this was built on: identical processes differ by 1.5-2 % of a step, a pair by √2 times that.
PRIOR_SD = 0.015 * math.sqrt(2.0)
PRIOR_DF = 4.0
SAME_LEVEL = 0.90  # two one-sided tests at 5 % each


class Comparison(msgspec.Struct, frozen=True):
    """Failing against comparator. Logs are natural; ``*_sd``, ``floor``, ``resolution``, ``threshold`` are ratio − 1.

    ``floor`` is what two sets of identical processes, as many as these, may differ by at the decision level.
    ``verdict`` is ``slower`` or ``faster`` only when the ratio is beyond the floor *and* the whole 95 % interval is
    beyond ``resolution``; ``same`` only when the interval at ``same_level`` lies within ±``band``.
    """

    ratio: Number
    failing_ms: Number
    comparator_ms: Number
    floor: Number
    verdict: Direction
    differs: bool
    reason: str
    rounds: int  # independent pairs of processes
    blocks: int
    log_ratios: tuple[float, ...] = ()
    log_ratio: float | None = None
    se: float | None = None
    df: float = 0.0
    between_sd: float | None = None
    within_sd: float | None = None
    level: float = 0.95
    decision_level: float = 0.995
    decision_ci: Interval | None = None
    same_level: float = SAME_LEVEL
    resolution: float = 0.005
    threshold: float = 0.02
    band: float = 0.02


def compare(
    rounds: Sequence[Round],
    *,
    level: float = 0.95,
    resolution: float = 0.005,
    threshold: float = 0.02,
    planned: int | None = None,
) -> Comparison:
    """Compare p50 of the failing with that of the comparator variant over replica rounds.

    ``planned`` is the number of rounds the budget was cut for; leave it out at the last look.
    """
    reduced = [r for r in map(reduce_round, rounds) if r is not None]
    groups = clusters(reduced)
    n, blocks = len(groups), sum(r.blocks for r in reduced)
    if not n:
        why = "no round has a usable block of both variants"
        return Comparison(
            ratio=unavailable(why, "×"), failing_ms=unavailable(why, "ms"), comparator_ms=unavailable(why, "ms"),
            floor=unavailable(why), verdict="undecided", differs=False, reason=why, rounds=0, blocks=blocks,
            level=level, resolution=resolution, threshold=threshold, band=threshold,
        )  # fmt: skip
    logs = np.array([np.mean([r.log_ratio for r in g]) for g in groups])
    failing = _level_ms([r.failing for r in reduced], level)
    comparator = _level_ms([r.comparator for r in reduced], level)
    within = _within_sd(reduced)
    if n < LEAST_ROUNDS:
        why = "one pair of processes: how much identical processes differ is not known yet"
        return Comparison(
            ratio=Number(value=math.exp(float(logs[0])), n=1, unit="×", reason=why),
            failing_ms=failing, comparator_ms=comparator, floor=unavailable(why), verdict="undecided", differs=False,
            reason=why, rounds=n, blocks=blocks, log_ratios=tuple(map(float, logs)), log_ratio=float(logs[0]),
            within_sd=within, level=level, resolution=resolution, threshold=threshold, band=threshold,
        )  # fmt: skip
    where = robust_location(logs, prior_sd=PRIOR_SD, prior_df=PRIOR_DF)
    low, high = where.interval(level)
    strict = decision_level(n, planned)
    reach = max(t_quantile(0.5 + strict / 2.0, where.df) * where.se, math.log1p(resolution))
    floor = math.expm1(reach)
    band = max(threshold, min(floor, 2.0 * threshold))
    verdict, reason = _decide(where.value, (low, high), where.interval(SAME_LEVEL), floor, resolution, band)
    return Comparison(
        ratio=Number(value=math.exp(where.value), ci=(math.exp(low), math.exp(high)), n=n, unit="×"),
        failing_ms=failing,
        comparator_ms=comparator,
        floor=Number(value=floor, n=n, quality="derived"),
        verdict=verdict,
        differs=verdict in ("slower", "faster"),
        reason=reason,
        rounds=n,
        blocks=blocks,
        log_ratios=tuple(map(float, logs)),
        log_ratio=where.value,
        se=where.se,
        df=where.df,
        between_sd=where.se * math.sqrt(n / 2.0),
        within_sd=within,
        level=level,
        decision_level=strict,
        decision_ci=tuple(math.exp(v) for v in where.interval(strict)),  # type: ignore[arg-type]
        resolution=resolution,
        threshold=threshold,
        band=band,
    )


def _decide(
    centre: float, interval: Interval, narrow: Interval, floor: float, resolution: float, band: float
) -> tuple[Direction, str]:
    reach, least, room = math.log1p(floor), math.log1p(resolution), math.log1p(band)
    if centre > reach and interval[0] > least:
        return "slower", f"the ratio is beyond the A/A floor of ±{floor:.1%}"
    if centre < -reach and interval[1] < -least:
        return "faster", f"the ratio is beyond the A/A floor of ±{floor:.1%}"
    if narrow[0] > -room and narrow[1] < room:
        return "same", f"the ratio lies within ±{band:.1%}"
    return "undecided", f"the interval still holds both no change and a change beyond ±{band:.1%}"


def _level_ms(logs: list[float], level: float) -> Number:
    """Typical step time over processes, in ms; the interval includes host drift between rounds."""
    where = robust_location(logs, prior_sd=PRIOR_SD, prior_df=PRIOR_DF)
    low, high = where.interval(level)
    ci = (math.exp(low), math.exp(high)) if len(logs) >= LEAST_ROUNDS else None
    return Number(value=math.exp(where.value), ci=ci, n=len(logs), unit="ms")


def _within_sd(levels: list[RoundLevel]) -> float | None:
    """Robust sd of a block's log time within its process, from adjacent pairs about their round's centre."""
    deviations = [abs(p - r.log_ratio) for r in levels if len(r.pairs) > 1 for p in r.pairs]
    if not deviations:
        return None
    return 1.4826 * float(np.median(deviations)) / math.sqrt(2.0)
