"""What the mechanism files share: places, figures and the classification of constant work."""

from __future__ import annotations

from collections.abc import Iterable

from sparsetui.diagnosis.case import Case, Payload
from sparsetui.evidence.records import Number, Place


def place(row: Payload) -> Place:
    """The owning module, or where the user's code called the op."""
    return Place(module=str(row.get("module") or row.get("place") or ""), op=str(row["op"]))


def places(rows: Iterable[Payload]) -> tuple[Place, ...]:
    seen: dict[Place, None] = {}
    for r in rows:
        seen.setdefault(place(r), None)
    return tuple(seen)[:12]


def count(value: float, unit: str, n: int | None = None) -> Number:
    return Number(value=value, unit=unit, n=n, quality="measured")


def tensor_places(names: Iterable[str]) -> tuple[Place, ...]:
    """Of weights by their names; those without one are named by the line that uses them."""
    split = ((n, "") if ":" in n else (n.rpartition(".")[0] or n, n.rpartition(".")[2]) for n in names)
    return tuple(Place(module=module, op=op) for module, op in split)[:12]


def total_ms(case: Case, rows: Iterable[Payload], variant: str) -> float:
    return sum(case.row_ms(r, variant) for r in rows)


def percent(x: float) -> str:
    return f"{100 * x:.3g} %"


def constant_work(case: Case, variant: str) -> list[Payload]:
    """Rows of work that depends on constants only, so could have been done once (views cost nothing and are left out)."""
    return [r for r in case.rows(variant) if r.get("constant") and r["family"] != "view"]


def weight_size(case: Case, variant: str) -> int:
    """The smallest number of entries of any product's constant operand, or of any table that is looked up: below it, constant
    work is not about weights."""
    weights = [r["weight"] for r in case.products(variant)] + case.lookups(variant)
    return min((_numel(w["shape"]) for w in weights if w["const"]), default=0)


def out_numel(row: Payload) -> int:
    return max((_numel(o["shape"]) for o in row.get("outputs", ())), default=0)


def in_numel(row: Payload) -> int:
    return max((_numel(o["shape"]) for o in row.get("operands", ())), default=0)


def _numel(shape: Iterable[int]) -> int:
    n = 1
    for s in shape:
        n *= int(s)
    return n


def decompression(case: Case, variant: str) -> list[Payload]:
    """Constant work that makes a full-size dense weight out of fewer bytes (dequantising, unpacking), with the arithmetic on it.

    An op that expands its constants starts such a chain, and ops whose full-size operands all come out of one continue it. A
    mask that is widened to floats expands too, but then meets a float weight that was there before: that is masking.
    """
    work = [r for r in constant_work(case, variant) if r["family"] in ("pointwise", "copy", "other")]
    least = weight_size(case, variant)
    masks = {str(o["name"]) for r in work if any(_stored_float(o, r) for o in r["operands"]) for o in r["operands"]}
    plain = {id(r) for r in work if _from_table(r) or _widened(r)}
    starts = [r for r in work if (_expands(r) or id(r) in plain) and out_numel(r) >= least > 0
              and (id(r) in plain or str(r["origin"]) not in masks)]  # fmt: skip
    packed = {str(r["origin"]) for r in starts}
    follow = [r for r in work if r not in starts and out_numel(r) >= least > 0 and _continues(r, packed)]
    rest = [r for r in work if r not in starts and r not in follow and out_numel(r) >= least > 0]
    # constants that are scattered or gathered into a weight on each step, however: no mask is applied, so it is unpacked
    if any(r["family"] == "other" for r in rest) and not any(r["family"] == "pointwise" for r in rest):
        return starts + follow + rest
    return starts + follow


SELECTS = {"index", "index_select", "gather", "take", "masked_select", "embedding"}


def selects(row: Payload) -> bool:
    """A part of a float constant that is taken by index: it holds as many entries as the result, or more."""
    return _taken_by_index(row) and any(_stored_float(o, row) for o in row["operands"])


def _from_table(row: Payload) -> bool:
    """A full-size weight that is looked up, entry by entry, in a small table of values (a codebook)."""
    return _taken_by_index(row) and not any(_full_size(o, row) and _is_float(o) for o in row["operands"])


def _widened(row: Payload) -> bool:
    """A weight that is stored in a narrow floating dtype and copied to a wider one."""
    floats = [o for o in row["operands"] if _stored_float(o, row)]
    return (
        str(row["op"]).rpartition("::")[2] in ("_to_copy", "to")
        and len(floats) == 1
        and int(row.get("out_bytes", 0)) > _bytes(floats[0])
    )


def _taken_by_index(row: Payload) -> bool:
    return str(row["op"]).rpartition("::")[2] in SELECTS and any(_is_float(o) for o in row["operands"])


def _is_float(o: Payload) -> bool:
    return str(o["dtype"]).startswith(_FLOATS)


def _full_size(o: Payload, row: Payload) -> bool:
    return _numel(o["shape"]) >= out_numel(row) > 1


def _stored_float(o: Payload, row: Payload) -> bool:
    """A full-size float operand that existed before the step."""
    return _full_size(o, row) and str(o["dtype"]).startswith(_FLOATS) and not o.get("derived")


def _continues(row: Payload, packed: set[str]) -> bool:
    full = [o for o in row["operands"] if _full_size(o, row)]
    return bool(full) and all(o.get("derived") and str(o["name"]) in packed for o in full)


def _expands(row: Payload) -> bool:
    """Whether an op's result takes more bytes than any constant it was made of, and none of those is the weight itself.

    A buffer that the step made blank and that the op fills is no constant it was made of.
    """
    operands = [o for o in row.get("operands", ()) if not o.get("blank")]
    source = max((_bytes(o) for o in operands), default=0)
    return int(row.get("out_bytes", 0)) > source and not any(_stored_float(o, row) for o in operands)


_FLOATS = ("float", "bfloat", "complex")
_ITEM = {"float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
         "complex128": 16}  # fmt: skip


def _bytes(operand: Payload) -> int:
    """Bytes that an operand came out of: its own, or those of the constant it was made from."""
    if operand.get("source") is not None:
        return int(operand["source"])
    return _numel(operand["shape"]) * _ITEM.get(str(operand["dtype"]), 1)
