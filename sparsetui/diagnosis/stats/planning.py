"""When to decide and when to stop: looking after every round must not buy false alarms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sparsetui.diagnosis.stats.intervals import normal_quantile, t_quantile

if TYPE_CHECKING:
    from sparsetui.diagnosis.stats.comparison import Comparison

# Two-sided level at the last planned look. With the boundary below and a look after every round the whole
# investigation then errs in about 0.5 % of A/A pairs.
FINAL_ALPHA = 0.004
LEAST_ROUNDS = 2  # fewer cannot show how much processes differ


def decision_level(rounds: int, planned: int | None = None) -> float:
    """Confidence level a claim needs when ``rounds`` of ``planned`` rounds are in.

    O'Brien and Fleming's boundary: the normal quantile of the last look times √(planned/rounds). Early looks are so
    strict that they cost almost nothing, yet a factor of two still shows after two or three rounds. ``None`` or
    ``planned ≤ rounds``: the last look.
    """
    fraction = 1.0 if not planned else min(max(rounds, 1) / planned, 1.0)
    z = normal_quantile(1.0 - FINAL_ALPHA / 2.0) / math.sqrt(fraction)
    return math.erf(z / math.sqrt(2.0))


def needs_more(comparison: Comparison, threshold: float | None = None) -> bool:
    """Whether another round can still change or sharpen the answer.

    False once the pair differs, or once the interval excludes any change larger than ``threshold`` (ratio − 1; default
    the comparison's own).
    """
    if comparison.rounds < LEAST_ROUNDS or comparison.se is None or comparison.log_ratio is None:
        return True
    if comparison.differs:
        return False
    band = math.log1p(comparison.threshold if threshold is None else threshold)
    half = t_quantile(comparison.same_level / 2.0 + 0.5, comparison.df) * comparison.se
    return abs(comparison.log_ratio) + half > band


def rounds_to_decide(comparison: Comparison, threshold: float | None = None, *, most: int = 64) -> int | None:
    """Rounds in all (those in hand included) after which the pair is expected to be decided either way.

    Takes the ratio and the spread as they are now. ``None`` if ``most`` rounds would not do, or nothing is known yet.
    """
    if comparison.se is None or comparison.log_ratio is None:
        return None
    if not needs_more(comparison, threshold):
        return comparison.rounds
    band = math.log1p(comparison.threshold if threshold is None else threshold)
    sd = comparison.se * math.sqrt(comparison.rounds)
    extra = comparison.df - comparison.rounds  # degrees of freedom that do not grow
    effect = abs(comparison.log_ratio)
    for n in range(comparison.rounds + 1, most + 1):
        df, se = max(n + extra, 1.0), sd / math.sqrt(n)
        floor = max(t_quantile(0.5 + decision_level(n, n) / 2.0, df) * se, math.log1p(comparison.resolution))
        if effect > floor or effect + t_quantile(0.5 + comparison.same_level / 2.0, df) * se <= band:
            return n
    return None
