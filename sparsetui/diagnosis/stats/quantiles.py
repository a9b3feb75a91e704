"""Quantiles of step times and of their ratio, with both levels resampled: processes, then blocks within them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparsetui.diagnosis.stats.planning import FINAL_ALPHA
from sparsetui.diagnosis.stats.rounds import Block, Round
from sparsetui.evidence.records import Number, unavailable

Floats = NDArray[np.float64]

QUANTILES: dict[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
BEYOND = 10  # steps that must lie beyond a quantile for it to be shown


class TailComparison(msgspec.Struct, frozen=True):
    """Failing over comparator at each quantile, with the strict intervals that decide the tail."""

    ratios: dict[str, Number]
    strict_ci: dict[str, tuple[float, float]]
    tail_slower: bool
    reason: str


def quantile_summary(
    blocks: Sequence[Block], *, level: float = 0.95, resamples: int = 400, seed: int = 0
) -> dict[str, Number]:
    """p50, p95 and p99 of step times in ms over all blocks, intervals by bootstrap over replicas, then blocks.

    A quantile q is ``unavailable`` unless n·(1 − q) ≥ 10; its interval is left out with fewer than two blocks.
    """
    table = _by_replica(blocks)
    times = np.concatenate([b for r in table for b in r]) if table else np.empty(0)
    out: dict[str, Number] = {}
    shown = [k for k in QUANTILES if _enough(times.size, k)]
    draws = _resample(table, [QUANTILES[k] for k in shown], resamples, np.random.default_rng(seed)) if shown else None
    spread = draws is not None and sum(map(len, table)) >= 2
    for name, q in QUANTILES.items():
        if name not in shown:
            out[name] = unavailable(_too_few(name, times.size), "ms")
            continue
        value = float(np.quantile(times, q))
        ci = _interval(draws[:, shown.index(name)], level, value) if spread and draws is not None else None
        out[name] = Number(value=value, ci=ci, n=int(times.size), unit="ms")
    return out


def ratio_quantiles(
    rounds: Sequence[Round],
    *,
    level: float = 0.95,
    resolution: float = 0.005,
    floor: float = 0.0,
    resamples: int = 1000,
    seed: int = 0,
) -> TailComparison:
    """Ratio of p50, p95 and p99, failing over comparator, by paired bootstrap over rounds and then blocks."""
    sides = [[_by_replica(r.failing), _by_replica(r.comparator)] for r in rounds]
    sides = [s for s in sides if s[0] and s[1]]
    pooled = [np.concatenate([b for s in sides for rep in s[k] for b in rep]) if sides else np.empty(0) for k in (0, 1)]
    n = min(p.size for p in pooled)
    shown = [k for k in QUANTILES if _enough(n, k)]
    ratios = {k: unavailable(_too_few(k, n), "×") for k in QUANTILES}
    strict: dict[str, tuple[float, float]] = {}
    if shown:
        qs = [QUANTILES[k] for k in shown]
        value = np.quantile(pooled[0], qs) / np.quantile(pooled[1], qs)
        rng = np.random.default_rng(seed)
        flat = [[[b for rep in side for b in rep] for side in s] for s in sides]
        draws = np.empty((resamples, len(qs)))
        for i in range(resamples):
            picked = rng.integers(0, len(flat), len(flat))
            tops, bottoms = (
                np.quantile(
                    np.concatenate(
                        [flat[r][k][j] for r in picked for j in rng.integers(0, len(flat[r][k]), len(flat[r][k]))]
                    ),
                    qs,
                )
                for k in (0, 1)
            )
            draws[i] = tops / bottoms
        for j, name in enumerate(shown):
            v = float(value[j])
            ci = _interval(draws[:, j], level, v) if len(flat) > 1 else None
            ratios[name] = Number(value=v, ci=ci, n=n, unit="×")
            if len(flat) > 1:
                strict[name] = _interval(draws[:, j], 1.0 - FINAL_ALPHA, v)
    least = 1.0 + max(floor, resolution)
    slow = [k for k in ("p95", "p99") if k in strict and strict[k][0] > least]
    reason = f"{' and '.join(slow)} slower beyond ±{least - 1.0:.1%}" if slow else "no tail is slower beyond doubt"
    return TailComparison(ratios=ratios, strict_ci=strict, tail_slower=bool(slow), reason=reason)


def _by_replica(blocks: Sequence[Block]) -> list[list[Floats]]:
    table: dict[str, list[Floats]] = defaultdict(list)
    for b in blocks:
        times = np.asarray(b.times_ms, dtype=np.float64)
        times = times[np.isfinite(times) & (times > 0)]
        if times.size:
            table[b.replica].append(times)
    return list(table.values())


def _enough(n: int, name: str) -> bool:
    return n * (1.0 - QUANTILES[name]) >= BEYOND - 1e-9


def _too_few(name: str, n: int) -> str:
    need = round(BEYOND / (1.0 - QUANTILES[name]))
    return f"{name} needs {need} steps, {n} were measured"


def _interval(draws: Floats, level: float, value: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return min(float(low), value), max(float(high), value)


def _resample(table: list[list[Floats]], qs: list[float], resamples: int, rng: np.random.Generator) -> Floats:
    draws = np.empty((resamples, len(qs)))
    for i in range(resamples):
        parts = [
            table[r][b]
            for r in rng.integers(0, len(table), len(table))
            for b in rng.integers(0, len(table[r]), len(table[r]))
        ]
        draws[i] = np.quantile(np.concatenate(parts), qs)
    return draws
