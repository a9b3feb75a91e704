"""Sparse matrices in ``.npz`` files: what SciPy's ``save_npz`` writes, and the same arrays saved by hand."""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsetui.evidence.text import clean
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.matrixfiles import LIMIT, Matrix, check_shape
from sparsetui.ingest.structure import Ints

_RATIO = 300
_HARMLESS = 256 << 20  # what an .npz may unpack to whatever its size: values that are all 1 compress a thousandfold


def read_npz(path: Path) -> Matrix:
    accepted = "accepted is what scipy.sparse.save_npz writes"
    try:
        with zipfile.ZipFile(path) as z:
            infos = z.infolist()
            total = sum(i.file_size for i in infos)
            if total > LIMIT or total > max(path.stat().st_size * _RATIO, _HARMLESS) or len(infos) > 64:
                raise IngestError(f"{path}: unpacks to {total} bytes in {len(infos)} parts; that is no matrix")
            names = [i.filename for i in infos]
            twice = next((n for n in names if names.count(n) > 1), None)
            if twice is not None:
                raise IngestError(f"{path}: {clean(twice, 40)} is in it twice; {accepted}")
            arrays = {i.filename.removesuffix(".npy"): _npy(path, i.filename, z.read(i)) for i in infos}
    except (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError) as e:
        raise IngestError(f"{path}: not a whole .npz file ({e}); {accepted}") from None
    arrays = {_ALIASES.get(k, k): v for k, v in arrays.items()}
    notes: list[str] = []
    if "format" in arrays and "shape" in arrays:
        raw = arrays["format"].item() if arrays["format"].ndim == 0 else ""
        form = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    elif (only := _dense(arrays)) is not None:
        row, col = np.nonzero(only)
        item = only.dtype.itemsize if only.dtype.kind in "fiu" else 4
        values = np.abs(only[row, col]).astype(np.float64)
        return Matrix(only.shape[0], only.shape[1], row, col, values, "numpy array", str(only.dtype), item=item)
    elif "shape" in arrays and (form := _guessed(arrays)):
        notes.append(f"does not name its format; its arrays are those of {form}")
    else:
        named = clean(", ".join(sorted(arrays)), 80) or "nothing"
        raise IngestError(f"{path}: holds {named}; {accepted}, or one matrix as an array of two dimensions")
    try:
        rows, cols = (int(x) for x in arrays["shape"].ravel())
    except (ValueError, TypeError, OverflowError):
        raise IngestError(f"{path}: shape is not two numbers; {accepted}") from None
    stored = max((a.size for a in arrays.values()), default=0)
    check_shape(path, rows, cols, 0, "shape", stored)
    try:
        row, col, values = _expand(form, arrays, rows, cols)
    except KeyError as e:
        raise IngestError(f"{path}: a {clean(form, 20)} matrix without {e.args[0]}; {accepted}") from None
    except (ValueError, IndexError, TypeError) as e:
        raise IngestError(f"{path}: {clean(e, 120)}; {accepted}") from None
    if len(row) and (row.min() < 0 or row.max() >= rows or col.min() < 0 or col.max() >= cols):
        raise IngestError(f"{path}: an index lies outside of {rows}×{cols}")
    item = arrays["data"].dtype.itemsize if arrays["data"].dtype.kind in "fiu" else 4
    return Matrix(rows, cols, row, col, values, f"scipy {form}", str(arrays["data"].dtype), item=item, notes=notes)


# how data sets of graphs and older code name the arrays of a CSR matrix
_ALIASES = {
    f"{prefix}_{name}": name
    for prefix in ("adj", "adj_matrix", "csr", "attr")
    for name in ("data", "indices", "indptr", "shape")
}


def _dense(arrays: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
    """The only array, if it is a matrix of numbers."""
    if len(arrays) != 1:
        return None
    (only,) = arrays.values()
    return only if only.ndim == 2 and only.dtype.kind in "fiubc" else None


def _guessed(arrays: dict[str, npt.NDArray[Any]]) -> str:
    """The format whose arrays these are; empty if none, or if rows and columns could both be meant."""
    if {"row", "col", "data"} <= arrays.keys():
        return "coo"
    if {"indptr", "indices", "data"} <= arrays.keys() and arrays["shape"].size == 2 and arrays["data"].ndim == 1:
        rows, cols = arrays["shape"].ravel().tolist()
        if len(arrays["indptr"]) == rows + 1:
            return "csr"  # where both fit: what such files hold nearly always
        if len(arrays["indptr"]) == cols + 1:
            return "csc"
    return ""


# the header of an array is a Python literal: what is none makes numpy raise whatever Python's tokenizer and parser do
_NO_ARRAY = (ValueError, EOFError, OSError, MemoryError, TypeError, OverflowError, RecursionError, SyntaxError,
             tokenize.TokenError)  # fmt: skip


def _npy(path: Path, name: str, data: bytes) -> npt.NDArray[Any]:
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except _NO_ARRAY as e:
        raise IngestError(f"{path}: {clean(name, 40)}: not a plain array ({clean(e, 80)})") from None
    return np.asarray(array)


def _expand(form: str, a: dict[str, Any], rows: int, cols: int) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Coordinates and values of one of SciPy's formats."""
    if form in ("csr", "csc"):
        major = rows if form == "csr" else cols
        offsets, minor = _index(a["indptr"]), _index(a["indices"])
        _check_offsets(offsets, major, len(minor))
        outer = np.repeat(np.arange(major, dtype=np.int64), np.diff(offsets))
        row, col = (outer, minor) if form == "csr" else (minor, outer)
        values = a["data"]
    elif form == "coo":
        if "coords" in a and "row" not in a:
            row, col = (_index(x) for x in a["coords"])
        else:
            row, col = _index(a["row"]), _index(a["col"])
        values = a["data"]
    elif form == "bsr":
        offsets, blocks, data = _index(a["indptr"]), _index(a["indices"]), a["data"]
        if data.ndim != 3 or 0 in data.shape[1:] or rows % data.shape[1] or cols % data.shape[2]:
            raise ValueError("blocks do not tile the shape")
        high, wide = data.shape[1:]
        _check_offsets(offsets, rows // high, len(blocks))
        if len(blocks) != len(data):
            raise ValueError(f"{len(blocks)} block columns and {len(data)} blocks do not match")
        outer = np.repeat(np.arange(rows // high, dtype=np.int64), np.diff(offsets))
        row = (outer[:, None, None] * high + np.arange(high)[None, :, None] + np.zeros((1, 1, wide), np.int64)).ravel()
        col = (blocks[:, None, None] * wide + np.zeros((1, high, 1), np.int64) + np.arange(wide)[None, None]).ravel()
        values = data.ravel()
    elif form == "dia":
        data, offs = np.atleast_2d(a["data"]), _index(a["offsets"])
        if len(data) != len(offs):
            raise ValueError("as many diagonals as offsets are needed")
        col = np.tile(np.arange(data.shape[1], dtype=np.int64), len(offs))
        row = col - np.repeat(offs, data.shape[1])
        inside = (row >= 0) & (row < rows) & (col < cols) & (data.ravel() != 0)
        row, col, values = row[inside], col[inside], data.ravel()[inside]
    else:
        raise ValueError(f"format {form[:20]!r} is unknown")
    if len(row) != len(col) or len(row) != len(values):
        raise ValueError(f"{len(row)} rows, {len(col)} columns and {len(values)} values do not match")
    kind = np.asarray(values).dtype.kind
    if kind not in "fiubc":
        raise ValueError(f"values of type {np.asarray(values).dtype} are no numbers")
    return row, col, np.abs(values).astype(np.float64) if kind == "c" else np.asarray(values).astype(np.float64)


def _index(array: Any) -> Ints:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError("indices must be a list of whole numbers")
    return np.asarray(array).astype(np.int64)


def _check_offsets(offsets: Ints, major: int, count: int) -> None:
    if len(offsets) != major + 1 or offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must be {major + 1} numbers that rise from 0 to {count}")
