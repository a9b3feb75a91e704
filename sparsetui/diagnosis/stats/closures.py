"""What an intervention closes: three interleaved arms in one process against the gap between the variants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from sparsetui.diagnosis.stats.comparison import Comparison
from sparsetui.diagnosis.stats.intervals import WITHIN_DF, WITHIN_SD, Location, robust_location, t_quantile
from sparsetui.diagnosis.stats.planning import FINAL_ALPHA
from sparsetui.diagnosis.stats.rounds import ArmRound, Block, block_median, pair_adjacent, pair_noise, walsh_median
from sparsetui.evidence.records import Number, unavailable

Question = Literal["regression", "missing-speedup"]

# How far the same rewrite may come out differently in another process; only used to weigh few replicas.
BETWEEN_SD = 0.005
BETWEEN_DF = 4.0
STRICT = 1.0 - FINAL_ALPHA


class Closure(msgspec.Struct, frozen=True):
    """What switching one mechanism off did.

    ``closed_ratio`` = T_intervened / T_control (below 1: the intervention helps); ``effect`` = (T_control −
    T_intervened) / T_off; ``share`` = effect over the gap's share of the failing step. ``closes`` and ``worsens`` rest
    on the within-process difference alone, at the strict level: the gap's own uncertainty cannot change a sign.
    """

    question: Question
    share: Number
    effect: Number
    closed_ratio: Number
    control_ratio: Number  # T_control / T_off: what the pass-through mode itself costs
    off_ms: Number
    closed_ms: Number
    closes: bool
    worsens: bool
    n: int  # cycles
    replicas: int
    resolution: float = 0.01
    ideal_ratio: float | None = None
    reason: str = ""
    skipped: float | None = None  # share of the step's ops that the intervened arm did not run, nor others in their place

    @property
    def material(self) -> bool:
        """The intervention closes a share whose interval excludes zero, by more than the resolution."""
        return self.closes and self.share.value is not None and self.share.ci is not None and self.share.ci[0] > 0.0


def closure(
    arms: Sequence[ArmRound],
    comparison: Comparison,
    *,
    question: Question = "regression",
    ideal_ratio: float | None = None,
    level: float = 0.95,
    resolution: float = 0.01,
    seed: int = 0,
) -> Closure:
    """The share of the gap that an intervention closed, with intervals.

    ``ideal_ratio`` is the ideal over the comparator's time (1 / declared speed-up), needed for ``missing-speedup``.
    With r = failing / comparator, the gap is the fraction 1 − 1/r of the failing step for a regression and
    1 − ideal_ratio/r for a missing speed-up. The share's interval draws effect and log r from their t distributions.
    Each cycle is one observation: many short cycles tell more than a few long ones. One process cannot show how
    another would have laid out its temporaries, hence a ``resolution`` of 1 % below which nothing counts as closed.
    Raises ValueError when ``missing-speedup`` comes without an ``ideal_ratio``.
    """
    if question == "missing-speedup" and not ideal_ratio:
        raise ValueError("a missing speed-up needs ideal_ratio = 1 / declared speed-up")
    cycles = [c for c in map(_cycle, arms) if c is not None]
    if len(cycles) < 2:
        why = f"an intervention needs two complete cycles, {len(cycles)} were measured"
        none = unavailable(why)
        return Closure(
            question=question, share=none, effect=none, closed_ratio=unavailable(why, "×"), ideal_ratio=ideal_ratio,
            control_ratio=unavailable(why, "×"), off_ms=unavailable(why, "ms"), closed_ms=unavailable(why, "ms"),
            closes=False, worsens=False, n=len(cycles), replicas=len({c.replica for c in cycles}),
            resolution=resolution, reason=why,
        )  # fmt: skip
    n = len(cycles)
    names = [c.replica for c in cycles]
    closed_noise, mode_noise = pair_noise(c.closed_pairs for c in cycles), pair_noise(c.mode_pairs for c in cycles)
    log_closed = _location([c.log_closed for c in cycles], names, closed_noise)
    log_mode = _location([c.log_mode for c in cycles], names, mode_noise)
    effect = _location([c.effect for c in cycles], names, closed_noise)
    off = math.exp(float(np.median([c.log_off for c in cycles])))
    strict = log_closed.interval(STRICT)
    least = math.log1p(resolution)
    e_low, e_high = effect.interval(level)
    share = _share(effect, comparison, question, ideal_ratio, level, n, seed)
    return Closure(
        question=question,
        share=share,
        effect=Number(value=effect.value, ci=(e_low, e_high), n=n),
        closed_ratio=_exp(log_closed, level),
        control_ratio=_exp(log_mode, level),
        off_ms=Number(value=off, n=n, unit="ms"),
        closed_ms=Number(value=effect.value * off, ci=(e_low * off, e_high * off), n=n, unit="ms"),
        closes=strict[1] < 0.0 and log_closed.value < -least,
        worsens=strict[0] > 0.0 and log_closed.value > least,
        n=n,
        replicas=len({c.replica for c in cycles}),
        resolution=resolution,
        ideal_ratio=ideal_ratio,
        reason=share.reason or "",
        skipped=_skipped(arms),
    )


def _skipped(arms: Sequence[ArmRound]) -> float | None:
    told = [float(b.conditions["skipped"]) for arm in arms for b in arm.intervened if "skipped" in b.conditions]
    return float(np.median(told)) if told else None


_LEAST_CALM = 3  # pairs of processes, below which calm has shown nothing


def in_calm(
    before: Comparison,
    calm: Comparison,
    *,
    question: Question = "regression",
    ideal_ratio: float | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Closure:
    """What calm closes of the gap that was measured before: the same pair, in blocks that nothing was taken from.

    ``effect`` is the part of the failing step that is gone against the comparator. It closes the gap only where the gap is
    gone: the pair is level in calm, or at the most half of the gap is left within the interval. What is left in calm is
    the release's own, and then calm is not what it needs.
    """
    b, c = before.log_ratio, calm.log_ratio
    if b is None or c is None or before.se is None or calm.se is None or calm.rounds < _LEAST_CALM:
        why = f"calm pairs say nothing before there are {_LEAST_CALM}, {calm.rounds} were measured"
        none = unavailable(why)
        return Closure(
            question=question, share=none, effect=none, closed_ratio=unavailable(why, "×"), ideal_ratio=ideal_ratio,
            control_ratio=unavailable(why, "×"), off_ms=unavailable(why, "ms"), closed_ms=unavailable(why, "ms"),
            closes=False, worsens=False, n=calm.rounds, replicas=calm.rounds, reason=why,
        )  # fmt: skip
    fell = Location(value=c - b, se=math.hypot(before.se, calm.se), df=min(before.df, calm.df), n=calm.rounds, sd=0.0)
    low, high = fell.interval(level)
    effect = Number(value=-math.expm1(fell.value), ci=(-math.expm1(high), -math.expm1(low)), n=calm.rounds)
    whole = gap_fraction(b, question, ideal_ratio)
    rng = np.random.default_rng(seed)
    befores = b + before.se * rng.standard_t(before.df, 4000)
    calms = c + calm.se * rng.standard_t(calm.df, 4000)
    gaps = 1.0 - math.exp(b) * (1.0 - whole) * np.exp(np.clip(-befores, -700.0, 700.0))
    share = unavailable("the gap between the variants is not clear of zero, so no share of it can be stated")
    if whole > 0.0 and float((gaps <= 0.0).mean()) <= (1.0 - level) / 2.0:
        drawn = -np.expm1(np.clip(calms - befores, -700.0, 700.0)) / gaps
        ends = np.quantile(drawn, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
        value = float(effect.value or 0.0) / whole
        share = Number(
            value=value, ci=(min(float(ends[0]), value), max(float(ends[1]), value)), n=calm.rounds, quality="derived"
        )
    target = 0.0 if question == "regression" else math.log(float(ideal_ratio or 1.0))
    left = c + t_quantile(0.5 + level / 2.0, calm.df) * calm.se - target
    gone = calm.verdict != "slower" if question == "regression" else True
    off = float(before.failing_ms.value or math.nan)
    return Closure(
        question=question,
        share=share,
        effect=effect,
        closed_ratio=_exp(fell, level),
        control_ratio=Number(value=1.0, n=calm.rounds, unit="×", quality="derived"),
        off_ms=before.failing_ms,
        closed_ms=Number(value=float(effect.value or 0.0) * off, n=calm.rounds, unit="ms", quality="derived"),
        closes=gone and left <= 0.5 * (b - target) and fell.interval(STRICT)[1] < 0.0,
        worsens=fell.interval(STRICT)[0] > 0.0,
        n=calm.rounds,
        replicas=calm.rounds,
        ideal_ratio=ideal_ratio,
        reason=share.reason or "",
    )


def gap_fraction(log_ratio: float, question: Question, ideal_ratio: float | None) -> float:
    """The gap as a fraction of the failing step: 1 − 1/r, or 1 − ideal_ratio/r."""
    target = 1.0 if question == "regression" else float(ideal_ratio or 0.0)
    return 1.0 - target * math.exp(-log_ratio)


class _Cycle(msgspec.Struct, frozen=True):
    log_closed: float
    log_mode: float
    log_off: float
    effect: float
    closed_pairs: tuple[float, ...]
    mode_pairs: tuple[float, ...]
    replica: str


def _cycle(arm: ArmRound) -> _Cycle | None:
    off, control, intervened = (
        [(b.order, m) for b in blocks if not math.isnan(m := block_median(b))]
        for blocks in (arm.off, arm.control, arm.intervened)
    )
    if not (off and control and intervened):
        return None
    closed_pairs, mode_pairs = _paired(intervened, control), _paired(control, off)
    log_closed, log_mode = walsh_median(np.array(closed_pairs)), walsh_median(np.array(mode_pairs))
    first: Block = arm.off[0]
    return _Cycle(
        log_closed=log_closed,
        log_mode=log_mode,
        log_off=float(np.median(np.log([m for _, m in off]))),
        effect=math.exp(log_mode) * (1.0 - math.exp(log_closed)),
        closed_pairs=closed_pairs,
        mode_pairs=mode_pairs,
        replica=first.replica,
    )


def _paired(top: list[tuple[int, float]], bottom: list[tuple[int, float]]) -> tuple[float, ...]:
    return tuple(pair_adjacent([(o, m, True) for o, m in top] + [(o, m, False) for o, m in bottom]))


def _location(x: list[float], replicas: list[str], noise: float) -> Location:
    """Centre over cycles; with several processes, whichever level (cycle or process) leaves the wider interval.

    ``noise`` is the variance that block noise leaves in a cycle: cycles that agree better than that do so by luck.
    """
    cycles = robust_location(x, prior_sd=math.sqrt(WITHIN_SD**2 + noise), prior_df=WITHIN_DF + (len(x) if noise else 0))
    names = sorted(set(replicas))
    if len(names) < 2:
        return cycles
    values, owner = np.asarray(x), np.asarray(replicas)
    means = [float(np.median(values[owner == name])) for name in names]
    processes = robust_location(means, prior_sd=BETWEEN_SD, prior_df=BETWEEN_DF)
    wider = max(cycles, processes, key=lambda where: np.diff(where.interval(STRICT))[0])
    return msgspec.structs.replace(wider, value=cycles.value, n=cycles.n)


def _exp(where: Location, level: float) -> Number:
    low, high = where.interval(level)
    return Number(value=math.exp(where.value), ci=(math.exp(low), math.exp(high)), n=where.n, unit="×")


def _share(
    effect: Location,
    comparison: Comparison,
    question: Question,
    ideal_ratio: float | None,
    level: float,
    n: int,
    seed: int,
) -> Number:
    if comparison.log_ratio is None or comparison.se is None:
        return unavailable("the gap has no interval yet: " + comparison.reason)
    gap = gap_fraction(comparison.log_ratio, question, ideal_ratio)
    rng = np.random.default_rng(seed)
    effects = effect.value + effect.se * rng.standard_t(effect.df, 4000)
    target = 1.0 if question == "regression" else float(ideal_ratio or 0.0)
    drawn = comparison.log_ratio + comparison.se * rng.standard_t(comparison.df, 4000)
    gaps = 1.0 - target * np.exp(np.clip(-drawn, -700.0, 700.0))  # one pair of processes has the tails of a Cauchy
    if gap <= 0.0 or float((gaps <= 0.0).mean()) > (1.0 - level) / 2.0:
        return unavailable("the gap between the variants is not clear of zero, so no share of it can be stated")
    low, high = np.quantile(effects / gaps, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    value = effect.value / gap
    return Number(value=value, ci=(min(float(low), value), max(float(high), value)), n=n, quality="derived")
