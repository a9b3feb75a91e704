"""Sparse matrices in files: ``.smtx`` (pruned layers), Matrix Market ``.mtx`` and ``.mtx.gz``, SciPy's ``.npz``."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sparsetui.evidence.records import Number, unavailable
from sparsetui.evidence.text import clean
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.samplers.base import OnCommand
from sparsetui.ingest.structure import Ints, of_pattern

#: The most bytes of text or arrays that one matrix may unpack to.
LIMIT = 4 << 30
_RATIO = 300  # no honest matrix compresses better; a bomb does, a thousandfold and more
_HARMLESS = 256 << 20  # what an .npz may unpack to whatever its size: values that are all 1 compress a thousandfold
_LARGEST = 2**40  # rows or columns
_FIELDS = ("real", "integer", "pattern", "complex", "double")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_INTEGERS = frozenset({"bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))})
MEASURE_S = 4.0

SUFFIXES = (".smtx", ".mtx", ".mtx.gz", ".npz")


class Matrix(msgspec.Struct):
    """A sparse matrix as its file stores it, duplicates and explicit zeros included.

    ``row`` and ``col`` are int64 of the same length; ``values`` float64 (modulus for complex), or ``None`` for a pattern.
    """

    rows: int
    cols: int
    row: Any
    col: Any
    values: Any = None
    format: str = ""
    field: str = ""
    symmetry: str = "general"
    item: int = 4  # bytes of one value as a float32 weight
    notes: list[str] = []


def inspect(path: str | Path, measure: bool = False, *, on_command: OnCommand | None = None) -> dict[str, Any]:
    """What a matrix file holds: shape, stored entries, zeros, structure, bytes in each format and break-even.

    With ``measure`` also the time of a product with a dense matrix of 64 columns in each format, taken in a process of
    its own. Raises :class:`IngestError`.
    """
    path = Path(path)
    matrix = read(path)
    keys = matrix.row * max(matrix.cols, 1) + matrix.col
    unique, first = np.unique(keys, return_index=True)
    explicit = 0
    row, col, values = matrix.row[first], matrix.col[first], None
    if matrix.values is not None:
        values = _summed(keys, unique, matrix.values)
        explicit = int(np.count_nonzero(matrix.values == 0))
        keep = values != 0
        row, col, values = row[keep], col[keep], values[keep]
    out: dict[str, Any] = {
        "kind": "matrix",
        "format": matrix.format,
        "file": path.name,
        "sha256": _sha256(path),
        "file_bytes": path.stat().st_size,
        "field": matrix.field,
        "symmetry": matrix.symmetry,
        "shape": [matrix.rows, matrix.cols],
        "stored": len(matrix.row),
        "nonzeros": len(row),
        "explicit_zeros": explicit,
        "duplicates": len(keys) - len(unique),
        "nonfinite": int(np.count_nonzero(~np.isfinite(matrix.values))) if matrix.values is not None else 0,
        "structure": of_pattern(matrix.rows, matrix.cols, row, col, matrix.item),
        "notes": matrix.notes,
    }
    if measure:
        out["measured"] = measure_spmm(matrix.rows, matrix.cols, row, col, values, on_command=on_command)
    out["summary"] = _summary(out)
    out["figures"] = _figures(out)
    return out


def _summary(out: dict[str, Any]) -> str:
    zeros = out["structure"]["zeros"]
    text = f"{out['shape'][0]}×{out['shape'][1]}, " + ("empty" if zeros is None else f"{zeros:.2%} zeros")
    formats = (out.get("measured") or {}).get("formats")
    if formats:
        best = min(formats, key=lambda f: float(formats[f]["ms"]["value"]))
        text += f"; fastest as {best}, {formats[best]['speedup']['value']:.2f}× dense"
    return text


def _figures(out: dict[str, Any]) -> dict[str, Number]:
    structure, figures = out["structure"], {}
    if structure["zeros"] is not None:
        figures["zeros"] = Number(structure["zeros"], n=out["shape"][0] * out["shape"][1], quality="derived")
        ratio = structure["bytes"]["csr-int64"] / structure["bytes"]["dense"]
        figures["csr-int64 bytes over dense"] = Number(ratio, unit="×", quality="derived")
    measured = out.get("measured") or {}
    for name, times in measured.get("formats", {}).items():
        figures[f"speed-up as {name}"] = msgspec.convert(times["speedup"], Number)
    if "unavailable" in measured:
        figures["speed-up"] = unavailable(measured["unavailable"], "×")
    return figures


def render(payload: dict[str, Any]) -> list[str]:
    """A matrix as plain lines."""
    s = payload["structure"]
    lines = [f"{clean(payload['file'])}: {payload['format']}, {payload['summary']}"]
    lines.append(
        f"stored {payload['stored']}, explicit zeros {payload['explicit_zeros']}, duplicates {payload['duplicates']}, "
        f"empty rows {s['empty_rows']}, empty columns {s['empty_columns']}"
    )
    for name, fit in s["nm"].items():
        if fit["along_rows"] is not None and fit["along_columns"] is not None:
            lines.append(f"{name} fits {fit['along_rows']:.1%} along rows, {fit['along_columns']:.1%} along columns")
    for name, block in s["blocks"].items():
        if block["fill"] is not None:
            lines.append(f"blocks {name}: {block['occupied']} of {block['of']} occupied, filled {block['fill']:.1%}")
    dense = s["bytes"]["dense"] or 1
    lines += [f"as {name:<13} {size:>12} bytes  {size / dense:.2f}× dense" for name, size in s["bytes"].items()]
    measured = payload.get("measured") or {}
    for name, t in measured.get("formats", {}).items():
        ci = t["speedup"]["ci"]
        lines.append(
            f"product as {name:<10} {t['ms']['value']:.4f} ms  {t['speedup']['value']:.2f}× dense [{ci[0]:.2f}, {ci[1]:.2f}]"
        )
    lines += [f"product as {name}: not here ({clean(why, 80)})" for name, why in measured.get("refused", {}).items()]
    if "unavailable" in measured:
        lines.append(f"product not measured: {measured['unavailable']}")
    return lines + [f"note: {note}" for note in payload["notes"]]


def read(path: str | Path) -> Matrix:
    """The matrix in a file. Raises :class:`IngestError` with file, place, what is wrong and what is accepted."""
    path = Path(path)
    name = path.name.lower()
    try:
        if name.endswith(".npz"):
            return _npz(path)
        data = _bytes(path)
    except OSError as e:
        raise IngestError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise IngestError(f"{path}: the gzip stream is damaged or cut off ({e})") from None
    if name.endswith(".smtx"):
        return _smtx(path, data)
    if data[:14].lower() == b"%%matrixmarket":
        return _market(path, data)
    raise IngestError(f"{path}: not a matrix; accepted are .smtx, Matrix Market (.mtx, .mtx.gz) and SciPy's .npz")


def _bytes(path: Path) -> bytes:
    """The file, unpacked; refuses what unpacks beyond all measure."""
    size = path.stat().st_size
    with open(path, "rb") as f:
        packed = f.read(2) == b"\x1f\x8b"
        f.seek(0)
        if not packed:
            if size > LIMIT:
                raise IngestError(f"{path}: {size} bytes; at most {LIMIT} are read")
            return f.read()
        most = min(LIMIT, max(size * _RATIO, 1 << 20))
        with gzip.GzipFile(fileobj=f) as g:
            data = g.read(most + 1)
    if len(data) > most:
        raise IngestError(f"{path}: unpacks to more than {most} bytes ({_RATIO}× its size); that is no matrix")
    return data


def _sha256(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _summed(keys: Ints, unique: Ints, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values by unique key; duplicates are added up, as torch's coalesce and SciPy do."""
    at = np.searchsorted(unique, keys)
    return np.bincount(at, weights=values, minlength=len(unique)).astype(np.float64)


# .smtx


def _smtx(path: Path, data: bytes) -> Matrix:
    lines = data.split(b"\n", 3)
    what = "an .smtx file has three lines: 'rows, cols, nonzeros', the row offsets, the column indices"
    head = lines[0].replace(b",", b" ").split()
    try:
        rows, cols, nnz = (int(x) for x in head)
    except ValueError:
        raise IngestError(f"{path}: line 1: {_show(lines[0])} is not three numbers; {what}") from None
    _check_shape(path, rows, cols, nnz, "line 1")
    if len(lines) < 3 and (nnz or len(lines) < 2):
        raise IngestError(f"{path}: ends after line {len(lines)}; {what}")
    offsets = _ints(path, lines[1], 2)
    if len(offsets) != rows + 1:
        raise IngestError(f"{path}: line 2: {len(offsets)} row offsets; {rows} rows need {rows + 1}")
    if offsets[0] != 0 or offsets[-1] != nnz or (np.diff(offsets) < 0).any():
        raise IngestError(f"{path}: line 2: row offsets must rise from 0 to {nnz}")
    col = _ints(path, lines[2] if len(lines) > 2 else b"", 3)
    if len(col) != nnz:
        raise IngestError(f"{path}: line 3: {len(col)} column indices; the header says {nnz}")
    if nnz and (col.min() < 0 or col.max() >= cols):
        bad = int(np.flatnonzero((col < 0) | (col >= cols))[0])
        raise IngestError(f"{path}: line 3: index {bad + 1} is {col[bad]}; columns go from 0 to {cols - 1}")
    row = np.repeat(np.arange(rows, dtype=np.int64), np.diff(offsets))
    return Matrix(rows, cols, row, col, None, "smtx", "pattern")


def _ints(path: Path, line: bytes, number: int) -> Ints:
    tokens = line.split()
    try:
        return np.array(tokens, dtype="S").astype(np.int64) if tokens else np.zeros(0, np.int64)
    except (ValueError, OverflowError):
        bad = next((t for t in tokens if not t.lstrip(b"+-").isdigit() or len(t) > 19), tokens[0])
        raise IngestError(f"{path}: line {number}: {_show(bad)} is not a whole number") from None


def _check_shape(path: Path, rows: int, cols: int, nnz: int, place: str) -> None:
    if min(rows, cols, nnz) < 0:
        raise IngestError(f"{path}: {place}: a size is negative")
    if max(rows, cols) > _LARGEST or rows * cols > 2**62:
        raise IngestError(f"{path}: {place}: {rows}×{cols} is beyond what can be indexed here")
    if max(rows, cols) > 1 << 28:
        raise IngestError(f"{path}: {place}: {rows}×{cols}: at most {1 << 28} rows and columns are read")
    if nnz > rows * cols:
        raise IngestError(f"{path}: {place}: {nnz} entries do not fit into {rows}×{cols}")


def _show(raw: bytes) -> str:
    return repr(clean(raw[:40].decode("utf-8", "replace")))


# Matrix Market (https://math.nist.gov/MatrixMarket/formats.html)


def _market(path: Path, data: bytes) -> Matrix:
    end = data.find(b"\n")
    banner = data[: end if end >= 0 else len(data)].lower().split()
    where = f"{path}: line 1"
    if len(banner) != 5 or banner[1] != b"matrix":
        raise IngestError(f"{where}: the banner is '%%MatrixMarket matrix FORMAT FIELD SYMMETRY'")
    layout, field, symmetry = (b.decode("utf-8", "replace") for b in banner[2:])
    for word, accepted, what in (
        (layout, ("coordinate", "array"), "format"),
        (field, _FIELDS, "field"),
        (symmetry, _SYMMETRIES, "symmetry"),
    ):
        if word not in accepted:
            raise IngestError(f"{where}: {what} {clean(word, 30)!r} is unknown; accepted are {', '.join(accepted)}")
    if layout == "array" and field == "pattern":
        raise IngestError(f"{where}: an array cannot be a pattern")
    if symmetry == "hermitian" and field != "complex":
        raise IngestError(f"{where}: hermitian needs complex values")
    if symmetry == "skew-symmetric" and field == "pattern":
        raise IngestError(f"{where}: a skew-symmetric matrix needs values")
    lines, numbers = _content(data)
    if not lines:
        raise IngestError(f"{path}: ends before the line of sizes")
    try:
        sizes = [int(x) for x in lines[0].split()]
    except ValueError:
        raise IngestError(f"{path}: line {numbers(0)}: {_show(lines[0])} is no line of sizes") from None
    need = 3 if layout == "coordinate" else 2
    if len(sizes) != need:
        raise IngestError(f"{path}: line {numbers(0)}: {len(sizes)} sizes; {layout} needs {need}")
    rows, cols = sizes[:2]
    _check_shape(path, rows, cols, sizes[2] if need == 3 else 0, f"line {numbers(0)}")
    if symmetry != "general" and rows != cols:
        raise IngestError(f"{path}: line {numbers(0)}: a {symmetry} matrix must be square, this is {rows}×{cols}")
    body = lines[1:]
    place = lambda i: f"{path}: line {numbers(i + 1)}"  # noqa: E731
    if layout == "array":
        matrix = _array(path, body, place, rows, cols, field, symmetry)
    else:
        matrix = _coordinate(path, body, place, rows, cols, sizes[2], field, symmetry)
    _declared_type(data, matrix)
    return matrix


def _declared_type(data: bytes, matrix: Matrix) -> None:
    """Notes values that do not fit the type which a ``%%GraphBLAS type`` comment names."""
    found = re.search(rb"^%%GraphBLAS\s+type\s+(\w+)", data[:4096], re.MULTILINE)
    name = found[1].decode("ascii", "replace").removesuffix("_t") if found else ""
    if matrix.values is None or name not in _INTEGERS:
        return
    low, high = (0, 1) if name == "bool" else (np.iinfo(name).min, np.iinfo(name).max)
    if ((matrix.values < low) | (matrix.values > high)).any():
        matrix.notes.append(f"a comment says type {name}, and some values do not fit it; they were read as numbers")


def _content(data: bytes) -> tuple[list[bytes], Any]:
    """Lines that are neither comment nor blank, and the function from their index to their number in the file."""
    raw = data.split(b"\n")
    kept = [line for line in raw[1:] if line.strip() and not line.lstrip().startswith(b"%")]

    def number(index: int) -> int:
        seen = -1
        for n, line in enumerate(raw[1:], 2):
            if line.strip() and not line.lstrip().startswith(b"%"):
                seen += 1
                if seen == index:
                    return n
        return len(raw)

    return kept, number


def _numbers(lines: list[bytes], width: int, place: Any, what: str) -> npt.NDArray[np.float64]:
    """All numbers of ``lines``, shape (lines, width); names the first line that does not fit."""
    tokens = b" ".join(lines).split()
    if len(tokens) == len(lines) * width and all(line.count(b" ") or width == 1 or b"\t" in line for line in lines[:1]):
        try:
            flat = np.array(tokens, dtype="S").astype(np.float64) if tokens else np.zeros(0)
            if not width or all(len(line.split()) == width for line in lines[: 1 << 16]):
                return flat.reshape(len(lines), width)
        except ValueError:
            pass
    for i, line in enumerate(lines):
        parts = line.split()
        if len(parts) != width:
            raise IngestError(f"{place(i)}: {len(parts)} numbers in {_show(line)}; {what}")
        for part in parts:
            try:
                float(part)
            except ValueError:
                raise IngestError(f"{place(i)}: {_show(part)} is not a number; {what}") from None
    return np.array([[float(x) for x in line.split()] for line in lines]).reshape(len(lines), width)


def _coordinate(
    path: Path, body: list[bytes], place: Any, rows: int, cols: int, nnz: int, field: str, symmetry: str
) -> Matrix:
    width = {"pattern": 2, "complex": 4}.get(field, 3)
    what = f"a {field} entry is 'row column{' value' if width == 3 else ' real imaginary' if width == 4 else ''}'"
    if len(body) < nnz:
        raise IngestError(f"{path}: {len(body)} entries; the line of sizes says {nnz} (the file is cut off or mangled)")
    if len(body) > nnz:
        raise IngestError(f"{place(nnz)}: more than the {nnz} entries that the line of sizes says")
    table = _numbers(body, width, place, what)
    index = table[:, :2]
    bad = (index != np.floor(index)) | (index < 1) | (index > np.array([rows, cols]))
    if bad.any():
        i = int(np.flatnonzero(bad.any(axis=1))[0])
        raise IngestError(f"{place(i)}: {_show(body[i])} lies outside; rows go from 1 to {rows}, columns to {cols}")
    row, col = index[:, 0].astype(np.int64) - 1, index[:, 1].astype(np.int64) - 1
    values: npt.NDArray[np.float64] | None = None
    if width == 3:
        values = table[:, 2]
    elif width == 4:
        values = np.hypot(table[:, 2], table[:, 3])
    if field == "integer" and values is not None and (values[np.isfinite(values)] % 1 != 0).any():
        i = int(np.flatnonzero(values % 1 != 0)[0])
        raise IngestError(f"{place(i)}: {_show(body[i])} is not a whole number, and the banner says integer")
    notes = []
    if symmetry != "general":
        off = row != col
        if symmetry == "skew-symmetric" and not off.all():
            i = int(np.flatnonzero(~off)[0])
            if values is not None and values[i] != 0:
                raise IngestError(f"{place(i)}: a skew-symmetric matrix has no value on its diagonal")
        if (row < col).any():
            notes.append("entries above the diagonal of a symmetric matrix; they were mirrored as well")
        row, col = np.concatenate([row, col[off]]), np.concatenate([col, row[off]])
        if values is not None:
            values = np.concatenate([values, -values[off] if symmetry == "skew-symmetric" else values[off]])
    return Matrix(rows, cols, row, col, values, "matrix market", field, symmetry, notes=notes)


def _array(path: Path, body: list[bytes], place: Any, rows: int, cols: int, field: str, symmetry: str) -> Matrix:
    width = 2 if field == "complex" else 1
    skip = 1 if symmetry == "skew-symmetric" else 0  # its diagonal is not stored
    if rows * cols > 1 << 28:
        raise IngestError(f"{path}: an array of {rows}×{cols}; at most {1 << 28} elements are read")
    where: Ints = np.arange(rows * cols, dtype=np.int64)  # an array is stored column by column
    row, col = where % max(rows, 1), where // max(rows, 1)
    if symmetry != "general":
        lower = row >= col + skip
        row, col = row[lower], col[lower]
    if len(body) != len(row):
        raise IngestError(f"{path}: {len(body)} values; an array of {rows}×{cols} ({symmetry}) needs {len(row)}")
    table = _numbers(body, width, place, "an array has one value a line (complex: two numbers)")
    values = np.hypot(table[:, 0], table[:, 1]) if width == 2 else table[:, 0]
    if symmetry != "general":
        off = row != col
        row, col = np.concatenate([row, col[off]]), np.concatenate([col, row[off]])
        values = np.concatenate([values, -values[off] if skip else values[off]])
    stored = values != 0
    return Matrix(rows, cols, row[stored], col[stored], values[stored], "matrix market array", field, symmetry)


# SciPy's .npz


def _npz(path: Path) -> Matrix:
    accepted = "accepted is what scipy.sparse.save_npz writes"
    try:
        with zipfile.ZipFile(path) as z:
            infos = z.infolist()
            total = sum(i.file_size for i in infos)
            if total > LIMIT or total > max(path.stat().st_size * _RATIO, _HARMLESS) or len(infos) > 64:
                raise IngestError(f"{path}: unpacks to {total} bytes in {len(infos)} parts; that is no matrix")
            arrays = {i.filename.removesuffix(".npy"): _npy(path, i.filename, z.read(i)) for i in infos}
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as e:
        raise IngestError(f"{path}: not a whole .npz file ({e}); {accepted}") from None
    if "format" not in arrays or "shape" not in arrays:
        raise IngestError(f"{path}: holds {clean(', '.join(sorted(arrays)), 80) or 'nothing'}; {accepted}")
    raw = arrays["format"].item() if arrays["format"].ndim == 0 else ""
    form = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    try:
        rows, cols = (int(x) for x in arrays["shape"].ravel())
    except (ValueError, TypeError):
        raise IngestError(f"{path}: shape is not two numbers; {accepted}") from None
    _check_shape(path, rows, cols, 0, "shape")
    try:
        row, col, values = _expand(form, arrays, rows, cols)
    except KeyError as e:
        raise IngestError(f"{path}: a {clean(form, 20)} matrix without {e.args[0]}; {accepted}") from None
    except (ValueError, IndexError, TypeError) as e:
        raise IngestError(f"{path}: {clean(e, 120)}; {accepted}") from None
    if len(row) and (row.min() < 0 or row.max() >= rows or col.min() < 0 or col.max() >= cols):
        raise IngestError(f"{path}: an index lies outside of {rows}×{cols}")
    item = arrays["data"].dtype.itemsize if arrays["data"].dtype.kind in "fiu" else 4
    return Matrix(rows, cols, row, col, values, f"scipy {form}", str(arrays["data"].dtype), item=item)


def _npy(path: Path, name: str, data: bytes) -> npt.NDArray[Any]:
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as e:
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
        row, col, values = _index(a["row"]), _index(a["col"]), a["data"]
    elif form == "bsr":
        offsets, blocks, data = _index(a["indptr"]), _index(a["indices"]), a["data"]
        if data.ndim != 3 or 0 in data.shape[1:] or rows % data.shape[1] or cols % data.shape[2]:
            raise ValueError("blocks do not tile the shape")
        high, wide = data.shape[1:]
        _check_offsets(offsets, rows // high, len(blocks))
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


# measured products


def measure_spmm(
    rows: int,
    cols: int,
    row: Ints,
    col: Ints,
    values: npt.NDArray[np.float64] | None = None,
    *,
    width: int = 64,
    seconds: float = MEASURE_S,
    python: str = sys.executable,
    on_command: OnCommand | None = None,
) -> dict[str, Any]:
    """Times of ``W @ X`` for W in each format and dense X of ``cols`` × ``width`` (float32, torch, its threads).

    Runs in a process of its own, the formats interleaved. Where torch is absent or the process dies:
    ``{"unavailable": reason}``. A pattern without values gets standard normal ones.
    """
    if rows * cols > 1 << 27:
        return {"unavailable": f"{rows}×{cols} as dense would take {rows * cols * 4 >> 20} MiB; not measured"}
    order = np.lexsort((col, row))
    data = np.random.default_rng(0).standard_normal(len(row)) if values is None else values[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
    with tempfile.TemporaryDirectory(prefix="sparsetui-") as folder:
        file = os.path.join(folder, "matrix.npz")
        np.savez(file, shape=[rows, cols], offsets=offsets, col=col[order], data=data.astype(np.float32))
        argv = [python, "-P", "-m", "sparsetui.probes.spmm", file, str(width), str(seconds)]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        if on_command:
            on_command(argv, "measure the product in each format", process.pid)
        try:
            out, err = process.communicate(timeout=seconds * 4 + 60)
        except subprocess.TimeoutExpired:
            return {"unavailable": f"the measurement took longer than {seconds * 4 + 60:.0f} s"}
        finally:
            _kill(process)
    if process.returncode:
        tail = err.decode("utf-8", "replace").strip().splitlines()
        why = tail[-1][:200] if tail else f"signal {-process.returncode}"
        return {"unavailable": f"the measuring process ended with {process.returncode}: {clean(why)}"}
    result: dict[str, Any] = json.loads(out)
    return result


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def density(result: dict[str, Any]) -> float:
    """The share of non-zeros in what :func:`inspect` returned; NaN for an empty shape."""
    rows, cols = result["shape"]
    return result["nonzeros"] / (rows * cols) if rows * cols else math.nan
