"""Two imports side by side: what changed, what only one has. Traces in time, stacks in shares, tensors in zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparsetui.evidence.kernels import PATHS
from sparsetui.evidence.records import Number, TimeTable
from sparsetui.ingest import traces
from sparsetui.ingest.errors import IngestError

ROWS = 100
KINDS = ("trace", "stacks", "checkpoint", "matrix")


def compare(failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first kind of evidence that both sides hold, compared. Raises :class:`IngestError` where there is none."""
    for kind in KINDS:
        ours, theirs = ([p for p in side if p["kind"] == kind] for side in (failing, against))
        if ours and theirs:
            return {"kind": kind, **_BY_KIND[kind](ours, theirs)}
    raise IngestError(
        f"--against {against[0]['file']}: a {against[0]['kind']} and a {failing[0]['kind']} cannot be compared; "
        "on both sides traces, stacks, checkpoints or matrices are accepted"
    )


def _stacks(failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of time by path and by innermost function, in points. Files of one side are weighed by their samples."""
    paths = _shares(failing, against, lambda p: {r.path: r.share.value or 0.0 for r in _table(p).paths})
    sampled = all(p.get("sampled") for p in (*failing, *against))
    n = [sum(p["samples"] for p in side) for side in (failing, against)]
    for row in paths:
        row["difference"] = _difference(row["failing"], row["against"], n[0], n[1], sampled=sampled)
    paths.sort(key=lambda r: -abs(r["difference"].value or 0.0))
    functions = _shares(
        failing, against, lambda p: {f"{r['path']}\0{r['name']}": float(r["share"]) for r in p["functions"]}
    )
    for row in functions:
        row["path"], _, row["name"] = row["name"].partition("\0")
        row["difference"] = row["failing"] - row["against"]
    functions.sort(key=lambda r: -abs(r["difference"]))
    return {
        "unit": "share of all samples" if sampled else "share of all time",
        "samples": {"failing": n[0], "against": n[1]},
        "paths": paths,
        "functions": functions[:ROWS],
        "only_failing": [r["name"] for r in functions if not r["against"]][:ROWS],
        "only_against": [r["name"] for r in functions if not r["failing"]][:ROWS],
    }


def _table(p: dict[str, Any]) -> TimeTable:
    table = p["time_table"]
    assert isinstance(table, TimeTable)
    return table


def _shares(failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]], of: Any) -> list[dict[str, Any]]:
    sums: dict[str, list[float]] = {}
    for side, payloads in enumerate((failing, against)):
        total = sum(p["total"] for p in payloads)
        for p in payloads:
            for name, share in of(p).items():
                sums.setdefault(name, [0.0, 0.0])[side] += share * p["total"] / total
    order = {p: i for i, p in enumerate(PATHS)}
    names = sorted(sums, key=lambda n: (order.get(n, 99), n))
    return [{"name": name, "failing": sums[name][0], "against": sums[name][1]} for name in names]


def _difference(p: float, q: float, n: int, m: int, *, sampled: bool) -> Number:
    """The difference of two shares; where both were sampled with its 95 % interval (Agresti and Caffo, 2000)."""
    if not sampled or not n or not m:
        return Number(p - q, n=n, reason="traced, not sampled: no interval can be given")
    a, b = (p * n + 1) / (n + 2), (q * m + 1) / (m + 2)
    half = 1.959964 * math.sqrt(a * (1 - a) / (n + 2) + b * (1 - b) / (m + 2))
    low, high = min(a - b - half, p - q), max(a - b + half, p - q)
    return Number(p - q, ci=(max(-1.0, low), min(1.0, high)), n=n + m)


def _checkpoints(failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tensor by tensor: what differs in shape, type, layout or zeros; the largest change of zeros first."""
    ours, theirs = ({t["name"]: t for p in side for t in p["tensors"]} for side in (failing, against))
    rows = []
    for name in ours.keys() & theirs.keys():
        a, b = ours[name], theirs[name]
        differs = [k for k in ("shape", "dtype", "layout", "zeros", "nonfinite") if a.get(k) != b.get(k)]
        if differs:
            rows.append({
                "name": name,
                "differs": differs,
                "failing": {k: a.get(k) for k in ("shape", "dtype", "layout", "zeros", "bytes")},
                "against": {k: b.get(k) for k in ("shape", "dtype", "layout", "zeros", "bytes")},
            })  # fmt: skip
    rows.sort(key=lambda r: (-abs((r["failing"]["zeros"] or 0.0) - (r["against"]["zeros"] or 0.0)), r["name"]))
    sums = [{k: sum(p["totals"][k] or 0 for p in side) for k in ("tensors", "bytes")} for side in (failing, against)]
    return {
        "unit": "share of zeros",
        "tensors": rows[:ROWS],
        "differing": len(rows),
        "alike": len(ours.keys() & theirs.keys()) - len(rows),
        "totals": {"failing": sums[0], "against": sums[1]},
        "only_failing": sorted(ours.keys() - theirs.keys())[:ROWS],
        "only_against": sorted(theirs.keys() - ours.keys())[:ROWS],
    }


def _matrices(failing: Sequence[dict[str, Any]], against: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pairs in the order given: zeros, bytes in each format and, where measured, times."""
    if len(failing) != len(against):
        raise IngestError(
            f"--against: {len(failing)} matrices on one side and {len(against)} on the other; as many are accepted"
        )
    pairs = []
    for a, b in zip(failing, against, strict=True):
        row: dict[str, Any] = {"failing": _matrix(a), "against": _matrix(b)}
        times = [(p.get("measured") or {}).get("formats", {}) for p in (a, b)]
        row["time_ratio"] = {
            f: times[0][f]["ms"]["value"] / times[1][f]["ms"]["value"] for f in times[0] if f in times[1]
        }
        pairs.append(row)
    return {"unit": "share of zeros", "matrices": pairs, "only_failing": [], "only_against": []}


def _matrix(p: dict[str, Any]) -> dict[str, Any]:
    s = p["structure"]
    return {"file": p["file"], "shape": p["shape"], "nonzeros": p["nonzeros"], "zeros": s["zeros"], "bytes": s["bytes"],
            "max_over_mean": s["skew"]["max_over_mean"]}  # fmt: skip


_BY_KIND = {"trace": traces.compare, "stacks": _stacks, "checkpoint": _checkpoints, "matrix": _matrices}


def summary(c: dict[str, Any]) -> str:
    """One line on a comparison."""
    if c["kind"] == "trace":
        return f"{c['budget'].gap_ms.value:+.3g} {c['unit']}"
    if c["kind"] == "stacks":
        top = c["paths"][0]
        return f"{top['name']} {top['against']:.1%} → {top['failing']:.1%} of the time"
    if c["kind"] == "checkpoint":
        only = len(c["only_failing"]) + len(c["only_against"])
        return f"{c['differing']} tensors differ, {c['alike']} are alike, {only} are in one only"
    zeros = [f"{r['against']['zeros'] or 0:.1%} → {r['failing']['zeros'] or 0:.1%}" for r in c["matrices"][:3]]
    return f"zeros {', '.join(zeros)}"
