"""Random effects over hosts: how much they differ beyond what each host's own uncertainty explains, and who stands apart.

The model is y_i = mu + u_i + e_i, with e_i ~ N(0, s_i²) known from the host's own process pairs and u_i ~ N(0, tau²) from
host to host. tau² is Paule and Mandel's estimate (1982; DerSimonian and Kacker 2007 recommend it over DerSimonian and
Laird's, which it refines), its interval the Q-profile one (Viechtbauer 2007). The mean's interval is that of Hartung and
Knapp (2001) with the factor held at 1 or more (Röver et al. 2015), from a tau² that a prior steadies (Smyth 2004) and that
is never below what was seen: two or three hosts that agree by chance are no proof that hosts agree.

Simulated (400 fleets a cell, 100 for 50 hosts and for each power; s_i uniform from 1 to 6 %): how often the 95 % interval
holds the truth / how often a host is named in a fleet without an outlier / how often the one host that is 2 × slower, and
no other, is named.

====== ======================= ======================= =======================
hosts  hosts differ by 0       by 5 %                  by 10 %
====== ======================= ======================= =======================
2      100 % / never / never   98 % / never / never    92 % / never / never
3      100 % / 0 % / 99 %      98 % / 0 % / 85 %       90 % / 0.7 % / 68 %
5      100 % / 0 % / 100 %     98 % / 0 % / 100 %      94 % / 2.8 % / 79 %
10     100 % / 0 % / 100 %     96 % / 0.3 % / 100 %    94 % / 3.3 % / 93 %
50     100 % / 1 % / 100 %     94 % / 0 % / 99 %       94 % / 2 % / 94 %
====== ======================= ======================= =======================
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsetui.diagnosis.stats import t_quantile
from sparsetui.fleet.records import Pool

Floats = NDArray[np.float64]

# What healthy hosts of one lock are believed to differ by before this fleet has shown it, and that belief's weight in hosts.
HOST_SD = 0.05
PRIOR_DF = 4.0
APART_LEVEL = 0.01  # chance that a fleet without an outlier gets one named, over all its hosts
_LEAST_SE = 1e-4


def pool(y: Sequence[float], se: Sequence[float], level: float = 0.95) -> Pool:
    """The estimate over hosts; ``y`` and ``se`` are logs and their standard errors, one a host.

    Raises ValueError on no host, unequal lengths or a figure that is not finite.
    """
    values, variances = _arrays(y, se)
    k = values.size
    tau2 = paule_mandel(values, variances)
    within = _typical(variances)
    spread2, df = _moderated(tau2, k)
    weights = 1.0 / (variances + spread2)
    mean = float((weights * values).sum() / weights.sum())
    factor = 1.0
    if k > 1:
        factor = max(1.0, float((weights * (values - mean) ** 2).sum()) / (k - 1))
    error = math.sqrt(factor / float(weights.sum()))
    half = t_quantile(0.5 + level / 2.0, df) * error
    return Pool(k, mean, (mean - half, mean + half), math.sqrt(tau2), tau_interval(values, variances, level),
                within, error, df, math.sqrt(spread2))  # fmt: skip


def _arrays(y: Sequence[float], se: Sequence[float]) -> tuple[Floats, Floats]:
    values, errors = np.asarray(y, dtype=np.float64), np.asarray(se, dtype=np.float64)
    if values.size < 1 or values.shape != errors.shape:
        raise ValueError(f"need one standard error a host, got {values.size} hosts and {errors.size} errors")
    if not (np.isfinite(values).all() and np.isfinite(errors).all() and (errors >= 0).all()):
        raise ValueError("hosts' estimates and their errors must be finite")
    return values, np.maximum(errors, _LEAST_SE) ** 2


def _q(tau2: float, y: Floats, v: Floats) -> float:
    """Cochran's Q with weights 1 / (v + tau²); falls in tau²."""
    w = 1.0 / (v + tau2)
    mean = (w * y).sum() / w.sum()
    return float((w * (y - mean) ** 2).sum())


def _solve(target: float, y: Floats, v: Floats) -> float:
    """The tau² ≥ 0 at which Q is ``target``; 0 where Q is below it already at 0."""
    if _q(0.0, y, v) <= target:
        return 0.0
    high = max(float(y.var()), float(v.max()), 1e-12)
    while _q(high, y, v) > target and high < 1e6:
        high *= 4.0
    low = 0.0
    for _ in range(60):
        mid = (low + high) / 2.0
        if _q(mid, y, v) > target:
            low = mid
        else:
            high = mid
        if high - low <= 1e-7 * high + 1e-14:
            break
    return high


def paule_mandel(y: Floats, v: Floats) -> float:
    """tau² at which the generalised Q equals its expectation, the number of hosts less one."""
    return _solve(float(y.size - 1), y, v) if y.size > 1 else 0.0


def tau_interval(y: Floats, v: Floats, level: float = 0.95) -> tuple[float, float]:
    """Q-profile interval of tau (not squared); from 0 to infinity for a single host."""
    if y.size < 2:
        return 0.0, math.inf
    low, high = _chi2_bounds(y.size - 1, level)
    return math.sqrt(_solve(high, y, v)), math.sqrt(_solve(low, y, v))


@functools.lru_cache(maxsize=64)
def _chi2_bounds(df: int, level: float) -> tuple[float, float]:
    from scipy.special import chdtri

    tail = (1.0 - level) / 2.0
    return float(chdtri(df, 1.0 - tail)), float(chdtri(df, tail))


def _typical(v: Floats) -> float:
    """Typical standard error of a host (Higgins and Thompson 2002, their s²)."""
    w = 1.0 / v
    k = v.size
    if k == 1:
        return math.sqrt(float(v[0]))
    below = float(w.sum()) ** 2 - float((w**2).sum())
    return math.sqrt((k - 1) * float(w.sum()) / below) if below > 0 else math.sqrt(float(np.median(v)))


def _moderated(tau2: float, k: int) -> tuple[float, float]:
    """Variance between hosts, steadied by the prior but never below what was seen, and its degrees of freedom."""
    df = k - 1.0
    steadied = (df * tau2 + PRIOR_DF * HOST_SD**2) / (df + PRIOR_DF)
    return max(tau2, steadied), df + PRIOR_DF


def apart(y: Sequence[float], se: Sequence[float], least: float) -> list[tuple[int, float, float]]:
    """Hosts that stand apart from the others, each as (index, deviation, its standard error), largest deviation first.

    First the hosts far from the median in robust scales are set aside, so that several sick ones cannot hide each other;
    then each host is held against the prediction from the rest without it (leave-one-out), at a level shared over all
    hosts. ``least`` is the deviation in logs below which a difference does not matter. Of fewer than three hosts none can
    be told: two that differ do not say which is the odd one.
    """
    if len(y) < 3:
        return []
    values, variances = _arrays(y, se)
    n = values.size
    centre = float(np.median(values))
    scale = 1.4826 * float(np.median(np.abs(values - centre)))
    far = np.abs(values - centre) > 3.0 * np.sqrt(np.maximum(scale, HOST_SD / 2) ** 2 + variances)
    far &= np.abs(values - centre) > least
    keep = ~far
    if keep.sum() < 2:
        return []
    out = []
    for i in np.flatnonzero(np.abs(values - centre) > 0.8 * least):
        rest = keep.copy()
        rest[i] = False
        if rest.sum() < 2:
            continue
        others = _predict(values[rest], variances[rest])
        deviation = float(values[i]) - others[0]
        error = math.sqrt(others[1] + float(variances[i]))
        if abs(deviation) > least and abs(deviation) > t_quantile(1.0 - APART_LEVEL / 2.0 / n, others[2]) * error:
            out.append((int(i), deviation, error))
    return sorted(out, key=lambda found: -abs(found[1]))


def _predict(y: Floats, v: Floats) -> tuple[float, float, float]:
    """Mean, variance and degrees of freedom of the prediction for one more host, before its own uncertainty."""
    spread2, df = _moderated(paule_mandel(y, v), y.size)
    weights = 1.0 / (v + spread2)
    mean = float((weights * y).sum() / weights.sum())
    return mean, spread2 + 1.0 / float(weights.sum()), df
