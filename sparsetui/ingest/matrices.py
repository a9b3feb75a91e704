"""Sparse matrices in files: ``.smtx`` (pruned layers), Matrix Market ``.mtx`` and ``.mtx.gz``, SciPy's ``.npz``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sparsetui.evidence.records import Number, unavailable
from sparsetui.evidence.text import clean
from sparsetui.ingest.matrixfiles import Matrix, read
from sparsetui.ingest.samplers.base import OnCommand
from sparsetui.ingest.spmm import measure_spmm
from sparsetui.ingest.structure import Ints, of_pattern

__all__ = ["Matrix", "density", "inspect", "measure_spmm", "read", "render"]


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
        "file": str(path),
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
        best = max(formats, key=lambda f: float(formats[f]["speedup"]["value"]))
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
    lines = [f"{clean(Path(payload['file']).name)}: {payload['format']}, {payload['summary']}"]
    lines.append(
        f"stored {payload['stored']}, explicit zeros {payload['explicit_zeros']}, duplicates {payload['duplicates']}, "
        f"empty rows {s['empty_rows']}, empty columns {s['empty_columns']}"
    )
    if payload["nonfinite"]:
        lines.append(f"{payload['nonfinite']} values are not finite")
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


def _summed(keys: Ints, unique: Ints, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values by unique key; duplicates are added up, as torch's coalesce and SciPy do."""
    at = np.searchsorted(unique, keys)
    return np.bincount(at, weights=values, minlength=len(unique)).astype(np.float64)


def density(result: dict[str, Any]) -> float:
    """The share of non-zeros in what :func:`inspect` returned; NaN for an empty shape."""
    rows, cols = result["shape"]
    return result["nonzeros"] / (rows * cols) if rows * cols else math.nan
