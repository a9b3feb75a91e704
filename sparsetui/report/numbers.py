"""One way to write a figure, everywhere: ``0.93 [0.90, 0.95] (n=2000)`` with its unit, or why there is none.

A derived figure carries ``derived``, an estimated one ``est.``; a measured one needs no mark. Metrics travel as
:class:`Number` or, read back from a ledger, as plain dicts: :func:`as_number` takes both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sparsetui.evidence.records import Number, unavailable

MARKS = {"measured": "", "derived": "derived", "estimated": "est.", "unavailable": "unavailable"}


def brief(value: float | None) -> str:
    """A bare value with three significant digits; large ones grouped, tiny ones in powers of ten."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 1e9):
        return f"{value:.2e}"
    if size >= 100:
        return f"{value:,.0f}"
    if float(value).is_integer():
        return f"{value:.0f}"
    return f"{value:.{_decimals(size)}f}"


def figure(
    number: Number,
    *,
    unit: str | None = None,
    percent: bool = False,
    count: bool = True,
    interval: bool = True,
    mark: bool = True,
) -> str:
    """``number`` in the common form. ``percent`` shows a share of 1 as %; ``unit`` replaces the number's own."""
    if number.value is None:
        return f"unavailable: {number.reason or 'no reason was given'}"
    scale, suffix = (100.0, "%") if percent else (1.0, number.unit if unit is None else unit)
    joined = suffix in ("%", "×", "x")
    ci = number.ci if interval else None
    write = _writer([v * scale for v in (number.value, *(ci or ()))], percent)
    parts = [f"{write(number.value * scale)}{suffix if joined else ''}"]
    if ci is not None:
        parts.append(f"[{write(ci[0] * scale)}, {write(ci[1] * scale)}]")
    if suffix and not joined:
        parts.append(suffix)
    if count and number.n is not None:
        parts.append(f"(n={number.n})")
    if mark and MARKS.get(number.quality):
        parts.append(MARKS[number.quality])
    return " ".join(parts)


def _writer(values: list[float], percent: bool) -> Callable[[float], str]:
    """How to write a value and its bounds: with the same decimals, those of the value (of the bounds if it is 0)."""
    sizes = [abs(v) for v in values if math.isfinite(v) and v != 0]
    if (len(values) == 1 and not percent) or not sizes:
        return brief
    size = sizes[0] if sizes else 0.0
    if size and (size < 1e-3 or size >= 1e9):
        return brief
    if percent:
        decimals = 0 if size >= 10 or size == 0 else 1 if size >= 0.1 else 3
    else:
        decimals = _decimals(size)
    return lambda v: f"{v:,.{decimals}f}" if math.isfinite(v) else brief(v)


def _decimals(size: float) -> int:
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3 if size >= 0.01 else 4


def as_number(raw: Any, missing: str = "it was not measured") -> Number:
    """``raw`` as a :class:`Number`: itself, a decoded dict, a bare int or float; anything else is unavailable."""
    if isinstance(raw, Number):
        return raw
    if isinstance(raw, bool) or raw is None:
        return unavailable(missing)
    if isinstance(raw, (int, float)):
        return Number(value=float(raw), quality="derived")
    if isinstance(raw, Mapping) and ("value" in raw or raw.get("quality") == "unavailable"):
        try:
            return msgspec.convert({"value": None, **raw}, Number)
        except msgspec.ValidationError:
            return unavailable("the record of this figure is damaged")
    return unavailable(missing)


def metric(metrics: Mapping[str, Any], name: str, *path: str) -> Number:
    """The figure at ``name`` (and deeper ``path``). Where a metric is kept by variant, the failing one is meant."""
    raw: Any = metrics.get(name)
    for key in path:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    if isinstance(raw, Mapping) and "value" not in raw and "failing" in raw:
        raw = raw["failing"]
    return as_number(raw)


def fallback_overhead(metrics: Mapping[str, Any]) -> Number:
    """The share of the step's time that sparse-eligible products spent on a dense path."""
    for name, path in (("fallback_overhead", ()), ("fallback_rate", ("time",)), ("fallback_rate", ())):
        found = metric(metrics, name, *path)
        if found.value is not None or found.reason != "it was not measured":
            return found
    return unavailable("it was not measured")
