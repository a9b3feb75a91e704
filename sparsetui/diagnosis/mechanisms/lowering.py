"""Lowering: do the zeros reach a sparse layout, or does a dense product multiply them?"""

from __future__ import annotations

from sparsetui.diagnosis.case import SPARSE_LAYOUTS, Case, Payload
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._common import (
    constant_work,
    count,
    expands,
    out_numel,
    percent,
    places,
    total_ms,
    weight_size,
)


def _dense_rows(case: Case, variant: str) -> list[Payload]:
    """Products that multiply a mostly-zero strided constant as it lies (not one that was just made from something else)."""
    return [r for r in case.products(variant)
            if r["path"] in ("dense", "conv") and r["weight"]["eligible"] and r["weight"]["const"]
            and not r["weight"]["derived"]]  # fmt: skip


def _densified_at_load(case: Case, variant: str) -> set[str]:
    return {str(n) for n in case.build.get(variant, {}).get("made_dense", ()) if n}


def _dense_storage(case: Case, variant: str) -> Suspicion | None:
    at_load = _densified_at_load(case, variant)
    rows = [r for r in _dense_rows(case, variant) if r["weight"]["name"] not in at_load]
    if not rows:
        return None
    ms = total_ms(case, rows, variant)
    zeros = sum(float(r["weight"]["zeros"]) * case.row_ms(r, variant) for r in rows) / ms if ms else 0.0
    claim = case.declared.layout
    broken = ""
    if claim is not None and claim != "strided":
        broken = f"the release declares layout {claim}, but these weights are strided"
    return Suspicion(
        summary=f"{percent(zeros)} zeros live in strided tensors, and {len(rows)} dense products multiply them",
        where=places(rows),
        figure=count(zeros, "zero fraction of dense operands"),
        passes=(("inventory", variant), ("census", variant)),
        broken=broken,
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _mask_recompute(case: Case, variant: str) -> Suspicion | None:
    least = weight_size(case, variant)
    rows = [r for r in constant_work(case, variant)
            if r["family"] in ("pointwise", "copy", "other") and out_numel(r) >= least > 0 and not _decompression(r)]  # fmt: skip
    if not any(r["family"] == "pointwise" for r in rows):
        return None
    ms = total_ms(case, rows, variant)
    calls = sum(case.calls(r, variant) for r in rows)
    return Suspicion(
        summary=f"{calls:.3g} weight-sized elementwise ops a step work on constants only "
        f"({', '.join(sorted({str(r['op']) for r in rows})[:3])})",
        where=places(rows),
        figure=count(ms, "ms a step"),
        passes=(("census", variant), ("profile", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _decompression(row: Payload) -> bool:
    return row["family"] != "densify" and expands(row)


def _densified(case: Case, variant: str) -> Suspicion | None:
    rows = [r for r in case.rows(variant)
            if (r["family"] == "densify" and not r.get("backward") and _from_sparse(r))
            or (r.get("constant") and r["family"] in ("pointwise", "copy", "other") and _decompression(r)
                and out_numel(r) >= weight_size(case, variant) > 0)]  # fmt: skip
    at_load = [r for r in _dense_rows(case, variant) if r["weight"]["name"] in _densified_at_load(case, variant)]
    if not rows and not at_load:
        return None
    if not rows:
        ms = total_ms(case, at_load, variant)
        claim = case.declared.layout in SPARSE_LAYOUTS
        return Suspicion(
            summary=f"{len(at_load)} sparse weights were made dense while loading, and are multiplied dense",
            where=places(at_load),
            figure=count(len(at_load), "weights densified at load"),
            passes=(("build", variant), ("census", variant)),
            broken=f"the release declares layout {case.declared.layout}, but loading made it dense" if claim else "",
            ms=ms,
            share=case.share_of_step(ms, variant),
            intervention="csr-twin",
        )
    ms = total_ms(case, rows, variant)
    calls = sum(case.calls(r, variant) for r in rows)
    return Suspicion(
        summary=f"{calls:.3g} decompressions to dense a step, {ms:.3g} ms",
        where=places(rows),
        figure=count(calls, "decompressions a step"),
        passes=(("census", variant), ("profile", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _from_sparse(row: Payload) -> bool:
    return row.get("source", {}).get("layout") in SPARSE_LAYOUTS or "dequantize" in str(row["op"])


MECHANISMS = [
    Mechanism(
        id="lowering.dense-storage", owner="ML", suspect=_dense_storage, intervention="csr-twin",
        question="Are the zeros in a sparse layout where a product uses them?",
        fix="convert the pruned weights to CSR (or blocks) once at load, where the shape and density gain from it",
        boundary="the storage of the named weights; the products' results stay within rounding",
        rollback="keep the strided weights",
        closes="the named products take a sparse path and the time of the twin is reached",
    ),
    Mechanism(
        id="lowering.mask-recompute", owner="ML", suspect=_mask_recompute, intervention="fold-mask",
        question="Is a mask applied to the weight on each step?",
        fix="bake the mask into the weight (prune.remove, or multiply once at load)",
        boundary="the parametrisation of the named weights; values are the same to the bit",
        rollback="restore the parametrised weights",
        closes="no weight-sized elementwise op on constants in the step",
    ),
    Mechanism(
        id="lowering.densified", owner="RT", suspect=_densified, intervention="cache-dense",
        question="Is a sparse or packed weight made dense in the step, or at load?",
        fix="decompress once and keep the result, or multiply the sparse form",
        boundary="where the named weights are decompressed; resident memory grows by the dense bytes if cached",
        rollback="restore the decompression in the step",
        closes="no decompression in the step",
    ),
]  # fmt: skip
