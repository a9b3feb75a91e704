"""When to decide and when to stop: looking after every round must not buy false alarms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sparsetui.diagnosis.stats.intervals import t_quantile

if TYPE_CHECKING:
    from sparsetui.diagnosis.stats.comparison import Comparison

FINAL_ALPHA = 0.005  # two-sided, at the last look
EARLY_ALPHA = 0.0003  # two-sided, at every look before it
SAME_LEVEL = 0.90  # "same" is two one-sided tests at 5 % each
LEAST_ROUNDS = 2  # fewer cannot show how much processes differ
LEAST_FOR_SAME = 4

# Rarely a process carries 8-14 %, or shares its core for its whole life. With so few pairs they may all point one way
# by chance, whatever their spread says: no smaller change (ratio − 1) is claimed from so few.
FEW: dict[int, float] = {2: 0.50, 3: 0.20, 4: 0.10, 5: 0.07}


def decision_level(rounds: int, planned: int | None = None) -> float:
    """Confidence level a claim needs when ``rounds`` of ``planned`` rounds are in.

    One strict level at every look before the last (Haybittle and Peto), so that looking after every round costs next
    to nothing, and a factor of two still shows after three rounds. ``None`` or ``planned ≤ rounds`` means the last look:
    ask for that once only. (O'Brien and Fleming's boundary was tried: it spends more false alarms at the looks just
    before the last, and at three rounds of twelve it misses a factor of two.)
    """
    return 1.0 - (FINAL_ALPHA if not planned or rounds >= planned else EARLY_ALPHA)


def decision_floor(se: float, df: float, rounds: int, level: float, resolution: float) -> float:
    """The A/A floor as a ratio − 1: what sets of identical processes, as many as these, differ by at ``level``."""
    sampling = math.expm1(min(t_quantile(0.5 + level / 2.0, df) * se, 50.0))
    return max(sampling, resolution, FEW.get(rounds, 0.0))


def needs_more(comparison: Comparison, threshold: float | None = None) -> bool:
    """Whether another round can still change the answer.

    False once the pair differs, or once the interval excludes any change larger than ``threshold`` (ratio − 1; default
    the comparison's own) on at least four rounds.
    """
    if comparison.differs:
        return False
    if comparison.se is None or comparison.log_ratio is None or comparison.rounds < LEAST_FOR_SAME:
        return True
    band = math.log1p(comparison.threshold if threshold is None else threshold)
    half = t_quantile(0.5 + SAME_LEVEL / 2.0, comparison.df) * comparison.se
    return abs(comparison.log_ratio) + half > band


def rounds_to_decide(comparison: Comparison, threshold: float | None = None, *, most: int = 64) -> int | None:
    """Rounds in all (those in hand included) after which the pair is expected to be decided either way.

    Takes the ratio and the spread as they are now, and the level of a last look. ``None`` if ``most`` rounds would not
    do, or nothing is known of the spread yet.
    """
    if comparison.se is None or comparison.log_ratio is None:
        return None
    if not needs_more(comparison, threshold):
        return comparison.rounds
    band = math.log1p(comparison.threshold if threshold is None else threshold)
    sd = comparison.se * math.sqrt(comparison.rounds)
    per_round = comparison.df / comparison.rounds
    effect = abs(comparison.log_ratio)
    for n in range(comparison.rounds + 1, most + 1):
        df, se = per_round * n, sd / math.sqrt(n)
        floor = math.log1p(decision_floor(se, df, n, decision_level(n), comparison.resolution))
        half = t_quantile(0.5 + SAME_LEVEL / 2.0, df) * se
        if effect > floor or (n >= LEAST_FOR_SAME and effect + half <= band):
            return n
    return None
