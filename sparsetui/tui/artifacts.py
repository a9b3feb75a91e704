"""What charts need of the passes' artifacts: step times of the clock, products against the roofs, threads of a watch.

The artifacts of older or damaged sessions may lack any part; what is missing is left out, never made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsetui.evidence.records import Number
from sparsetui.report.numbers import as_number
from sparsetui.report.plots import RoofPoint, Roofs

CACHED = 1 << 20  # bytes of a weight that stay in the cache; the same bound as where bandwidth is judged
_ITEM = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}


def step_times(payload: Any) -> dict[str, list[float]]:
    """All unprobed step times of a clock artifact, in ms, by variant."""
    found: dict[str, list[float]] = {"failing": [], "comparator": []}
    for round_ in _items(payload, "rounds"):
        for variant, times in found.items():
            for block in _items(round_, variant):
                times += [float(t) for t in _items(block, "times_ms") if isinstance(t, (int, float))]
    return found


def roofs_of(payload: Any) -> dict[str, Roofs]:
    """The measured ceilings: ``memory`` and ``cache``, each with the dense GEMM peak of float32."""
    peak = payload.get("gemm_gflops", {}) if isinstance(payload, Mapping) else {}
    gflops = peak.get("float32") if isinstance(peak, Mapping) else None
    if not isinstance(gflops, (int, float)):
        return {}
    rates = {"memory": payload.get("stream_gbs"), "cache": payload.get("cache_gbs")}
    return {k: Roofs(float(v), float(gflops)) for k, v in rates.items() if isinstance(v, (int, float)) and v > 0}


def products(payload: Any) -> dict[str, list[RoofPoint]]:
    """The products with a weight that a census artifact timed, by the roof that bounds them: ``memory`` or ``cache``.

    Intensity is 2 · stored values · rows / bytes moved (values, indices, dense operands, output); a dense weight stores
    all its values. Times are those under the census, so a point lies a little low.
    """
    found: dict[str, list[RoofPoint]] = {"memory": [], "cache": []}
    for row in _items(payload, "rows"):
        try:
            point, cached = _product(row)
        except (KeyError, TypeError, ValueError, IndexError, StopIteration, ZeroDivisionError):
            continue
        found["cache" if cached else "memory"].append(point)
    return found


def _product(row: Any) -> tuple[RoofPoint, bool]:
    weight = row["weight"]
    if row["family"] != "product" or row["backward"] or len(weight["shape"]) != 2:
        raise ValueError("not a product with a matrix")
    dense = weight["layout"] == "strided"
    out, x = row["outputs"][0], next(o for o in row["operands"] if o["name"] != weight["name"] and len(o["shape"]) > 1)
    side = next(d for d in weight["shape"] if d in out["shape"])
    vectors = _count(out["shape"]) / side
    stored = _count(weight["shape"]) if dense else weight["nnz"]
    held = weight["bytes"]["dense"] if dense else weight["bytes"]["values"] + weight["bytes"]["indices"]
    moved = held + _bytes(x) + _bytes(out)
    flops = 2.0 * stored * vectors
    ns = row["ns"] / row["calls"]
    return RoofPoint(f"{row['module'] or row['op']} {row['path']}", flops / moved, flops / ns), held < CACHED


def threads(payload: Any) -> list[tuple[str, Number, list[tuple[str, float]]]]:
    """Name, share of the time that it ran, and what it ran on, of each thread of a watch."""
    found = []
    for t in _items(payload, "threads"):
        if not isinstance(t, Mapping):
            continue
        paths = [(str(p[0]), float(p[1])) for p in _items(t, "paths") if isinstance(p, Sequence) and len(p) == 2]
        found.append((f"{t.get('tid', '?')} {t.get('name', '')}".strip(), as_number(t.get("busy")), paths))
    return found


def _items(payload: Any, key: str) -> Sequence[Any]:
    found = payload.get(key) if isinstance(payload, Mapping) else None
    return found if isinstance(found, (list, tuple)) else ()


def _count(shape: Sequence[int]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _bytes(operand: Mapping[str, Any]) -> int:
    return _count(operand["shape"]) * _ITEM.get(str(operand["dtype"]), 4)
