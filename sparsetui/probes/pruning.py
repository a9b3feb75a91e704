"""Pruning a weight for real, and putting it into the formats that are compared: one twin of one product's operand each.

A weight is taken as ``W`` of shape [out, in], whichever side of the product it stands on; masks have its shape. Magnitude
decides what stays: of single entries, of square blocks (by L2 norm), of output channels (by L2 norm), or n of every m in a row.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch

from . import tensors
from .interventions.products import Twin


class Unfit(Exception):
    """A format that this weight, build or device does not have; the text says why."""


def _keep(score: torch.Tensor, sparsity: float) -> torch.Tensor:
    """Mask of the ``round((1 - sparsity) * n)`` largest scores, at least one."""
    flat = score.reshape(-1)
    k = max(1, min(flat.numel(), round((1.0 - sparsity) * flat.numel())))
    mask = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
    mask[torch.topk(flat, k).indices] = True
    return mask.reshape(score.shape)


def unstructured(w: torch.Tensor, sparsity: float) -> torch.Tensor:
    return _keep(w.abs(), sparsity)


def blocks(w: torch.Tensor, sparsity: float, size: int) -> torch.Tensor:
    """Whole ``size × size`` blocks; raises :class:`Unfit` where they do not tile the weight."""
    rows, cols = w.shape
    if rows % size or cols % size:
        raise Unfit("%d x %d blocks do not tile %d x %d" % (size, size, rows, cols))
    tiles = w.reshape(rows // size, size, cols // size, size)
    mask = _keep(tiles.pow(2).sum((1, 3)), sparsity)
    return mask.repeat_interleave(size, 0).repeat_interleave(size, 1)


def channels(w: torch.Tensor, sparsity: float) -> torch.Tensor:
    return _keep(w.pow(2).sum(1), sparsity).unsqueeze(1).expand_as(w)


def n_of_m(w: torch.Tensor, n: int, m: int) -> torch.Tensor:
    rows, cols = w.shape
    if cols % m:
        raise Unfit("rows of %d are no multiple of %d" % (cols, m))
    groups = w.abs().reshape(rows, cols // m, m)
    mask = torch.zeros_like(groups, dtype=torch.bool)
    mask.scatter_(2, torch.topk(groups, n, dim=2).indices, True)
    return mask.reshape(rows, cols)


class Format(NamedTuple):
    """One way to hold a pruned weight. ``family`` names its pruning: formats of a family hold the same zeros.

    ``twin(W, side)`` is what the product runs on; ``stored(twin)`` are the tensors that take memory.
    """

    id: str
    kind: str  # dense, unstructured or structured
    family: str
    what: str
    mask: Callable[[torch.Tensor, float], torch.Tensor]
    twin: Callable[[torch.Tensor, int], Twin]


def _dense(w: torch.Tensor, side: int) -> Twin:
    return Twin(w if side == 0 else w.t())


def _good(w: torch.Tensor, side: int, make: Callable[[torch.Tensor], torch.Tensor]) -> Twin:
    """The sparse operand on the left: ``W @ x``, or ``(W @ xᵀ)ᵀ`` where it stood on the right."""
    return Twin(make(w), transposed=side == 1)


def _right(w: torch.Tensor, side: int, make: Callable[[torch.Tensor], torch.Tensor]) -> Twin:
    """The sparse operand stays on the right, as ``F.linear`` leaves it: the transpose of the stored weight."""
    if side == 0:
        raise Unfit("the weight already stands on the left")
    t = make(w)
    return Twin(t.t() if tensors.layout(t) == "coo" else tensors.flip(t))


def _csr(idx: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: tensors.compressed(w, "csr", idx)


def _coo(w: torch.Tensor) -> torch.Tensor:
    return w.to_sparse().coalesce()


def _bsr(size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: tensors.with_index(w.to_sparse_bsr((size, size)), torch.int32)


def _narrow(w: torch.Tensor, side: int) -> Twin:
    """The kept output channels as a smaller dense product; its results go back to their places, the others are zero."""
    kept = torch.nonzero(w.abs().sum(1) > 0).reshape(-1)
    if kept.numel() == w.shape[0]:
        return _dense(w, side)
    small = torch.cat([w.index_select(0, kept), w.new_zeros(1, w.shape[1])])
    rows = torch.full((w.shape[0],), kept.numel(), dtype=torch.long, device=w.device)
    rows[kept] = torch.arange(kept.numel(), device=w.device)
    return Twin(small.contiguous(), transposed=side == 1, rows=rows)


def _semi(w: torch.Tensor, side: int) -> Twin:
    return Twin(torch.sparse.to_sparse_semi_structured(w.contiguous()), transposed=side == 1)


def no_semi(device: str) -> str:
    """Why the device has no 2:4 kernel, or an empty text where it has one."""
    if device != "cuda":
        return "torch has 2:4 kernels for CUDA devices only; this workload runs on %s" % device
    if torch.cuda.get_device_capability() < (8, 0):
        return "2:4 kernels need compute capability 8.0; this device has %d.%d" % torch.cuda.get_device_capability()
    if not hasattr(torch.sparse, "to_sparse_semi_structured"):
        return "torch %s has no 2:4 kernels" % torch.__version__
    return ""


def catalogue(sizes: List[int]) -> List[Format]:
    """Every format, dense first. BSR comes once for each block size."""
    none = lambda w, s: torch.ones_like(w, dtype=torch.bool)  # noqa: E731
    out = [Format("dense", "dense", "dense", "as it is, strided", none, _dense)]
    for name, make in (("coo", _coo), ("csr-int64", _csr(torch.int64)), ("csr-int32", _csr(torch.int32))):
        for side, place in ((_good, "sparse operand left"), (_right, "sparse operand right, as F.linear leaves it")):
            out.append(Format(name if side is _good else name + "-rhs", "unstructured", "unstructured", place,
                              unstructured, partial(side, make=make)))  # fmt: skip
    out += [Format("bsr-%d" % b, "structured", "block-%d" % b, "%d x %d blocks, sparse operand left" % (b, b),
                   partial(blocks, size=b), partial(_good, make=_bsr(b))) for b in sizes]  # fmt: skip
    out.append(
        Format(
            "channels", "structured", "channels", "pruned output channels, a smaller dense product", channels, _narrow
        )
    )
    out.append(Format("2:4", "structured", "2:4", "2 of every 4 in a row, always half of the weights",
                      lambda w, s: n_of_m(w, 2, 4), _semi))  # fmt: skip
    return out


def twin(fmt: Format, w: torch.Tensor, sparsity: float, side: int) -> Twin:
    """The twin of a weight pruned to ``sparsity``. Raises :class:`Unfit` with the reason where there is none."""
    if fmt.id == "2:4":
        why = no_semi(w.device.type)
        if why:
            raise Unfit(why)
    pruned = w * fmt.mask(w, sparsity)
    try:
        return fmt.twin(pruned, side)
    except (RuntimeError, ValueError) as e:
        raise Unfit((str(e).splitlines() or [type(e).__name__])[0][:160]) from None


def product(t: Twin, other: torch.Tensor, side: int) -> torch.Tensor:
    """The product that a twin stands for, with ``other`` as the dense operand on its other side."""
    m = t.matrix
    if t.transposed:
        out = torch.mm(m, other.t())
        return (out if t.rows is None else out.index_select(0, t.rows)).t()
    if side == 1:
        return torch.mm(other, m)
    out = torch.mv(m, other) if other.dim() == 1 else torch.mm(m, other)
    return out if t.rows is None else out.index_select(0, t.rows)


def stored(t: Twin) -> Dict[str, int]:
    """Bytes of values and of what says where they are."""
    try:
        b = tensors.bytes_by_part(t.matrix)
    except (RuntimeError, AttributeError):  # 2:4 keeps packed values and metadata of its own
        packed, meta = getattr(t.matrix, "packed", None), getattr(t.matrix, "meta", None)
        b = {"values": tensors.nbytes(packed) if packed is not None else 0,
             "indices": tensors.nbytes(meta) if meta is not None else 0}  # fmt: skip
    rows = tensors.nbytes(t.rows) if t.rows is not None else 0
    return {"values": b["values"], "indices": b["indices"] + rows}


def is_sparse(t: Twin) -> bool:
    """Whether the product runs on less than the whole dense weight."""
    return t.rows is not None or t.matrix.layout != torch.strided or "Semi" in type(t.matrix).__name__


def drift(want: List[torch.Tensor], got: List[torch.Tensor]) -> Optional[Dict[str, float]]:
    """How far one step's outputs are from the reference: relative L2, max error, cosine, and for outputs with a last axis of
    classes top-1 agreement; KL where the outputs are distributions. ``None`` for steps without floating outputs."""
    pairs = [
        (a.double(), b.double())
        for a, b in zip(want, got)
        if a.is_floating_point() and a.shape == b.shape and a.numel()
    ]
    if not pairs:
        return None
    a, b = torch.cat([x.reshape(-1) for x, _ in pairs]), torch.cat([y.reshape(-1) for _, y in pairs])
    norm, other = float(a.norm()), float(b.norm())
    out = {"relative_l2": float((a - b).norm()) / norm if norm else 0.0, "max_error": float((a - b).abs().max())}
    if norm and other:
        out["cosine"] = float(a @ b) / (norm * other)
    x, y = pairs[0]
    if x.dim() >= 2 and x.shape[-1] >= 2:
        out["top1"] = float((x.argmax(-1) == y.argmax(-1)).double().mean())
        if _distribution(x) and _distribution(y):
            out["kl"] = float((x * ((x + 1e-12).log() - (y + 1e-12).log())).sum(-1).mean())
        elif _distribution(x.exp()) and _distribution(y.exp()):  # log-probabilities
            out["kl"] = float((x.exp() * (x - y)).sum(-1).mean())
    return {k: v for k, v in out.items() if math.isfinite(v)}


def _distribution(t: torch.Tensor) -> bool:
    return bool((t >= 0).all()) and bool(((t.sum(-1) - 1).abs() < 1e-3).all())


def floats(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.is_floating_point()
