"""Scheduling: is work repeated, unbalanced or spent between the kernels?"""

from __future__ import annotations

from sparsetui.diagnosis.case import Case, Payload
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._common import count, in_numel, out_numel, places, total_ms, weight_size
from sparsetui.evidence.records import Place


def _format_conversion(case: Case, variant: str) -> Suspicion | None:
    every = [r for r in case.rows(variant) if r["family"] == "conversion" and not r.get("backward")]
    casts = _casts(case, variant)
    rows, of = [r for r in every if r.get("constant")] + casts, "of constants "
    hidden = [h for h in case.profile.get(variant, {}).get("hidden", ()) if not h.get("backward")]
    steps = max(1, int(case.profile.get(variant, {}).get("steps", 1)))
    if not rows and not hidden:
        rows, of = every, ""  # of what the step makes or is given: nothing to keep, and paid for all the same
    if not rows and not hidden:
        return None
    ms = total_ms(case, rows, variant) + sum(float(h["total_ms"]) for h in hidden) / steps
    calls = sum(case.calls(r, variant) for r in rows) + sum(int(h["calls"]) for h in hidden) / steps
    where = places(rows) + tuple(Place(module=f"inside {h['product']}", op=str(h["op"])) for h in hidden)
    return Suspicion(
        summary=f"{calls:.3g} {'casts' if rows == casts and casts and not hidden else 'format conversions'} {of}a step, {ms:.3g} ms"
        + (", hidden inside products" if hidden and not rows else ""),
        where=where[:12],
        figure=count(calls, "conversions a step"),
        passes=(("profile", variant), ("census", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _casts(case: Case, variant: str) -> list[Payload]:
    """Weights that each step casts to a narrower dtype, as autocast does. (To a wider one is decompression: lowering's.)"""
    least = weight_size(case, variant)
    return [
        r for r in case.rows(variant)
        if r.get("constant") and str(r["op"]).rpartition("::")[2] == "_to_copy" and out_numel(r) >= least > 0
        and r["operands"] and str(r["operands"][0]["dtype"]).startswith(("float", "bfloat", "complex"))
        and int(r.get("out_bytes", 0)) < in_numel(r) * _BYTES.get(str(r["operands"][0]["dtype"]), 0)
    ]  # fmt: skip


_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16}


def _backward_transpose(case: Case, variant: str) -> Suspicion | None:
    # masking a gradient to the pattern is no conversion of the operand
    rows = [r for r in case.rows(variant)
            if r["family"] in ("conversion", "sort") and r.get("backward") and "sparse_mask" not in str(r["op"])]  # fmt: skip
    profile = case.profile.get(variant, {})
    steps = max(1, int(profile.get("steps", 1)))
    hidden = [h for h in profile.get("hidden", ()) if h.get("backward") and "sparse_mask" not in str(h["op"])]
    if not rows and not hidden:
        return None
    ms = total_ms(case, rows, variant) + sum(float(h["total_ms"]) for h in hidden) / steps
    calls = sum(case.calls(r, variant) for r in rows) + sum(int(h["calls"]) for h in hidden) / steps
    return Suspicion(
        summary=f"the transpose is rebuilt under backward: {calls:.3g} conversions or sorts a step, {ms:.3g} ms",
        where=(places(rows) + tuple(Place(module=f"inside {h['product']}", op=str(h["op"])) for h in hidden))[:12],
        figure=count(calls, "conversions a step under backward"),
        passes=(("profile", variant), ("census", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _row_imbalance(case: Case, variant: str) -> Suspicion | None:
    threads = _threads(case, variant)
    if threads < 2:
        return None
    bad: list[tuple[str, float, int]] = []
    for t in case.sparse_tensors(variant):
        shares = {
            int(parts): float(share) for parts, share in (t.get("static_share") or {}).items() if int(parts) <= threads
        }
        if not shares or t["layout"] not in ("csr", "csc", "bsr", "bsc"):
            continue
        parts = max(shares)  # the finest split that was looked at and is no finer than the threads'
        if shares[parts] * parts > 1.25:
            bad.append((str(t["name"]), shares[parts], parts))
    rows = [r for r in case.products(variant) if r["weight"]["name"] in {n for n, *_ in bad}
            and r["path"] in ("sparse-csr", "sparse-csr-rhs", "sparse-bsr")]  # fmt: skip
    if not rows:
        return None
    name, worst, parts = max(bad, key=lambda x: x[1] * x[2])
    ms = total_ms(case, rows, variant) * (1 - 1 / (worst * parts))
    return Suspicion(
        summary=f"one of {parts} equal ranges of rows holds {100 * worst:.0f} % of the non-zeros of {name}, on {threads} threads",
        where=places(rows),
        figure=count(worst, f"largest share of non-zeros, 1/T = {1 / parts:.3g}"),
        passes=(("inventory", variant), ("census", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _tag(case: Case, variant: str, tag: str) -> str:
    return str(case.extra.get(("lock", variant), {}).get("tags", {}).get(tag, ""))


def _threads(case: Case, variant: str) -> int:
    text = _tag(case, variant, "threads")
    return int(text) if text.isdigit() else 1


def _oversubscription(case: Case, variant: str) -> Suspicion | None:
    threads, text = _threads(case, variant), _tag(case, variant, "usable_cores")
    usable = float(text) if text else 0.0
    if not usable or threads <= max(1.0, usable):
        return None
    whole = case.share_of_step(case.op_ms(variant), variant)
    return Suspicion(
        summary=f"{threads} threads on {usable:g} usable cores",
        where=(Place(module="threads"),),
        figure=count(threads / usable, "threads / usable cores"),
        passes=(("lock", variant), ("native", variant)),
        ms=case.op_ms(variant),
        share=whole,
    )


_BARRIER = 0.15  # of samples: below this, spinning cannot be what is wrong


def _parallel_overhead(case: Case, variant: str) -> Suspicion | None:
    threads = _threads(case, variant)
    if threads < 2 or _oversubscription(case, variant) is not None:
        return None
    spin = _spin(case, variant)
    if spin is None or spin < _BARRIER:  # not seen, or its threads sleep at barriers instead of spinning
        return _more_threads(case, variant, threads, spin)
    ms = case.op_ms(variant) * spin
    return Suspicion(
        summary=f"{100 * spin:.0f} % of samples spin at OpenMP barriers with {threads} threads",
        where=(Place(module="threads"),),
        figure=count(spin, "share of samples at barriers"),
        passes=(("native", variant), ("lock", variant)),
        ms=ms,
        share=spin,
    )


def _spin(case: Case, variant: str) -> float | None:
    """Share of samples at barriers, or None where no sampler saw all threads."""
    table = case.native.get(variant) or case.native.get("failing")
    if table is None or not any(s.name == "perf" and s.samples for s in table.samplers):
        return None
    return next((p.share.value or 0.0 for p in table.paths if p.path == "barrier"), 0.0)


def _more_threads(case: Case, variant: str, threads: int, spin: float | None) -> Suspicion | None:
    """No spinning was seen. More threads than the other variant has is a reason to try one, and proves nothing."""
    other = _threads(case, "comparator" if variant == "failing" else "failing")
    if threads <= other:
        return None
    seen = "no sampler could see the barriers" if spin is None else f"{100 * spin:.0f} % of samples spin at barriers"
    return Suspicion(
        summary=f"{threads} threads where the other variant has {other}; {seen}",
        where=(Place(module="threads"),),
        figure=count(threads, "threads"),
        passes=(("lock", "failing"), ("lock", "comparator")),
    )


def _invariant_checks(case: Case, variant: str) -> Suspicion | None:
    rows = [r for r in case.rows(variant) if r["family"] == "validate"]
    profile = case.profile.get(variant, {})
    steps = max(1, int(profile.get("steps", 1)))
    nested = [r for r in profile.get("rows", ()) if "_validate_" in str(r["op"])]
    if not rows and not nested:
        return None
    ms = max(
        total_ms(case, rows, variant), sum(float(r["total_ms"]) for r in nested if "_args" in str(r["op"])) / steps
    )
    calls = sum(case.calls(r, variant) for r in rows) or sum(int(r["calls"]) for r in nested) / steps
    return Suspicion(
        summary=f"sparse indices are validated {calls:.3g} times a step, "
        + (f"{ms:.3g} ms" if ms > 0 else "inside the op that makes the tensor: its time alone is not seen"),
        where=places(rows) or (Place(module="check_sparse_tensor_invariants"),),
        figure=count(calls, "validations a step"),
        passes=(("census", variant), ("profile", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


_HOST = 0.4  # of the step: below this the kernels outweigh the host
_FLOOR = 0.1  # of the step that calls of the smallest op would take: below this few calls are made
_PER_US = 10_000.0  # bytes or floating-point operations that one core gets through in a microsecond, to the order
_ODD = 10.0  # times the usual call: an op on little data that takes longer does something else


def _host_bound(case: Case, variant: str) -> Suspicion | None:
    profile = case.profile.get(variant, {})
    call_us, plain = float(profile.get("op_us", 0.0)), float(profile.get("best_ms", 0.0))
    rows = case.rows(variant)
    if not call_us or not plain or not rows:
        return None
    # An op whose data take less time than calling it costs what a call costs. The census makes ops longer, never shorter:
    # what the large ones leave of the plain step is Python, dispatch and small calls.
    little = [r for r in rows if _little(r, call_us)]
    usual = _usual_us(little)
    small = [r for r in little if _typical_us(r) <= _ODD * usual]
    names = {id(r) for r in small}
    large = sum(case.calls(r, variant) * _typical_us(r) / 1e3 for r in rows if id(r) not in names)
    calls, ops = (sum(case.calls(r, variant) for r in part) for part in (small, rows))
    share = 1.0 - large / plain
    if share < _HOST or calls * call_us / 1e3 < _FLOOR * plain:
        return None
    return Suspicion(
        summary=f"{100 * share:.0f} % of the step is Python and dispatch: {calls:.0f} of {ops:.0f} ops a step work on so "
        f"little that calling them ({call_us:.3g} µs at least) is what they cost",
        where=places(sorted(small, key=lambda r: -float(r["calls"]))),
        figure=count(share, "share of the step outside large ops"),
        passes=(("profile", variant), ("census", variant)),
        ms=share * plain,
        share=share,
    )


def _typical_us(row: Payload) -> float:
    """Mean time of a call without the longest one, which is often a neighbour's doing."""
    n, ns = int(row["calls"]), float(row["ns"])
    return (ns - float(row.get("max_ns", 0.0))) / (n - 1) / 1e3 if n > 1 else ns / 1e3


def _usual_us(rows: list[Payload]) -> float:
    """The median time of a call, over calls."""
    seen, half = 0.0, sum(float(r["calls"]) for r in rows) / 2
    for r in sorted(rows, key=_typical_us):
        seen += float(r["calls"])
        if seen >= half:
            return _typical_us(r)
    return 0.0


def _little(row: Payload, call_us: float) -> bool:
    """Whether an op touches and computes so little that one core does it in less time than a call costs."""
    if row["family"] == "view":
        return True
    sides = list(row.get("sides") or [])
    at, weight = row.get("sparse_at"), row.get("weight") or {}
    if at is not None and weight.get("bytes") and weight.get("shape"):
        # only what is stored is multiplied, and no more of the dense side is touched than that reaches (four bytes a value,
        # to the order)
        wide = out_numel(row) / max(1, int(weight["shape"][at - 2]))
        reached = float(weight["bytes"]["values"]) / 4.0 * wide
        moved = float(weight["bytes"]["values"] + weight["bytes"]["indices"]) + 4.0 * (reached + out_numel(row))
        return max(2.0 * reached, moved) <= _PER_US * call_us
    work = 2.0 * out_numel(row) * int(sides[0]["shape"][-1]) if len(sides) == 2 and sides[0].get("shape") else 0.0
    moved = 4.0 * sum(out_numel({"outputs": [o]}) for o in (*row["operands"], *row.get("outputs", ())))
    return max(work, moved) <= _PER_US * call_us


MECHANISMS = [
    Mechanism(
        id="scheduling.format-conversion", owner="RT", suspect=_format_conversion, intervention="cache-conversion",
        question="Is a constant converted, sorted or coalesced on each step?",
        fix="convert once at load to the layout that the product takes without converting, and keep it",
        boundary="where the named weights are converted; results stay within rounding",
        rollback="restore the conversion in the step",
        closes="no conversion of constants in the step",
    ),
    Mechanism(
        id="scheduling.backward-transpose", owner="KL", suspect=_backward_transpose, intervention="cache-conversion",
        question="Is the transpose rebuilt on each backward?",
        fix="keep the transposed operand beside the weight and rebuild it only when the pattern changes",
        boundary="the backward of the named products; gradients stay within rounding",
        rollback="restore the former backward",
        closes="no conversion or sort under backward",
    ),
    Mechanism(
        id="scheduling.row-imbalance", owner="KL", suspect=_row_imbalance, intervention="balance-rows",
        question="Do the threads hold equal shares of the non-zeros?",
        fix="permute the rows at load so that each thread's range holds as many non-zeros",
        boundary="row order of the named weights and the un-permutation of their output",
        rollback="restore the former row order",
        closes="the largest static share is close to 1/T",
    ),
    Mechanism(
        id="scheduling.thread-oversubscription", owner="PR", suspect=_oversubscription, intervention="right-threads", net=True,
        question="Are there more threads than cores or quota?",
        fix="set the thread count to the usable cores (OMP_NUM_THREADS, torch.set_num_threads)",
        boundary="the launch environment",
        rollback="restore the former thread count",
        closes="threads are at most the usable cores",
    ),
    Mechanism(
        id="scheduling.parallel-overhead", owner="RT", suspect=_parallel_overhead, intervention="one-thread", net=True,
        question="Do parallel regions gain more than their barriers cost?",
        fix="fewer threads for these ops, or larger batches of work per region",
        boundary="the thread count of the process or of the named region",
        rollback="restore the former thread count",
        closes="the step is no faster on one thread",
    ),
    Mechanism(
        id="scheduling.invariant-checks", owner="PR", suspect=_invariant_checks, intervention="skip-validation",
        question="Are sparse indices validated in the hot loop?",
        fix="validate once at load; turn check_sparse_tensor_invariants off in the step",
        boundary="validation only; results are the same",
        rollback="turn validation on again",
        closes="no validation in the step",
    ),
    Mechanism(
        id="scheduling.host-bound", owner="RT", suspect=_host_bound, intervention="larger-calls",
        net=True, bounded=True, fallback=True,
        question="Do the kernels outweigh Python and dispatch?",
        fix="fewer, larger calls: batch the requests, fuse small ops, or capture the step",
        boundary="how the step is called; results are the same",
        rollback="restore the former step",
        closes="most of the step passes inside ops",
    ),
]  # fmt: skip
