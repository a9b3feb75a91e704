"""The inventory: what every tensor that the callable holds really is, before anything runs.

Index checks compare and sort indices but never follow one, and they run in a replica that may die without harm: an index out
of range can take a process with it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch

from . import tensors, walk
from .context import Context

_STRUCTURE_ROWS = 4096  # structure of larger matrices is read off this many evenly spaced rows
_BLOCKS = (4, 8, 16, 32)


def inventory(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """One row a tensor (weights, masks, buffers, closures), at most ``limit`` of them with structure."""
    pattern = _pattern(args.get("pattern"))
    held = walk.held_tensors(ctx.fn)
    seen: Dict[Tuple[Optional[int], str, Tuple[int, ...]], str] = {}
    rows: List[Dict[str, Any]] = []
    extra = [(name, t) for name, t in _found_by_census(ctx)]
    for n, (name, t) in enumerate(held + extra):
        try:
            k = (tensors.key(t), tensors.layout(t), tuple(t.shape))
            if k[0] is not None and k in seen:
                continue
            seen[k] = name
            rows.append(row(name, t, pattern))
        except RuntimeError as e:  # a tensor that cannot even be read is a row of its own
            rows.append({"name": name, "unreadable": str(e).splitlines()[0][:200]})
        if n % 25 == 0:
            ctx.emit({"inventory": n, "of": len(held) + len(extra)})
    mods = walk.owners(ctx.fn)
    return {"tensors": rows, "modules": sorted(set(mods.values()))[:20000],
            "training": bool(getattr(ctx.fn, "training", False)), "kinds": _kinds(ctx.fn)}  # fmt: skip


def _found_by_census(ctx: Context) -> List[Tuple[str, torch.Tensor]]:
    names = ctx.state.get("constant_names", {})
    return [(names.get(k) or f"constant@{i}", t)
            for i, (k, t) in enumerate(ctx.state.get("constants", {}).items())]  # fmt: skip


def _kinds(root: Any) -> Dict[str, str]:
    """Module name -> class name, for grouping by layer family."""
    if not isinstance(root, torch.nn.Module):
        return {}
    return {name: type(m).__name__ for name, m in root.named_modules() if name}


def row(name: str, t: torch.Tensor, pattern: Optional[Tuple[int, int]]) -> Dict[str, Any]:
    lay = tensors.layout(t)
    t = t.detach()
    out: Dict[str, Any] = dict(tensors.describe(t), name=name, numel=int(t.numel()), requires_grad=False)
    out["bytes"] = tensors.bytes_by_part(t) if t.numel() or lay in tensors.SPARSE else {}
    if t.numel() == 0 or t.device.type == "meta" or lay not in tensors.SPARSE | {"strided"}:
        return out
    vals = tensors.values(t)
    # entries that no arithmetic at this dtype could tell from zero next to the largest one count as zeros too
    nonzero, tiny = _counts(vals)
    out["zeros"] = 1.0 - nonzero / t.numel()
    out["tiny"] = tiny
    out["finite"] = bool(torch.isfinite(vals).all()) if vals.is_floating_point() else True
    if not vals.is_floating_point() and not vals.is_complex() and vals.dtype != torch.bool and t.dim() >= 2:
        out["mode_fraction"] = _mode_fraction(vals)
    if lay in tensors.SPARSE:
        out.update(_stored(t, lay, vals, nonzero, tiny))
        out["invalid"] = invalid(t, lay)
    if t.dim() == 2 and t.dtype != torch.bool and min(t.shape) >= 4 and not out.get("invalid"):
        out.update(structure(t, pattern))
    return out


def _counts(vals: torch.Tensor) -> Tuple[int, int]:
    """(non-zero entries, entries that are not zero yet below the dtype's resolution of the largest magnitude)."""
    if vals.numel() == 0:
        return 0, 0
    nonzero = int(torch.count_nonzero(vals))
    if not vals.is_floating_point():
        return nonzero, 0
    mag = vals.abs()
    top = mag.max()
    if not torch.isfinite(top) or float(top) == 0.0:
        return nonzero, 0
    above = int(torch.count_nonzero(mag > top * torch.finfo(vals.dtype).eps))
    return nonzero, nonzero - above


def _mode_fraction(vals: torch.Tensor) -> float:
    flat = vals.reshape(-1)
    _, counts = torch.unique(flat, return_counts=True)
    return float(counts.max()) / flat.numel()


def _stored(t: torch.Tensor, lay: str, vals: torch.Tensor, nonzero: int, tiny: int) -> Dict[str, Any]:
    nnz = int(t._nnz())
    stored = int(vals.numel())
    idx = tensors.parts(t)
    plain = idx.get("plain", idx.get("indices"))
    out: Dict[str, Any] = {"nnz": nnz, "stored": stored, "stored_zeros": stored - nonzero, "stored_tiny": tiny,
                           "index_dtype": tensors.dtype(plain) if plain is not None else ""}  # fmt: skip
    if lay == "coo":
        out["coalesced"] = bool(t.is_coalesced())
    if lay in ("bsr", "bsc"):
        out["block"] = list(vals.shape[-2:])
        out["fill"] = nonzero / stored if stored else None
    return out


def invalid(t: torch.Tensor, lay: str) -> List[str]:
    """What is wrong with the indices, in words; empty when nothing is."""
    p = tensors.parts(t)
    bad: List[str] = []
    if lay == "coo":
        idx = p["indices"]
        for d in range(idx.shape[0]):
            if idx.shape[1] and (int(idx[d].min()) < 0 or int(idx[d].max()) >= t.shape[d]):
                bad.append(f"index of dimension {d} out of range 0..{t.shape[d] - 1}")
        if not bad and t.is_coalesced() and idx.shape[1] > 1:
            flat = _flat(idx, list(t.shape))
            step = flat[1:] - flat[:-1]
            if bool((step == 0).any()):
                bad.append("duplicate indices in a tensor marked coalesced")
            elif bool((step < 0).any()):
                bad.append("unsorted indices in a tensor marked coalesced")
        return bad
    if p["compressed"].dim() != 1:
        return bad  # batched: each batch would be checked alike; torch's own invariants cover construction
    comp, plain = p["compressed"].to(torch.int64), p["plain"].to(torch.int64)
    rows_first = lay in ("csr", "bsr")
    block = list(p["values"].shape[-2:]) if lay in ("bsr", "bsc") else [1, 1]
    n_plain = t.shape[1] // block[1] if rows_first else t.shape[0] // block[0]
    word = ("row", "column") if rows_first else ("column", "row")
    if int(comp[0]) != 0:
        bad.append(f"first {word[0]} pointer is {int(comp[0])}, not 0")
    if int(comp[-1]) != plain.numel():
        bad.append(f"last {word[0]} pointer is {int(comp[-1])}, but {plain.numel()} entries are stored")
    width = comp[1:] - comp[:-1]
    if bool((width < 0).any()):
        bad.append(f"{word[0]} pointers are not monotone")
    if plain.numel() and (int(plain.min()) < 0 or int(plain.max()) >= n_plain):
        bad.append(f"{word[1]} index out of range 0..{n_plain - 1}")
    if bad:
        return bad
    group = torch.repeat_interleave(torch.arange(width.numel()), width)
    flat = group * n_plain + plain
    step = flat[1:] - flat[:-1]
    if bool((step < 0).any()):
        bad.append(f"unsorted {word[1]} indices within a {word[0]}")
        flat = flat.sort().values
        step = flat[1:] - flat[:-1]
    if bool((step == 0).any()):
        bad.append(f"duplicate {word[1]} indices within a {word[0]}")
    return bad


def _flat(idx: torch.Tensor, shape: List[int]) -> torch.Tensor:
    flat = torch.zeros_like(idx[0])
    for d in range(idx.shape[0]):
        flat = flat * shape[d] + idx[d]
    return flat


def structure(t: torch.Tensor, pattern: Optional[Tuple[int, int]]) -> Dict[str, Any]:
    """n:m fit along both axes, block occupancy and row skew of a 2-D matrix, of any layout.

    ``nm`` maps "n:m" to the share of groups of m along (last axis, first axis) with at most n non-zeros. ``blocks`` maps an edge
    b to the share of b×b blocks that hold a non-zero and the density inside those. ``row_max_over_mean`` is the skew.
    """
    mask = _mask(t)
    rows, cols = mask.shape
    if rows > _STRUCTURE_ROWS:
        step = rows // _STRUCTURE_ROWS
        start = (rows // 32) * 32
        mask = mask[: start : max(1, step)] if step > 1 else mask[:_STRUCTURE_ROWS]
    per_row = mask.sum(1, dtype=torch.int64)
    total = int(per_row.sum())
    out: Dict[str, Any] = {"nm": {}, "blocks": {}, "rows_sampled": int(mask.shape[0])}
    wanted = {(2, 4)} | ({pattern} if pattern else set())
    for n, m in wanted:
        out["nm"][f"{n}:{m}"] = [_nm(mask, n, m), _nm(mask.t(), n, m)]
    for b in _BLOCKS:
        if mask.shape[0] % b == 0 and cols % b == 0 and total:
            tiles = mask.reshape(mask.shape[0] // b, b, cols // b, b).sum((1, 3), dtype=torch.int64)
            hit = int((tiles > 0).sum())
            out["blocks"][str(b)] = [hit / tiles.numel(), total / (hit * b * b)]
    mean = total / max(1, mask.shape[0])
    out["row_max_over_mean"] = float(per_row.max()) / mean if mean else None
    out["empty_rows"] = int((per_row == 0).sum())
    out["static_share"] = {str(T): _static_share(per_row, T) for T in (2, 4, 8)} if total else {}
    return out


def _mask(t: torch.Tensor) -> torch.Tensor:
    if t.layout == torch.strided:
        return t != 0
    lay = tensors.layout(t)
    if lay == "coo":
        idx = t._indices()
        mask = torch.zeros(t.shape, dtype=torch.bool)
        vals = t._values()
        keep = vals != 0
        mask[idx[0][keep], idx[1][keep]] = True
        return mask
    return t.to_dense() != 0


def _nm(mask: torch.Tensor, n: int, m: int) -> Optional[float]:
    if mask.shape[1] % m:
        return None
    groups = mask.reshape(-1, m).sum(1, dtype=torch.int32)
    return float((groups <= n).sum()) / groups.numel()


def _static_share(per_row: torch.Tensor, threads: int) -> float:
    """The largest share of the non-zeros that one of ``threads`` contiguous, equally long row ranges holds."""
    chunk = -(-per_row.numel() // threads)
    sums = [int(per_row[i : i + chunk].sum()) for i in range(0, per_row.numel(), chunk)]
    return max(sums) / max(1, sum(sums))


def _pattern(text: Any) -> Optional[Tuple[int, int]]:
    if not text or ":" not in str(text):
        return None
    n, m = str(text).split(":")
    return int(n), int(m)
