"""Location, slope and bootstrap intervals of plain arrays of floats."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparsetui.evidence.records import Number

Floats = NDArray[np.float64]
Interval = tuple[float, float]

EXACT_UP_TO = 25  # signed-rank null distribution is summed exactly up to this n

# Adjacent blocks of one process agree to a fraction of a percent; keeps two that agree by luck from passing for proof.
WITHIN_SD = 0.005
WITHIN_DF = 2.0


class Location(msgspec.Struct, frozen=True):
    """A centre with its standard error and degrees of freedom; ``sd`` is the spread as measured, without any prior."""

    value: float
    se: float
    df: float
    n: int
    sd: float

    def interval(self, level: float) -> Interval:
        half = t_quantile(0.5 + level / 2.0, self.df) * self.se
        return self.value - half, self.value + half


@functools.lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t; ``df`` may be fractional or infinite."""
    if math.isinf(df):
        return normal_quantile(p)
    from scipy.special import stdtrit  # 0.2-1.2 s on first import: only where a quantile is wanted

    return float(stdtrit(df, p))


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal."""
    return NormalDist().inv_cdf(p)


def _finite(x: ArrayLike, least: int = 1) -> Floats:
    values = np.asarray(x, dtype=np.float64).ravel()
    values = values[np.isfinite(values)]
    if values.size < least:
        raise ValueError(f"need at least {least} finite value{'s' if least > 1 else ''}, got {values.size}")
    return values


def walsh_averages(x: Floats) -> Floats:
    """All pairwise means (x_i + x_j)/2 with i ≤ j, sorted; shape ``n(n+1)/2``."""
    i, j = np.triu_indices(x.size)
    return np.sort((x[i] + x[j]) / 2.0)


def hodges_lehmann(x: ArrayLike) -> float:
    """Median of all pairwise means (Hodges and Lehmann 1963). Raises ValueError on no finite value."""
    return float(np.median(walsh_averages(_finite(x))))


@functools.lru_cache(maxsize=64)
def _signed_rank_cdf(n: int) -> Floats:
    """P(W ≤ w) of the signed-rank sum under symmetry, for w = 0..n(n+1)/2."""
    ways = np.zeros(n * (n + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, n + 1):
        ways[rank:] = ways[rank:] + ways[: ways.size - rank]
    return np.asarray(np.cumsum(ways) / 2.0**n)


def signed_rank_interval(x: ArrayLike, level: float = 0.95) -> Interval | None:
    """Interval of the centre of symmetry by inverting Wilcoxon's signed-rank test.

    Exact (conservative) up to n = 25, normal approximation beyond. ``None`` where so few values cannot reach the level
    (n values reach at most 1 − 2^(1−n)).
    """
    values = _finite(x)
    n, alpha = values.size, 1.0 - level
    walsh = walsh_averages(values)
    if n <= EXACT_UP_TO:
        cdf = _signed_rank_cdf(n)
        # the interval [walsh[k], walsh[-1-k]] misses the centre with probability 2 P(W ≤ k)
        k = int(np.searchsorted(cdf, alpha / 2.0 * (1.0 + 1e-12), side="right")) - 1
    else:
        mean, sd = n * (n + 1) / 4.0, math.sqrt(n * (n + 1) * (2 * n + 1) / 24.0)
        k = math.floor(mean - 0.5 - normal_quantile(1.0 - alpha / 2.0) * sd)
    if k < 0:
        return None
    return float(walsh[k]), float(walsh[-1 - k])


def t_interval(x: ArrayLike, level: float = 0.95) -> Interval:
    """Student's interval of the mean. Raises ValueError on fewer than two finite values."""
    values = _finite(x, 2)
    n = values.size
    half = t_quantile(0.5 + level / 2.0, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    mean = float(values.mean())
    return mean - half, mean + half


def median(x: Floats) -> float:
    """Plain median of a non-empty array; a fraction of the time of NumPy's on a block's few values."""
    ordered = np.sort(x)
    return float(ordered[ordered.size // 2] + ordered[(ordered.size - 1) // 2]) / 2.0


def _huber(x: Floats, prior_variance: float, prior_df: float) -> tuple[float, float]:
    """Huber's centre of ``x`` and the sum of squares its variance is made of.

    Values beyond ``2 + 10/n`` robust scales are pulled in to that distance; below six values nothing is, because then
    the scale is as likely to be wrong as the value.
    """
    n = x.size
    centre = median(x)
    mad = 1.4826 * median(np.abs(x - centre))
    scale = math.sqrt((prior_df * prior_variance + n * mad**2) / (prior_df + n)) or float(x.std())
    bound = (2.0 + 10.0 / n) * scale if n >= 6 else math.inf
    for _ in range(50):
        step = float(np.minimum(np.maximum(x - centre, -bound), bound).sum()) / n
        centre += step
        if abs(step) <= 1e-14 * (1.0 + abs(centre)):
            break
    residual = x - centre
    inside = max(float((np.abs(residual) <= bound).mean()), 0.5)
    return centre, float((np.clip(residual, -bound, bound) ** 2).sum()) / inside**2


def robust_location(
    x: ArrayLike, *, prior_sd: float = 0.0, prior_df: float = 0.0, twin: ArrayLike | None = None
) -> Location:
    """Huber's centre with a moderated standard error.

    The variance is Huber's asymptotic one on n − 1 degrees of freedom, moderated (Smyth 2004) by ``prior_df``
    observations' worth of ``prior_sd``: few values that happen to agree must not pass for certainty. The prior only
    guards against too small a spread: once the measured variance s² exceeds it, its weight falls as (prior²/s²)².

    ``twin`` is a second sample with the same variance or a larger one, of which only the spread is used (n − 1 more
    degrees of freedom); it is left out when its variance exceeds 1.5 times that of ``x``.
    Raises ValueError on no finite value, or on a single one without a prior.
    """
    values = _finite(x)
    n = values.size
    if n == 1 and prior_df <= 0:
        raise ValueError("one value has no spread")
    prior = prior_sd**2
    centre, squares = _huber(values, prior, prior_df)
    df = n - 1.0
    sd = math.sqrt(squares / df) if df else 0.0
    if twin is not None and n > 1:
        _, others = _huber(_finite(twin), prior, prior_df)
        if others / df < 1.5 * (squares + prior_df * prior) / (df + prior_df):
            squares, df = squares + others, 2.0 * df
    measured = squares / df if df else 0.0
    weight = prior_df * min(1.0, prior / measured) ** 2 if measured > 0.0 else prior_df
    variance = (squares + weight * prior) / (df + weight)
    return Location(value=centre, se=math.sqrt(variance / n), df=df + weight, n=n, sd=sd)


def paired_bootstrap(
    statistic: Callable[[Floats], Floats],
    data: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Floats, Floats, Floats]:
    """Percentile bootstrap over the first axis, which is resampled whole so that pairs stay together.

    ``statistic`` maps an array of shape ``(resamples, n, …)`` (and the data itself as ``(1, n, …)``) to shape
    ``(resamples, …)``. Returns the estimate and the bounds.
    """
    values = np.asarray(data, dtype=np.float64)
    if values.shape[0] < 1:
        raise ValueError("nothing to resample")
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, values.shape[0], size=(resamples, values.shape[0]))
    estimate = np.asarray(statistic(values[None]))[0]
    draws = np.asarray(statistic(values[picks]))
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)
    return estimate, np.minimum(low, estimate), np.maximum(high, estimate)


class Slope(msgspec.Struct, frozen=True):
    """Growth per step with its interval, in the unit of the input; ``thirds`` are the slopes of each third alone."""

    value: float
    ci: Interval
    n: int
    thirds: tuple[float, ...] = ()

    @property
    def grows(self) -> bool:
        """The interval excludes zero and every third rises: a heap that rose while it settled has stopped by the end."""
        return self.ci[0] > 0.0 and all(t > 0.0 for t in self.thirds)


def slope(x_per_step: ArrayLike, *, level: float = 0.95, most: int = 300) -> Slope:
    """Theil-Sen slope of a series against its index, with the interval of Kendall's S (Sen 1968).

    A series longer than ``most`` is first reduced to that many block medians; the slope stays per original step. The
    interval takes steps as independent, which memory is not: judge ``grows`` together with how much the growth matters.
    Raises ValueError on fewer than three finite values.
    """
    series = np.asarray(x_per_step, dtype=np.float64).ravel()
    steps = np.arange(series.size, dtype=np.float64)
    keep = np.isfinite(series)
    series, steps = series[keep], steps[keep]
    if series.size < 3:
        raise ValueError(f"need at least 3 finite values, got {series.size}")
    if series.size > most:
        parts = np.array_split(np.arange(series.size), most)
        series, steps = (np.array([np.median(v[p]) for p in parts]) for v in (series, steps))
    n = series.size
    slopes = _pairwise_slopes(series, steps)
    reach = normal_quantile(0.5 + level / 2.0) * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    low = max(math.floor((slopes.size - reach) / 2.0), 0)
    high = min(math.ceil((slopes.size + reach) / 2.0), slopes.size - 1)
    thirds: tuple[float, ...] = ()
    if n >= 9:
        thirds = tuple(float(np.median(_pairwise_slopes(series[p], steps[p]))) for p in np.array_split(np.arange(n), 3))
    return Slope(float(np.median(slopes)), (float(slopes[low]), float(slopes[high])), n, thirds)


def _pairwise_slopes(y: Floats, x: Floats) -> Floats:
    i, j = np.triu_indices(y.size, 1)
    return np.sort((y[j] - y[i]) / (x[j] - x[i]))


def paired_difference(a: Sequence[float], b: Sequence[float], *, level: float = 0.95) -> Number:
    """Ratio a/b of paired times inside one process (the same op at T threads and at 1, say) with its interval.

    Raises ValueError when the lengths differ, a time is not positive, or there are fewer than two pairs.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"pairs need equal lengths, got {x.size} and {y.size}")
    if x.size < 2 or not ((x > 0) & (y > 0)).all():
        raise ValueError("need at least two pairs of positive times")
    where = robust_location(np.log(x / y), prior_sd=WITHIN_SD, prior_df=WITHIN_DF)
    low, high = where.interval(level)
    return Number(value=math.exp(where.value), ci=(math.exp(low), math.exp(high)), n=x.size, unit="×")
