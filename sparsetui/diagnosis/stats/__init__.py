"""Statistics of a live comparison: replicas as random effects, intervals, floors, and when to stop.

Pure: NumPy, and ``scipy.special`` for Student's t on first use. Times are milliseconds per step everywhere; ratios are
failing over comparator unless a name says otherwise.

=============== =================================================================================================
module          holds
=============== =================================================================================================
``intervals``   location, slope and bootstrap intervals of plain arrays
``rounds``      :class:`Block`, :class:`Round`, :class:`ArmRound`, and how blocks become one log-ratio per process pair
``comparison``  :func:`compare`: the ratio, its interval, the A/A floor and the verdict
``planning``    the decision boundary over looks, :func:`needs_more`, :func:`rounds_to_decide`
``quantiles``   p50, p95, p99 with intervals, and whether the tail alone got slower
``calm``        what an undisturbed host would have shown, to end a search and never to claim
``closures``    what an intervention closes
``trouble``     what the host took from each block, and from which variant more
=============== =================================================================================================
"""

from __future__ import annotations

from sparsetui.diagnosis.stats.calm import calm, settle_by_calm
from sparsetui.diagnosis.stats.closures import Closure, closure, in_calm
from sparsetui.diagnosis.stats.comparison import Comparison, compare
from sparsetui.diagnosis.stats.intervals import (
    Interval,
    Location,
    hodges_lehmann,
    normal_quantile,
    paired_bootstrap,
    paired_difference,
    robust_location,
    signed_rank_interval,
    slope,
    t_interval,
    t_quantile,
)
from sparsetui.diagnosis.stats.planning import decision_level, needs_more, rounds_to_decide
from sparsetui.diagnosis.stats.quantiles import TailComparison, quantile_summary, ratio_quantiles
from sparsetui.diagnosis.stats.rounds import ArmRound, Block, Round
from sparsetui.diagnosis.stats.trouble import Trouble, trouble

__all__ = [
    "ArmRound",
    "Block",
    "Closure",
    "Comparison",
    "Interval",
    "Location",
    "Round",
    "TailComparison",
    "Trouble",
    "calm",
    "closure",
    "compare",
    "decision_level",
    "hodges_lehmann",
    "in_calm",
    "needs_more",
    "normal_quantile",
    "paired_bootstrap",
    "paired_difference",
    "quantile_summary",
    "ratio_quantiles",
    "robust_location",
    "rounds_to_decide",
    "settle_by_calm",
    "signed_rank_interval",
    "slope",
    "t_interval",
    "t_quantile",
    "trouble",
]
