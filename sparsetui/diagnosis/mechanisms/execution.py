"""Execution: what does the tensor work itself cost?"""

from __future__ import annotations

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._common import count, places
from sparsetui.evidence.records import Place


def _index_copy(case: Case, variant: str) -> Suspicion | None:
    wide = {
        str(t["name"]) for t in case.sparse_tensors(variant) if t.get("index_dtype") == "int64" and t["layout"] != "coo"
    }
    rows = [r for r in case.products(variant)
            if r["weight"]["index_dtype"] == "int64" and r["weight"]["layout"] not in ("coo", "strided")]  # fmt: skip
    if not rows:
        return None
    lengths = {int(r["weight"]["nnz"]) for r in rows if r["weight"]["nnz"] is not None}
    profile = case.profile.get(variant, {})
    steps = max(1, int(profile.get("steps", 1)))
    copies = [c for c in profile.get("copies_in_products", ()) if len(c["shape"]) == 1]
    index = [c for c in copies if int(c["shape"][0]) in lengths]
    if profile and not index:
        return None
    ms = sum(float(c["total_ms"]) for c in copies) / steps
    calls = sum(int(c["calls"]) for c in copies) / steps
    return Suspicion(
        summary=f"int64 indices are narrowed {calls:.3g} times a step inside products, {ms:.3g} ms",
        where=places(rows) or tuple(Place(module=n) for n in sorted(wide))[:12],
        figure=count(calls, "index copies a step"),
        passes=(("profile", variant), ("inventory", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


MECHANISMS = [
    Mechanism(
        id="execution.index-copy", owner="KL", suspect=_index_copy, intervention="narrow-index",
        question="Are int64 indices narrowed on each call?",
        fix="store the indices as int32 once at load",
        boundary="the index dtype of the named weights; values and results are the same",
        rollback="restore int64 indices",
        closes="no index copy inside a product",
    ),
]  # fmt: skip
