"""What stacks add up to, as evidence: the table by path, rates, threads, functions, and what they cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsetui.evidence.kernels import SPARSE
from sparsetui.evidence.records import Missing, Number, PathShare, TimeTable, Unanswered, unavailable
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.samplers.fold import wilson
from sparsetui.ingest.stacks.tally import Tally

_KEPT = 200


def payload(path: Path, t: Tally, about: dict[str, Any]) -> dict[str, Any]:
    """JSON-able, records included. Raises :class:`IngestError` where no stack took any time."""
    if t.total <= 0:
        raise IngestError(f"{path}: no stack in it took any time; stacks with a count or a duration are accepted")
    shares = tuple(
        PathShare(
            path=p,
            share=_number(t.paths[p] / t.total, t.counts[p], t.samples, sampled=about["sampled"]),
            symbols=_top(t.symbols.get(p, {}), 5),
            callers=_top(t.callers.get(p, {}), 3),
            threads=len(t.lanes[p]),
        )
        for p in sorted(t.paths, key=lambda p: -t.paths[p])
    )
    rates = _rates(t)
    native = any(p not in ("python", "unknown") for p in t.paths)
    missing = [Missing("layouts", "a stack names functions, not tensor layouts")]
    questions = [
        Unanswered(
            "Which layouts did the operands of the products have?",
            "a stack names functions, not operands",
            "a census of the live model (sparsetui investigate)",
        )
    ]
    if not native:
        missing.append(Missing("kernels", "the stacks hold no native frames that are known"))
        questions.append(
            Unanswered(
                "Which kernels ran?",
                "the stacks hold no native frames that are known",
                "py-spy with --native (sparsetui attach PID)",
            )
        )
    return {
        "kind": "stacks",
        "file": str(path),
        **about,
        "samples": t.samples,
        "total": t.total,
        "time_table": TimeTable(paths=shares, unavailable=tuple(missing)),
        "rates": rates,
        "threads": _threads(t),
        "functions": _functions(t),
        "cannot_answer": questions,
    }


def _rates(t: Tally) -> dict[str, Number]:
    sparse = sum(v for p, v in t.paths.items() if p in SPARSE)
    dense = t.paths.get("dense", 0.0)
    out = {
        "sparse_rate": unavailable("no stack holds a matrix product"),
        "conversion_rate": Number(t.paths.get("conversion", 0.0) / t.total, n=t.samples),
        "fallback_rate": unavailable(
            "nothing in the stacks is weight-sparse, and which dense products should have been is not recorded"
        ),
    }
    if sparse + dense > 0:
        out["sparse_rate"] = Number(sparse / (sparse + dense), n=t.samples)
    if sparse > 0:
        why = "an upper bound: which dense products were meant to be sparse is not in a stack"
        out["fallback_rate"] = Number(dense / (sparse + dense), n=t.samples, quality="derived", reason=why)
    return out


def _threads(t: Tally) -> list[dict[str, Any]]:
    busiest = sorted(t.threads.items(), key=lambda kv: -sum(kv[1].values()))[:_KEPT]
    return [
        {
            "thread": name,
            "share": sum(by.values()) / t.total,
            "paths": {p: w / t.total for p, w in sorted(by.items(), key=lambda kv: -kv[1])},
        }
        for name, by in busiest
    ]


def _functions(t: Tally) -> list[dict[str, Any]]:
    rows = [
        {"name": name, "path": path, "share": weight / t.total}
        for path, by in t.functions.items()
        for name, weight in by.items()
    ]
    return sorted(rows, key=lambda r: -float(str(r["share"])))[:_KEPT]


def _top(sums: dict[str, float], n: int) -> tuple[str, ...]:
    return tuple(k for k, _ in sorted(sums.items(), key=lambda kv: -kv[1])[:n])


def _number(share: float, count: int, n: int, *, sampled: bool) -> Number:
    """A share with its Wilson interval where samples were counted; a traced duration has none."""
    if not sampled or n <= 0:
        return Number(share, n=count)
    low, high = wilson(count, n)
    return Number(share, ci=(min(low, share), max(high, share)), n=n)
