"""Lowering: do the zeros reach a sparse layout, or does a dense product multiply them?"""

from __future__ import annotations

from sparsetui.diagnosis.case import SPARSE_LAYOUTS, Case, Payload
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._common import (
    constant_work,
    count,
    decompression,
    in_numel,
    out_numel,
    percent,
    places,
    selects,
    total_ms,
    weight_size,
)
from sparsetui.diagnosis.mechanisms._families import (
    PROBE,
    eligible_dense,
    kinds,
    other_family,
    unsupported_family,
    wants,
)


def _dense_rows(case: Case, variant: str) -> list[Payload]:
    """Of those, the ones that could have been sparse: all families, unless only some families have a sparse path here."""
    rows = eligible_dense(case, variant)
    other = {id(r) for r in other_family(case, variant)}
    return [r for r in rows if id(r) not in other]


def _densified_at_load(case: Case, variant: str) -> set[str]:
    return {str(n) for n in case.build.get(variant, {}).get("made_dense", ()) if n}


_NO_CSR_ON_CPU = frozenset({"float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"})


def _without_kernel(case: Case, variant: str) -> frozenset[str]:
    """Dtypes that no CSR product takes here: as probed, else what CPU libraries leave out (they have s, d, c and z)."""
    if case.extra.get(("lock", variant), {}).get("tags", {}).get("gpu"):
        return frozenset()
    probed = [p for p in case.extra.get(("support", variant), {}).get("products", ()) if p["layout"] == "csr"]
    return _NO_CSR_ON_CPU - {str(p["dtype"]) for p in probed if p["ok"]}


def _dense_storage(case: Case, variant: str) -> Suspicion | None:
    at_load = _densified_at_load(case, variant)
    rows = [r for r in _dense_rows(case, variant) if r["weight"]["name"] not in at_load]
    if not rows:
        return None
    ms = total_ms(case, rows, variant)
    zeros = sum(float(r["weight"]["zeros"]) * case.row_ms(r, variant) for r in rows) / ms if ms else 0.0
    # what a sparse form could win is at stake only where this host has a sparse kernel for the dtype
    won = total_ms(case, [r for r in rows if str(r["weight"]["dtype"]) not in _without_kernel(case, variant)], variant)
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
        ms=won,
        share=case.share_of_step(won, variant),
    )


def _mask_recompute(case: Case, variant: str) -> Suspicion | None:
    least = weight_size(case, variant)
    unpacking = {id(r) for r in decompression(case, variant)}
    rows = [r for r in constant_work(case, variant)
            if r["family"] in ("pointwise", "copy", "other", "sort") and id(r) not in unpacking
            and max(out_numel(r), in_numel(r) if r["family"] == "sort" else 0) >= least > 0]  # fmt: skip
    if not any(r["family"] == "pointwise" or selects(r) for r in rows):  # or a mask applied by taking what it keeps
        return None
    ms = total_ms(case, rows, variant)
    calls = sum(case.calls(r, variant) for r in rows)
    return Suspicion(
        summary=f"{calls:.3g} weight-sized ops a step work on constants only "
        f"({', '.join(sorted({str(r['op']) for r in rows})[:3])})",
        where=places(rows),
        figure=count(ms, "ms a step"),
        passes=(("census", variant), ("profile", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _densified(case: Case, variant: str) -> Suspicion | None:
    forced = {id(r) for r in forced_densify(case, variant)}
    unpacked = decompression(case, variant)
    rows = [r for r in case.rows(variant)
            if r["family"] == "densify" and not r.get("backward") and _from_sparse(r) and id(r) not in forced]  # fmt: skip
    rows += unpacked
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
        intervention="fold-mask" if len(unpacked) == len(rows) else None,
    )


def _compiler_skip(case: Case, variant: str) -> Suspicion | None:
    probe = case.extra.get(("compiled", variant))
    if not probe or not probe.get("parts") or not probe.get("swapped"):
        return None
    captured, dense = int(probe["captured"]), int(probe["dense_captured"])
    if captured >= dense:
        return None
    lost = max(0.0, float(probe["eager_ms"]) - float(probe["compiled_ms"]))
    return Suspicion(
        summary=f"the compiler captured {captured} of {dense} ops: the frames that touch sparse tensors were left eager",
        where=(),
        figure=count(captured / dense, "captured ops / ops captured with dense weights"),
        passes=(("compiled", variant), ("census", variant)),
        ms=lost,
        share=case.share_of_step(lost, variant),
    )


def _is_compiled(case: Case) -> bool:
    return any(p.get("compiled") for p in case.inventory.values())


def _square(row: Payload) -> tuple[int, int] | None:
    shape = next((o["shape"] for o in row.get("outputs", ()) if len(o["shape"]) >= 2), None)
    return (int(shape[-2]), int(shape[-1])) if shape else None


_FUSED = "fuse-attention"


def _unfused_mask(case: Case, variant: str) -> Suspicion | None:
    rows = case.rows(variant)
    made = {_square(r) for r in rows if r["family"] == "product"}
    # softmax by name, or by hand: exp() of what a product made
    soft = [r for r in rows if "softmax" in str(r["op"])
            or (str(r["op"]).rpartition("::")[2] in ("exp", "exp_") and _square(r) in made)]  # fmt: skip
    scores = {_square(r) for r in soft}
    masked = [r for r in rows if r["family"] == "pointwise" and _square(r) in scores and (_square(r) or (0, 0))[0] > 1
              and r.get("hides")]  # fmt: skip
    if not masked:
        return None
    shapes = {_square(r) for r in masked}
    chain = masked + [r for r in soft if _square(r) in shapes]
    ms = total_ms(case, chain, variant)
    twin = case.extra.get(("attention", variant))
    gain = (
        sum(float(t["unfused_ms"]) - float(t["fused_ms"]) for t in twin["rows"]) if twin and twin.get("rows") else None
    )
    agrees = gain is not None
    live = case.trials.get((_FUSED, "failing"))
    if live is not None and live.valid:
        gain = None  # what it saves in the step itself is known
    if gain is not None:
        ms = max(0.0, gain)
    side = max(s[1] for s in shapes if s)
    return Suspicion(
        summary=f"a mask is applied elementwise to the whole score matrix ({side} wide) around its softmax"
        + (f"; the fused twin saves {gain:.3g} ms a step" if gain is not None else ""),
        where=places(chain),
        figure=count(ms, "ms a step"),
        passes=(("census", variant), ("attention", variant)) if agrees else (("census", variant),),
        ms=ms,
        share=min(1.0, case.share_of_step(ms, variant)),  # the twin was timed apart from the step
    )


def attention_shapes(case: Case, variant: str) -> list[list[int]]:
    """``[batch, queries, keys, width]`` of each product that makes a masked score matrix, for its twin."""
    out = []
    for r in case.rows(variant):
        sides = r.get("sides")
        if r["family"] == "product" and sides and len(sides) == 2 and len(sides[0]["shape"]) == 3:
            b, s, d = (int(x) for x in sides[0]["shape"])
            t = int(sides[1]["shape"][-1])
            if s > 1 and t > 1 and d < t and [b, s, t, d] not in out:
                out.append([b, s, t, d])
    return out[:8]


def _has_masked_softmax(case: Case) -> bool:
    return _unfused_mask(case, "failing") is not None


def forced_densify(case: Case, variant: str) -> list[Payload]:
    """Decompressions that a missing kernel forced: the same place first saw the product fail, or the source's layout and dtype
    have no product kernel here. They are kernel selection's, not lowering's."""
    failed = {(f["module"], str(f["place"]).partition(":")[0]) for f in case.census.get(variant, {}).get("failed", ())}
    probe = case.extra.get(("support", variant), {})
    without = {(p["layout"], p["dtype"]) for p in probe.get("products", ()) if not p["ok"]}
    out = []
    for r in case.rows(variant):
        source = r.get("source", {})
        if r["family"] == "densify" and (
            (r["module"], str(r["place"]).partition(":")[0]) in failed
            or (source.get("layout"), source.get("dtype")) in without
        ):
            out.append(r)
    return out


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
        id="lowering.compiler-skip", owner="RT", suspect=_compiler_skip, needs=("compiled",), wants=_is_compiled,
        question="Did the compiler capture the frames that touch sparse tensors?",
        fix="keep sparse products outside the compiled region and compile the dense rest, or wrap them as a custom op",
        boundary="which functions are compiled",
        rollback="compile as before",
        closes="as many ops are captured as with dense weights",
    ),
    Mechanism(
        id="lowering.densified", owner="RT", suspect=_densified, intervention="cache-dense",
        question="Is a sparse or packed weight made dense in the step, or at load?",
        fix="decompress once and keep the result, or multiply the sparse form",
        boundary="where the named weights are decompressed; resident memory grows by the dense bytes if cached",
        rollback="restore the decompression in the step",
        closes="no decompression in the step",
    ),
    Mechanism(
        id="lowering.unfused-mask", owner="ML", suspect=_unfused_mask, intervention=_FUSED,
        needs=("attention",), wants=_has_masked_softmax,
        arguments=lambda case: {"shapes": attention_shapes(case, "failing")},
        question="Is a block mask expanded to the whole score matrix?",
        fix="call scaled_dot_product_attention with the mask, or a block-sparse attention kernel",
        boundary="the named attention; results stay within rounding",
        rollback="restore the unfused chain",
        closes="no where() over a score matrix",
    ),
    Mechanism(
        id="lowering.unsupported-family", owner="ML", suspect=unsupported_family,
        needs=(PROBE,), wants=wants, arguments=lambda case: {"kinds": kinds(case)},
        question="Does every pruned layer family have a sparse path?",
        fix="prune the other family in a structure that its dense kernel profits from (channels), run it in the form that its twin "
        "found faster, or leave it dense",
        boundary="the pruning recipe of the named family, or the code of its layers",
        rollback="serve the previous weights of that family",
        closes="no pruned family runs dense, or the claim excludes it",
    ),
]  # fmt: skip
