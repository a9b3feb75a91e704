"""Execution: what does the tensor work itself cost?"""

from __future__ import annotations

from sparsetui.diagnosis.case import SPARSE_LAYOUTS, Case, Payload
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.mechanisms._bandwidth import bandwidth_bound, improvable
from sparsetui.diagnosis.mechanisms._common import count, places, total_ms
from sparsetui.diagnosis.stats import slope, trouble
from sparsetui.evidence.records import Place

_ROOFS_S = 0.6  # a roof is the best of several: it takes long only where nothing waits for it


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


_TABLE_GRADIENTS = {"embedding_dense_backward", "_embedding_bag_dense_backward"}


def _dense_gradient(case: Case, variant: str) -> Suspicion | None:
    sizes = {
        int(t["bytes"]["dense"]): str(t["name"])
        for t in case.sparse_tensors(variant)
        if t.get("bytes") and len(t["shape"]) == 2
    }
    for r in case.products(variant):  # made in the step, and held by nobody
        if r.get("sparse_at") is not None and len(r["weight"]["shape"]) == 2:
            sizes.setdefault(int(r["weight"]["bytes"]["dense"]), str(r["weight"]["name"] or r["place"]))
    rows = [r for r in case.rows(variant)
            if r.get("backward") and r["family"] == "product" and int(r["out_bytes"]) in sizes
            and not any(o["layout"] in SPARSE_LAYOUTS for o in r["outputs"])]  # fmt: skip
    tables = [r for r in case.rows(variant) if str(r["op"]).rpartition("::")[2] in _TABLE_GRADIENTS]
    rows += tables
    sizes.update({int(r["out_bytes"]): "a table that is looked up" for r in tables if int(r["out_bytes"]) not in sizes})
    profile = case.profile.get(variant, {})
    steps = max(1, int(profile.get("steps", 1)))
    alloc = profile.get("alloc", {})
    nested = [r for r in profile.get("rows", ()) if r.get("backward") and r["op"] in ("aten::mm", "aten::matmul")
              and int(alloc.get(r["op"], 0)) in sizes]  # fmt: skip
    if not rows and not nested:
        return None
    ms = max(total_ms(case, rows, variant), sum(float(r["total_ms"]) for r in nested) / steps)
    size = int(rows[0]["out_bytes"]) if rows else int(alloc[nested[0]["op"]])
    return Suspicion(
        summary=f"backward builds a dense gradient of {size / 2**20:.3g} MiB, the full size of {sizes[size]}",
        where=places(rows) or (Place(module=sizes[size], op="aten::mm"),),
        figure=count(size, "bytes of the dense gradient"),
        passes=(("profile", variant), ("inventory", variant)),
        ms=ms,
        share=case.share_of_step(ms, variant),
    )


def _memory_growth(case: Case, variant: str) -> Suspicion | None:
    growth = case.extra.get(("growth", variant))
    if not growth:
        return None
    rss, nnz = _growing(growth)
    if nnz is None and rss is None:
        return None
    dropped = growth.get("dropped")
    steady = dropped is not None and len(dropped["rss"]) >= _STEPS and _growing(dropped) == (None, None)
    per = rss if rss is not None else nnz
    unit = "bytes a step" if rss is not None else "gradient non-zeros a step"
    return Suspicion(
        summary=f"{'memory in use' if rss is not None else 'the gradient'} grows by {per:.4g} {unit} without end",
        where=(),
        figure=count(per or 0.0, unit),
        passes=(("growth", variant), ("inventory", variant)),
        broken="memory grows with the number of steps",
        proved="gone with the gradients dropped before each step" if steady else "",
    )


def _growing(series: Payload) -> tuple[float | None, float | None]:
    """``(bytes a step, gradient non-zeros a step)``, each None where it does not grow."""
    nnz = _grows([float(x) for x in series.get("grad_nnz", ())], least=1.0)
    # resident memory moves in steps as the allocator settles: only growth that goes on through both halves counts
    heap = [float(x) for x in series.get("heap", ())]
    rss = _grows(heap, least=1 << 16) if heap else _grows([float(x) for x in series.get("rss", ())], least=1 << 20)
    return rss, nnz


_STEPS = 16  # the least that a growth can be told from


def _grows(series: list[float], least: float) -> float | None:
    """The slope a step if the series rises through both halves by more than ``least`` in all, else None."""
    if len(series) < _STEPS:
        return None
    half = len(series) // 2
    slopes = [slope(part) for part in (series[:half], series[half:])]
    if all(s.ci[0] > 0 for s in slopes) and series[-1] - series[half] > least / 2 and series[-1] - series[0] > least:
        return slopes[1].value
    return None


def _copied(case: Case, variant: str) -> bool:
    return _index_copy(case, variant) is not None


def _bandwidth_bound(case: Case, variant: str) -> Suspicion | None:
    return bandwidth_bound(case, variant, _copied(case, variant))


def _can_be_tried(case: Case) -> bool:
    return improvable(case, _copied(case, "failing"))


_CALM = "calm"


def _throttled(case: Case, variant: str) -> Suspicion | None:
    """What the host took from the blocks, and how much more of it from the failing variant.

    Variants take turns within milliseconds, on one core where their steps are the work of one thread, so steal, heat and
    neighbours hit both, and no gap comes of them. A gap can come of them where the failing variant's processes are treated
    otherwise: launched at a lower priority, in a cgroup with a quota, with threads on cores that a neighbour shares, or measured
    in a session whose rounds a neighbour fell into unevenly. What its blocks lost beyond the comparator's is what is at stake.
    It is blamed only if the gap is gone between pairs of which nothing was taken.
    """
    clock = case.extra.get(("conditions", ""))
    if not clock or variant != "failing":
        return None
    blocks = clock["blocks"]
    steal = sorted(float(b["steal"]) for b in blocks if "steal" in b)
    worst, mid = (steal[-max(1, len(steal) // 10)], steal[len(steal) // 2]) if len(steal) >= 4 else (0.0, 0.0)
    seen = trouble(blocks)
    more = seen is not None and seen.one_sided
    if mid < 0.02 and worst < 0.10 and not (seen is not None and max(seen.failing, seen.comparator) >= _TAKEN):
        return None
    told = f"steal {100 * mid:.1f} % in the median, {100 * worst:.1f} % in the worst"
    if seen is None:
        text = f"the host took CPU away during the blocks: {told}"
    else:
        text = f"the host took {100 * seen.failing:.0f} % of the failing variant's blocks and {100 * seen.comparator:.0f} % of the "
        text += f"comparator's ({told}{_stops(seen.stopped)})" + (
            "" if more else ": both alike, as far as that can be told"
        )
    share = max(0.0, seen.extra.value or 0.0) if seen is not None and more else 0.0
    return Suspicion(
        summary=text + _in_calm(case),
        where=(Place(module="host"),),
        figure=seen.extra if seen is not None else count(mid, "median steal", len(steal)),
        passes=(("clock", ""),),
        share=share,
        intervention=_CALM if more else None,
        untried="" if more or seen is None else _ALIKE,
    )


_ALIKE = "both variants were hit alike, and a gap comes only of what hits one more"
_TAKEN = 0.05  # of a variant's blocks: enough that it is worth saying though both may be hit alike


def _stops(blocks: int) -> str:
    return f", stopped by a CPU quota in {blocks} blocks" if blocks else ""


def _in_calm(case: Case) -> str:
    t = case.trials.get((_CALM, "failing"))
    if t is None or t.failed or t.check.get("ratio") is None:
        return ""
    low, high = t.check.get("ci") or (float("nan"), float("nan"))
    return f"; over {t.check['applied']} pairs in calm the ratio is {t.check['ratio']:.3f} [{low:.3f}, {high:.3f}]"


def _sparse_products(case: Case) -> bool:
    return any(r.get("sparse_at") is not None for r in case.products("failing"))


MECHANISMS = [
    Mechanism(
        id="execution.index-copy", owner="KL", suspect=_index_copy, intervention="narrow-index",
        question="Are int64 indices narrowed on each call?",
        fix="store the indices as int32 once at load",
        boundary="the index dtype of the named weights; values and results are the same",
        rollback="restore int64 indices",
        closes="no index copy inside a product",
    ),
    Mechanism(
        id="execution.dense-gradient", owner="KL", suspect=_dense_gradient,
        question="Is the gradient of a sparse weight computed dense?",
        fix="compute the gradient on the pattern only (sampled product), or freeze the sparse weight",
        boundary="the backward of the named weights; gradients stay within rounding",
        rollback="restore the former backward",
        closes="no allocation of the dense size under backward",
    ),
    Mechanism(
        id="execution.memory-growth", owner="PR", suspect=_memory_growth, needs=("growth",), late=True,
        question="Does memory or gradient nnz grow with the steps?",
        fix="drop or coalesce gradients each step, and keep no reference to the graph",
        boundary="the training or serving loop",
        rollback="restart the process on a schedule until the fix is out",
        closes="no slope of resident memory or gradient nnz over steps",
    ),
    Mechanism(
        id="execution.bandwidth-bound", owner="RT", suspect=_bandwidth_bound, needs=("roofs",), wants=_sparse_products,
        late=lambda case: not _can_be_tried(case),  # an intervention has to know of the roof before it is its turn
        arguments=lambda case: {"seconds": _ROOFS_S} if _can_be_tried(case) else {},
        question="Do the sparse kernels run at the memory roof, and how much of it is metadata?",
        fix="int32 indices, blocks, or fewer non-zeros",
        boundary="the storage format of the named weights",
        rollback="restore the former format",
        closes="bytes a step fall with the indices",
    ),
    Mechanism(
        id="execution.throttled", owner="PR", suspect=_throttled, bounded=True,
        question="Did clocks, steal or a neighbour change between runs?",
        fix="give both variants the same priority, quota and quiet cores, and run again with pinned clocks",
        boundary="the host and the launch of the variants; no code changes",
        rollback="restore the former launch",
        closes="nothing is taken from either variant's blocks, and the gap is gone",
    ),
]  # fmt: skip
