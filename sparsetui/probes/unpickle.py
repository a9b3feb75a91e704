"""Read a torch checkpoint in a process of its own: ``python -m sparsetui.probes.unpickle FILE`` streams its tensors.

Only with ``weights_only=True``: nothing in the file is ever executed. On stdout, for each tensor a line of JSON with its
name, dtype, shape, layout, parts and their byte counts, then exactly these bytes; last a line ``{"end": …}``. A file
that torch refuses gives ``{"error": …}``.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

CHUNK = 16 << 20
INFLATED = 64 << 20  # bytes that an expanded tensor may take whatever is stored for it


def walk(obj: Any, name: str, depth: int = 0, seen: Optional[Set[int]] = None) -> Iterator[Tuple[str, Any]]:
    """Tensors of nested dicts, lists and tuples, with dotted names.

    Each container is entered once: one that holds itself, or ten that hold the same ten, would else never end.
    """
    import torch

    seen = set() if seen is None else seen
    if isinstance(obj, torch.Tensor):
        yield name or "tensor", obj
        return
    if depth >= 16 or not isinstance(obj, (dict, list, tuple)) or id(obj) in seen:
        return
    seen.add(id(obj))
    for key, value in obj.items() if isinstance(obj, dict) else enumerate(obj):
        yield from walk(value, "%s.%s" % (name, str(key)[:200]) if name else str(key)[:200], depth + 1, seen)


def inflated(t: Any) -> bool:
    """Whether a strided tensor says to be far larger than what is stored for it (strides of 0): it could fill the host."""
    import torch

    return bool(
        t.layout == torch.strided and t.numel() * t.element_size() > max(INFLATED, 4 * t.untyped_storage().nbytes())
    )


def parts(t: Any) -> List[Tuple[str, Any]]:
    """The dense tensors that hold ``t``: itself, or indices and values of a sparse layout."""
    import torch

    if t.layout == torch.sparse_coo:
        return [("indices", t._indices()), ("values", t._values())]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [("offsets", t.crow_indices()), ("indices", t.col_indices()), ("values", t.values())]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [("offsets", t.ccol_indices()), ("indices", t.row_indices()), ("values", t.values())]
    return [("values", t.int_repr() if t.is_quantized else t)]


def refusal(text: str) -> Dict[str, str]:
    """What torch's page of advice says of the file: ``object`` it would not load, else ``fault`` that it found."""
    named = re.search(r"GLOBAL (\S{1,200})", text)
    if named:
        return {"object": named.group(1)}
    told = text.partition("WeightsUnpickler error:")[2].strip().splitlines()
    return {"fault": told[0][:200]} if told else {}


def main(path: str, out: Any) -> None:
    import torch

    def line(body: Dict[str, Any]) -> None:
        out.write(json.dumps(body).encode() + b"\n")

    try:
        try:
            obj = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, ValueError) as e:
            if "mmap" not in str(e):
                raise
            obj = torch.load(path, map_location="cpu", weights_only=True)  # the format before torch 1.6
    except Exception as e:  # whatever a file makes torch raise is the file's fault
        line(
            {"error": "%s: %s" % (type(e).__name__, (str(e).strip().splitlines() or [""])[0][:300]), **refusal(str(e))}
        )
        return
    seen: Dict[Any, str] = {}
    skipped = 0
    for name, t in walk(obj, ""):
        if inflated(t):
            line({
                "name": name, "dtype": str(t.dtype), "shape": list(t.shape),
                "left_out": "%d bytes are stored for it, and its shape says %d"
                % (t.untyped_storage().nbytes(), t.numel() * t.element_size()),
            })  # fmt: skip
            continue
        try:
            pieces = [(what, p.detach().contiguous()) for what, p in parts(t)]
            key = tuple((p.data_ptr(), tuple(p.shape), str(p.dtype)) for _, p in pieces if p.numel())
        except Exception:
            skipped += 1
            continue
        if key and key in seen:
            line({"name": name, "same_as": seen[key]})
            continue
        seen[key] = name
        line({
            "name": name,
            "dtype": str(t.dtype),
            "shape": list(t.shape),
            "layout": str(t.layout).replace("torch.", ""),
            "parts": [
                {"what": what, "dtype": str(p.dtype), "shape": list(p.shape), "bytes": p.numel() * p.element_size()}
                for what, p in pieces
            ],
        })  # fmt: skip
        for _, p in pieces:
            flat = p.reshape(-1).view(torch.uint8) if p.numel() else p.new_empty(0, dtype=torch.uint8)
            for start in range(0, flat.numel(), CHUNK):
                out.write(memoryview(flat[start : start + CHUNK].numpy()))
    line({"end": True, "skipped": skipped})


if __name__ == "__main__":
    main(sys.argv[1], sys.stdout.buffer)
    sys.stdout.buffer.flush()
