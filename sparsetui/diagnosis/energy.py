"""Energy a request, from what was read beside timed blocks: measured, else estimated from CPU time, else unavailable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsetui.diagnosis.stats import Block, t_interval
from sparsetui.evidence.records import Number, unavailable

UNIT = "J per request"
HOW = "name [energy] watts_per_core in the workload for an estimate, or run where RAPL or NVML can be read"
_SCOPE = {
    "rapl": "RAPL counts the whole CPU package, whoever uses it",
    "nvml": "NVML counts the whole GPU, whoever uses it",
}


def per_request(blocks: Iterable[Block], watts_per_core: float | None, missing: Sequence[str] = ()) -> Number:
    """Joules a step. ``conditions["joules"]`` (by counter) makes it measured; else ``conditions["cpu_s"]`` × watts is an
    estimate; the interval is Student's over blocks. Counters are never added to estimates."""
    seen = [(b.conditions, len(b.times_ms)) for b in blocks if len(b.times_ms)]
    if not seen:
        return unavailable("no block was timed", UNIT)
    counters = sorted({k for c, _ in seen for k in (c.get("joules") or {})})
    if counters:
        values = [sum(c["joules"].values()) / n for c, n in seen if c.get("joules")]
        why = "; ".join(_SCOPE.get(k, k) for k in counters)
        return _number(values, "measured", why)
    if watts_per_core:
        values = [float(c["cpu_s"]) * watts_per_core / n for c, n in seen if "cpu_s" in c]
        if values:
            return _number(values, "estimated", f"CPU seconds × {watts_per_core:g} W per core of the workload file")
    why = "; ".join(missing) or "no energy counter was read"
    return unavailable(f"{why}: {HOW}", UNIT)


def _number(values: Sequence[float], quality: Any, reason: str) -> Number:
    mean = float(np.mean(values))
    ci = t_interval(values) if len(values) > 1 else None
    return Number(value=mean, ci=ci, n=len(values), unit=UNIT, quality=quality, reason=reason)


def by_variant(
    blocks: Mapping[str, Sequence[Block]], watts_per_core: float | None, missing: Sequence[str] = ()
) -> dict[str, Any]:
    """``{variant: Number, ratio: Number}`` for the metrics of a result; the ratio only of figures of the same quality."""
    out: dict[str, Any] = {v: per_request(b, watts_per_core, missing) for v, b in blocks.items()}
    a, b = out.get("failing"), out.get("comparator")
    if a is not None and b is not None and a.value and b.value and a.quality == b.quality:
        out["ratio"] = Number(value=a.value / b.value, n=min(a.n or 0, b.n or 0), unit="×", quality="derived",
                              reason=f"both {a.quality}")  # fmt: skip
    return out
