"""What kind of evidence a file is, by its content; its name counts only where content cannot tell."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Literal

from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.source import Source, readable_file
from sparsetui.ingest.traces.columns import CATEGORIES

Kind = Literal["trace", "stacks", "checkpoint", "matrix"]

ACCEPTED = (
    "PyTorch profiler traces (.json, .json.gz), stacks (py-spy raw, collapsed, speedscope), "
    "checkpoints (.safetensors, .pt, .pth, index.json) and matrices (.mtx, .smtx, .npz)"
)
_CATEGORY = re.compile(rb'"cat"\s*:\s*"(' + "|".join(sorted(CATEGORIES)).encode() + rb')"', re.I)
_OLD = re.compile(rb'"pid"\s*:\s*"(CPU|CUDA) functions"')
_SMTX = re.compile(rb"\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\r?\n")
_COLLAPSED = re.compile(rb"^[^\r\n]*\S[ \t]+\d+(\.\d+)?[ \t]*\r?$", re.M)
_HEAD = 4 << 20
_PACKED = {b"\x28\xb5\x2f\xfd": "zstandard", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"7z\xbc\xaf": "7-zip",
           b"\x04\x22\x4d\x18": "lz4", b"Rar!": "rar"}  # fmt: skip


def sniff(path: Path) -> Kind:
    """The kind of ``path``. Raises :class:`IngestError`: not readable, or nothing that is accepted."""
    readable_file(path)
    suffixes = [s.lower() for s in path.suffixes]
    try:
        with path.open("rb") as file:
            raw = file.read(16)
    except OSError as e:
        raise IngestError(f"{path}: cannot be read ({e.strerror or e})") from None
    for magic, packer in _PACKED.items():
        if raw.startswith(magic):
            raise IngestError(f"{path}: packed by {packer}; unpack it first, or pack it with gzip")
    if raw.startswith(b"PK\x03\x04"):
        return _zipped(path)
    if raw[:1] == b"\x80" and raw[1:2] in b"\x01\x02\x03\x04\x05":
        return "checkpoint"  # a bare pickle, as torch.save once wrote
    if ".safetensors" in suffixes or (
        len(raw) > 8 and raw[8:9] == b"{" and int.from_bytes(raw[:8], "little") < 1 << 28
    ):
        return "checkpoint" if suffixes[-1:] != [".json"] else _text(path, suffixes)
    if suffixes[-1:] in ([".pt"], [".pth"], [".bin"], [".ckpt"]):
        return "checkpoint"
    return _text(path, suffixes)


def _zipped(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            locked = any(i.flag_bits & 1 for i in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        if path.suffix.lower() == ".npz":
            return "matrix"
        if path.suffix.lower() in (".pt", ".pth", ".bin", ".ckpt"):
            return "checkpoint"
        raise IngestError(f"{path}: a damaged zip archive; accepted are {ACCEPTED}") from None
    if locked:
        raise IngestError(f"{path}: an encrypted zip archive; unpack it first")
    if any(n.endswith("data.pkl") for n in names):
        return "checkpoint"
    if names and all(n.endswith(".npy") for n in names):
        return "matrix"
    if path.suffix.lower() in (".pt", ".pth"):
        return "checkpoint"
    if len(names) == 1:
        return _text(path, [s.lower() for s in Path(names[0]).suffixes])
    raise IngestError(f"{path}: a zip archive of {len(names)} files; accepted are {ACCEPTED}")


def _text(path: Path, suffixes: list[str]) -> Kind:
    head = b""
    source = Source(path)
    for chunk in source.chunks():
        head += chunk
        if len(head) >= _HEAD:
            break
    start = head.lstrip()
    if not start and source.cut:
        raise IngestError(f"{path}: {source.cut}")
    if head.startswith((b"\x1f\x8b", b"PK\x03\x04")):
        raise IngestError(f"{path}: packed twice; unpack it once, then it is accepted")
    if start.startswith(b"%%MatrixMarket") or ".mtx" in suffixes:
        return "matrix"
    if ".smtx" in suffixes or _SMTX.match(head):
        return "matrix"
    if start[:1] == b"[":
        return "trace" if _CATEGORY.search(head) or _OLD.search(head) else "stacks"
    if start[:1] == b"{":
        return _object(start)
    if _COLLAPSED.search(head[: 1 << 20]):
        return "stacks"
    raise IngestError(f"{path}: nothing known; accepted are {ACCEPTED}")


def _object(head: bytes) -> Kind:
    if re.search(rb'"traceEvents"\s*:', head):
        if b'"stackFrames"' in head and b'"samples"' in head and not _CATEGORY.search(head):
            return "stacks"
        empty = not re.search(rb'"ph"\s*:', head)
        return "trace" if empty or _CATEGORY.search(head) or _OLD.search(head) else "stacks"
    if b"speedscope" in head or (b'"profiles"' in head and b'"frames"' in head):
        return "stacks"
    if b'"weight_map"' in head or b'"quantization_config"' in head or b'"sparsity_config"' in head:
        return "checkpoint"
    return "trace"  # the reader says in one line what is missing
