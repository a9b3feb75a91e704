"""Scheduling: is work repeated, unbalanced or spent between the kernels?"""

from __future__ import annotations

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._common import count, places, total_ms
from sparsetui.evidence.records import Place


def _format_conversion(case: Case, variant: str) -> Suspicion | None:
    rows = [
        r for r in case.rows(variant) if r["family"] == "conversion" and r.get("constant") and not r.get("backward")
    ]
    hidden = [h for h in case.profile.get(variant, {}).get("hidden", ()) if not h.get("backward")]
    steps = max(1, int(case.profile.get(variant, {}).get("steps", 1)))
    if not rows and not hidden:
        return None
    ms = total_ms(case, rows, variant) + sum(float(h["total_ms"]) for h in hidden) / steps
    calls = sum(case.calls(r, variant) for r in rows) + sum(int(h["calls"]) for h in hidden) / steps
    where = places(rows) + tuple(Place(module=f"inside {h['product']}", op=str(h["op"])) for h in hidden)
    return Suspicion(
        summary=f"{calls:.3g} format conversions of constants a step, {ms:.3g} ms"
        + (", hidden inside products" if hidden and not rows else ""),
        where=where[:12],
        figure=count(calls, "conversions a step"),
        passes=(("profile", variant), ("census", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


MECHANISMS = [
    Mechanism(
        id="scheduling.format-conversion", owner="RT", suspect=_format_conversion, intervention="cache-conversion",
        question="Is a constant converted, sorted or coalesced on each step?",
        fix="convert once at load to the layout that the product takes without converting, and keep it",
        boundary="where the named weights are converted; results stay within rounding",
        rollback="restore the conversion in the step",
        closes="no conversion of constants in the step",
    ),
]  # fmt: skip
