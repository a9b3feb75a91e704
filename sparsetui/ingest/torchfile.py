"""``.pt`` and ``.pth``: opened by torch in a process of its own, weights only, and streamed back tensor by tensor."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from sparsetui.evidence.text import clean
from sparsetui.ingest.elements import ELEMENTS, TORCH_NAMES, nonfinite, nonzero
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.source import Progress
from sparsetui.ingest.safetensors import Entry
from sparsetui.ingest.samplers.base import OnCommand
from sparsetui.ingest.structure import of_pattern
from sparsetui.ingest.tensors import BAND_BYTES, strided

_LINE = 8 << 20  # longest line of the stream
_TIMEOUT_S = 1800.0
_LARGEST = 1 << 24  # rows or columns of a sparse tensor, whatever it holds


def read(
    path: Path, problems: list[str], on_command: OnCommand | None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    _no_bomb(path)
    argv = [sys.executable, "-P", "-m", "sparsetui.probes.unpickle", str(path.resolve())]
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, start_new_session=True
        )
        if on_command:
            on_command(argv, "read a torch checkpoint, weights only", process.pid)
        assert process.stdout is not None
        watchdog = threading.Timer(_TIMEOUT_S, _kill, [process])
        watchdog.daemon = True
        watchdog.start()
        try:
            out, ended = _stream(path, process.stdout, problems, progress)
        finally:
            if process.poll() is None:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    _kill(process)
                    process.wait()
            watchdog.cancel()
            process.stdout.close()
        if not ended:
            err.seek(0)
            tail = err.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
            why = "torch is not installed here" if any("No module named 'torch'" in t for t in tail) else (
                clean(tail[-1], 160) if tail else f"signal {-(process.returncode or 0)}"
            )  # fmt: skip
            raise IngestError(f"{path}: the process that read it ended early: {why}")
    return out


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _no_bomb(path: Path) -> None:
    """torch stores its parts uncompressed; a part that would unpack to more than the file is not torch's."""
    try:
        with open(path, "rb") as f:
            if f.read(2) != b"PK":
                return
        size = path.stat().st_size
        with zipfile.ZipFile(path) as z:
            total = sum(i.file_size for i in z.infolist())
    except OSError as e:
        raise IngestError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as e:
        raise IngestError(f"{path}: not a whole torch checkpoint ({clean(e, 80)})") from None
    if total > size * 1.1 + 4096:
        raise IngestError(
            f"{path}: {size} bytes that unpack to {total}; torch does not compress, so this is none of its files"
        )


def _stream(
    path: Path, pipe: IO[bytes], problems: list[str], progress: Progress | None
) -> tuple[list[dict[str, Any]], bool]:
    out: list[dict[str, Any]] = []
    done, size = 0, max(1, path.stat().st_size)
    while line := pipe.readline(_LINE):
        try:
            head = json.loads(line)
        except ValueError:
            return out, False
        if "error" in head:
            if "fault" in head:
                raise IngestError(f"{path}: damaged, torch cannot read it: {clean(head['fault'], 200)}")
            if "Weights only load failed" in head["error"]:
                named = f" ({clean(head['object'], 80)})" if "object" in head else ""
                raise IngestError(
                    f"{path}: holds objects other than tensors{named}; only weights are read (weights_only=True), "
                    "for opening the rest would run code of the file; save its state_dict alone"
                )
            cut = " (cut off?)" if head["error"].startswith("EOFError") else ""
            raise IngestError(f"{path}: torch cannot read it: {clean(head['error'], 200)}{cut}")
        if "end" in head:
            if head.get("skipped"):
                problems.append(f"{head['skipped']} tensors of a kind that cannot be read here were left out")
            return out, True
        if "same_as" in head:
            out.append(
                {"name": head["name"], "same_as": head["same_as"], "note": f"shares memory with {head['same_as']}"}
            )
            continue
        if "left_out" in head:
            out.append({k: head[k] for k in ("name", "dtype", "shape")} | {"note": f"left out: {head['left_out']}"})
            problems.append(f"tensor {clean(head['name'], 80)!r} is left out: {head['left_out']}")
            continue
        out.append(_from_torch(head, pipe))
        done += int(out[-1].get("bytes", 0))
        if progress:
            progress(min(1.0, done / size), math.nan)
    return out, False


def _from_torch(head: dict[str, Any], pipe: IO[bytes]) -> dict[str, Any]:
    name, shape, layout = head["name"], tuple(head["shape"]), head["layout"]
    parts = head["parts"]
    dtype = TORCH_NAMES.get(head["dtype"])
    if layout == "strided":
        size = parts[0]["bytes"]
        source = _Sequential(pipe, size)
        if dtype is None:
            source.rest()
            return {"name": name, "dtype": head["dtype"], "shape": list(shape), "layout": layout, "bytes": size,
                    "note": f"{head['dtype']} cannot be read here"}  # fmt: skip
        out = strided(Entry(name, dtype, shape, 0, size), source.read)
        source.rest()
        if head["dtype"].startswith("torch.q"):
            out["note"] = (
                "quantised: zeros are those of the integers; with a zero point they are not zeros of the weight"
            )
        return out
    raw = {p["what"]: _array(p, _Sequential(pipe, p["bytes"])) for p in parts}
    return _sparse(name, head["dtype"], shape, layout, raw, sum(p["bytes"] for p in parts))


class _Sequential:
    """Bytes [a, b) of a tensor that comes through a pipe: only forward."""

    def __init__(self, pipe: IO[bytes], size: int) -> None:
        self.pipe, self.size, self.at = pipe, size, 0

    def read(self, a: int, b: int) -> bytes:
        assert a == self.at
        data = self.pipe.read(b - a)
        if len(data) != b - a:
            raise IngestError("the process that read the checkpoint ended in the middle of a tensor")
        self.at = b
        return data

    def rest(self) -> None:
        while self.at < self.size:
            self.read(self.at, min(self.size, self.at + BAND_BYTES))


def _array(part: dict[str, Any], source: _Sequential) -> Any:
    name = TORCH_NAMES.get(part["dtype"])
    data = source.read(0, part["bytes"])
    if name is None:
        return np.zeros(0)
    return np.frombuffer(data, ELEMENTS[name].storage).reshape(part["shape"])


def _sparse(
    name: str, dtype: str, shape: tuple[int, ...], layout: str, raw: dict[str, Any], size: int
) -> dict[str, Any]:
    """A tensor of one of torch's sparse layouts: indices are checked before they are used."""
    element_name = TORCH_NAMES.get(dtype, "F32")
    element = ELEMENTS[element_name]
    out: dict[str, Any] = {"name": name, "dtype": element_name, "shape": list(shape), "layout": layout,
                           "elements": math.prod(shape), "bytes": size}  # fmt: skip
    values = raw["values"]
    mask = nonzero(values, element)
    out["stored"] = int(values.size)
    out["explicit_zeros"] = int(values.size - np.count_nonzero(mask))
    out["nonfinite"] = nonfinite(values, element)
    index = raw["indices"]
    out["index_dtype"] = str(index.dtype)
    out["index_bytes"] = int(index.nbytes + (raw["offsets"].nbytes if "offsets" in raw else 0))
    if len(shape) != 2 or values.ndim != (3 if layout in ("sparse_bsr", "sparse_bsc") else 1):
        out["zeros"] = 1 - int(np.count_nonzero(mask)) / max(1, math.prod(shape))
        out["note"] = "structure is told of two-dimensional tensors only"
        return out
    if max(shape) > max(_LARGEST, 8 * values.size):  # what a size alone would cost here is not borne out by the entries
        out["zeros"] = 1 - int(np.count_nonzero(mask)) / max(1, math.prod(shape))
        out["note"] = (
            f"structure is told of at most {max(_LARGEST, 8 * values.size)} rows and columns for so few entries"
        )
        return out
    try:
        row, col = _coordinates(layout, shape, raw)
    except ValueError as e:
        out["note"] = f"invalid indices: {e}"
        out["invalid"] = True
        return out
    keep = mask.ravel()
    keys = np.unique(row[keep] * shape[1] + col[keep])
    out["duplicates"] = int(np.count_nonzero(keep) - len(keys))
    out["zeros"] = 1 - len(keys) / max(1, shape[0] * shape[1])
    out["structure"] = of_pattern(shape[0], shape[1], keys // shape[1], keys % shape[1], max(1, element.bits // 8))
    return out


def _coordinates(layout: str, shape: tuple[int, ...], raw: dict[str, Any]) -> tuple[Any, Any]:
    rows, cols = shape
    index = raw["indices"].astype(np.int64)
    if layout == "sparse_coo":
        row, col = index
    else:
        offsets = raw["offsets"].astype(np.int64)
        by_row = layout in ("sparse_csr", "sparse_bsr")
        blocks = raw["values"].shape[1:] if raw["values"].ndim == 3 else (1, 1)
        major = (rows // blocks[0]) if by_row else (cols // blocks[1])
        if len(offsets) != major + 1 or offsets[0] != 0 or offsets[-1] != len(index) or (np.diff(offsets) < 0).any():
            raise ValueError("offsets do not rise from 0 to the number of stored elements")
        outer = np.repeat(np.arange(major, dtype=np.int64), np.diff(offsets))
        row, col = (outer, index) if by_row else (index, outer)
        if blocks != (1, 1):
            high, wide = blocks
            grid = np.zeros((1, high, wide), np.int64)
            row = (row[:, None, None] * high + np.arange(high)[None, :, None] + grid).ravel()
            col = (col[:, None, None] * wide + np.arange(wide)[None, None, :] + grid).ravel()
    if len(row) and (row.min() < 0 or row.max() >= rows or col.min() < 0 or col.max() >= cols):
        raise ValueError(f"an index lies outside of {rows}×{cols}")
    return row, col
