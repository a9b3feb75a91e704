"""To which sparsity each weight is pruned for the matrix, and from which variant's weights: pure matching of two scouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PRUNED = 0.05  # below this zero fraction a weight does not count as pruned


class Plan(NamedTuple):
    """``source`` is the variant whose weights are pruned; ``targets`` maps weight name to zero fraction."""

    source: str
    targets: dict[str, float]
    sparsity: float  # over all weights, by entries
    source_zeros: float
    how: str


def plan(layers: Mapping[str, Sequence[Mapping[str, Any]]], declared: float | None) -> Plan | str:
    """``layers`` maps variant to what the scout saw there. A text instead of a plan says why there is none."""
    seen = {v: list(found) for v, found in layers.items() if found}
    if not seen:
        return "no product of either variant has a constant weight of two dimensions"
    source = min(seen, key=lambda v: (round(overall(seen[v]), 2), v != "comparator"))
    base = seen[source]
    failing = seen.get("failing", [])
    by_name = {str(x["name"]): float(x["zeros"]) for x in failing if tuple(x["shape"])}
    shapes: dict[tuple[int, ...], list[float]] = {}
    for x in failing:
        shapes.setdefault(tuple(x["shape"]), []).append(float(x["zeros"]))
    whole = overall(failing)
    if not failing or max((float(x["zeros"]) for x in failing), default=0.0) < PRUNED:
        rest = declared if declared is not None else overall(base)
        if rest < PRUNED:
            return "neither the failing variant's product weights nor [declared] say to which sparsity to prune"
        how = "the declared sparsity" if declared is not None else "the source's own zeros"
        targets = {str(x["name"]): rest for x in base}
        return Plan(
            source, targets, rest, overall(base), f"{how}: the failing variant's products show no pruned weight"
        )
    targets, ways = {}, {"by name": 0, "by shape": 0, "overall": 0}
    for x in base:
        name, shape = str(x["name"]), tuple(x["shape"])
        if name in by_name:
            targets[name], way = by_name[name], "by name"
        elif shapes.get(shape):
            targets[name], way = shapes[shape].pop(0), "by shape"
        else:
            targets[name], way = whole, "overall"
        ways[way] += 1
    targets = {n: (t if t >= PRUNED else 0.0) for n, t in targets.items()}
    said = ", ".join(f"{n} weights {way}" for way, n in ways.items() if n)
    reached = sum(targets[str(x["name"])] * _entries(x) for x in base) / sum(_entries(x) for x in base)
    return Plan(source, targets, reached, overall(base), f"the failing variant's own zeros, matched: {said}")


def overall(layers: Sequence[Mapping[str, Any]]) -> float:
    total = sum(_entries(x) for x in layers)
    return sum(float(x["zeros"]) * _entries(x) for x in layers) / total if total else 0.0


def _entries(layer: Mapping[str, Any]) -> int:
    rows, cols = layer["shape"]
    return int(rows) * int(cols)
