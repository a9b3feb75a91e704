"""Validation: are results, quality and SLA still right?"""

from __future__ import annotations

import math

from sparsetui.diagnosis.case import SPARSE_LAYOUTS, Case, Payload
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.evidence.records import Number, Place


def _quality_drift(case: Case, variant: str) -> Suspicion | None:
    gate = case.declared.max_drift
    if variant != "failing" or gate is None or case.drift is None or case.drift.value is None:
        return None
    low = case.drift.ci[0] if case.drift.ci else case.drift.value
    if low <= gate or _precision(case, variant) or _wrong_result(case, variant) or _non_finite(case, variant):
        return None  # then the result is wrong, not merely less good
    if _draws(case):
        return None  # then the metric is one draw of many, and says nothing of the weights
    metric = case.drift_metric or "outputs"
    clean = [t for t in case.trials.values() if t.intervention == "dense-twin" and t.valid]
    passes = [("quality", "failing"), ("outputs", "failing")]
    if clean:
        passes.append(("check", "failing"))
    return Suspicion(
        summary=f"{metric} moved by {case.drift.value:.4g}, the gate allows {gate:g}"
        + ("; the sparse products equal their masked-dense twins" if clean else ""),
        where=(Place(module=metric),),
        figure=case.drift,
        passes=tuple(passes),
        broken=f"quality drift is over its gate of {gate:g}",
    )


def _narrower(case: Case) -> str:
    """The floating dtype that the failing variant computes in and the comparator does not, or ""."""
    for d in case.lock.differs if case.lock is not None else ():
        if d.tag.startswith("dtype."):
            for name in str(d.failing).split(","):
                if name in ("float16", "bfloat16", "float32") and name not in str(d.comparator).split(","):
                    return name
    return ""


def _dtype_alone(case: Case) -> bool:
    """The variants compute in different dtypes while each weight has the same share of zeros, and the drift is over its gate."""
    gate, drift = case.declared.max_drift, case.drift
    if gate is None or drift is None or drift.value is None or case.lock is None:
        return False
    if (drift.ci[0] if drift.ci else drift.value) <= gate:
        return False
    if not any(d.tag.startswith("dtype.") for d in case.lock.differs):
        return False
    theirs = {name: z for name, z, _ in case.weights("comparator")}
    pairs = [(z, theirs[name]) for name, z, _ in case.weights("failing") if name in theirs]
    return bool(pairs) and all(abs(a - b) < 0.005 for a, b in pairs)


_EXPLAINS, _ACQUITS = 0.5, 0.25  # of the distance between the variants' outputs: what rounding alone moves the comparator by


def _precision(case: Case, variant: str) -> Suspicion | None:
    if variant != "failing" or not _dtype_alone(case):
        return None
    assert case.lock is not None
    assert case.drift is not None
    rounded = (case.extra.get(("rounding", "comparator")) or {}).get("moved")
    whole = case.output_drift.value if case.output_drift is not None else None
    share = rounded / whole if rounded is not None and whole else None
    if share is not None and share < _ACQUITS:
        return None  # the dtype by itself does much less than this
    tags = "; ".join(
        f"{d.tag} {d.failing} against {d.comparator}" for d in case.lock.differs if d.tag.startswith("dtype.")
    )
    proved = ""
    passes: tuple[tuple[str, str], ...] = (("inventory", "failing"), ("outputs", "failing"))
    if share is not None and share >= _EXPLAINS:
        proved = f"the comparator rounded to {_narrower(case)} moves by {100 * share:.0f} % as much, with its own weights"
        passes = (("rounding", "comparator"), *passes)
    return Suspicion(
        summary=f"{case.drift_metric or 'outputs'} moved by {case.drift.value:.4g} at the same zeros: {tags}",
        where=(Place(module=case.drift_metric or "outputs"),),
        figure=case.drift,
        passes=passes,
        broken=f"quality drift is over its gate of {case.declared.max_drift:g}",
        proved=proved,
    )


def _wrong_result(case: Case, variant: str) -> Suspicion | None:
    probe = case.extra.get(("truth", variant))
    if not probe or not probe.get("wrong"):
        return None
    first = probe["wrong"][0]
    mended = all(w.get("mended") is not None and w["mended"] <= w["tolerance"] for w in probe["wrong"])
    return Suspicion(
        summary=f"{first['op']} on {'/'.join(first['layouts'])} differs from its dense twin by {first['error']:.2g} "
        f"(tolerance {first['tolerance']:g})",
        where=tuple(Place(module=str(w["module"] or w["place"]), op=str(w["op"])) for w in probe["wrong"][:8]),
        figure=Number(value=float(first["error"]), unit="relative error of the first wrong op"),
        passes=(("truth", variant), ("inventory", variant)),
        broken="a sparse op gives a wrong result",
        proved="gone with the operand sorted and coalesced" if mended else "",
    )


def _non_finite(case: Case, variant: str) -> Suspicion | None:
    out = case.outputs.get(variant)
    if not out or out.get("finite", True):
        return None
    first = (case.extra.get(("truth", variant)) or {}).get("nonfinite")
    where = (Place(module=str(first["module"] or first["place"]), op=str(first["op"])),) if first else ()
    return Suspicion(
        summary="outputs are not finite"
        + (f"; {first['op']} made the first NaN or Inf" if first else "")
        + (" from finite inputs" if first and first["inputs_finite"] else ""),
        where=where,
        figure=Number(value=float(first["nan"]), unit="NaN in the first non-finite tensor") if first else None,
        passes=(("outputs", variant), ("truth", variant)),
        broken="the outputs hold NaN or Inf",
    )


def _nondeterminism(case: Case, variant: str) -> Suspicion | None:
    mine, theirs = case.outputs.get("failing"), case.outputs.get("comparator")
    if variant != "failing" or not mine or not theirs or not theirs.get("repeats", True) or _stateful(case):
        return None
    if mine.get("repeats", True):
        return _drawn(mine, theirs)
    return Suspicion(
        summary=f"the same input and seed give different bits (relative difference {mine['repeat_error']:.2g}); "
        "the comparator repeats to the bit",
        where=(Place(module="outputs"),),
        figure=Number(
            value=float(mine["repeat_error"]), unit="relative difference of repeats", n=int(mine.get("tries", 2))
        ),
        passes=(("outputs", "failing"), ("outputs", "comparator")),
        broken="the failing variant does not repeat itself",
        proved=_steadied(mine),
    )


def _steadied(mine: Payload) -> str:
    by = str(mine.get("steadied_by") or "")
    return f"gone with {by}" if by else ""


def _drawn(mine: Payload, theirs: Payload) -> Suspicion | None:
    """Answers that follow the random generator, where the comparator's do not: dropout left on, say."""
    error = float(mine.get("drawn_error", 0.0))
    if error <= _BITS or float(theirs.get("drawn_error", 0.0)) > 0.0:
        return None
    return Suspicion(
        summary="the same input gives another answer from another state of the random generator (relative difference "
        f"{error:.2g}), as with dropout left on; the comparator draws nothing",
        where=(Place(module="outputs"),),
        figure=Number(value=error, unit="relative difference of repeats", n=2),
        passes=(("outputs", "failing"), ("outputs", "comparator")),
        broken="the failing variant draws its answers",
        proved=_steadied(mine),
    )


# A re-ordered sum moves the last bits; what differs by more than this draws its answers.
_BITS = 1e-3


def _draws(case: Case) -> bool:
    found = _nondeterminism(case, "failing")
    return found is not None and found.figure is not None and (found.figure.value or 0.0) > _BITS


def _stateful(case: Case) -> bool:
    return any(c.get("mutated") for c in case.census.get("failing", {}).get("constants", ()))


_COLD_LEAST = 3  # processes whose first calls were timed


def _served_cold(case: Case, variant: str) -> Suspicion | None:
    """First calls that break the objective in every process, where the comparator's keep it and the steady state does too."""
    limit, c = case.declared.p99_ms, case.comparison
    mine, theirs = case.cold_ms.get("failing", ()), case.cold_ms.get("comparator", ())
    if variant != "failing" or limit is None or c is None or min(len(mine), len(theirs)) < _COLD_LEAST:
        return None
    steady = c.failing_ms.value
    if steady is None or not (max(steady, *theirs) <= limit < min(mine)):
        return None
    if min(mine) < 2 * max(theirs):
        return None  # one and the same start, on either side of the objective
    return Suspicion(
        summary=f"the first call of a process takes {min(mine):.3g} ms and more, over the p99 objective of {limit:g} ms; "
        f"later ones take {steady:.3g} ms, and the comparator's first {max(theirs):.3g} ms at most",
        where=(Place(module="first call"),),
        figure=Number(value=min(mine), n=len(mine), unit="ms, the quickest first call"),
        passes=(("clock", ""), ("settle", "failing"), ("settle", "comparator")),
        broken="the release is served cold",
        proved="gone with a warm-up",
    )


def _cold_start(case: Case, variant: str) -> Suspicion | None:
    cold = _served_cold(case, variant)
    return cold if cold is not None else _timed_cold(case, variant)


def _timed_cold(case: Case, variant: str) -> Suspicion | None:
    """A declared speed-up that only first calls show."""
    mine, theirs = case.settle.get("failing"), case.settle.get("comparator")
    speed, c = case.declared.speedup, case.comparison
    if variant != "failing" or not mine or not theirs or not speed or c is None or not c.ratio.value:
        return None
    cold = float(theirs["cold_ms"]) / max(float(mine["cold_ms"]), 1e-6)
    warm = 1 / (c.ratio.ci[0] if c.ratio.ci else c.ratio.value)  # at best
    # one first call is one observation: it has to stand out from the comparator's own steady state as well
    if not (cold >= speed > warm and float(theirs["cold_ms"]) >= 2 * float(theirs["step_ms"])):
        return None
    return Suspicion(
        summary=f"the declared speed-up of {speed:g} holds for the first call only ({cold:.3g} cold, {1 / c.ratio.value:.3g} warm)",
        where=(Place(module="first call"),),
        figure=Number(value=cold, unit="speed-up of the first call", n=1),
        passes=(("settle", "failing"), ("settle", "comparator"), ("clock", "")),
        broken="the claim was timed cold",
    )


_DWARFS = 20.0  # times: what the tail loses over what the median does, for the median's part to be the tail's doing


def _tail_only(case: Case, variant: str) -> Suspicion | None:
    t, c = case.tails, case.comparison
    if variant != "failing" or t is None or c is None or not t.tail_slower:
        return None
    # the quantile that stands out most clearly: its whole deciding interval lies furthest above level
    name = max((q for q in t.strict_ci if q != "p50"), key=lambda q: t.strict_ci[q][0], default="p95")
    summary, broken = f"p50 is fine, the tail is not: {t.reason}", "the tail got slower while the median did not"
    if c.verdict == "slower":
        # slow steps leave cold caches behind, which the next ones pay for: that is no second fault
        high = c.ratio.ci[1] if c.ratio.ci else math.inf
        if t.strict_ci[name][0] - 1.0 < _DWARFS * (high - 1.0):
            return None
        summary = f"{t.reason}: {name} is {t.ratios[name].value:.3g} times the comparator's, p50 {c.ratio.value:.3g} times"
        broken = "the tail got far slower than the median"
    return Suspicion(
        summary=summary,
        where=(Place(module=name),),
        figure=t.ratios.get(name),
        passes=(("clock", ""), ("settle", "failing")),
        broken=broken,
    )


def _has_sparse(case: Case) -> bool:
    """A sparse tensor is held, or made in the step; or something is not finite."""
    if case.sparse_tensors("failing") or not all(o.get("finite", True) for o in case.outputs.values()):
        return True
    return any(o.get("layout") in SPARSE_LAYOUTS for r in case.rows("failing") for o in (*r["operands"], *r["outputs"]))


MECHANISMS = [
    Mechanism(
        id="validation.quality-drift", owner="ML", suspect=_quality_drift,
        question="Is quality within its gate while execution is clean?",
        fix="prune less, or recover by fine-tuning under the mask; the runtime is not at fault",
        boundary="the weights; no runtime change",
        rollback="serve the comparator's weights",
        closes="the metric is within its gate",
    ),
    Mechanism(
        id="validation.precision", owner="ML", suspect=_precision, needs=("rounding",), wants=_dtype_alone,
        arguments=lambda case: {"dtype": _narrower(case)},
        question="Did the dtype, not the sparsity, move the metric?",
        fix="keep the sensitive weights in the comparator's dtype",
        boundary="dtype of the named weights",
        rollback="serve the comparator's dtype",
        closes="the metric is within its gate at the same zeros",
    ),
    Mechanism(
        id="validation.wrong-result", owner="KL", suspect=_wrong_result, needs=("truth",), wants=_has_sparse,
        question="Does each sparse op equal its dense twin?",
        fix="re-sort and coalesce the operand before the op, or use an op that keeps its invariants",
        boundary="the named op; results become those of the dense twin",
        rollback="use the dense op",
        closes="every sparse op equals its dense twin within rounding",
    ),
    Mechanism(
        id="validation.non-finite", owner="ML", suspect=_non_finite,
        question="Which tensor is the first with NaN or Inf?",
        fix="mend the first op that makes NaN or Inf; sparse and dense differ by 0 * inf",
        boundary="the named op",
        rollback="serve the comparator's weights",
        closes="all activations are finite",
    ),
    Mechanism(
        id="validation.nondeterminism", owner="KL", suspect=_nondeterminism,
        question="Does the same input give the same bits?",
        fix="use the deterministic path for the named op",
        boundary="the named op; it may be slower",
        rollback="restore the former op",
        closes="repeats are equal to the bit",
    ),
    Mechanism(
        id="validation.cold-start", owner="PR", suspect=_cold_start,
        question="Was the claim timed cold, or the reverse?",
        fix="warm up before serving, and restate the claim for the state it is served in",
        boundary="the claim and the warm-up",
        rollback="none is needed",
        closes="the claim holds in steady state",
    ),
    Mechanism(
        id="validation.tail-only", owner="PR", suspect=_tail_only,
        question="Does the tail hold where the median does?",
        fix="find what makes the slow steps slow before the average is tuned",
        boundary="release gating",
        rollback="serve the comparator",
        closes="p99 is within the floor of the comparator's",
    ),
]  # fmt: skip
