"""The path of each event: by its kernel's name, by what it was launched for, and for products by their operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from sparsetui.evidence.kernels import PATHS, PRODUCTS, Catalogue
from sparsetui.ingest.events.table import COPY, KERNEL, OP, PYTHON, RUNTIME
from sparsetui.ingest.traces.columns import HOST, Columns
from sparsetui.ingest.traces.nest import Nesting, inherit

NUMBER = {p: i for i, p in enumerate(PATHS)}
_PRODUCTS = np.array([NUMBER[p] for p in PRODUCTS])
_CONVERSION, _SORT = NUMBER["conversion"], NUMBER["sort"]
_SPARSE_CSR, _RHS, _CSC = NUMBER["sparse-csr"], NUMBER["sparse-csr-rhs"], NUMBER["sparse-csc"]
_COO, _BSR, _DENSE = NUMBER["sparse-coo"], NUMBER["sparse-bsr"], NUMBER["dense"]

# A product over a sparse tensor asks for the tensor's parts; a strided one never does.
_ROWS = ("aten::crow_indices", "aten::col_indices")
_COLS = ("aten::ccol_indices", "aten::row_indices")
_PAIRS = ("aten::_indices", "aten::_values", "aten::indices")
_HIGHEST = 64  # calls above an accessor among which its product is looked for
_ACCESSORS = _ROWS + _COLS + _PAIRS
# where a product's two matrices stand among its operands
_SIDES = {
    "aten::mm": (0, 1), "aten::matmul": (0, 1), "aten::linear": (0, 1), "aten::bmm": (0, 1), "aten::mv": (0, 1),
    "aten::_sparse_mm": (0, 1), "aten::addmm": (1, 2), "aten::addmv": (1, 2), "aten::baddbmm": (1, 2),
    "aten::_addmm_activation": (1, 2), "aten::_sparse_addmm": (1, 2),
}  # fmt: skip


@dataclass
class Launches:
    """Runtime calls of the window before, whose device events may begin in this one: by correlation number, sorted."""

    corr: npt.NDArray[np.int64]
    within: npt.NDArray[np.int8]  # what the call lay in: 0, or the number of the path conversion or sort


@dataclass
class Paths:
    """``path`` (int8 index into PATHS) of every event of the columns, and what products showed of their operands."""

    path: npt.NDArray[np.int8]
    launched_by: npt.NDArray[np.int64]  # for device events: position in the nesting of the launching call, -1 for none
    linked: int  # device events whose launching call is known, also from the window before
    calls: Launches  # those of this window
    products: int  # products on the host
    layouts_known: int  # of those, how many recorded their operands' strides
    family: list[str]  # of each name, as a kernel


def assign(c: Columns, nesting: Nesting, catalogue: Catalogue, before: Launches | None = None) -> Paths:
    """The path of every event. ``before`` are the launches of the window before this one."""
    n = len(c)
    path = np.full(n, NUMBER["unknown"], np.int8)
    kernels, ops, family = _by_name(c, catalogue)
    device = (c.kind == KERNEL) | (c.kind == COPY) | (c.kind == RUNTIME)
    path[device] = kernels[c.name[device]]
    path[c.kind == OP] = ops[c.name[c.kind == OP]]
    path[c.kind == PYTHON] = NUMBER["python"]

    order = nesting.order
    local = path[order]
    products, known = _products(c, nesting, local)
    converting = inherit(nesting.parent, (local == _CONVERSION) & (c.kind[order] == OP))
    coalescing = inherit(nesting.parent, _named(c, order, ("aten::coalesce", "aten::_coalesce")))
    calm = ~np.isin(local, (_SORT, NUMBER["python"]))
    local[converting & calm] = _CONVERSION
    local[coalescing & ~converting & calm] = _SORT
    path[order] = local

    within = np.where(converting, _CONVERSION, np.where(coalescing, _SORT, 0)).astype(np.int8)
    launched = _launches(c, order)
    rows = np.flatnonzero((c.kind == KERNEL) | (c.kind == COPY))
    meant = np.zeros(len(rows), np.int8)
    has = launched[rows] >= 0
    meant[has] = within[launched[rows[has]]]
    if before is not None and len(before.corr):
        left = np.flatnonzero(~has & (c.corr[rows] > 0))
        at, hit = _find(before.corr, c.corr[rows[left]])
        meant[left[hit]] = before.within[at[hit]]
        has[left[hit]] = True
    changed = rows[(meant > 0) & (path[rows] != _SORT)]
    path[changed] = meant[(meant > 0) & (path[rows] != _SORT)]
    calls = np.flatnonzero((c.kind[order] == RUNTIME) & (c.corr[order] > 0))
    calls = calls[np.argsort(c.corr[order[calls]], kind="stable")]
    after = Launches(c.corr[order[calls]], within[calls])
    return Paths(path, launched, int(has.sum()), after, products, known, family)


def _find(
    keys: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each of ``wanted`` stands in the sorted, non-empty ``keys``, and whether it does."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return at, keys[at] == wanted


def _by_name(c: Columns, catalogue: Catalogue) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], list[str]]:
    """For each name: its path as a kernel and as an op (only where a name is used so), and its family."""
    unknown = NUMBER["unknown"]
    as_kernel = np.full(len(c.names), unknown, np.int8)
    as_op = np.full(len(c.names), unknown, np.int8)
    family = [""] * len(c.names)
    for i in np.unique(c.name[c.kind == OP]).tolist():
        match = catalogue.annotate(c.names[i])
        as_op[i], family[i] = NUMBER[match.path], match.family
    for i in np.unique(c.name[np.isin(c.kind, (KERNEL, COPY, RUNTIME))]).tolist():
        match = catalogue.classify(c.names[i])
        as_kernel[i], family[i] = NUMBER[match.path], match.family
    return as_kernel, as_op, family


def _named(c: Columns, order: npt.NDArray[np.int64], names: Sequence[str]) -> npt.NDArray[np.bool_]:
    wanted = [i for i, name in enumerate(c.names) if name in names]
    found: npt.NDArray[np.bool_] = np.isin(c.name[order], wanted) & (c.kind[order] == OP)
    return found


def _launches(c: Columns, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each device event the position, in the nesting, of the runtime call with its correlation number."""
    out = np.full(len(c), -1, np.int64)
    calls = np.flatnonzero((c.kind[order] == RUNTIME) & (c.corr[order] > 0))
    if not len(calls):
        return out
    keys = c.corr[order[calls]]
    by_key = np.argsort(keys, kind="stable")
    rows = np.flatnonzero(((c.kind == KERNEL) | (c.kind == COPY)) & (c.corr > 0))
    at, hit = _find(keys[by_key], c.corr[rows])
    out[rows[hit]] = calls[by_key[at[hit]]]
    return out


def _products(c: Columns, nesting: Nesting, local: npt.NDArray[np.int8]) -> tuple[int, int]:
    """Turn products with a sparse operand from dense to their sparse path, in ``local``; count products and known."""
    order, parent = nesting.order, nesting.parent
    is_product = np.isin(local, _PRODUCTS) & (c.kind[order] == OP)
    shapes = _operands(c)
    shape = c.shape[order]
    known = int((is_product & (shape >= 0) & _told(shapes, shape)).sum())
    found: dict[int, set[str]] = {}
    for name in _ACCESSORS:
        for at in np.flatnonzero(_named(c, order, (name,))).tolist():
            above = int(parent[at])
            for _ in range(_HIGHEST):
                if above < 0:
                    break
                if is_product[above]:
                    found.setdefault(above, set()).add(name)
                above = int(parent[above])
    sided = {i for i, s in enumerate(shapes) if s is not None and any(s[1])}
    for at in np.flatnonzero(is_product & np.isin(shape, list(sided))).tolist():
        if _sparse_sides(c, order, at, shapes):
            found.setdefault(at, set())
    blocks = _blocks(c, nesting, is_product)
    for at, seen in found.items():
        if local[at] == _DENSE or local[at] == _SPARSE_CSR:
            local[at] = _path(seen, _sparse_sides(c, order, at, shapes), at in blocks)
    return int(is_product.sum()), known


def _path(seen: set[str], sides: tuple[bool, bool] | None, blocked: bool) -> int:
    if seen & set(_PAIRS):
        return _COO
    if blocked:
        return _BSR
    if sides == (False, True) and (seen & set(_ROWS + _COLS)):
        return _RHS
    if sides == (True, False) and seen & set(_COLS) and not seen & set(_ROWS):
        return _CSC
    return _SPARSE_CSR


def _operands(c: Columns) -> list[tuple[list[int], list[bool]] | None]:
    """For each recorded shape: the rank of every operand, and whether it has a shape but no strides (is not strided)."""
    out: list[tuple[list[int], list[bool]] | None] = []
    for dims, strides in c.shapes:
        try:
            d, s = msgspec.json.decode(dims), msgspec.json.decode(strides) if strides else None
        except (msgspec.DecodeError, RecursionError):
            d, s = None, None
        if not (isinstance(d, list) and isinstance(s, list) and len(d) == len(s)):
            ranks = [len(x) if isinstance(x, list) else 0 for x in d] if isinstance(d, list) else []
            out.append((ranks, []) if ranks else None)
            continue
        ranks = [len(x) if isinstance(x, list) else 0 for x in d]
        bare = [r >= 2 and isinstance(y, list) and not y for r, y in zip(ranks, s, strict=True)]
        out.append((ranks, bare))
    return out


def _told(shapes: list[tuple[list[int], list[bool]] | None], shape: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    told: npt.NDArray[np.bool_] = np.array([s is not None and bool(s[1]) for s in shapes] + [False])[shape]
    return told


def _sparse_sides(
    c: Columns, order: npt.NDArray[np.int64], at: int, shapes: list[tuple[list[int], list[bool]] | None]
) -> tuple[bool, bool] | None:
    """Whether the left and the right matrix of a product are sparse; None when the trace does not tell or none is."""
    sides = _SIDES.get(c.names[c.name[order[at]]])
    number = int(c.shape[order[at]])
    told = shapes[number] if number >= 0 else None
    if sides is None or told is None or len(told[1]) <= max(sides):
        return None
    left, right = told[1][sides[0]], told[1][sides[1]]
    return (left, right) if left or right else None


def _blocks(c: Columns, nesting: Nesting, is_product: npt.NDArray[np.bool_]) -> set[int]:
    """Products below which a tensor's values were read as three-dimensional: blocks."""
    out: set[int] = set()
    shapes = _operands(c)
    three = [i for i, s in enumerate(shapes) if s is not None and s[0] and s[0][0] == 3]
    order, parent = nesting.order, nesting.parent
    if not three:
        return out
    for at in np.flatnonzero(_named(c, order, ("aten::alias",)) & np.isin(c.shape[order], three)).tolist():
        above = int(parent[at])
        if above < 0 or c.names[c.name[order[above]]] != "aten::values":
            continue
        for _ in range(_HIGHEST):
            if above < 0:
                break
            if is_product[above]:
                out.add(above)
            above = int(parent[above])
    return out


def hosted(c: Columns) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.isin(c.kind, HOST))
