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


class Location(msgspec.Struct, frozen=True):
    """A centre with its standard error and degrees of freedom."""

    value: float
    se: float
    df: float
    n: int

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


def robust_location(
    x: ArrayLike, *, prior_sd: float = 0.0, prior_df: float = 0.0, clip: float = 2.5, resolution: float = 0.0
) -> Location:
    """Huber's centre with a moderated standard error.

    Values further than ``clip`` robust scales from the centre are pulled in to that distance (Huber's ψ). The
    variance is Huber's asymptotic one with the n − 1 divisor, moderated by ``prior_df`` observations' worth of
    ``prior_sd`` (Smyth 2004): few values that happen to agree must not pass for certainty. Degrees of freedom are
    ``n − 1 + prior_df``. Raises ValueError on no finite value, or on a single one without a prior.
    """
    values = _finite(x)
    n = values.size
    if n == 1 and prior_df <= 0:
        raise ValueError("one value has no spread")
    centre = float(np.median(values))
    mad = 1.4826 * float(np.median(np.abs(values - centre)))
    scale = math.sqrt((prior_df * prior_sd**2 + n * mad**2) / (prior_df + n))
    if scale <= 0.0:
        scale = float(values.std()) or resolution
    bound = clip * scale
    for _ in range(30):
        step = float(np.clip(values - centre, -bound, bound).mean())
        centre += step
        if abs(step) < 1e-12:
            break
    residual = values - centre
    psi = np.clip(residual, -bound, bound)
    inside = max(float((np.abs(residual) <= bound).mean()), 0.5)
    spread = float((psi**2).sum()) / inside**2
    df = n - 1 + prior_df
    variance = (spread + prior_df * prior_sd**2) / df
    return Location(value=centre, se=max(math.sqrt(variance / n), resolution / math.sqrt(n)), df=df, n=n)


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
    """Growth per step with its interval, in the unit of the input."""

    value: float
    ci: Interval
    n: int

    @property
    def grows(self) -> bool:
        return self.ci[0] > 0.0


def slope(x_per_step: ArrayLike, *, level: float = 0.95, most: int = 400) -> Slope:
    """Theil-Sen slope of a series against its index, with the interval of Kendall's S (Sen 1968).

    A series longer than ``most`` is first reduced to block medians; the slope stays per original step. Raises
    ValueError on fewer than three finite values.
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
    i, j = np.triu_indices(n, 1)
    slopes = np.sort((series[j] - series[i]) / (steps[j] - steps[i]))
    sd = math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    reach = normal_quantile(0.5 + level / 2.0) * sd
    low = max(math.floor((slopes.size - reach) / 2.0), 0)
    high = min(math.ceil((slopes.size + reach) / 2.0), slopes.size - 1)
    return Slope(float(np.median(slopes)), (float(slopes[low]), float(slopes[high])), n)


def paired_difference(a: Sequence[float], b: Sequence[float], *, level: float = 0.95) -> Number:
    """log(a/b) of paired times (the same op at T threads and at 1, say) as a ratio a/b with its interval.

    Raises ValueError when the lengths differ, a time is not positive, or there are fewer than two pairs.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"pairs need equal lengths, got {x.size} and {y.size}")
    if x.size < 2 or not ((x > 0) & (y > 0)).all():
        raise ValueError("need at least two pairs of positive times")
    where = robust_location(np.log(x / y))
    low, high = where.interval(level)
    return Number(value=math.exp(where.value), ci=(math.exp(low), math.exp(high)), n=x.size, unit="×")
