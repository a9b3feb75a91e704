"""Quantiles of step times and of their ratio, with both levels resampled: processes, then blocks within them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsetui.diagnosis.stats.intervals import Interval, signed_rank_interval, t_quantile
from sparsetui.diagnosis.stats.planning import FEW, FINAL_ALPHA
from sparsetui.diagnosis.stats.rounds import Block, Round
from sparsetui.evidence.records import Number, unavailable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

QUANTILES: dict[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
BEYOND = 10  # steps that must lie beyond a quantile for it to be shown
LEAST_FOR_TAIL = 5  # rounds: fewer cannot show at 5 % that most of them agree
CELLS = 1500  # distinct times kept apart while resampling


class TailComparison(msgspec.Struct, frozen=True):
    """Failing over comparator at each quantile; ``strict_ci`` are the intervals that decide ``tail_slower``."""

    ratios: dict[str, Number]
    strict_ci: dict[str, Interval]
    tail_slower: bool
    reason: str


def quantile_summary(
    blocks: Sequence[Block], *, level: float = 0.95, resamples: int = 600, seed: int = 0
) -> dict[str, Number]:
    """p50, p95 and p99 of step times in ms over all blocks; ``n`` counts steps.

    A quantile q is ``unavailable`` unless n·(1 − q) ≥ 10. The interval takes its standard error from a bootstrap over
    replicas and then blocks, on the log scale, and Student's t on as many degrees of freedom as there are replicas
    less one; from a single replica it covers that process alone, and ``reason`` says so.
    """
    groups: dict[str, list[Block]] = {}
    for block in blocks:
        groups.setdefault(block.replica, []).append(block)
    sample = _Sample([_times(g) for g in groups.values()])
    shown = [name for name in QUANTILES if _enough(sample.steps, name)]
    out = {name: unavailable(_too_few(name, sample.steps), "ms") for name in QUANTILES}
    if not shown:
        return out
    rng = np.random.default_rng(seed)
    qs = np.array([QUANTILES[name] for name in shown])
    draws = np.log(sample.resampled(sample.picks(resamples, rng), qs, rng))
    replicas = len(sample.sizes)
    units = replicas if replicas > 1 else int(sample.sizes[0])
    for name, value, column in zip(shown, np.quantile(sample.times, qs), draws.T, strict=True):
        log = math.log(value)
        half = _half(column, units, level)
        ci = (math.exp(log - half), math.exp(log + half)) if half is not None else None
        why = None if replicas > 1 else "one process: how much processes differ is not in the interval"
        out[name] = Number(value=float(value), ci=ci, n=sample.steps, unit="ms", reason=why)
    return out


def ratio_quantiles(
    rounds: Sequence[Round],
    *,
    level: float = 0.95,
    floor: float = 0.0,
    resolution: float = 0.005,
    resamples: int = 600,
    seed: int = 0,
) -> TailComparison:
    """Ratio failing/comparator of pooled p50, p95 and p99 by paired bootstrap over rounds, then blocks of each side.

    ``tail_slower``: the whole interval of p95 or p99 at the decision level lies above 1 + max(floor, resolution), *and*
    round by round more failing than comparator steps lie beyond the pooled quantile (signed rank, 5 % one-sided, so
    from five rounds on): a few blocks that a neighbour hit can move a pooled tail, but not most rounds. Pass the
    comparison's ``floor``. A quantile is ``unavailable`` unless both sides
    support it. For the ratio of p50 prefer :func:`compare`, whose pairs cancel drift.
    """
    sides = [(_times(r.failing), _times(r.comparator)) for r in rounds]
    sides = [s for s in sides if s[0] and s[1]]
    failing, comparator = _Sample([s[0] for s in sides]), _Sample([s[1] for s in sides])
    n, units = min(failing.steps, comparator.steps), len(sides)
    ratios = {name: unavailable(_too_few(name, n), "×") for name in QUANTILES}
    shown = [name for name in QUANTILES if _enough(n, name)]
    strict: dict[str, Interval] = {}
    if shown:
        rng = np.random.default_rng(seed)
        qs = np.array([QUANTILES[name] for name in shown])
        value = np.quantile(failing.times, qs) / np.quantile(comparator.times, qs)
        picks = failing.picks(resamples, rng)
        draws = np.log(failing.resampled(picks, qs, rng) / comparator.resampled(picks, qs, rng))
        for name, v, column in zip(shown, value, draws.T, strict=True):
            half, wide = _half(column, units, level), _half(column, units, 1.0 - FINAL_ALPHA)
            log = math.log(v)
            ci = (math.exp(log - half), math.exp(log + half)) if half is not None and units > 1 else None
            ratios[name] = Number(value=float(v), ci=ci, n=n, unit="×")
            if wide is not None and units > 1:
                strict[name] = (math.exp(log - wide), math.exp(log + wide))
    least = max(floor, resolution, FEW.get(units, 0.0))
    slow = [
        k for k in ("p95", "p99") if k in strict and strict[k][0] > 1.0 + least and _most_rounds(sides, QUANTILES[k])
    ]
    if slow:
        reason = f"{' and '.join(slow)} slower beyond ±{least:.1%}"
    elif units < LEAST_FOR_TAIL:
        reason = f"tails are judged from {LEAST_FOR_TAIL} rounds on, {units} were measured"
    else:
        reason = f"no tail is slower beyond ±{least:.1%} at the decision level"
    return TailComparison(ratios=ratios, strict_ci=strict, tail_slower=bool(slow), reason=reason)


class _Sample:
    """Step times by group (process or round) and block, ready to be resampled as counts rather than copies.

    A resample is a vector of block multiplicities; its quantile is read off the weighted sum of the blocks' histograms
    over shared cells. Cells are single values for small samples, else equal slices of the pooled sample, finer in the
    upper tail, each standing for its mean.
    """

    def __init__(self, groups: list[list[Floats]]) -> None:
        groups = [g for g in groups if g]
        self.sizes: Ints = np.array([len(g) for g in groups], dtype=np.int64)
        blocks = [b for g in groups for b in g]
        self.times: Floats = np.concatenate(blocks) if blocks else np.empty(0)
        self.steps = int(self.times.size)
        if not blocks:
            return
        edges = np.unique(self.times)
        if edges.size > CELLS:
            grid = np.concatenate(
                [np.linspace(0.0, 0.9, CELLS // 2, endpoint=False), np.linspace(0.9, 1.0, CELLS // 2)]
            )
            edges = np.unique(np.quantile(self.times, grid, method="higher"))
        cell = np.searchsorted(edges, self.times, side="left")
        owner = np.repeat(np.arange(len(blocks)), [b.size for b in blocks])
        counts = np.bincount(owner * edges.size + cell, minlength=len(blocks) * edges.size)
        self._counts = counts.reshape(len(blocks), edges.size).astype(np.float32)
        self._values: Floats = np.bincount(cell, weights=self.times, minlength=edges.size) / np.maximum(
            np.bincount(cell, minlength=edges.size), 1
        )

    def picks(self, resamples: int, rng: np.random.Generator) -> Ints:
        """How often each group is drawn; shape ``(resamples, groups)``."""
        k = self.sizes.size
        return rng.multinomial(k, np.full(k, 1.0 / k), size=resamples)

    def resampled(self, picks: Ints, qs: Floats, rng: np.random.Generator) -> Floats:
        """Quantiles of each resample; shape ``(resamples, len(qs))``."""
        weights = np.concatenate(
            [rng.multinomial(picks[:, g] * size, np.full(size, 1.0 / size)) for g, size in enumerate(self.sizes)],
            axis=1,
        )
        filled = np.cumsum(weights.astype(np.float32) @ self._counts, axis=1, dtype=np.float64)
        wanted = filled[:, -1:] * qs[None, :]
        cells = (filled[:, None, :] < wanted[:, :, None] - 1e-6).sum(axis=2)
        return np.asarray(self._values[np.minimum(cells, self._values.size - 1)])


def _times(blocks: Sequence[Block]) -> list[Floats]:
    arrays = [np.asarray(b.times_ms, dtype=np.float64) for b in blocks]
    arrays = [a[np.isfinite(a) & (a > 0)] for a in arrays]
    return [a for a in arrays if a.size]


def _most_rounds(sides: Sequence[tuple[list[Floats], list[Floats]]], q: float) -> bool:
    """Whether rounds agree that failing steps lie beyond the pooled quantile more often than the comparator's do."""
    steps = [(np.concatenate(f), np.concatenate(c)) for f, c in sides]
    beyond = np.quantile(np.concatenate([s for pair in steps for s in pair]), q)
    excess = [float((f > beyond).mean() - (c > beyond).mean()) for f, c in steps]
    interval = signed_rank_interval(excess, 0.90)
    return interval is not None and interval[0] > 0.0


def _enough(n: int, name: str) -> bool:
    return n * (1.0 - QUANTILES[name]) >= BEYOND - 1e-9


def _too_few(name: str, n: int) -> str:
    return f"{name} needs {math.ceil(BEYOND / (1.0 - QUANTILES[name]) - 1e-9)} steps, {n} were measured"


def _half(draws: Floats, units: int, level: float) -> float | None:
    """Half width from the bootstrap's spread: it lacks the factor n/(n − 1) and the tails of t, which few units need."""
    if units < 2:
        return None
    se = float(draws.std(ddof=1)) * math.sqrt(units / (units - 1.0))
    return t_quantile(0.5 + level / 2.0, units - 1.0) * se
