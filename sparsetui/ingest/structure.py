"""The structure of a matrix's zeros: how many, in which pattern, how skewed, and what each format would take.

Works on row bands of a dense mask or on a sparse pattern, so that a tensor larger than memory streams through. Pure
NumPy.

n:m: a group of m neighbours along an axis fits if at most n of them are non-zero; a short last group counts as one.
Blocks: a b×b tile is occupied if it holds a non-zero; fill is non-zeros over the area of occupied tiles.
Bytes: values of ``item`` bytes each, plus the indices that torch's layouts store (COO int64; CSR and BSR int64 or int32).
Break-even: the density below which a format takes fewer bytes than dense.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

NM = ((2, 4), (1, 4), (4, 8))
BLOCKS = (4, 8, 16, 32)
THREADS = (2, 4, 8, 16)
#: Bands must hold a multiple of this many rows (except the last): every group and tile then lies within one band.
BAND = 32


class Structure:
    """Accumulates one matrix of ``rows`` × ``cols`` whose values take ``item`` bytes."""

    def __init__(self, rows: int, cols: int, item: int) -> None:
        self.rows, self.cols, self.item = rows, cols, item
        self.nonzeros = 0
        self._seen = 0
        self._per_row: list[Ints] = []
        self._cols_used = np.zeros(cols, np.bool_)
        self._nm = {(n, m, axis): 0 for n, m in NM for axis in (0, 1)}  # groups that fit
        self._occupied = dict.fromkeys(BLOCKS, 0)

    def add(self, mask: Mask) -> None:
        """The next band of rows: ``True`` where an element is not zero, shape (k, cols)."""
        k = len(mask)
        self._seen += k
        per_row = np.count_nonzero(mask, axis=1).astype(np.int64)
        self._per_row.append(per_row)
        self.nonzeros += int(per_row.sum())
        self._cols_used |= mask.any(axis=0)
        counts = mask.view(np.uint8)
        for m in sorted({m for _, m in NM}):
            along = np.add.reduceat(counts, np.arange(0, self.cols, m), axis=1) if self.cols else counts
            down = np.add.reduceat(counts, np.arange(0, k, m), axis=0) if k else counts
            for n in [n for n, mm in NM if mm == m]:
                self._nm[n, m, 1] += int(np.count_nonzero(along <= n))
                self._nm[n, m, 0] += int(np.count_nonzero(down <= n))
        tiles = mask
        size = 1
        for b in BLOCKS:  # each from the tiles of the size before it
            step = b // size
            tiles = np.logical_or.reduceat(tiles, np.arange(0, tiles.shape[0], step), axis=0)
            tiles = np.logical_or.reduceat(tiles, np.arange(0, tiles.shape[1], step), axis=1)
            self._occupied[b] += int(np.count_nonzero(tiles))
            size = b

    def add_pattern(self, row: Ints, col: Ints) -> None:
        """The whole matrix as the coordinates of its non-zeros, without duplicates."""
        self._seen = self.rows
        self.nonzeros = len(row)
        self._per_row.append(np.bincount(row, minlength=self.rows).astype(np.int64))
        self._cols_used[col] = True
        for n, m in NM:
            for axis, major, minor, length, others in (
                (1, row, col, self.cols, self.rows),
                (0, col, row, self.rows, self.cols),
            ):
                groups = _ceil(length, m)
                _, counts = np.unique(major * groups + minor // m, return_counts=True)
                self._nm[n, m, axis] = groups * others - int(np.count_nonzero(counts > n))
        for b in BLOCKS:
            wide = _ceil(self.cols, b)
            self._occupied[b] = len(np.unique(row // b * wide + col // b))

    def result(self) -> dict[str, Any]:
        """All figures as plain JSON. Raises ``ValueError`` if rows are missing."""
        if self._seen != self.rows:
            raise ValueError(f"{self._seen} of {self.rows} rows were seen")
        r, c, nnz = self.rows, self.cols, self.nonzeros
        total = r * c
        per_row = np.concatenate(self._per_row) if self._per_row else np.zeros(0, np.int64)
        nm = {
            f"{n}:{m}": {
                "along_rows": _ratio(self._nm[n, m, 1], r * _ceil(c, m)),
                "along_columns": _ratio(self._nm[n, m, 0], c * _ceil(r, m)),
            }
            for n, m in NM
        }
        blocks = {
            f"{b}x{b}": {
                "occupied": self._occupied[b],
                "of": _ceil(r, b) * _ceil(c, b),
                "fill": _ratio(nnz, self._occupied[b] * b * b),
                "divides": r % b == 0 and c % b == 0,
            }
            for b in BLOCKS
        }
        return {
            "shape": [r, c],
            "nonzeros": nnz,
            "zeros": _ratio(total - nnz, total),
            "empty_rows": int(np.count_nonzero(per_row == 0)),
            "empty_columns": int(np.count_nonzero(~self._cols_used)),
            "nm": nm,
            "blocks": blocks,
            "skew": skew(per_row),
            "bytes": self._bytes(),
            "break_even": break_even(r, c, self.item),
        }

    def _bytes(self) -> dict[str, int]:
        r, c, nnz, s = self.rows, self.cols, self.nonzeros, self.item
        out = {
            "dense": r * c * s,
            "coo": nnz * (s + 16),
            "csr-int64": nnz * (s + 8) + (r + 1) * 8,
            "csr-int32": nnz * (s + 4) + (r + 1) * 4,
            "bitmask": nnz * s + r * _ceil(c, 8) + r * 8,
        }
        for b in BLOCKS:
            if r % b == 0 and c % b == 0:
                out[f"bsr-{b}-int32"] = self._occupied[b] * (b * b * s + 4) + (r // b + 1) * 4
        if c % 4 == 0 and r and c and self._nm[2, 4, 1] == r * _ceil(c, 4):
            out["2:4"] = r * c // 2 * s + r * c // 8  # half the values, two bits of position for each kept one
        return out


def skew(per_row: Ints) -> dict[str, Any]:
    """How unevenly the non-zeros lie over the rows.

    ``worst_static_share[T]`` is the largest part of the non-zeros that one of T threads gets when rows are dealt out in
    T contiguous runs of equal length; 1/T is even.
    """
    total = int(per_row.sum())
    if not total:
        return {"max_row": 0, "mean_row": 0.0, "max_over_mean": None, "worst_static_share": {}}
    mean = total / len(per_row)
    cumulative = np.concatenate([[0], np.cumsum(per_row)])
    worst = {}
    for t in THREADS:
        if len(per_row) >= t:
            cuts = np.minimum(np.arange(t + 1) * _ceil(len(per_row), t), len(per_row))
            worst[str(t)] = float(np.diff(cumulative[cuts]).max() / total)
    return {
        "max_row": int(per_row.max()),
        "mean_row": mean,
        "max_over_mean": float(per_row.max() / mean),
        "worst_static_share": worst,
    }


def break_even(rows: int, cols: int, item: int) -> dict[str, float]:
    """The density (share of non-zeros) at which a format takes as many bytes as dense; at least 0.

    For BSR it is the share of occupied tiles.
    """
    total = rows * cols
    if not total:
        return {}
    out = {
        "coo": item / (item + 16),
        "csr-int64": (total * item - (rows + 1) * 8) / (total * (item + 8)),
        "csr-int32": (total * item - (rows + 1) * 4) / (total * (item + 4)),
        "bitmask": (total * item - rows * _ceil(cols, 8) - rows * 8) / (total * item),
    }
    for b in BLOCKS:
        if rows % b == 0 and cols % b == 0:
            tiles = total // (b * b)
            out[f"bsr-{b}-int32"] = (total * item - (rows // b + 1) * 4) / (tiles * (b * b * item + 4))
    return {k: max(0.0, v) for k, v in out.items()}


def of_dense(mask: Mask, item: int) -> dict[str, Any]:
    """The structure of a whole mask, shape (rows, cols)."""
    out = Structure(mask.shape[0], mask.shape[1], item)
    for start in range(0, mask.shape[0], 4096):
        out.add(np.ascontiguousarray(mask[start : start + 4096]))
    return out.result()


def of_pattern(rows: int, cols: int, row: Ints, col: Ints, item: int) -> dict[str, Any]:
    """The structure of a sparse pattern given by the coordinates of its non-zeros, without duplicates."""
    out = Structure(rows, cols, item)
    out.add_pattern(row.astype(np.int64), col.astype(np.int64))
    return out.result()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _ratio(a: int, b: int) -> float | None:
    return a / b if b else None
