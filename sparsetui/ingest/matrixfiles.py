"""Matrices as their files store them: ``.smtx`` (pruned layers), Matrix Market ``.mtx``, SciPy's ``.npz``."""

from __future__ import annotations

import codecs
import gzip
import re
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sparsetui.evidence.text import clean
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.source import encoding_of
from sparsetui.ingest.structure import Ints

#: The most bytes of text or arrays that one matrix may unpack to.
LIMIT = 2 << 30
_RATIO = 300  # no honest matrix compresses better; a bomb does, a thousandfold and more
_SMTX = re.compile(rb"\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\r?\n")
_LARGEST = 2**40  # rows or columns
_BY_LINE = 256 << 20  # bytes of text that is read line by line, where it cannot be read at one go
_FIELDS = ("real", "integer", "pattern", "complex", "double", "unsigned-integer")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
_INTEGERS = frozenset({"bool", *(f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64))})


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


def read(path: str | Path) -> Matrix:
    """The matrix in a file. Raises :class:`IngestError` with file, place, what is wrong and what is accepted."""
    path = Path(path)
    name = path.name.lower()
    try:
        if name.endswith(".npz"):
            from sparsetui.ingest.npz import read_npz

            return read_npz(path)
        data = _bytes(path)
    except OSError as e:
        raise IngestError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise IngestError(f"{path}: the gzip stream is damaged or cut off ({e})") from None
    data = _utf8(data)
    if name.endswith((".smtx", ".smtx.gz")):
        return _smtx(path, data)
    if data[:14].lower() == b"%%matrixmarket" or (name.endswith((".mtx", ".mtx.gz")) and _numeric_start(data)):
        return _market(path, data)
    if _SMTX.match(data):
        return _smtx(path, data)
    raise IngestError(f"{path}: not a matrix; accepted are .smtx, Matrix Market (.mtx, .mtx.gz) and SciPy's .npz")


def _utf8(data: bytes) -> bytes:
    """The text without a byte order mark, as UTF-8 whatever it was."""
    encoding = encoding_of(data[:64])
    if encoding == "utf-8":
        return data.removeprefix(codecs.BOM_UTF8)
    return data.decode(encoding, "replace").removeprefix("\ufeff").encode("utf-8", "replace")


def _numeric_start(data: bytes) -> bool:
    """Whether the first line that is no comment holds the two or three sizes of a Matrix Market file without a banner."""
    return (
        re.match(rb"(?:[ \t]*(?:%[^\n]*)?\r?\n)*[ \t]*\d+[ \t]+\d+(?:[ \t]+\d+)?[ \t]*\r?(?:\n|$)", data[: 1 << 20])
        is not None
    )


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


# .smtx


def _smtx(path: Path, data: bytes) -> Matrix:
    lines = data.split(b"\n", 3)
    what = "an .smtx file has three lines: 'rows, cols, nonzeros', the row offsets, the column indices"
    head = lines[0].replace(b",", b" ").split()
    try:
        rows, cols, nnz = (int(x) for x in head)
    except ValueError:
        raise IngestError(f"{path}: line 1: {_show(lines[0])} is not three numbers; {what}") from None
    check_shape(path, rows, cols, nnz, "line 1")
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
    further = len(lines) > 3 and lines[3].strip()
    notes = ["what follows the third line was not read"] if further else []
    return Matrix(rows, cols, row, col, None, "smtx", "pattern", notes=notes)


def _ints(path: Path, line: bytes, number: int) -> Ints:
    flat = _at_one_go(line, np.int64)
    if flat is not None:
        return np.asarray(flat, np.int64)
    tokens = line.split()
    try:
        return np.array(tokens, dtype="S").astype(np.int64) if tokens else np.zeros(0, np.int64)
    except (ValueError, OverflowError):
        bad = next((t for t in tokens if not t.lstrip(b"+-").isdigit() or len(t) > 19), tokens[0])
        raise IngestError(f"{path}: line {number}: {_show(bad)} is not a whole number") from None


def _at_one_go(text: bytes, kind: type[Any]) -> Any:
    """All numbers of ``text`` as an array; None where something in it is no such number."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text, kind, sep=" ")
        except (DeprecationWarning, ValueError):
            return None


def check_shape(path: Path, rows: int, cols: int, nnz: int, place: str, stored: int | None = None) -> None:
    """Refuse sizes that nothing in the file bears out: a line that says billions would cost gigabytes here. ``stored`` is
    how many numbers there are; None for ``nnz``."""
    if min(rows, cols, nnz) < 0:
        raise IngestError(f"{path}: {place}: a size is negative")
    if max(rows, cols) > _LARGEST or rows * cols > 2**62:
        raise IngestError(f"{path}: {place}: {rows}×{cols} is beyond what can be indexed here")
    borne_out = max(1 << 24, 8 * (nnz if stored is None else stored))
    if borne_out < max(rows, cols) <= 1 << 28:
        raise IngestError(
            f"{path}: {place}: {rows}×{cols} for so few entries; at most {borne_out} rows and columns are read"
        )
    if max(rows, cols) > 1 << 28:
        raise IngestError(f"{path}: {place}: {rows}×{cols}: at most {1 << 28} rows and columns are read")
    if nnz > rows * cols:
        raise IngestError(f"{path}: {place}: {nnz} entries do not fit into {rows}×{cols}")


def _show(raw: bytes) -> str:
    return repr(clean(raw[:40].decode("utf-8", "replace")))


# Matrix Market (https://math.nist.gov/MatrixMarket/formats.html)


def _market(path: Path, data: bytes) -> Matrix:
    notes: list[str] = []
    layout, field, symmetry = _banner(path, data) if data[:2] == b"%%" else ("", "real", "general")
    at, number = _sizes_at(data)
    end = data.find(b"\n", at)
    line, body = (data[at:], b"") if end < 0 else (data[at:end], data[end + 1 :])
    if not line.strip():
        raise IngestError(f"{path}: ends before the line of sizes")
    try:
        sizes = [int(x) for x in line.split()]
    except ValueError:
        raise IngestError(f"{path}: line {number}: {_show(line)} is no line of sizes") from None
    if not layout:
        layout = "array" if len(sizes) == 2 else "coordinate"
        field = "pattern" if layout == "coordinate" and len(body.lstrip().split(b"\n", 1)[0].split()) == 2 else "real"
        notes.append(f"no banner in line 1: read as '{layout} {field} general'")
    need = 3 if layout == "coordinate" else 2
    if len(sizes) != need:
        raise IngestError(f"{path}: line {number}: {len(sizes)} sizes; {layout} needs {need}")
    rows, cols = sizes[:2]
    check_shape(path, rows, cols, sizes[2] if need == 3 else 0, f"line {number}")
    if symmetry != "general" and rows != cols:
        raise IngestError(f"{path}: line {number}: a {symmetry} matrix must be square, this is {rows}×{cols}")
    text = _Body(path, body, number + 1)
    if layout == "array":
        matrix = _array(text, rows, cols, field, symmetry)
    else:
        matrix = _coordinate(text, rows, cols, sizes[2], field, symmetry)
    matrix.notes = notes + matrix.notes
    _declared_type(data, matrix)
    return matrix


def _banner(path: Path, data: bytes) -> tuple[str, str, str]:
    end = data.find(b"\n")
    banner = data[: end if end >= 0 else len(data)][:4096].lower().split()
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
    return layout, field, symmetry


def _sizes_at(data: bytes) -> tuple[int, int]:
    """Where the first line that is neither comment nor blank begins, and its number."""
    at, number = 0, 1
    while at < len(data):
        end = data.find(b"\n", at)
        line = data[at : end if end >= 0 else len(data)].strip()
        if line and not line.startswith(b"%"):
            return at, number
        if end < 0:
            break
        at, number = end + 1, number + 1
    return len(data), number


class _Body:
    """The entries of a file: all numbers at one go where they are plain, else line by line with the place of a fault."""

    def __init__(self, path: Path, data: bytes, first: int) -> None:
        self.path, self.data, self.first = path, data, first
        self._kept: list[tuple[int, bytes]] | None = None

    def lines(self) -> list[tuple[int, bytes]]:
        """Number and text of each line that is neither comment nor blank."""
        if self._kept is None:
            if len(self.data) > _BY_LINE:
                raise IngestError(
                    f"{self.path}: {len(self.data) >> 20} MiB of entries that are not as many plain numbers as its sizes "
                    f"say; at most {_BY_LINE >> 20} MiB are looked at line by line"
                )
            self._kept = [
                (n, line)
                for n, line in enumerate(self.data.split(b"\n"), self.first)
                if line.strip() and not line.lstrip().startswith(b"%")
            ]
        return self._kept

    def place(self, i: int) -> str:
        return f"{self.path}: line {self.lines()[i][0]}"

    def numbers(self, count: int, width: int, what: str, miscounted: Callable[[int], str]) -> npt.NDArray[np.float64]:
        """``count`` lines of ``width`` numbers; ``miscounted`` says what it means if there are others."""
        if b"%" not in self.data:
            flat = _at_one_go(self.data, np.float64)
            head = self.data[: 1 << 20].split(b"\n")[:-1]
            if flat is not None and len(flat) == count * width and all(len(x.split()) in (0, width) for x in head):
                return np.asarray(flat).reshape(count, width)
        lines = self.lines()
        if len(lines) != count:
            raise IngestError(miscounted(len(lines)))
        out = np.empty((count, width))
        for i, (_, line) in enumerate(lines):
            parts = line.split()
            if len(parts) != width:
                raise IngestError(f"{self.place(i)}: {len(parts)} numbers in {_show(line)}; {what}")
            for j, part in enumerate(parts):
                try:
                    out[i, j] = float(part.translate(_FORTRAN))
                except ValueError:
                    raise IngestError(f"{self.place(i)}: {_show(part)} is not a number; {what}") from None
        return out


_FORTRAN = bytes.maketrans(b"dD", b"ee")  # 1.5D+02


def _declared_type(data: bytes, matrix: Matrix) -> None:
    """Notes values that do not fit the type which a ``%%GraphBLAS type`` comment names."""
    found = re.search(rb"^%%GraphBLAS\s+type\s+(\w+)", data[:4096], re.MULTILINE)
    name = found[1].decode("ascii", "replace").removesuffix("_t") if found else ""
    if matrix.values is None or name not in _INTEGERS:
        return
    low, high = (0, 1) if name == "bool" else (np.iinfo(name).min, np.iinfo(name).max)
    if ((matrix.values < low) | (matrix.values > high)).any():
        matrix.notes.append(f"a comment says type {name}, and some values do not fit it; they were read as numbers")


def _coordinate(text: _Body, rows: int, cols: int, nnz: int, field: str, symmetry: str) -> Matrix:
    width = {"pattern": 2, "complex": 4}.get(field, 3)
    what = f"a {field} entry is 'row column{' value' if width == 3 else ' real imaginary' if width == 4 else ''}'"
    place = text.place

    def miscounted(n: int) -> str:
        if n < nnz:
            return f"{text.path}: {n} entries; the line of sizes says {nnz} (the file is cut off or mangled)"
        return f"{place(nnz)}: more than the {nnz} entries that the line of sizes says"

    table = text.numbers(nnz, width, what, miscounted)
    index = table[:, :2]
    bad = (index != np.floor(index)) | (index < 1) | (index > np.array([rows, cols]))
    if bad.any():
        i = int(np.flatnonzero(bad.any(axis=1))[0])
        raise IngestError(
            f"{place(i)}: {_show(text.lines()[i][1])} lies outside; rows go from 1 to {rows}, columns to {cols}"
        )
    row, col = index[:, 0].astype(np.int64) - 1, index[:, 1].astype(np.int64) - 1
    values: npt.NDArray[np.float64] | None = None
    if width == 3:
        values = table[:, 2]
    elif width == 4:
        values = np.hypot(table[:, 2], table[:, 3])
    if field == "integer" and values is not None and (values[np.isfinite(values)] % 1 != 0).any():
        i = int(np.flatnonzero(values % 1 != 0)[0])
        raise IngestError(f"{place(i)}: {_show(text.lines()[i][1])} is not a whole number, and the banner says integer")
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


def _array(text: _Body, rows: int, cols: int, field: str, symmetry: str) -> Matrix:
    path = text.path
    width = 2 if field == "complex" else 1
    skip = 1 if symmetry == "skew-symmetric" else 0  # its diagonal is not stored
    if rows * cols > 1 << 28:
        raise IngestError(f"{path}: an array of {rows}×{cols}; at most {1 << 28} elements are read")
    where: Ints = np.arange(rows * cols, dtype=np.int64)  # an array is stored column by column
    row, col = where % max(rows, 1), where // max(rows, 1)
    if symmetry != "general":
        lower = row >= col + skip
        row, col = row[lower], col[lower]
    table = text.numbers(
        len(row), width, "an array has one value a line (complex: two numbers)",
        lambda n: f"{path}: {n} values; an array of {rows}×{cols} ({symmetry}) needs {len(row)}",
    )  # fmt: skip
    values = np.hypot(table[:, 0], table[:, 1]) if width == 2 else table[:, 0]
    if symmetry != "general":
        off = row != col
        row, col = np.concatenate([row, col[off]]), np.concatenate([col, row[off]])
        values = np.concatenate([values, -values[off] if skip else values[off]])
    stored = values != 0
    return Matrix(rows, cols, row[stored], col[stored], values[stored], "matrix market array", field, symmetry)
