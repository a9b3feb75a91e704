"""What can be said of one tensor without running the model: layout, parts, bytes, identity, zeros.

``torch.layout`` names are shortened to those of the workload file: strided, coo, csr, csc, bsr, bsc, mkldnn.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

LAYOUTS: Dict[Any, str] = {
    torch.strided: "strided",
    torch.sparse_coo: "coo",
    torch.sparse_csr: "csr",
    torch.sparse_csc: "csc",
    torch.sparse_bsr: "bsr",
    torch.sparse_bsc: "bsc",
}
_COMPRESSED = {"csr", "csc", "bsr", "bsc"}
SPARSE = _COMPRESSED | {"coo"}

# torch keeps two names for the compressed axis: rows for csr and bsr, columns for csc and bsc
_ROWS_FIRST = {"csr", "bsr"}


def layout(t: torch.Tensor) -> str:
    name = LAYOUTS.get(t.layout)
    if name is None:
        return str(t.layout).replace("torch.", "").lstrip("_")
    return name


def is_sparse(t: torch.Tensor) -> bool:
    return layout(t) in SPARSE


def dtype(t: torch.Tensor) -> str:
    return str(t.dtype).replace("torch.", "")


def parts(t: torch.Tensor) -> Dict[str, torch.Tensor]:
    """The dense tensors a tensor is made of: ``values`` and, for sparse layouts, its index tensors.

    For csr/bsr the compressed index is called ``compressed`` (crow_indices) and the other ``plain`` (col_indices);
    for csc/bsc they are ccol_indices and row_indices. COO has one ``indices`` of shape [sparse_dim, nnz].
    """
    name = layout(t)
    if name in _ROWS_FIRST:
        return {"values": t.values(), "compressed": t.crow_indices(), "plain": t.col_indices()}
    if name in _COMPRESSED:
        return {"values": t.values(), "compressed": t.ccol_indices(), "plain": t.row_indices()}
    if name == "coo":
        return {"values": t._values(), "indices": t._indices()}
    return {"values": t}


def values(t: torch.Tensor) -> torch.Tensor:
    name = layout(t)
    if name in _COMPRESSED:
        return t.values()
    if name == "coo":
        return t._values()
    return t


def key(t: torch.Tensor) -> Optional[int]:
    """The identity of the storage that holds a tensor's values, shared by all its views and transposes.

    ``None`` where a tensor has no storage of its own (mkldnn, functional wrappers).
    """
    try:
        return int((t if t.layout is torch.strided else values(t)).untyped_storage()._cdata)
    except (RuntimeError, AttributeError):
        return None


def version(t: torch.Tensor) -> int:
    """The in-place version of a tensor's values; 0 for inference tensors, which keep none."""
    try:
        return int((t if t.layout is torch.strided else values(t))._version)
    except RuntimeError:
        return 0


def nbytes(t: torch.Tensor) -> int:
    return int(t.numel()) * int(t.element_size())


def bytes_by_part(t: torch.Tensor) -> Dict[str, int]:
    """``{"values": bytes, "indices": bytes, "dense": bytes}`` of one tensor; ``dense`` is what strided would take."""
    p = parts(t)
    vals = nbytes(p["values"])
    index = sum(nbytes(x) for name, x in p.items() if name != "values")
    return {"values": vals, "indices": index, "dense": int(t.numel()) * int(p["values"].element_size())}


def nonzeros(t: torch.Tensor) -> int:
    """How many entries of the whole tensor are not exactly zero."""
    if t.numel() == 0:
        return 0
    return int(torch.count_nonzero(values(t).detach()))


def telling(vals: torch.Tensor) -> torch.Tensor:
    """Mask of the values that count: not zero, nor below the resolution of their dtype, or of float32 where that is finer, of
    the largest one. Half precision resolves so little that weights which matter would pass for zeros."""
    if vals.numel() == 0 or not (vals.is_floating_point() or vals.is_complex()):
        return vals != 0
    mag = vals.abs()
    top = mag.max()
    if not bool(torch.isfinite(top)):
        return vals != 0
    return mag > top * min(torch.finfo(vals.dtype).eps, torch.finfo(torch.float32).eps)


def zero_fraction(t: torch.Tensor) -> float:
    """Share of the logical entries that are zero, whether stored or not."""
    n = t.numel()
    return 1.0 - nonzeros(t) / n if n else 0.0


def flatten(obj: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    """The tensors inside nested tuples, lists and dicts (arguments and results of a step), in order."""
    if isinstance(obj, torch.Tensor):
        yield obj
    elif depth > 0:
        if isinstance(obj, dict):
            for v in obj.values():
                yield from flatten(v, depth - 1)
        elif isinstance(obj, (list, tuple)):
            for v in obj:
                yield from flatten(v, depth - 1)
        elif hasattr(obj, "__dataclass_fields__") or hasattr(obj, "to_tuple"):
            yield from flatten(list(vars(obj).values()), depth - 1)


def changed(obj: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``obj`` with each tensor in its lists, tuples and dicts changed."""
    if isinstance(obj, torch.Tensor):
        return change(obj)
    if isinstance(obj, (list, tuple)):
        return type(obj)(changed(o, change) for o in obj)
    if isinstance(obj, dict):
        return {k: changed(v, change) for k, v in obj.items()}
    return obj


def describe(t: torch.Tensor) -> Dict[str, Any]:
    """Layout, dtype and shape in the short form the census aggregates by."""
    return {"layout": layout(t), "dtype": dtype(t), "shape": list(t.shape)}


def compressed(t: torch.Tensor, kind: str, idx: torch.dtype = torch.int32) -> torch.Tensor:
    """``t`` (strided or sparse, 2-D) as ``kind`` ("csr" or "csc") without stored zeros, indices as ``idx``.

    Goes through COO, whose conversions cover every layout and dtype that torch has.
    """
    dense = t if layout(t) == "strided" else t.to_dense()
    out = dense.to_sparse_csr() if kind == "csr" else dense.to_sparse_csc()
    return with_index(out, idx)


def with_index(t: torch.Tensor, idx: torch.dtype) -> torch.Tensor:
    """The same compressed tensor with its indices as ``idx``; values are shared, not copied."""
    p = parts(t)
    return torch.sparse_compressed_tensor(
        p["compressed"].to(idx), p["plain"].to(idx), p["values"], t.shape, layout=t.layout, check_invariants=False
    )


def flip(t: torch.Tensor) -> torch.Tensor:
    """The transpose of a compressed 2-D tensor as a zero-copy view in the other layout (csc -> csr and so on)."""
    p = parts(t)
    other = {"csr": torch.sparse_csc, "csc": torch.sparse_csr, "bsr": torch.sparse_bsc, "bsc": torch.sparse_bsr}
    vals = p["values"]
    if layout(t) in ("bsr", "bsc"):
        vals = vals.transpose(-1, -2)
    return torch.sparse_compressed_tensor(
        p["compressed"], p["plain"], vals, (t.shape[1], t.shape[0]), layout=other[layout(t)], check_invariants=False
    )


def named(pairs: List[Tuple[str, torch.Tensor]]) -> Dict[int, str]:
    """Storage key -> name, the first name winning."""
    out: Dict[int, str] = {}
    for name, t in pairs:
        k = key(t)
        if k is not None:
            out.setdefault(k, name)
    return out
