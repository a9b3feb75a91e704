"""Layer families: which of them have a sparse path in a step, and what those without one could gain.

Families are the kinds of layers that the census tells (``probes/layers.py``). A pruned family that runs dense beside one that
runs sparse is timed three ways by its twin (``probes/families.py``): dense as it is, sparse, and with whole channels pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsetui.diagnosis.case import SPARSE_LAYOUTS, Case, Payload
from sparsetui.diagnosis.mechanism import Suspicion
from sparsetui.diagnosis.mechanisms._common import count, percent, places, total_ms
from sparsetui.evidence.records import Number, unavailable

PROBE = "families"
_OTHER = {"failing": "comparator", "comparator": "failing"}
_BOTH_DENSE = "the other variant runs these ops dense as well, on the same shapes: they are no part of the difference"


def family(row: Payload) -> str:
    return str(row.get("layer") or row["family"])


def eligible_dense(case: Case, variant: str) -> list[Payload]:
    """Products that multiply a mostly-zero strided constant as it lies (not one that was just made from something else)."""
    return [r for r in case.products(variant)
            if r["path"] in ("dense", "conv") and r["weight"]["eligible"] and r["weight"]["const"]
            and not r["weight"]["derived"]]  # fmt: skip


def other_family(case: Case, variant: str) -> list[Payload]:
    """Eligible dense work of families in which nothing is sparse, beside one that is."""
    sparse = {family(r) for r in case.products(variant) if r.get("sparse_at") is not None}
    return [r for r in eligible_dense(case, variant) if sparse and family(r) not in sparse]


def kinds(case: Case) -> list[str]:
    return sorted({family(r) for r in other_family(case, "failing")})


def wants(case: Case) -> bool:
    """Whether the twin is worth its time: it may explain the gap, or tells what a broken claim leaves unused."""
    return at_stake(case, "failing") > 0 or (_broken(case) and bool(other_family(case, "failing")))


def _broken(case: Case) -> bool:
    return case.declared.layout in SPARSE_LAYOUTS and not case.declared.targets


def at_stake(case: Case, variant: str) -> float:
    """Milliseconds a step of the families without a sparse path, as far as they can explain the gap.

    A dense kernel takes as long over zeros as over anything else: what the other variant runs dense on the same shapes costs the
    same there, and explains no regression. A missing speed-up is missed by all that the failing variant pays.
    """
    rows = other_family(case, variant)
    if case.question != "regression":
        return total_ms(case, rows, variant)
    mine, theirs = _dense_calls(case, variant), _dense_calls(case, _OTHER[variant])
    return sum(
        case.row_ms(r, variant) * max(0.0, 1.0 - theirs.get(_signature(r), 0.0) / mine[_signature(r)]) for r in rows
    )


def _dense_calls(case: Case, variant: str) -> dict[object, float]:
    """Calls a step by signature, of ops with constants that run dense."""
    out: dict[object, float] = {}
    for r in case.products(variant):
        if r["path"] in ("dense", "conv"):
            out[_signature(r)] = out.get(_signature(r), 0.0) + case.calls(r, variant)
    return out


def _signature(row: Payload) -> object:
    return (str(row["op"]), *((str(o["dtype"]), tuple(o["shape"])) for o in (*row["operands"], *row["outputs"])))


def unsupported_family(case: Case, variant: str) -> Suspicion | None:
    rows = other_family(case, variant)
    if not rows:
        return None
    whole, ms = total_ms(case, rows, variant), at_stake(case, variant)
    named = "/".join(sorted({family(r) for r in rows}))
    share = case.share_of_step(whole, variant)
    twin = case.extra.get((PROBE, variant))
    timed = twin is not None and bool(twin.get("rows"))
    saves = _saves(case, variant, twin, ms) if ms > 0 else None
    figure = count(share, "share of the step in families without a sparse path")
    if saves is not None and saves.value is not None:
        figure = Number(
            value=saves.value,
            ci=saves.ci,
            n=saves.n,
            unit=f"share of the step that {_best(twin)} would save",
            quality="estimated",
        )
    return Suspicion(
        summary=f"one layer family runs sparse, but {len(rows)} pruned {named} ops fall back to dense: "
        f"{percent(share)} of the step" + (_said(twin) if timed else ""),
        where=places(rows),
        figure=figure,
        passes=((PROBE if timed else "inventory", variant), ("census", variant)),
        broken=f"the release declares layout {case.declared.layout}, but {named} ops run dense"
        if _broken(case)
        else "",
        ms=ms,
        share=case.share_of_step(ms, variant),
        intervention="family-twin" if ms > 0 else None,
        untried="" if ms > 0 else _BOTH_DENSE,
        saves=saves,
    )


def _saves(case: Case, variant: str, twin: Mapping[str, Any] | None, ms: float) -> Number:
    """The share of the step that the best forms save: of the time that the census saw, the part that they save of the dense ops.

    Ops whose best form is not clearly faster save nothing, and neither do signatures that were left out.
    """
    rows = twin.get("rows", ()) if twin else ()
    dense = sum(float(r["calls"]) * float(r["forms"]["dense"]) for r in rows)
    if not any(len(r["forms"]) > 1 for r in rows) or dense <= 0:
        why = sorted({str(w) for r in rows for w in r["refused"].values()})
        return unavailable("no form of its twin could be made: " + "; ".join(why) if why else "its twin was not timed")
    part = [sum(float(r["calls"]) * float(r["saves_ms"][i]) for r in rows if _faster(r)) / dense for i in (1, 0, 2)]
    covers = float(twin.get("covers", 1.0)) if twin else 0.0
    value, low, high = (covers * case.share_of_step(ms, variant) * min(1.0, p) for p in part)
    return Number(value=value, ci=(low, high), n=min(int(r["n"]) for r in rows), quality="estimated")


def _faster(row: Mapping[str, Any]) -> bool:
    return row["best"] != "dense" and float(row["saves_ms"][0]) > 0


def _best(twin: Mapping[str, Any] | None) -> str:
    """The forms that save something, the one that saves most first."""
    saved: dict[str, float] = {}
    for r in twin.get("rows", ()) if twin else ():
        if _faster(r):
            saved[str(r["best"])] = saved.get(str(r["best"]), 0.0) + float(r["calls"]) * float(r["saves_ms"][1])
    return " and ".join(sorted(saved, key=lambda f: -saved[f])) or "no form"


def _said(twin: Mapping[str, Any] | None) -> str:
    if twin is None:
        return ""
    best = _best(twin)
    if not any(len(r["forms"]) > 1 for r in twin["rows"]):
        return "; no form of its twin could be made"
    if best == "no form":
        return f"; of its twin's forms none is clearly faster ({twin['summary']})"
    return f"; of its twin's forms {best} would be faster ({twin['summary']})"
