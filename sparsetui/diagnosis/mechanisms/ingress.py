"""Ingress and metadata: is what was loaded what was released, under one lock?"""

from __future__ import annotations

from fnmatch import fnmatchcase

from sparsetui.diagnosis.case import Case, Payload
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._common import count, percent, places, tensor_places, total_ms
from sparsetui.evidence.records import Place

# A claim of 90 % is not broken by a small dense head; a named target must keep it closely.
_OVERALL_SLACK, _TARGET_SLACK = 0.05, 0.02


def _lock_mismatch(case: Case, variant: str) -> Suspicion | None:
    if case.lock is None or variant != "failing":
        return None
    bad = [d for d in case.lock.differs if not d.declared]
    if not bad:
        return None
    # the variables that set the thread count are no differences of their own
    asked = [d.tag.removeprefix("env.") for d in bad if d.tag.endswith("_NUM_THREADS")]
    apart = [d for d in bad if not d.tag.endswith("_NUM_THREADS")] if any(d.tag == "threads" for d in bad) else bad
    told = [
        f"{d.tag} {d.failing} against {d.comparator}"
        + (f" (by {', '.join(asked)})" if asked and d.tag == "threads" else "")
        for d in apart
    ]
    return Suspicion(
        summary=f"the two variants did not run under one lock: {'; '.join(told[:4])}",
        where=tuple(Place(module=d.tag) for d in apart[:12]),
        figure=count(len(apart), "tags that differ undeclared"),
        passes=(("lock", "failing"), ("lock", "comparator")),
        broken="the lock does not match",
    )


def _dropped_keys(case: Case, variant: str) -> list[str]:
    keys: list[str] = []
    for load in case.build.get(variant, {}).get("loads", ()):
        keys += [str(k) for k in (*load.get("missing", ()), *load.get("unexpected", ()))]
    return keys


def _zeros_by_name(case: Case, variant: str) -> dict[str, tuple[float, Payload]]:
    return {_bare(name): (z, t) for name, z, t in case.weights(variant)}


def _bare(name: str) -> str:
    """A pruned weight keeps one name whether it is masked on the fly or baked."""
    return name.removesuffix("_orig")


def _mask_dropped(case: Case, variant: str) -> Suspicion | None:
    keys = _dropped_keys(case, variant)
    if not keys:
        return None
    lost = [n for n, z, _ in case.weights(variant) if z < _wanted(case, n) - _TARGET_SLACK]
    if not lost:
        return None
    return Suspicion(
        summary=f"{len(keys)} checkpoint keys did not match on load ({', '.join(keys[:3])}); "
        f"{len(lost)} weights hold no pruned values",
        where=tensor_places(lost),
        figure=count(len(keys), "keys missing or unexpected"),
        passes=(("build", variant), ("inventory", variant)),
        broken="the checkpoint's pruned weights were not applied",
    )


def _wanted(case: Case, name: str) -> float:
    """The sparsity a weight should have: the declared one, else what the same weight has in the comparator."""
    if case.declared.sparsity is not None:
        return case.declared.sparsity
    other = _zeros_by_name(case, "comparator").get(_bare(name))
    return other[0] if other else 0.0


def _matches(glob: str, name: str) -> bool:
    module = name.rpartition(".")[0]
    return any(fnmatchcase(text, glob) for text in (name, module, _bare(name)))


def _coverage_gap(case: Case, variant: str) -> Suspicion | None:
    declared, want = case.declared, case.declared.sparsity
    weights = list(case.weights(variant))
    if not weights or (want is None and not declared.targets):
        return None
    modules = {str(m) for m in case.inventory.get(variant, {}).get("modules", ())}
    ran = {str(r["module"]) for r in case.rows(variant) if r.get("module")}  # what no walk finds may run all the same
    names = modules | {str(t["name"]) for t in case.tensors(variant)} | ran
    nothing = [g for g in declared.targets if not any(_matches(g, n) or fnmatchcase(n, g) for n in names)]
    if nothing:
        return Suspicion(
            summary=f"declared targets that match nothing in the model: {', '.join(nothing[:4])}",
            where=tuple(Place(module=g) for g in nothing[:12]),
            figure=count(len(nothing), "targets that resolve to nothing"),
            passes=(("inventory", variant), ("census", variant)),
            broken="a declared target does not exist",
        )
    short = _never_pruned(case, variant)
    if want is None or not short:
        return None
    lost = sum(_numel(t) for _, _, t in short) / max(1, sum(_numel(t) for _, _, t in weights))
    worst = min(z for _, z, _ in short)
    return Suspicion(
        summary=f"{len(short)} of {len(weights)} weights ({percent(lost)} of their entries) miss the declared sparsity "
        f"of {want:g}; the lowest has {percent(worst)} zeros",
        where=tensor_places(n for n, _, _ in short),
        figure=count(lost, "share of entries in unpruned targets"),
        passes=(("inventory", variant), ("census", variant)),
        broken=f"the declared sparsity of {want:g} does not hold",
    )


def _never_pruned(case: Case, variant: str) -> list[tuple[str, float, Payload]]:
    """``(name, zero fraction, tensor)`` of the weights that miss the declared sparsity, unless all of them lost it."""
    declared, want = case.declared, case.declared.sparsity
    weights = list(case.weights(variant))
    if want is None:
        return []
    meant = weights
    if declared.targets:
        meant = [(n, z, t) for n, z, t in weights if any(_matches(g, n) for g in declared.targets)]
        short = [(n, z, t) for n, z, t in meant if z < want - _TARGET_SLACK]
    else:
        total = sum(_numel(t) for _, _, t in weights)
        overall = sum(z * _numel(t) for _, z, t in weights) / total if total else 1.0
        if overall >= want - _OVERALL_SLACK:
            return []
        short = [(n, z, t) for n, z, t in weights if z < want - _OVERALL_SLACK]
    # all of them without zeros that the comparator has: then they were lost, not never made
    if len(short) == len(meant) and all(_had_zeros(case, n, want) for n, _, _ in short):
        return []
    return short


def _had_zeros(case: Case, name: str, want: float) -> bool:
    """The same weight is pruned in the comparator: then its zeros were lost, not never made."""
    other = _zeros_by_name(case, "comparator").get(_bare(name))
    return other is not None and other[0] >= want - _OVERALL_SLACK


def _numel(t: Payload) -> int:
    return int(t["numel"])


def _decayed(case: Case, variant: str) -> Suspicion | None:
    if variant != "failing":
        return None
    before = _zeros_by_name(case, "comparator")
    told = {name for name, _, _ in _never_pruned(case, variant)}  # one fact is told once
    lost: list[tuple[str, float, float]] = []
    for name, zeros, t in case.weights(variant):
        if name in told:
            continue
        mode = t.get("mode_fraction")
        if mode is not None and float(mode) > zeros + _OVERALL_SLACK:
            lost.append((name, float(mode), zeros))  # quantised: the zeros sit at a zero point that is not 0
            continue
        other = before.get(_bare(name))
        if other and other[0] > zeros + _OVERALL_SLACK and other[0] > 0.3:
            lost.append((name, other[0], zeros))
    if not lost:
        return None
    drop = max(b - a for _, b, a in lost)
    name, b, a = max(lost, key=lambda x: x[1] - x[2])
    return Suspicion(
        summary=f"zeros were lost in {len(lost)} weights: {name} went from {percent(b)} to {percent(a)} zeros",
        where=tensor_places(n for n, _, _ in lost),
        figure=count(drop, "zero fraction lost"),
        passes=(("inventory", "failing"), ("inventory", "comparator")),
        broken="the failing variant lost zeros that the comparator has",
    )


def _stored_zeros(case: Case, variant: str) -> Suspicion | None:
    bad = [t for t in case.sparse_tensors(variant)
           if t["layout"] not in ("bsr", "bsc") and t.get("stored") and t["stored_zeros"] + t["stored_tiny"] > 0]  # fmt: skip
    if not bad:
        return None
    stored = sum(int(t["stored"]) for t in bad)
    zeros = sum(int(t["stored_zeros"]) + int(t["stored_tiny"]) for t in bad)
    names = {str(t["name"]) for t in bad}
    rows = [r for r in case.products(variant) if r["weight"]["name"] in names]
    ms = total_ms(case, rows, variant) * zeros / stored
    return Suspicion(
        summary=f"{percent(zeros / stored)} of the values stored in {len(bad)} sparse tensors are zero",
        where=places(rows) or tensor_places(names),
        figure=count(zeros / stored, "share of stored values that are zero", stored),
        passes=(("inventory", variant), ("census", variant)) if rows else (("inventory", variant),),
        broken=_stored_claim(case, bad),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _stored_claim(case: Case, bad: list[Payload]) -> str:
    """The declared sparsity holds for the values but not for what is stored."""
    want = case.declared.sparsity
    stored = sum(int(t["stored"]) for t in bad) / max(1, sum(_numel(t) for t in bad))
    if want is None or stored <= 1 - want + _OVERALL_SLACK:
        return ""
    return f"{percent(stored)} of the entries are stored, where the declared sparsity of {want:g} leaves {percent(1 - want)}"


def _pattern_mismatch(case: Case, variant: str) -> Suspicion | None:
    return _nm_mismatch(case, variant) or _block_fill(case, variant)


def _nm_mismatch(case: Case, variant: str) -> Suspicion | None:
    pattern = case.declared.pattern or ((2, 4) if case.declared.layout == "2:4" else None)
    if pattern is None:
        return None
    n, m = pattern
    bad: list[tuple[str, float]] = []
    for name, zeros, t in case.weights(variant):
        if case.declared.targets and not any(_matches(g, name) for g in case.declared.targets):
            continue
        fit = t.get("nm", {}).get(f"{n}:{m}")
        if not fit or zeros < 0.5 * (1 - n / m):
            continue  # an unpruned weight is a coverage gap, not a wrong pattern
        share = fit[_reduction_axis(case, variant, name)]
        if share is None or share < 0.999:
            bad.append((name, share or 0.0))
    if not bad:
        return None
    name, share = min(bad, key=lambda x: x[1])
    return Suspicion(
        summary=f"zeros do not fit {n}:{m} along the reduction axis in {len(bad)} weights: "
        f"only {percent(share)} of the groups of {name} are eligible",
        where=tensor_places(n_ for n_, _ in bad),
        figure=count(share, f"share of eligible {n}:{m} groups"),
        passes=(("inventory", variant), ("census", variant)),
        broken=f"the declared pattern {n}:{m} does not hold on the axis the kernel reduces over",
    )


def _reduction_axis(case: Case, variant: str, name: str) -> int:
    """0 if the product reduces over the stored weight's last axis (``x @ Wᵀ``), 1 if over its first (``x @ W``).

    The operand of a product is a view of the stored weight: seen through its strides, the axis that is summed over is the
    stored last one where that axis is contiguous.
    """
    for r in case.products(variant):
        if r["weight"]["name"] != name or "weight_at" not in r:
            continue
        side = r["sides"][r["weight_at"]]
        strides, shape = side.get("strides") or [], side["shape"]
        if len(strides) < 2:
            continue
        over = -2 if r["weight_at"] == 1 else -1
        return 0 if strides[over] == 1 or shape[over] == 1 else 1
    return 0


def _block_fill(case: Case, variant: str) -> Suspicion | None:
    bad = [t for t in case.sparse_tensors(variant) if t.get("fill") is not None and float(t["fill"]) < 0.5]
    if not bad:
        return None
    names = {str(t["name"]) for t in bad}
    rows = [r for r in case.products(variant) if r["weight"]["name"] in names]
    ms = total_ms(case, rows, variant)
    worst = min(float(t["fill"]) for t in bad)
    return Suspicion(
        summary=f"blocks are mostly fill-in: only {percent(worst)} of the values stored in blocks are non-zero",
        where=places(rows) or tensor_places(names),
        figure=count(worst, "non-zeros per stored block value"),
        passes=(("inventory", variant), ("census", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
        intervention="unblock",
    )


def _invalid_indices(case: Case, variant: str) -> Suspicion | None:
    bad = [(str(t["name"]), [str(x) for x in t["invalid"]]) for t in case.tensors(variant) if t.get("invalid")]
    if not bad:
        return None
    name, why = bad[0]
    # an op that already differs from its dense twin sees the same thing from the other end
    wrong = case.extra.get(("truth", variant), {}).get("wrong")
    return Suspicion(
        summary=f"{name}: {'; '.join(why[:3])}" + (f" (and {len(bad) - 1} more tensors)" if len(bad) > 1 else ""),
        where=tensor_places(n for n, _ in bad),
        figure=count(len(bad), "tensors with invalid indices"),
        passes=(("inventory", variant), *([("truth", variant)] if wrong else [])),
        broken="a sparse tensor breaks its layout's invariants",
    )


def _clean_bytes(t: Payload) -> float:
    """Bytes of values and indices had the stored zeros been dropped: those are another mechanism's."""
    whole = float(t["bytes"]["values"] + t["bytes"]["indices"])
    if t["layout"] in ("bsr", "bsc") or not t.get("stored"):
        return whole
    return whole * (1 - (int(t["stored_zeros"]) + int(t["stored_tiny"])) / int(t["stored"]))


def _index_overhead(case: Case, variant: str) -> Suspicion | None:
    sparse = [
        t for t in case.sparse_tensors(variant) if t.get("bytes") and len(t["shape"]) >= 2 and t["bytes"]["dense"]
    ]
    over = [t for t in sparse if _clean_bytes(t) > t["bytes"]["dense"]]
    whole = sum(_clean_bytes(t) for t in sparse)
    dense = sum(t["bytes"]["dense"] for t in sparse)
    if not over or whole <= dense:
        return None
    index, stored = (
        sum(t["bytes"]["indices"] for t in sparse),
        sum(t["bytes"]["values"] + t["bytes"]["indices"] for t in sparse),
    )
    names = {str(t["name"]) for t in over}
    rows = [r for r in case.products(variant) if r["weight"]["name"] in names]
    ms = total_ms(case, rows, variant)
    return Suspicion(
        summary=f"values and indices take {whole / dense:.2f} times the dense bytes; indices are {percent(index / stored)} of them",
        where=places(rows) or tensor_places(names),
        figure=count(whole / dense, "stored bytes / dense bytes"),
        passes=(("inventory", variant), ("census", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
        broken="the sparse form takes more memory than the dense one",
        intervention="coo-to-csr" if all(t["layout"] == "coo" for t in over) else None,
    )


MECHANISMS = [
    Mechanism(
        id="ingress.lock-mismatch", owner="PR", yields=True, suspect=_lock_mismatch, intervention="relock",
        question="Did both variants run under the same tags, but for the declared change?",
        fix="run both variants under one lock, or declare the difference as the change",
        boundary="the launch environment of one variant; no code and no weights",
        rollback="restore the variant's former launch environment",
        closes="a run of both variants under one lock",
    ),
    Mechanism(
        id="ingress.mask-dropped", owner="PR", suspect=_mask_dropped,
        question="Were the checkpoint's masks and pruned weights applied on load?",
        fix="bake the masks into the checkpoint, and load it with strict=True",
        boundary="the loading code and the checkpoint's keys",
        rollback="serve the comparator's checkpoint",
        closes="no key missing or unexpected, and the model's zero fraction equals the file's",
    ),
    Mechanism(
        id="ingress.coverage-gap", owner="ML", suspect=_coverage_gap,
        question="Is every declared target pruned?",
        fix="prune the targets that were skipped, or narrow the declaration to what is pruned",
        boundary="the pruning recipe's targets; the runtime is untouched",
        rollback="serve the previous weights",
        closes="every declared target at its declared zero fraction",
    ),
    Mechanism(
        id="ingress.sparsity-decayed", owner="ML", suspect=_decayed,
        question="Are the zeros still there?",
        fix="apply the mask after the step, cast or quantisation that fills zeros in",
        boundary="the training or export step that touched the weights",
        rollback="serve the weights from before that step",
        closes="the zero fraction equals the comparator's",
    ),
    Mechanism(
        id="ingress.stored-zeros", owner="ML", suspect=_stored_zeros, intervention="drop-zeros",
        question="Does the sparse layout store zeros?",
        fix="drop the stored zeros when the sparse tensor is built",
        boundary="how the sparse tensor is made; results are the same to the bit or within rounding",
        rollback="load the former tensor",
        closes="nnz equals the number of values above the dtype's resolution",
    ),
    Mechanism(
        id="ingress.pattern-mismatch", owner="ML", suspect=_pattern_mismatch,
        question="Do the zeros fit the pattern that the kernel needs?",
        fix="prune along the reduction axis, or choose a format that fits the pattern that is there",
        boundary="the pruning recipe or the storage format of the named weights",
        rollback="serve the previous weights or format",
        closes="every group of the pattern is eligible on the reduction axis",
    ),
    Mechanism(
        id="ingress.invalid-indices", owner="PR", suspect=_invalid_indices,
        question="Are the indices in range, monotone, sorted and unique?",
        fix="rebuild the tensor with invariant checks on, and validate once at load",
        boundary="how the sparse tensor is made",
        rollback="serve the comparator's weights",
        closes="all layout invariants hold",
    ),
    Mechanism(
        id="ingress.index-overhead", owner="ML", suspect=_index_overhead, intervention="narrow-index",
        question="Do values and indices take fewer bytes than the dense weight?",
        fix="int32 indices, a format with fewer indices (CSR instead of COO, or blocks), or stay dense below break-even",
        boundary="the storage format of the named weights",
        rollback="restore the former format",
        closes="stored bytes below the dense bytes",
    ),
]  # fmt: skip
