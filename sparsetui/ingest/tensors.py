"""One tensor of a checkpoint: its zeros and its structure, read band by band."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sparsetui.evidence.text import clean
from sparsetui.ingest.elements import ELEMENTS, Element, nonfinite, nonzero
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.safetensors import Entry
from sparsetui.ingest.structure import BAND, Structure

BAND_BYTES = 8 << 20
_WIDEST = 2 * BAND_BYTES  # bytes of one row; of wider ones only the zeros are counted, for a band holds 32 of them
_TALLEST = 1 << 26  # rows whose own counts are kept; of more only the zeros of all are counted


# how quantisers name integers that hold several values, or none of the weight's (compressed-tensors, GPTQ, AWQ)
_PACKED = re.compile(r"(?:_packed|\.qweight|\.qzeros|\.g_idx)$")


def strided(e: Entry, read: Callable[[int, int], bytes]) -> dict[str, Any]:
    """One strided tensor, read band by band; ``read`` gives bytes [a, b) of it."""
    element = ELEMENTS[e.dtype]
    rows, cols = _as_matrix(e.shape)
    count = math.prod(e.shape)
    out: dict[str, Any] = {"name": e.name, "dtype": e.dtype, "shape": list(e.shape), "layout": "strided",
                           "elements": count, "bytes": e.end - e.begin}  # fmt: skip
    if e.dtype[0] in "UI" and _PACKED.search(e.name):
        out["note"] = "several quantised values share each of its integers: its zeros are not zeros of the weight"
        return out
    if not element.number:
        out["note"] = f"{e.dtype} is packed or a scale: its zeros are not zeros of the weight"
        return out
    matrix = 1 < rows <= _TALLEST and 1 < cols <= _WIDEST // max(1, element.bits // 8)
    structure = Structure(rows, cols, element.bits // 8) if matrix else None
    zeros = bad = 0
    for mask, odd in _bands(e, element, rows, cols, read):
        zeros += mask.size - int(np.count_nonzero(mask))
        bad += odd
        if structure:
            structure.add(mask)
    out["zeros"] = zeros / count if count else None
    out["nonfinite"] = bad
    if structure:
        out["structure"] = structure.result()
    return out


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The first dimension against all others: rows are output channels."""
    if not shape:
        return 1, 1
    return shape[0], math.prod(shape[1:])


def _bands(
    e: Entry, element: Element, rows: int, cols: int, read: Callable[[int, int], bytes]
) -> Iterator[tuple[Any, int]]:
    """Masks of row bands, with the count of non-finite values in each."""
    width = cols * element.bits // 8
    if not rows or not cols:
        return
    step = max(BAND, BAND_BYTES // max(width, 1) // BAND * BAND)
    if width > _WIDEST or rows == 1:  # one endless row: only its zeros count
        flat = e.end - e.begin
        size = element.bits // 8
        for start in range(0, flat, BAND_BYTES // 16 * 16 * max(size, 1)):
            raw = np.frombuffer(read(start, min(flat, start + BAND_BYTES // 16 * 16 * size)), element.storage)
            yield nonzero(raw, element)[None, :], nonfinite(raw, element)
        return
    for start in range(0, rows, step):
        k = min(step, rows - start)
        raw = np.frombuffer(read(start * width, (start + k) * width), element.storage).reshape(k, cols)
        yield nonzero(raw, element), nonfinite(raw, element)


# compressed-tensors (vllm-project): a weight is kept as its non-zeros and a mask of bits, least significant first


def packed(entries: dict[str, Entry]) -> dict[str, dict[str, Entry]]:
    """First part's name → the parts of each weight that is stored as ``.compressed`` and ``.bitmask``."""
    out = {}
    for name in entries:
        if name.endswith(".bitmask"):
            base = name.removesuffix(".bitmask")
            group = {p: entries[f"{base}.{p}"] for p in ("bitmask", "compressed", "shape", "row_offsets")
                     if f"{base}.{p}" in entries}  # fmt: skip
            if "compressed" in group:
                out[name] = group
    return out


def bitmask(m: mmap.mmap, group: dict[str, Entry]) -> dict[str, Any]:
    bits, values = group["bitmask"], group["compressed"]
    name = bits.name.removesuffix(".bitmask")
    element = ELEMENTS[values.dtype]
    where = f"tensor {clean(name, 80)!r}"
    if bits.dtype not in ("U8", "BOOL") or len(bits.shape) != 2:
        raise IngestError(f"{where}: its bitmask must be bytes in two dimensions, not {bits.dtype} {list(bits.shape)}")
    rows, wide = bits.shape
    cols = wide * 8
    if "shape" in group:
        s = group["shape"]
        if s.dtype[0] not in "UI" or s.end - s.begin > 64:
            raise IngestError(f"{where}: its shape must be two whole numbers, not {s.dtype} {list(s.shape)}")
        shape = np.frombuffer(m[s.begin : s.end], ELEMENTS[s.dtype].storage).tolist()
        if len(shape) != 2 or shape[0] != rows or not 0 <= wide * 8 - shape[1] < 8:
            raise IngestError(f"{where}: shape {shape} does not fit a bitmask of {rows}×{wide} bytes")
        cols = int(shape[1])
    structure = Structure(rows, cols, max(1, element.bits // 8))
    step = max(BAND, BAND_BYTES // max(wide, 1) // BAND * BAND)
    for start in range(0, rows, step):
        k = min(step, rows - start)
        raw = np.frombuffer(m[bits.begin + start * wide : bits.begin + (start + k) * wide], "u1").reshape(k, wide)
        structure.add(np.unpackbits(raw, axis=1, bitorder="little")[:, :cols].astype(bool))
    stored = math.prod(values.shape)
    if stored != structure.nonzeros:
        raise IngestError(f"{where}: {stored} values for {structure.nonzeros} bits that are set")
    raw = np.frombuffer(m[values.begin : values.end], element.storage)
    result = structure.result()
    return {
        "name": name,
        "dtype": values.dtype,
        "shape": [rows, cols],
        "layout": "bitmask",
        "elements": rows * cols,
        "bytes": sum(p.end - p.begin for p in group.values()),
        "zeros": result["zeros"],
        "explicit_zeros": stored - int(np.count_nonzero(nonzero(raw, element))),
        "nonfinite": nonfinite(raw, element),
        "structure": result,
    }
