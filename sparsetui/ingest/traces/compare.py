"""Two traces side by side: op by op, kernel by kernel, and the gap between them split by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsetui.evidence.records import BudgetLine, Number, RegressionBudget

ROWS = 100


def compare(failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Differences of two sets of trace payloads (ranks of one run each): failing minus comparator.

    Per step where both have step marks, else in all. Ranks are averaged, so that runs of different width compare.
    """
    steps = _steps(failing), _steps(against)
    per_step = all(steps)
    scale = (1.0 / steps[0], 1.0 / steps[1]) if per_step else (1.0, 1.0)
    device = all(p["device_time"] for p in (*failing, *against))
    out: dict[str, Any] = {
        "unit": "ms per step" if per_step else "ms in all",
        "basis": "device time" if device else "host time",
        "ops": _rows(failing, against, scale, "ops", "op", "self_ms"),
        "kernels": _rows(failing, against, scale, "kernels", "name", "ms"),
        "budget": budget(failing, against, scale, per_step=per_step, device=device),
    }
    out["only_failing"] = [r["name"] for key in ("kernels", "ops") for r in out[key] if r["against_calls"] == 0][:ROWS]
    out["only_against"] = [r["name"] for key in ("kernels", "ops") for r in out[key] if r["failing_calls"] == 0][:ROWS]
    out["kernels"], out["ops"] = out["kernels"][:ROWS], out["ops"][:ROWS]
    return out


def _steps(payloads: Sequence[dict[str, Any]]) -> float:
    counts = [p["steps"]["n"] for p in payloads]
    return sum(counts) / len(counts) if counts and all(counts) else 0.0


def _rows(
    failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]], scale: tuple[float, float],
    table: str, name: str, time: str,
) -> list[dict[str, Any]]:  # fmt: skip
    sums: dict[tuple[str, str], list[float]] = {}
    for side, payloads in enumerate((failing, against)):
        for p in payloads:
            for row in p[table]:
                mine = sums.setdefault((str(row[name]), str(row["path"])), [0.0, 0.0, 0.0, 0.0])
                mine[side] += row[time] * scale[side] / len(payloads)
                mine[2 + side] += row["calls"] * scale[side] / len(payloads)
    rows = [
        {
            "name": key[0],
            "path": key[1],
            "failing_ms": f,
            "against_ms": a,
            "difference_ms": f - a,
            "failing_calls": nf,
            "against_calls": na,
        }
        for key, (f, a, nf, na) in sums.items()
    ]
    return sorted(rows, key=lambda r: -abs(r["difference_ms"]))


def budget(
    failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]], scale: tuple[float, float],
    *, per_step: bool, device: bool,
) -> RegressionBudget:  # fmt: skip
    """The gap in step time (or span) split by path; what no path explains is host gaps, idle time and overlap."""
    gap = _wall(failing, per_step) - _wall(against, per_step)
    n = sum(p["steps"]["n"] for p in failing) if per_step else len(failing)
    parts: dict[str, float] = {}
    for side, payloads in enumerate((failing, against)):
        for p in payloads:
            for share in p["time_table"].paths:
                total = _total(p, device) * scale[side] / len(payloads)
                parts[share.path] = parts.get(share.path, 0.0) + (1 - 2 * side) * (share.share.value or 0.0) * total
    parts = {k: v for k, v in parts.items() if abs(v) > 1e-9}
    rest = gap - sum(parts.values())
    why = "one recording of each: no interval can be given"
    lines = [
        BudgetLine(path, Number(ms, n=n, unit="ms", reason=why), Number(ms / gap if gap else None, n=n, reason=why)
                   if gap else Number(None, quality="unavailable", reason="the two do not differ"))
        for path, ms in sorted(parts.items(), key=lambda kv: -abs(kv[1]))
    ]  # fmt: skip
    share = (
        Number(rest / gap, n=n, reason=why)
        if gap
        else Number(None, quality="unavailable", reason="the two do not differ")
    )
    lines.append(BudgetLine("unexplained", Number(rest, n=n, unit="ms", quality="derived", reason=why), share))
    return RegressionBudget("regression", Number(gap, n=n, unit="ms", reason=why), tuple(lines))


def _wall(payloads: Sequence[dict[str, Any]], per_step: bool) -> float:
    if per_step:
        return sum(p["steps"]["p50_ms"].value or 0.0 for p in payloads) / len(payloads)
    return sum(p["span_ms"] or 0.0 for p in payloads) / len(payloads)


def _total(p: dict[str, Any], device: bool) -> float:
    """Milliseconds behind the shares of a payload's time table."""
    if p["device_time"]:
        return float(p["busy_ms"] or 0.0)
    return float(p["host_ms"] or 0.0)
