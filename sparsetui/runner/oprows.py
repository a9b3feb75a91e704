"""The op table: census rows of both variants as records, hottest first, with the comparator's time for the same place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsetui.diagnosis.case import Case
from sparsetui.evidence.records import Number, OpRow

_MOST = 200


def rows(case: Case) -> list[OpRow]:
    """Up to 200 rows a variant. Times are the census's own; its observer effect is stated in the metrics."""
    out: list[OpRow] = []
    other = _by_place(case, "comparator")
    for variant in ("failing", "comparator"):
        kept = [r for r in case.rows(variant) if r["family"] != "view"][:_MOST]
        out += [_row(case, r, variant, other if variant == "failing" else {}) for r in kept]
    return out


def _by_place(case: Case, variant: str) -> dict[str, float]:
    """Milliseconds of products a step, by owning module."""
    out: dict[str, float] = {}
    for r in case.products(variant):
        if r["module"]:
            out[r["module"]] = out.get(r["module"], 0.0) + case.row_ms(r, variant)
    return out


def _row(case: Case, r: Mapping[str, Any], variant: str, other: Mapping[str, float]) -> OpRow:
    w = r.get("weight") or {}
    ms = case.row_ms(r, variant)
    theirs = other.get(str(r["module"])) if w else None
    return OpRow(
        op=str(r["op"]),
        module=str(r["module"] or r["place"]),
        path=str(r["path"]),
        calls_per_step=case.calls(r, variant),
        self_ms_per_step=Number(value=ms, n=int(r["calls"]), unit="ms", reason="timed under the census"),
        weight_zeros=float(w["zeros"]) if w else None,
        eligible=bool(w.get("eligible")),
        fallback=bool(w.get("eligible")) and r["path"] in ("dense", "conv"),
        layouts=" × ".join(str(o["layout"]) for o in r["operands"]),
        shapes=" × ".join("[" + ",".join(map(str, o["shape"])) + "]" for o in r["operands"]),
        variant=variant,
        ratio=Number(value=ms / theirs, n=int(r["calls"]), unit="×", quality="derived") if theirs else None,
    )
