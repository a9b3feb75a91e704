"""When two tensors are the same data: storages of their parts, the window on them, and who writes into them.

A storage alone is not enough. Slices of one stacked weight share it, and so do two adjacency matrices built on one vector of
ones. Nor are version counters: a detached alias counts apart, ``.data`` does too, and inference tensors do not count at all.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Hashable, List, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import tensors


def _remembers() -> bool:
    t = torch.zeros(1)
    return weakref.ref(t.untyped_storage())() is not None


_REMEMBERED = _remembers()
_WRITES: Dict[Any, Tuple[Tuple[int, str], ...]] = {}
# norms whose schema hides that they update their running statistics when training: (position, name), by op
_HIDDEN = {"aten::native_batch_norm": ((3, "running_mean"), (4, "running_var"))}


def storages(t: torch.Tensor) -> List[int]:
    """Storage keys of all parts of a tensor, values first; empty where it has none of its own."""
    if t.layout == torch.strided:
        k = tensors.key(t)
        return [] if k is None else [k]
    keys = [tensors.key(p) for p in tensors.parts(t).values()] if tensors.is_sparse(t) else []
    return [k for k in keys if k is not None]


def weak(storage: Any) -> Any:
    """A reference that keeps a storage's key from being given to another, but not its memory; ``expired()`` tells."""
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def watch(storage: Any, freed: Callable[[], None]) -> Any:
    """A reference that calls ``freed`` when a storage is freed, so that its key may be given to another; drop it to stop that.

    Unlike :func:`weak` it leaves nothing behind on the heap, where the smallest block decides whether large ones above and
    below it are handed back to the kernel, page by page. Where torch forgets a storage's Python object while the storage
    lives, it is such a weak reference, and ``freed`` is never called.
    """
    if not _REMEMBERED:
        return weak(storage)
    return weakref.ref(storage, lambda _: freed())


def identity(t: torch.Tensor) -> Hashable:
    """What tells a tensor from any other live one: storages, and the window that it opens on them. ``None`` without storage."""
    if t.layout == torch.strided:
        k = tensors.key(t)
        return None if k is None else (k, *window(t))
    if not tensors.is_sparse(t):
        return None
    parts = [(tensors.key(p), *window(p)) for p in tensors.parts(t).values()]
    if any(p[0] is None for p in parts):
        return None
    return (t.layout, tuple(t.shape), t.layout == torch.sparse_coo and t.is_coalesced(), *parts)


def window(t: torch.Tensor) -> Tuple[Any, ...]:
    """What part of its storage a dense tensor looks at, and as what."""
    return (t.dtype, t.shape, t.stride(), t.storage_offset(), t.is_conj(), t.is_neg())


def versions(t: torch.Tensor) -> Tuple[int, ...]:
    """The in-place versions of all parts, values first."""
    if tensors.is_sparse(t):
        return tuple(tensors.version(p) for p in tensors.parts(t).values())
    return (tensors.version(t),)


def hides_writes(name: str) -> bool:
    return name in _HIDDEN


def written(func: Any, args: Any, kwargs: Any) -> List[torch.Tensor]:
    """The tensors that a call writes into, by its schema: ``out=``, in-place ops, and the lists of foreach and fused ops."""
    where = _WRITES.get(func)
    if where is None:
        s = func._schema
        named = [(i, str(a.name)) for i, a in enumerate(s.arguments)
                 if a.alias_info is not None and a.alias_info.is_write]  # fmt: skip
        where = _WRITES[func] = tuple(named) + _HIDDEN.get(str(s.name), ())
    out: List[torch.Tensor] = []
    for at, name in where:
        value = args[at] if at < len(args) else kwargs.get(name)
        out += tensors.flatten(value, 2)
    return out
