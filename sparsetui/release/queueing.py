"""What load a worker bears: the queue of one worker over measured service times, by Lindley's recursion.

``w[i+1] = max(0, w[i] + s[i] - a[i])`` with service times s and gaps a (Lindley 1952); a request's latency is w + s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsetui.diagnosis.stats.quantiles import BEYOND, QUANTILES
from sparsetui.evidence.records import Number, unavailable
from sparsetui.session.closure import STABLE_FLOOR
from sparsetui.workload.spec import Sla

Floats = NDArray[np.float64]
_REQUESTS = 4000
_SEEDS = 5


def latencies(service_ms: Floats, gaps_ms: Floats) -> Floats:
    """Latency of each request in ms, both arrays of one length; ``gaps_ms[i]`` lies between arrivals i and i + 1."""
    steps = service_ms[:-1] - gaps_ms[:-1]
    total = np.concatenate([[0.0], np.cumsum(steps)])
    return np.asarray(total - np.minimum.accumulate(total) + service_ms)


def limits_of(sla: Sla | None) -> dict[str, float]:
    """``{p50: ms, …}`` of the objectives that are set."""
    if sla is None:
        return {}
    found = {"p50": sla.p50_ms, "p95": sla.p95_ms, "p99": sla.p99_ms}
    return {q: v for q, v in found.items() if v is not None}


FLOORS = 3.0  # noise floors above the comparator, where no SLA says


def margin(floor: Number) -> float:
    """By how much a figure may lie above the comparator's where no SLA limits it, as a ratio - 1: three noise floors, and at
    least what processes of identical code differ by."""
    return max(STABLE_FLOOR, FLOORS * (floor.value or 0.0))


def throughput(service_ms: Sequence[float], sla: Sla | None) -> Number:
    """Highest rate of Poisson arrivals, in requests a second, at which one worker with these service times still meets every
    latency objective: derived, by bisection over simulated queues; the interval is the spread over independent draws."""
    limits, unit = limits_of(sla), "requests/s"
    if not limits:
        return unavailable("the workload sets no [sla], so there is no rate at which it would be met", unit)
    times = np.asarray(service_ms, dtype=np.float64)
    short = [q for q in limits if times.size * (1 - QUANTILES[q]) < BEYOND]
    if short:
        return unavailable(f"{times.size} steps do not support {', '.join(short)}", unit)
    over = [q for q, v in limits.items() if np.quantile(times, QUANTILES[q]) > v]
    if over:
        said = ", ".join(f"{q} alone takes {np.quantile(times, QUANTILES[q]):.3g} ms of {limits[q]:g}" for q in over)
        return unavailable(f"the SLA is missed at any rate: {said}", unit)
    found = sorted(_highest(times, limits, seed) for seed in range(_SEEDS))
    return Number(value=found[_SEEDS // 2], ci=(found[0], found[-1]), n=times.size, unit=unit, quality="derived",
                  reason="simulated: Poisson arrivals at one worker with the measured service times")  # fmt: skip


def _highest(times: Floats, limits: dict[str, float], seed: int) -> float:
    rng = np.random.default_rng(seed)
    service = rng.choice(times, _REQUESTS)
    gaps = rng.exponential(1.0, _REQUESTS)
    low, high = 0.0, 1e3 / float(times.mean())
    for _ in range(18):
        rate = (low + high) / 2
        got = latencies(service, gaps * 1e3 / rate)
        if all(np.quantile(got, QUANTILES[q]) <= v for q, v in limits.items()):
            low = rate
        else:
            high = rate
    return low


def judge(figures: dict[str, Number], sla: Sla | None) -> str:
    """The SLA verdict of measured quantiles: held, broken (which), or cannot tell (which)."""
    limits = limits_of(sla)
    if not limits:
        return "no SLA is set"
    broken, unsure = [], []
    for q, limit in limits.items():
        n = figures.get(q)
        if n is None or n.value is None:
            unsure.append(f"{q} is not known")
            continue
        low, high = n.ci or (n.value, n.value)
        if low > limit:
            broken.append(q)
        elif high > limit:
            unsure.append(f"{q} straddles {limit:g} ms")
    if broken:
        return f"broken: {', '.join(broken)}"
    return f"cannot tell: {', '.join(unsure)}" if unsure else "held"
