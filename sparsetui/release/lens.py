"""The bandwidth lens: how hard each measured run presses on the memory system, and how steady it is there.

Pressure is (bytes touched a step / step time) over the roof that its working set has: the copy bandwidth of the caches where
it fits the last one, that of memory where it does not. Bytes are those of operands and results of every op, each counted once
a call: what caches save is not taken off, so a pressure above 1 means reuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.evidence.records import Number, unavailable
from sparsetui.report.numbers import as_number
from sparsetui.runner import passes
from sparsetui.runner.equipment import VARIANTS
from sparsetui.runner.lab import Lab
from sparsetui.worker.faults import WorkerFault

_ITEM = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2,
         "int16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip


def run_lens(lab: Lab, seconds: float = 1.5) -> dict[str, Any]:
    """Measure the roofs where they are not known yet, place every run of the session, and leave the section ``lens``."""
    lab.run_pass("census")
    for v in VARIANTS:
        if ("roofs", v) in lab.payloads or not lab.ready():
            continue
        try:
            lab.payloads[("roofs", v)] = passes.simple(
                lab.journal, lab.first[v], v, "release", "roofs", {"seconds": seconds}, lab.deadline(), lab.cancel,
                lambda p: str(p["summary"]),
            )  # fmt: skip
        except WorkerFault as e:
            lab.fault(e)
    body: dict[str, Any] = msgspec.to_builtins(section(lab))
    made = lab.journal.evidence("release", "lens", body, summary=body["summary"])
    body["evidence"] = made.id
    lab.journal.append("section", {"name": "lens", "body": body})
    return body


def section(lab: Lab) -> dict[str, Any]:
    state = lab.journal.state()
    cache = last_cache()
    points: list[dict[str, Any]] = []
    latency = lab.latency()
    for v in ("comparator", "failing"):
        census, roofs = lab.payloads.get(("census", v)), lab.payloads.get(("roofs", v))
        if census and roofs and v in latency:
            points.append(_point(v, touched(census), working_set(census), latency[v], roofs, cache))
    points += _matrix_points(lab, state.sections.get("matrix"), cache)
    base = next((p for p in points if p["label"] == "comparator"), points[0] if points else None)
    floor = as_number((state.metrics.get("latency_ms") or {}).get("noise_floor"))
    if base is None:
        return {"summary": "No run with both a latency and a census.", "points": [], "zones": []}
    zones = zones_of(points, base, floor)
    for p in points:
        p["zone"] = zone_of(p, zones, base)
    counts: dict[str, int] = {}
    for p in points:
        counts[p["zone"]] = counts.get(p["zone"], 0) + 1
    return {
        "summary": f"{len(points)} runs: " + ", ".join(f"{n} {z}" for z, n in counts.items()),
        "roofs": _roofs(lab), "last_cache_bytes": cache if cache is not None else unavailable("sysfs does not tell"),
        "points": points, "zones": zones,
        "zones_mean": "baseline: up to the comparator's pressure; tuning candidate: above it, with a tail as steady; unstable "
                      "tail: from the least pressure at which p99/p50 left the comparator's interval; saturation: within the "
                      "noise floor of the roof",
    }  # fmt: skip


def _roofs(lab: Lab) -> dict[str, Any]:
    return {v: {"stream_GBs": r["stream_gbs"], "cache_GBs": r["cache_gbs"], "threads": r["threads"]}
            for v in VARIANTS if (r := lab.payloads.get(("roofs", v)))}  # fmt: skip


def _point(
    label: str, moved: float, held: float, q: Mapping[str, Number], roofs: Mapping[str, Any], cache: int | None
) -> dict[str, Any]:
    fits = cache is not None and held <= cache
    roof = float(roofs["cache_gbs"] if fits else roofs["stream_gbs"])
    p50, p99 = q["p50"], q["p99"]
    if p50.value is None:
        pressure = unavailable(p50.reason or "no latency")
    else:
        low, high = p50.ci or (p50.value, p50.value)
        rate = [moved / (ms * 1e6) / roof for ms in (p50.value, high, low)]  # bytes / ms / 1e6 is GB/s
        pressure = Number(
            value=rate[0], ci=(rate[1], rate[2]) if p50.ci else None, n=p50.n, unit="of the roof", quality="derived"
        )
    if p50.value and p99.value:
        ci = (p99.ci[0] / p50.value, p99.ci[1] / p50.value) if p99.ci else None
        tail = Number(value=p99.value / p50.value, ci=ci, n=p99.n, unit="p99 / p50", quality="derived")
    else:
        tail = unavailable(p99.reason or "no p99", "p99 / p50")
    return {"label": label, "pressure": pressure, "tail": tail, "bytes_a_step": round(moved), "working_set": round(held),
            "roof": "cache" if fits else "memory", "roof_GBs": roof}  # fmt: skip


def _matrix_points(lab: Lab, matrix: Any, cache: int | None) -> list[dict[str, Any]]:
    """The arms of the matrix: what the step touches beside its weights, and the weights as each format stores them."""
    rows = matrix.get("rows") if isinstance(matrix, Mapping) else None
    source = "failing" if isinstance(matrix, Mapping) and "failing" in str(matrix.get("weights", "")) else "comparator"
    census, roofs = lab.payloads.get(("census", source)), lab.payloads.get(("roofs", source))
    if not rows or not census or not roofs:
        return []
    beside = touched(census) - weights(census, per_call=True)
    held = working_set(census) - weights(census, per_call=False)
    out = []
    for row in rows:
        q = {k: as_number(row.get(k)) for k in ("p50", "p99")}
        stored = row.get("weight_bytes")
        if q["p50"].value is not None and isinstance(stored, (int, float)):
            out.append(_point(str(row["name"]), max(0.0, beside) + stored, max(0.0, held) + stored, q, roofs, cache))
    return out


def zones_of(points: list[dict[str, Any]], base: dict[str, Any], floor: Number) -> list[dict[str, Any]]:
    """``[{name, low}]``, lowest first; a zone that nothing measured bounds is left out."""
    zones: list[dict[str, Any]] = [{"name": "baseline", "low": 0.0}]
    pressure = base["pressure"]
    if pressure.value is not None:
        zones.append({"name": "tuning candidate", "low": pressure.ci[1] if pressure.ci else pressure.value})
    shaky = [
        p["pressure"].value for p in points if p is not base and _unsteady(p, base) and p["pressure"].value is not None
    ]
    if shaky:
        zones.append({"name": "unstable tail", "low": min(shaky)})
    zones.append({"name": "saturation", "low": 1.0 / (1.0 + (floor.value or 0.0))})
    return sorted(zones, key=lambda z: float(z["low"]))


def _unsteady(point: dict[str, Any], base: dict[str, Any]) -> bool:
    """The whole interval of its tail ratio lies above the comparator's."""
    a, b = point["tail"], base["tail"]
    if a.value is None or b.value is None:
        return False
    return bool((a.ci[0] if a.ci else a.value) > (b.ci[1] if b.ci else b.value))


def zone_of(point: dict[str, Any], zones: list[dict[str, Any]], base: dict[str, Any]) -> str:
    pressure = point["pressure"].value
    if pressure is None:
        return "not placed"
    lows = {z["name"]: float(z["low"]) for z in zones}
    if pressure >= lows["saturation"]:
        return "saturation"
    if point is not base and _unsteady(point, base):
        return "unstable tail"
    return "tuning candidate" if pressure > lows.get("tuning candidate", float("inf")) else "baseline"


# What a census says of bytes


def touched(census: Mapping[str, Any]) -> float:
    """Bytes of operands and results of all ops of a step."""
    steps = max(1, int(census["steps"]))
    return sum(
        (r["calls"] / steps * (_operands(r) + r["out_bytes"]) for r in census["rows"] if r["family"] != "view"), 0.0
    )


def working_set(census: Mapping[str, Any]) -> float:
    """Bytes of each distinct constant once, and of the largest op's other operands and results."""
    others = max(
        (_operands(r) - _weight(r) + r["out_bytes"] for r in census["rows"] if r["family"] != "view"), default=0.0
    )
    return weights(census, per_call=False) + others


def weights(census: Mapping[str, Any], per_call: bool) -> float:
    """Bytes of the weights of products: each call's, or each distinct weight once."""
    steps = max(1, int(census["steps"]))
    if per_call:
        return sum((r["calls"] / steps * _weight(r) for r in census["rows"]), 0.0)
    seen = {(r["weight"]["name"], tuple(r["weight"]["shape"])): _weight(r) for r in census["rows"] if r.get("weight")}
    return sum(seen.values())


def _weight(row: Mapping[str, Any]) -> float:
    w = row.get("weight")
    return float(w["bytes"]["values"] + w["bytes"]["indices"]) if w else 0.0


def _operands(row: Mapping[str, Any]) -> float:
    total = _weight(row)
    shape = list(row["weight"]["shape"]) if row.get("weight") else None
    for o in row["operands"]:
        if shape is not None and sorted(o["shape"]) == sorted(shape):
            shape = None  # the weight itself, counted as it is stored
            continue
        n = 1
        for d in o["shape"]:
            n *= int(d)
        total += n * _ITEM.get(o["dtype"], 4) if o["layout"] == "strided" else 0
    return total


def last_cache(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Bytes of the last-level cache, or ``None`` where sysfs does not tell."""
    found: list[tuple[int, int]] = []
    for index in root.glob("index*"):
        try:
            level, text = int((index / "level").read_text()), (index / "size").read_text().strip()
            kind = (index / "type").read_text().strip()
            scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
            size = int(text.rstrip("KMG")) * scale
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            found.append((level, size))
    return max(found)[1] if found else None
