"""Kernel selection: which kernel really ran?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsetui.diagnosis.case import SPARSE_LAYOUTS, Case, Payload
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._common import count, percent, places, total_ms
from sparsetui.diagnosis.mechanisms.lowering import forced_densify
from sparsetui.evidence.records import Place


def _sides(row: Payload) -> tuple[str, str]:
    sides = row.get("sides") or [{}, {}]
    return str(sides[0].get("layout", "")), str(sides[-1].get("layout", ""))


def _wrong_orientation(case: Case, variant: str) -> Suspicion | None:
    rows = [r for r in case.products(variant) if r.get("sparse_at") == 1 and _sides(r)[1] in ("csc", "bsc")]
    if not rows:
        return None
    ms = total_ms(case, rows, variant)
    share = case.share_of_step(ms, variant)
    table = case.native.get(variant)
    seen = table is not None and any(p.path == "sparse-csr-rhs" for p in table.paths)
    return Suspicion(
        summary=f"{len(rows)} products take the sparse weight as their right operand ({_sides(rows[0])[1].upper()}): "
        f"{percent(share)} of the step runs on that side's kernel",
        where=places(rows),
        figure=count(share, "share of the step"),
        passes=(("census", variant), ("native", variant)) if seen else (("census", variant), ("profile", variant)),
        ms=ms,
        share=share,
    )


def _on_sparse(ops: Iterable[Payload]) -> list[Payload]:
    return [f for f in ops if any(o["layout"] in SPARSE_LAYOUTS for o in f["operands"])]


def _unsupported(case: Case, variant: str) -> Suspicion | None:
    failed = _on_sparse(case.census.get(variant, {}).get("failed", ()))
    fatal = _on_sparse(case.extra.get(("autopsy", variant), {}).get("failed", ()))
    forced = forced_densify(case, variant)
    if fatal and _not_for_want_of_a_kernel(case, variant, fatal):
        return None
    if not failed and not forced and not fatal:
        return None
    ms = total_ms(case, forced, variant)
    raised = fatal or failed
    places_ = places(forced) or tuple(Place(module=str(f["module"] or f["place"]), op=str(f["op"])) for f in raised[:4])
    return Suspicion(
        summary=f"no kernel for {_what(case, variant, raised)}"
        + ("" if fatal else ", so the code falls back to dense"),
        where=places_,
        figure=count(ms, "ms a step in the fallback") if forced else None,
        passes=(("autopsy" if fatal else "census", variant), ("support", variant), ("inventory", variant)),
        broken="the step fails for want of a kernel" if fatal else "",
        ms=ms,
        share=case.share_of_step(ms, variant),
        intervention="supported-dtype" if raised and any(_narrow(o) for f in raised for o in f["operands"]) else None,
    )


def _not_for_want_of_a_kernel(case: Case, variant: str, fatal: Sequence[Payload]) -> bool:
    """The step fails, but where the comparator fails as well it is the inputs, and where a product of the same layouts and
    dtypes ran on a tiny twin it is the shapes."""
    if {"failing", "comparator"} <= set(case.died):
        return True
    if any(f.get("mode_only") for f in fatal):  # the same call ran outside inference_mode
        return False
    runs = {
        (p["layout"], p["dtype"]): bool(p["ok"]) for p in case.extra.get(("support", variant), {}).get("products", ())
    }
    sparse = [o for f in fatal for o in f["operands"] if o["layout"] in SPARSE_LAYOUTS]
    turned = {"csc": "csr", "csr": "csc", "bsc": "bsr", "bsr": "bsc"}
    told = [runs.get((o["layout"], o["dtype"]), runs.get((turned.get(o["layout"], ""), o["dtype"]))) for o in sparse]
    return bool(told) and all(told) and len({o["dtype"] for f in fatal for o in f["operands"]}) == 1


def _narrow(operand: Payload) -> bool:
    """A sparse operand of half precision, which CPU libraries have no product for."""
    return operand["layout"] in SPARSE_LAYOUTS and operand["dtype"] in ("float16", "bfloat16")


def _what(case: Case, variant: str, raised: Sequence[Payload]) -> str:
    if raised:
        f = raised[-1]
        operands = " and ".join(f"{o['layout']} {o['dtype']}" for o in f["operands"])
        only = " under inference_mode, while it runs under no_grad" if f.get("mode_only") else ""
        return f"{f['op']} on {operands}{only} ({f['error']})"
    bad = [p for p in case.extra.get(("support", variant), {}).get("products", ()) if not p["ok"]]
    return ", ".join(sorted({f"{p['layout']} {p['dtype']}" for p in bad}))


def _has_sparse(case: Case) -> bool:
    return bool(case.sparse_tensors("failing"))


def _generic(case: Case, variant: str) -> Suspicion | None:
    rows = [
        r
        for r in case.products(variant)
        if r["path"] == "sparse-coo" or (r.get("sparse_at") is not None and _batched(r))
    ]
    if not rows:
        return None
    ms = total_ms(case, rows, variant)
    share = case.share_of_step(ms, variant)
    return Suspicion(
        summary=f"{len(rows)} products run a generic loop ({', '.join(sorted({_sides(r)[r['sparse_at']] for r in rows}))}): "
        f"{percent(share)} of the step",
        where=places(rows),
        figure=count(share, "share of the step"),
        passes=(("census", variant), ("profile", variant)),
        ms=ms,
        share=share,
    )


def _batched(row: Payload) -> bool:
    return len(row["weight"]["shape"]) > 2


def _below_crossover(case: Case, variant: str) -> Suspicion | None:
    rows = [
        r for r in case.products(variant) if r["path"] in ("sparse-csr", "sparse-bsr", "sparse-nm") and not _batched(r)
    ]
    if not rows:
        return None
    ms = total_ms(case, rows, variant)
    share = case.share_of_step(ms, variant)
    zeros = sum(float(r["weight"]["zeros"]) for r in rows) / len(rows)
    return Suspicion(
        summary=f"{len(rows)} sparse products at {percent(zeros)} zeros run on the right kernel and side",
        where=places(rows),
        figure=count(zeros, "zero fraction"),
        passes=(("census", variant), ("inventory", variant)),
        ms=ms,
        share=share,
    )


MECHANISMS = [
    Mechanism(
        id="kernel.wrong-orientation", owner="KL", suspect=_wrong_orientation, intervention="swap-sides",
        question="Does the sparse operand stand on the side that has the fast kernel?",
        fix="multiply with the sparse weight on the left: (W @ x.T).T instead of F.linear(x, W) or x @ W.T",
        boundary="the named products; results stay within rounding",
        rollback="restore the former product",
        closes="the sparse operand is the left one and the native symbol is the row-major kernel's",
    ),
    Mechanism(
        id="kernel.unsupported", owner="KL", suspect=_unsupported, intervention="cache-dense",
        needs=("support",), wants=_has_sparse,
        question="Is there a kernel for this layout, dtype, device and build?",
        fix="use a dtype and layout that has a kernel (float32 CSR on CPU), no_grad for inference_mode, or densify once at load",
        boundary="dtype or layout of the named weights; a dtype change moves results by its rounding",
        rollback="restore the former dtype and layout",
        closes="the product runs on a sparse kernel without an error",
    ),
    Mechanism(
        id="kernel.generic", owner="KL", suspect=_generic, intervention="coo-to-csr",
        question="Does a vendor kernel run, or a generic loop?",
        fix="convert the operand to CSR once at load, and unbatch batched sparse products",
        boundary="the storage of the named weights; results stay within rounding",
        rollback="restore the former layout",
        closes="the products take the sparse-csr path",
    ),
    Mechanism(
        id="kernel.below-crossover", owner="ML", suspect=_below_crossover, intervention="dense-twin",
        rivals=("narrow-index", "swap-sides", "coo-to-csr", "cache-conversion", "drop-zeros"),
        question="Is the operand sparse enough, and the input wide enough, for the sparse kernel to win?",
        fix="keep these weights dense, prune further, or use structured sparsity where the device has kernels for it",
        boundary="the storage of the named weights; results stay within rounding",
        rollback="restore the sparse weights",
        closes="each weight is stored in the format that measures fastest at its density and width",
    ),
]  # fmt: skip
