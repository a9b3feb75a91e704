"""Sparse products at the memory roof: how many of the bytes that they move are indices, and which form would move fewer.

Two forms can be tried live: int32 indices in place of int64, and blocks, which need one index each. Where a product narrows its
indices on each call, those bytes are the copy's, which comes earlier, and are not counted here again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sparsetui.diagnosis.case import Case, Payload
from sparsetui.diagnosis.mechanism import Suspicion
from sparsetui.diagnosis.mechanisms._common import count, percent, places

_AT_ROOF = 0.6  # of what a plain copy reaches, which writes as much as it reads
_CACHED = 1 << 20  # bytes of a weight that stay in a core's own cache from call to call
_NARROW, _BLOCKS = "narrow-index", "to-blocks"


class _Moved(NamedTuple):
    """Bytes of one call of a product, and of those what each form would save; ``edge`` of the blocks, 0 where none would."""

    row: Payload
    total: float
    indices: float
    saved: dict[str, float]
    edge: int


def bandwidth_bound(case: Case, variant: str, copied: bool) -> Suspicion | None:
    """``copied``: whether products narrow int64 indices on each call here."""
    roof = _measured(case, variant)
    if not roof:
        return None
    bad = [m for m in _moved(case, variant, copied) if _reach(case, variant, m) >= _AT_ROOF * _roof(roof, m)]
    moved = sum(m.total * case.calls(m.row, variant) for m in bad)
    if not moved:
        return None
    meta = sum(m.indices * case.calls(m.row, variant) for m in bad)
    ms = sum(case.row_ms(m.row, variant) for m in bad)
    form = max((_NARROW, _BLOCKS), key=lambda f: _saved(case, variant, bad, f))
    saved = _saved(case, variant, bad, form)
    lost = ms * (saved if saved > 0 else meta) / moved
    summary = f"{len(bad)} sparse products run at the memory roof ({roof['stream_gbs']:.3g} GB/s); "
    summary += f"{100 * meta / moved:.0f} % of the bytes are indices"
    if saved > 0:
        summary += f"; {_said(form, bad)} would move {percent(saved / moved)} fewer"
    return Suspicion(
        summary=summary,
        where=places(m.row for m in bad),
        figure=count(meta / moved, "index bytes / bytes moved"),
        passes=(("roofs", variant), ("census", variant)),
        ms=lost,
        share=case.share_of_step(lost, variant),
        intervention=form if saved > 0 else None,
        untried="" if saved > 0 else "its indices are int32 already, and in blocks its zeros would move no fewer bytes",
    )


def improvable(case: Case, copied: bool) -> bool:
    """Whether any sparse product of the failing variant has a form that would move fewer bytes."""
    return any(max(m.saved.values()) > 0 for m in _moved(case, "failing", copied))


def _moved(case: Case, variant: str, copied: bool) -> Iterator[_Moved]:
    for row in case.products(variant):
        w = row["weight"]
        wide = w["index_dtype"] == "int64" and w["layout"] not in ("coo", "strided")
        if row.get("sparse_at") is None or (wide and copied):
            continue
        dense = sum(_size(o) for o in (*row["operands"], *row["outputs"]) if o["layout"] == "strided")
        blocks, edge = _in_blocks(case, variant, row)
        narrow = w["bytes"]["indices"] / 2 if wide and max(w["shape"]) < 2**31 else 0.0
        yield _Moved(row, w["bytes"]["values"] + w["bytes"]["indices"] + dense, w["bytes"]["indices"],
                     {_NARROW: narrow, _BLOCKS: blocks}, edge)  # fmt: skip


def _in_blocks(case: Case, variant: str, row: Payload) -> tuple[float, int]:
    """``(bytes saved, edge)`` of the best square blocks for an int32 CSR weight on the left, or CSC on the right."""
    w = row["weight"]
    if (
        (w["layout"], row["sparse_at"]) not in (("csr", 0), ("csc", 1))
        or w["index_dtype"] != "int32"
        or len(w["shape"]) != 2
    ):
        return 0.0, 0
    held = next((t for t in case.sparse_tensors(variant) if _same(t, w)), {})
    now, numel = w["bytes"]["values"] + w["bytes"]["indices"], w["shape"][0] * w["shape"][1]
    item = w["bytes"]["dense"] / numel if numel else 0.0
    best, edge = 0.0, 0
    for b, (hit, _) in held.get("blocks", {}).items():
        n = hit * numel / int(b) ** 2
        index = 4.0 * (n + w["shape"][0 if w["layout"] == "csr" else 1] / int(b) + 1)
        if now - (n * int(b) ** 2 * item + index) > best:
            best, edge = now - (n * int(b) ** 2 * item + index), int(b)
    return best, edge


def _same(t: Payload, w: Payload) -> bool:
    """Whether a row of the inventory is this weight, or (``F.linear`` transposes what is held) its transpose: by name, or, of one
    without a name, by its non-zeros and shape."""
    named = str(w["name"]) and not w["derived"]
    alike = t.get("nnz") == w["nnz"] and sorted(t["shape"]) == sorted(w["shape"])
    return alike and (str(t["name"]) == w["name"] if named else True)


def _saved(case: Case, variant: str, bad: list[_Moved], form: str) -> float:
    return sum(m.saved[form] * case.calls(m.row, variant) for m in bad)


def _said(form: str, bad: list[_Moved]) -> str:
    if form == _NARROW:
        return "int32 indices"
    edges = sorted({m.edge for m in bad if m.edge})
    return "blocks of " + " and ".join(f"{b} x {b}" for b in edges)


def _reach(case: Case, variant: str, m: _Moved) -> float:
    """GB/s of its fastest call: a roof, too, is the best of several."""
    ns = float(m.row.get("min_ns") or 1e6 * case.row_ms(m.row, variant) / max(case.calls(m.row, variant), 1e-9))
    return m.total / ns if ns else 0.0


def _measured(case: Case, variant: str) -> dict[str, float]:
    """The roofs of this host at the variant's thread count: what either variant's process reached, since a busy host hides them."""
    own = case.extra.get(("roofs", variant)) or case.extra.get(("roofs", "failing"))
    alike = [r for v in ("failing", "comparator")
             if own and (r := case.extra.get(("roofs", v))) and r.get("threads") == own.get("threads")]  # fmt: skip
    return {k: max(float(r[k]) for r in alike) for k in ("stream_gbs", "cache_gbs")} if alike else {}


def _roof(roof: Mapping[str, float], m: _Moved) -> float:
    b = m.row["weight"]["bytes"]
    return roof["cache_gbs" if b["values"] + b["indices"] < _CACHED else "stream_gbs"]


_ITEM = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}


def _size(o: Payload) -> int:
    n = 1
    for s in o["shape"]:
        n *= int(s)
    return n * _ITEM.get(str(o["dtype"]), 4)
