"""The regression budget: the gap between the variants split by mechanism, with the unexplained rest."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sparsetui.diagnosis.stats import Closure, Comparison
from sparsetui.diagnosis.stats.closures import Question, gap_fraction
from sparsetui.evidence.records import BudgetLine, Number, RegressionBudget, unavailable
from sparsetui.flow import ORDER

UNEXPLAINED = "unexplained"


def regression_budget(
    comparison: Comparison,
    closures: Mapping[str, Closure],
    question: Question = "regression",
    *,
    ideal_ratio: float | None = None,
) -> RegressionBudget:
    """Split the gap by mechanism id, in ms of the failing step, in stage order.

    Closures that did not help are left out. Mechanisms overlap: where they add up to more than the gap, a later stage
    gets only what is left, and its line says so. Each line is what its intervention took off the failing step, so the
    gap's own uncertainty falls on ``unexplained``, which is what is left of the gap.
    ``ideal_ratio`` (1 / declared speed-up) defaults to the one the closures were computed with. The last
    line is always ``unexplained``.
    """
    if ideal_ratio is None:
        ideal_ratio = next((c.ideal_ratio for c in closures.values() if c.ideal_ratio), None)
    gap = _gap(comparison, question, ideal_ratio)
    if gap.value is None or gap.value <= 0.0:
        why = gap.reason or "the failing variant is not behind: there is no gap to split"
        rest = BudgetLine(UNEXPLAINED, unavailable(why, "ms"), unavailable(why))
        return RegressionBudget(question=question, gap_ms=gap, lines=(rest,))
    step = float(comparison.failing_ms.value or math.nan)
    left, variance = gap.value, _variance(gap)
    lines: list[BudgetLine] = []
    for mechanism, closed in sorted(closures.items(), key=lambda item: _stage(item[0])):
        effect = closed.effect
        if effect.value is None or effect.ci is None or effect.value <= 0.0:
            continue
        alone, half = effect.value * step, (effect.ci[1] - effect.ci[0]) / 2.0 * step
        taken, reason = alone, None
        if lines and alone > left:
            taken = max(left, 0.0)
            half = math.sqrt(variance)
            reason = (
                f"closes {alone:.3g} ms alone; stages before it already account for all but {taken:.3g} ms of the gap"
            )
        elif alone - half > gap.value:
            reason = "closes more than the gap: elsewhere the failing step gains on its target"
        lines.append(_line(mechanism, taken, half, gap, reason, effect.n))
        left -= taken
        if taken == alone:
            variance += half**2
    lines.append(_line(UNEXPLAINED, left, math.sqrt(variance), gap, None, comparison.rounds))
    return RegressionBudget(question=question, gap_ms=gap, lines=tuple(lines))


def _stage(mechanism: str) -> int:
    return ORDER.get(mechanism.partition(".")[0], len(ORDER))


def _gap(comparison: Comparison, question: Question, ideal_ratio: float | None) -> Number:
    ratio, step = comparison.ratio, comparison.failing_ms.value
    if ratio.value is None or step is None:
        return unavailable(ratio.reason or "the variants were not compared", "ms")
    if question == "missing-speedup" and not ideal_ratio:
        return unavailable("no speed-up is declared, so there is no ideal to fall short of", "ms")

    def at(r: float) -> float:
        return step * gap_fraction(math.log(r), question, ideal_ratio)

    ci = (at(ratio.ci[0]), at(ratio.ci[1])) if ratio.ci else None
    return Number(value=at(ratio.value), ci=ci, n=comparison.rounds, unit="ms", quality="derived")


def _variance(number: Number) -> float:
    return ((number.ci[1] - number.ci[0]) / 2.0) ** 2 if number.ci else 0.0


def _line(mechanism: str, ms: float, half: float, gap: Number, reason: str | None, n: int | None) -> BudgetLine:
    """A line with its share; the share's interval adds the gap's own relative uncertainty to the line's."""
    whole = float(gap.value or math.nan)
    share = ms / whole
    wide = (
        math.hypot(half / whole, share * math.sqrt(_variance(gap)) / whole)
        if mechanism != UNEXPLAINED
        else half / whole
    )
    return BudgetLine(
        mechanism=mechanism,
        ms=Number(value=ms, ci=(ms - half, ms + half), n=n, unit="ms", quality="derived", reason=reason),
        share=Number(value=share, ci=(share - wide, share + wide), n=n, quality="derived", reason=reason),
    )
