"""Checkpoints: what is really zero in each tensor, against what the release declares.

Read without torch and tensor by tensor, so that a checkpoint larger than memory works: ``.safetensors``, the index of a
sharded one, compressed-tensors' bitmask formats. ``.pt`` and ``.pth`` are opened by torch in a process of its own with
``weights_only=True`` and streamed back.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sparsetui.evidence.records import Number
from sparsetui.evidence.text import clean
from sparsetui.ingest import torchfile
from sparsetui.ingest.claims import claims, declared, masks, weights, zeros_of
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.safetensors import Entry, header, unique
from sparsetui.ingest.samplers.base import OnCommand
from sparsetui.ingest.tensors import bitmask, packed, strided

Progress = Callable[[float, float], None]


def inspect(
    path: str | Path, *, progress: Progress | None = None, on_command: OnCommand | None = None
) -> dict[str, Any]:
    """What a checkpoint holds, as plain JSON.

    ``tensors``: name, dtype, shape, zeros, non-finite values and, for matrices, structure (see
    :mod:`sparsetui.ingest.structure`). ``totals``, ``declared`` (from the config or the metadata), ``claims`` (declared
    against real), ``problems`` (what could not be read). Raises :class:`IngestError`.
    """
    path = Path(path)
    progress = _with_eta(progress)
    if path.is_dir():
        path = _in_folder(path)
    name = path.name.lower()
    metadata: dict[str, str] = {}
    problems: list[str] = []
    shards: list[dict[str, Any]] = []
    if name.endswith(".json"):
        kind, (tensors, metadata, shards) = "sharded", _sharded(path, problems, progress)
    elif name.endswith((".pt", ".pth", ".bin", ".ckpt")):
        kind, tensors = "torch", torchfile.read(path, problems, on_command, progress)
    else:
        kind, (entries, metadata) = "safetensors", header(path)
        tensors = _file(path, entries, problems, progress, 0.0, 1.0)
    said = declared(path, metadata)
    totals = _totals(tensors)
    held = claims(said, tensors)
    return {
        "kind": "checkpoint",
        "format": kind,
        "file": str(path),
        "file_bytes": path.stat().st_size,
        "shards": shards,
        "tensors": tensors,
        "totals": totals,
        "declared": said,
        "claims": held,
        "masks": masks(tensors),
        "problems": problems,
        "summary": _summary(totals, held, problems),
        "figures": _figures(totals),
    }


def _with_eta(progress: Progress | None) -> Progress | None:
    """``progress`` told of the seconds left, from how long the part that is done took."""
    if progress is None:
        return None
    began = time.monotonic()
    return lambda done, _: progress(done, (time.monotonic() - began) * (1 - done) / max(done, 1e-6))


def _in_folder(folder: Path) -> Path:
    """The checkpoint of a model folder: its index, else its only file."""
    for name in ("model.safetensors.index.json", "model.safetensors"):
        if (folder / name).is_file():
            return folder / name
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".safetensors", ".index.json", ".pt", ".pth")))
    if len(found) != 1:
        raise IngestError(f"{folder}: {len(found)} checkpoints in this folder; name one file")
    return found[0]


# safetensors


def _file(
    path: Path, entries: list[Entry], problems: list[str], progress: Progress | None, begin: float, end: float
) -> list[dict[str, Any]]:
    """All tensors of one safetensors file."""
    found = packed({e.name: e for e in entries})
    parts = {part.name for group in found.values() for part in group.values()}
    out = []
    total = max(1, sum(e.end - e.begin for e in entries))
    done = 0
    with open(path, "rb") as f:
        m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        for e in entries:
            if e.name in found:
                try:
                    out.append(bitmask(m, found[e.name]))
                except IngestError as error:
                    problems.append(f"{path.name}: {error}")
            elif e.name not in parts:
                out.append(strided(e, partial(_bytes, m, e.begin)))
            done += e.end - e.begin
            if progress:
                progress(begin + (end - begin) * done / total, math.nan)
    finally:
        m.close()
    return out


def _bytes(m: mmap.mmap, begin: int, a: int, b: int) -> bytes:
    return m[begin + a : begin + b]


# sharded


def _sharded(
    path: Path, problems: list[str], progress: Progress | None
) -> tuple[list[dict[str, Any]], dict[str, str], list[dict[str, Any]]]:
    accepted = "accepted is an index with a weight_map of tensor names to .safetensors files beside it"
    try:
        if path.stat().st_size > 200_000_000:
            raise IngestError(f"{path}: {path.stat().st_size} bytes are too many for an index; {accepted}")
        index = json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=unique)
    except OSError as e:
        raise IngestError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (ValueError, RecursionError) as e:
        raise IngestError(f"{path}: not JSON ({clean(e, 100)}); {accepted}") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not weight_map or not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise IngestError(f"{path}: no weight_map; {accepted}")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if "/" in shard or "\\" in shard or shard in ("", ".", "..") or not shard.endswith(".safetensors"):
            raise IngestError(f"{path}: shard {clean(shard, 60)!r} must be a .safetensors file beside the index")
    tensors: list[dict[str, Any]] = []
    metadata: dict[str, str] = {}
    read: list[dict[str, Any]] = []
    for i, shard in enumerate(shards):
        try:
            entries, about = header(path.with_name(shard))
        except IngestError as e:
            problems.append(str(e))
            continue
        metadata |= about
        have = {e.name for e in entries}
        also = sorted(have & {t["name"] for t in tensors})
        if also:
            problems.append(f"{shard}: tensor {clean(also[0], 80)!r} is in an earlier shard too{_more(also)}")
        strange = sorted(have - weight_map.keys())
        if strange:
            problems.append(f"{shard}: tensor {clean(strange[0], 80)!r} is not in the index{_more(strange)}")
        absent = sorted(n for n, s in weight_map.items() if s == shard and n not in have)[:20]
        problems += [f"{shard}: tensor {clean(name, 80)!r} of the index is not in it" for name in absent]
        tensors += _file(path.with_name(shard), entries, problems, progress, i / len(shards), (i + 1) / len(shards))
        read.append(_hashed(path.with_name(shard)))
    if not tensors:
        raise IngestError(f"{path}: none of its {len(shards)} shards could be read: {problems[0] if problems else ''}")
    return tensors, metadata, read


def _more(names: list[str]) -> str:
    return f", and so are {len(names) - 1} more" if len(names) > 1 else ""


def _hashed(path: Path) -> dict[str, Any]:
    with open(path, "rb") as f:
        return {
            "file": path.name,
            "bytes": os.fstat(f.fileno()).st_size,
            "sha256": hashlib.file_digest(f, "sha256").hexdigest(),
        }


def _totals(tensors: list[dict[str, Any]]) -> dict[str, Any]:
    matrices = weights(tensors)
    size = dict.fromkeys(("dense", "coo", "csr-int64", "csr-int32", "bitmask"), 0)
    for t in matrices:
        for k in size:
            size[k] += t["structure"]["bytes"][k]
    return {
        "tensors": len(tensors),
        "matrices": len(matrices),
        "bytes": sum(t.get("bytes", 0) for t in tensors),
        "zeros_of_matrices": zeros_of(matrices),
        "matrices_above_half_zero": sum(t["zeros"] > 0.5 for t in matrices),
        "matrices_without_zeros": sum(t["zeros"] == 0 for t in matrices),
        "nonfinite": sum(t.get("nonfinite", 0) for t in tensors),
        "bytes_of_matrices": size,
    }


def _summary(totals: dict[str, Any], claims: list[dict[str, Any]], problems: list[str]) -> str:
    zeros = totals["zeros_of_matrices"]
    text = f"{totals['matrices']} matrices, " + ("no zeros known" if zeros is None else f"{zeros:.1%} zeros")
    broken = [c["claim"] for c in claims if not c["holds"]]
    if broken:
        text += f"; does not hold: {broken[0]}" + (f" and {len(broken) - 1} more" if len(broken) > 1 else "")
    if totals["nonfinite"]:
        text += f"; {totals['nonfinite']} values are not finite"
    return text + (f"; {len(problems)} problems" if problems else "")


def _figures(totals: dict[str, Any]) -> dict[str, Number]:
    out = {}
    if totals["zeros_of_matrices"] is not None:
        out["zeros"] = Number(totals["zeros_of_matrices"], n=totals["matrices"], quality="derived")
    size = totals["bytes_of_matrices"]
    if size["dense"]:
        out["csr-int64 bytes over dense"] = Number(size["csr-int64"] / size["dense"], unit="×", quality="derived")
    out["nonfinite values"] = Number(float(totals["nonfinite"]), n=totals["tensors"])
    return out


def render(payload: dict[str, Any], most: int = 40) -> list[str]:
    """A checkpoint as plain lines: the largest matrices first."""
    lines = [f"{clean(Path(payload['file']).name)}: {payload['summary']}"]
    rows = sorted(weights(payload["tensors"]), key=lambda t: -t["elements"])
    lines.append(
        f"{'tensor':<44} {'shape':>14} {'zeros':>7} {'2:4':>6} {'16×16':>6} {'max/mean':>8} {'csr64/dense':>11}"
    )
    for t in rows[:most]:
        s = t["structure"]
        ratio = s["bytes"]["csr-int64"] / s["bytes"]["dense"] if s["bytes"]["dense"] else math.nan
        skewed = s["skew"]["max_over_mean"]
        fill = s["blocks"]["16x16"]["fill"]
        lines.append(
            f"{clean(t['name'], 44):<44} {'×'.join(map(str, s['shape'])):>14} {t['zeros']:>7.1%} "
            f"{s['nm']['2:4']['along_rows'] or 0:>6.0%} {'–' if fill is None else f'{fill:.0%}':>6} "
            f"{'–' if skewed is None else f'{skewed:.1f}':>8} {ratio:>10.2f}×"
        )
    if len(rows) > most:
        lines.append(f"… and {len(rows) - most} more")
    lines += [f"{'holds' if c['holds'] else 'DOES NOT HOLD'}: {c['claim']}" for c in payload["claims"]]
    lines += [f"{clean(m['weight'], 60)}: {m['note']} ({m['zeros_of_mask']:.1%} zeros)" for m in payload["masks"]]
    lines += [f"problem: {clean(p)}" for p in payload["problems"]]
    return lines
