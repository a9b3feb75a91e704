"""The inventory: what every tensor that the callable holds really is, before anything runs.

Index checks compare and sort indices but never follow one, and they run in a replica that may die without harm: an index out
of range can take a process with it.
"""

from __future__ import annotations

from typing import Any, Dict, Hashable, List, Optional, Set, Tuple

import torch

from . import identity, tensors, walk
from .compiled import compiled_parts
from .context import Context

_STRUCTURE_ROWS = 4096  # structure of larger matrices is read off this many evenly spaced rows
_BAND = 32
_MASK_CELLS = 1 << 24  # entries of the mask that blocks and groups are read off
_BLOCKS = (2, 4, 8, 16, 32)


def inventory(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """One row a tensor (weights, masks, buffers, closures), at most ``limit`` of them with structure."""
    pattern = _pattern(args.get("pattern"))
    held = walk.held_tensors(ctx.fn)
    seen: Set[Hashable] = set()
    rows: List[Dict[str, Any]] = []
    extra = [(name, t) for name, t in _found_by_census(ctx)]
    for n, (name, t) in enumerate(held + extra):
        try:
            k = identity.identity(t)
            if k is not None and k in seen:
                continue
            seen.add(k)
            rows.append(row(name, t, pattern))
        except Exception as e:  # a tensor that cannot even be read is a row of its own, whatever it raises
            rows.append({"name": name, "unreadable": (str(e).splitlines() or [type(e).__name__])[0][:200]})
        if n % 25 == 0:
            ctx.emit({"inventory": n, "of": len(held) + len(extra)})
    mods = walk.owners(ctx.fn)
    return {"tensors": rows, "modules": sorted(set(mods.values()))[:20000],
            "compiled": len(compiled_parts(ctx.fn)),
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
    needs_grad = bool(t.requires_grad)
    t = t.detach()
    if t.is_quantized:
        return dict(_quantized(name, t, pattern), requires_grad=False)
    lay = tensors.layout(t)
    out: Dict[str, Any] = dict(tensors.describe(t), name=name, numel=int(t.numel()), requires_grad=needs_grad)
    out["bytes"] = tensors.bytes_by_part(t) if t.numel() or lay in tensors.SPARSE else {}
    if t.numel() == 0 or t.device.type == "meta" or lay not in tensors.SPARSE | {"strided"}:
        return out
    vals = tensors.values(t)
    # entries that no arithmetic could tell from zero next to the largest one count as zeros too
    nonzero, tiny = _counts(vals)
    out["tiny"] = tiny
    out["finite"] = bool(torch.isfinite(vals).all()) if vals.is_floating_point() or vals.is_complex() else True
    if not vals.is_floating_point() and not vals.is_complex() and vals.dtype != torch.bool and t.dim() >= 2:
        out["mode_fraction"] = _mode_fraction(vals)
    if lay in tensors.SPARSE:
        out.update(_stored(t, lay, vals, nonzero, tiny))
        out["invalid"] = invalid(t, lay)
    out["zeros"] = 1.0 - (nonzero - tiny if not _repeats(t, lay, out) else _places(t)) / t.numel()
    if t.dim() == 2 and t.dtype != torch.bool and min(t.shape) >= 4 and not out.get("invalid"):
        out.update(structure(t, pattern))
    return out


def _quantized(name: str, t: torch.Tensor, pattern: Optional[Tuple[int, int]]) -> Dict[str, Any]:
    """A quantised tensor by its integers, those equal to the zero point counting as zeros."""
    ints = t.int_repr()
    per_tensor = t.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
    zero = t.q_zero_point() if per_tensor else 0
    return dict(row(name, ints if zero == 0 else ints.to(torch.int16) - zero, pattern), dtype=tensors.dtype(t),
                bytes={"values": tensors.nbytes(t), "indices": 0, "dense": tensors.nbytes(t)})  # fmt: skip


def _repeats(t: torch.Tensor, lay: str, out: Dict[str, Any]) -> bool:
    """Whether one place may be stored several times over, so that stored values are more than places."""
    return lay == "coo" and not t.is_coalesced() and not out["invalid"] and t.dense_dim() == 0


def _places(t: torch.Tensor) -> int:
    """How many places of an uncoalesced COO tensor hold something."""
    keep = t._values() != 0
    return int(torch.unique(_flat(t._indices()[:, keep], list(t.shape))).numel())


def _counts(vals: torch.Tensor) -> Tuple[int, int]:
    """(non-zero entries, entries that are not zero yet below the resolution of the largest magnitude (see tensors.telling))."""
    if vals.numel() == 0:
        return 0, 0
    nonzero = int(torch.count_nonzero(vals))
    if not vals.is_floating_point():
        return nonzero, 0
    mag = vals.abs()
    top = mag.max()
    if not torch.isfinite(top) or float(top) == 0.0:
        return nonzero, 0
    return nonzero, nonzero - int(torch.count_nonzero(tensors.telling(vals)))


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
        bad += [f"index of dimension {d} out of range 0..{t.shape[d] - 1}" for d in range(idx.shape[0])
                if idx.shape[1] and (int(idx[d].min()) < 0 or int(idx[d].max()) >= t.shape[d])]  # fmt: skip
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
    if p["plain"].shape[:1] != p["values"].shape[:1]:
        bad.append(f"{p['plain'].numel()} indices for {p['values'].shape[0]} stored values")
    comp, plain = p["compressed"].to(torch.int64), p["plain"].to(torch.int64)
    rows_first = lay in ("csr", "bsr")
    block = list(p["values"].shape[-2:]) if lay in ("bsr", "bsc") else [1, 1]
    n_plain = t.shape[1] // block[1] if rows_first else t.shape[0] // block[0]
    n_comp = t.shape[0] // block[0] if rows_first else t.shape[1] // block[1]
    word = ("row", "column") if rows_first else ("column", "row")
    if comp.numel() != n_comp + 1:
        return [*bad, f"{comp.numel()} {word[0]} pointers, not {n_comp + 1}"]
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
    group = torch.repeat_interleave(torch.arange(width.numel(), device=width.device), width)
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
    mask, per_row = _looked_at(t)
    n, cols = mask.shape
    total, seen = int(per_row.sum()), int(mask.sum())
    out: Dict[str, Any] = {"nm": {}, "blocks": {}, "rows_sampled": n}
    wanted = {(2, 4)} | ({pattern} if pattern else set())
    for most, m in wanted:
        out["nm"][f"{most}:{m}"] = [_nm(mask, most, m), _nm(mask.t(), most, m)]
    tiles, edge = mask, 1
    for b in _BLOCKS:
        if n % b == 0 and cols % b == 0 and seen:
            f, edge = b // edge, b  # the blocks of one size are made of those of the size before
            tiles = tiles.reshape(n // b, f, cols // b, f).any(3).any(1)
            hit = int(torch.count_nonzero(tiles))
            out["blocks"][str(b)] = [hit / tiles.numel(), seen / (hit * b * b)]
    mean = total / max(1, n)
    out["row_max_over_mean"] = float(per_row.max()) / mean if mean else None
    out["empty_rows"] = int((per_row == 0).sum())
    out["static_share"] = {str(T): _static_share(per_row, T) for T in (2, 4, 8)} if total else {}
    return out


def _looked_at(t: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """The mask of non-zeros that structure is read off, and the non-zeros of each of its rows.

    A tall matrix gives whole bands of rows, evenly spaced, so that blocks and groups down the columns stay what they are; a
    sparse one that is very wide gives its first columns, though its rows are counted whole.
    """
    n, cols = t.shape
    bands = torch.arange(n // _BAND, device=t.device)
    if n > _STRUCTURE_ROWS:
        bands = bands[
            torch.arange(_STRUCTURE_ROWS // _BAND, device=t.device) * (n // _BAND) // (_STRUCTURE_ROWS // _BAND)
        ]
    if t.layout == torch.strided:
        if n > _STRUCTURE_ROWS:
            t = t[(bands[:, None] * _BAND + torch.arange(_BAND, device=t.device)).reshape(-1)]
        mask = t != 0
        return mask, mask.sum(1, dtype=torch.int64)
    row, col = _stored_places(t)
    if n > _STRUCTURE_ROWS:
        keep = torch.isin(row // _BAND, bands)
        row, col = row[keep], col[keep]
        at = torch.full((-(-n // _BAND),), -1, device=t.device)
        at[bands] = torch.arange(bands.numel(), device=t.device)
        row = at[row // _BAND] * _BAND + row % _BAND
        n = int(bands.numel()) * _BAND
    if t.layout == torch.sparse_coo and not t.is_coalesced():
        flat = torch.unique(row * cols + col)
        row, col = flat // cols, flat % cols
    width = cols if n * cols <= _MASK_CELLS else _MASK_CELLS // n // _BAND * _BAND
    mask = torch.zeros((n, width), dtype=torch.bool, device=t.device)
    near = col < width
    mask[row[near], col[near]] = True
    return mask, torch.bincount(row, minlength=n)


def _stored_places(t: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each non-zero of a 2-D sparse tensor of any layout, with no dense copy."""
    lay = tensors.layout(t)
    if lay == "coo" and t.dense_dim() == 0:
        at = t._indices()[:, t._values() != 0]
        return at[0], at[1]
    if lay == "coo":
        at = torch.nonzero(t._values())
        return t._indices()[0][at[:, 0]], at[:, 1]
    p = tensors.parts(t)
    comp, plain, vals = p["compressed"].to(torch.int64), p["plain"].to(torch.int64), p["values"]
    group = torch.repeat_interleave(torch.arange(comp.numel() - 1, device=comp.device), comp[1:] - comp[:-1])
    first, second = (group, plain) if lay in ("csr", "bsr") else (plain, group)
    if vals.dim() == 1:
        keep = vals != 0
        return first[keep], second[keep]
    at = torch.nonzero(vals)  # blocks: entry, row and column within it
    return first[at[:, 0]] * vals.shape[1] + at[:, 1], second[at[:, 0]] * vals.shape[2] + at[:, 2]


def _nm(mask: torch.Tensor, n: int, m: int) -> Optional[float]:
    if mask.shape[1] % m:
        return None
    # added up slice by slice: a reduction over a last axis as short as this runs entry by entry
    groups = mask[:, 0::m].to(torch.int16)
    for i in range(1, m):
        groups += mask[:, i::m]
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
