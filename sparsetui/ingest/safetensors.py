"""The header of a ``.safetensors`` file, checked in full before a byte of it is used.

The file is: eight bytes N, N bytes of JSON (name → dtype, shape, data_offsets), then the tensors' bytes, which must fill
the rest without gap or overlap.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.evidence.text import clean
from sparsetui.ingest.elements import ELEMENTS
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events.source import readable_file

LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a file: ``begin`` and ``end`` are offsets from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header(path: Path) -> tuple[list[Entry], dict[str, str]]:
    """The tensors of a file in the order of their bytes, and its metadata. Raises :class:`IngestError`."""
    try:
        size = readable_file(path)
        with open(path, "rb") as f:
            raw = f.read(8)
            if len(raw) < 8:
                raise IngestError(f"{path}: {len(raw)} bytes; a .safetensors file starts with an 8-byte header length")
            length = int.from_bytes(raw, "little")
            if length > LONGEST_HEADER:
                raise IngestError(f"{path}: a header of {length} bytes; at most {LONGEST_HEADER} are accepted")
            if length > size - 8:
                raise IngestError(f"{path}: the header should take {length} bytes and {size - 8} follow (cut off?)")
            text = f.read(length)
    except OSError as e:
        raise IngestError(f"{path}: cannot be read: {e.strerror or e}") from None
    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_int=_integer)
    except UnicodeDecodeError as e:
        raise IngestError(f"{path}: byte {8 + e.start}: the header is not UTF-8") from None
    except (ValueError, RecursionError) as e:
        raise IngestError(f"{path}: the header is not the JSON it must be: {clean(e, 120)}") from None
    if not isinstance(table, dict):
        raise IngestError(f"{path}: the header must be a JSON object of tensors")
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise IngestError(f"{path}: __metadata__ must map texts to texts")
    entries = sorted(
        (_entry(path, name, spec, 8 + length) for name, spec in table.items()), key=lambda e: (e.begin, e.end)
    )
    at, before = 8 + length, ""
    for t in entries:
        if t.begin < at:
            raise IngestError(f"{path}: tensors {_name(before)} and {_name(t.name)} overlap")
        if t.begin > at:
            raise IngestError(f"{path}: {t.begin - at} bytes before tensor {_name(t.name)} belong to none")
        at, before = t.end, t.name
    if at > size:
        raise IngestError(f"{path}: tensor {_name(before)} ends at byte {at}, the file at {size} (cut off?)")
    if at < size:
        raise IngestError(f"{path}: {size - at} bytes after the last tensor belong to none")
    return entries, metadata


def _integer(digits: str) -> int:
    """No size has twenty digits; Python refuses thousands of them in words that nobody would look for here."""
    return int(digits) if len(digits) < 20 else -1


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``json.loads``: an object, or ValueError where a key occurs twice."""
    out = dict(pairs)
    if len(out) != len(pairs):
        (twice, _), *_ = Counter(k for k, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} occurs twice")
    return out


def _name(name: str) -> str:
    return repr(clean(name, 80))


def _entry(path: Path, name: str, spec: Any, start: int) -> Entry:
    where = f"{path}: tensor {_name(name)}"
    if not isinstance(spec, dict) or not {"dtype", "shape", "data_offsets"} <= spec.keys():
        raise IngestError(f"{where}: needs dtype, shape and data_offsets")
    dtype, shape, offsets = spec["dtype"], spec["shape"], spec["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENTS:
        raise IngestError(f"{where}: dtype {clean(dtype, 30)!r} is unknown; accepted are {', '.join(ELEMENTS)}")
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise IngestError(f"{where}: shape and data_offsets must be lists of whole numbers from 0 up")
    begin, end = offsets
    need = math.prod(shape) * ELEMENTS[dtype].bits
    if end < begin or (end - begin) * 8 != need:
        raise IngestError(f"{where}: {dtype} {shape} takes {need / 8:g} bytes, its offsets give {end - begin}")
    return Entry(name, dtype, tuple(shape), start + begin, start + end)


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 2**62 for x in value) and len(value) <= 64
