"""A convolution as the product that it is: its kernel as a matrix, over the patches of its input laid out as columns.

Patches are one strided view of the (padded) input, copied once into the layout that the product reads, [in channels * kernel
size, batch * positions]. A kernel of size 1 has nothing to unfold: the copy is then of the input alone, and none for a batch of 1.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from . import optable, tensors

_LARGEST = 1 << 30  # bytes of patches; beyond, unfolding is no way to run a convolution


class NoForm(Exception):
    """A call that has no such form; the text says why."""


class Conv(NamedTuple):
    """One convolution taken apart. ``x`` is [batch, in, *sizes], ``weight`` [out, in / groups, *kernel]; ``padding`` is
    (before, after) an axis; ``single`` where the input came without a batch."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: Optional[torch.Tensor]
    stride: Tuple[int, ...]
    padding: Tuple[Tuple[int, int], ...]
    dilation: Tuple[int, ...]
    groups: int
    single: bool


def bind(func: Any, args: Any, kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments of a call by the names of the op's schema."""
    return {str(a.name): args[i] if i < len(args) else kwargs.get(str(a.name), a.default_value)
            for i, a in enumerate(func._schema.arguments)}  # fmt: skip


def take_apart(func: Any, args: Any, kwargs: Dict[str, Any]) -> Conv:
    """Raises :class:`NoForm` for what is no plain convolution of strided real tensors."""
    named = bind(func, args, kwargs)
    x, w, bias = named.get("input", named.get("self")), named.get("weight"), named.get("bias")
    if named.get("transposed") or "transpose" in optable.base_name(func):
        raise NoForm("a transposed convolution is not unfolded")
    if (
        not isinstance(x, torch.Tensor)
        or not isinstance(w, torch.Tensor)
        or "stride" not in named
        or "padding" not in named
    ):
        raise NoForm("%s has arguments of its own" % optable.base_name(func))
    if any(t.layout != torch.strided or not t.is_floating_point() for t in (x, w)) or w.dim() < 3:
        raise NoForm("%s on %s %s" % (optable.base_name(func), tensors.dtype(w), tensors.layout(w)))
    dims = w.dim() - 2
    dilation = _each(named.get("dilation", 1), dims)
    padding = _padding(named["padding"], dims, tuple(w.shape[2:]), dilation)
    single = x.dim() == dims + 1
    c = Conv(x.unsqueeze(0) if single else x, w, bias, _each(named["stride"], dims), padding, dilation,
             int(named.get("groups", 1)), single)  # fmt: skip
    if c.x.dim() != dims + 2 or c.x.shape[1] != w.shape[1] * c.groups or min(sizes_of(c), default=0) < 1:
        raise NoForm("an input does not fit the kernel")
    return c


def _each(value: Any, dims: int) -> Tuple[int, ...]:
    given = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return tuple(given * dims if len(given) == 1 else given)


def _padding(value: Any, dims: int, kernel: Tuple[int, ...], dilation: Tuple[int, ...]) -> Tuple[Tuple[int, int], ...]:
    if value == "same":
        spread = [d * (k - 1) for d, k in zip(dilation, kernel)]
        return tuple((s // 2, s - s // 2) for s in spread)
    return tuple((p, p) for p in _each(0 if value == "valid" else value, dims))


def sizes_of(c: Conv) -> List[int]:
    """The sizes of the output, batch and channels apart."""
    each = zip(c.x.shape[2:], c.padding, c.weight.shape[2:], c.stride, c.dilation)
    return [(int(n) + sum(p) - d * (int(k) - 1) - 1) // s + 1 for n, p, k, s, d in each]


def channels_last(c: Conv) -> bool:
    """Whether the convolution would lay its result out with the channels last, as it does where either operand is."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(c.x.dim())
    if form is None:
        return False
    return any(t.is_contiguous(memory_format=form) and not t.is_contiguous() for t in (c.x, c.weight))


def matrix(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """The kernel as a CSR matrix [out, in * kernel size], int32 indices; groups are the blocks of its diagonal."""
    flat = tensors.compressed(weight.reshape(weight.shape[0], -1), "csr")
    if groups == 1:
        return flat
    p = tensors.parts(flat)
    width = (p["compressed"][1:] - p["compressed"][:-1]).to(torch.int64)
    rows = torch.arange(flat.shape[0], device=width.device)
    group = torch.repeat_interleave(rows // (flat.shape[0] // groups), width)
    plain = p["plain"] + (group * flat.shape[1]).to(p["plain"].dtype)
    return torch.sparse_compressed_tensor(p["compressed"], plain, p["values"], (flat.shape[0], flat.shape[1] * groups),
                                          layout=torch.sparse_csr, check_invariants=False)  # fmt: skip


def patches(c: Conv) -> Tuple[torch.Tensor, List[int]]:
    """``(columns [in * kernel size, batch * positions], sizes of the output)``. Raises RuntimeError where they are too large."""
    kernel = list(c.weight.shape[2:])
    x = c.x
    if any(p != (0, 0) for p in c.padding):
        x = torch.nn.functional.pad(x, [p for pair in reversed(c.padding) for p in pair])
    sizes = sizes_of(c)
    rows, columns = x.shape[1] * _product(kernel), x.shape[0] * _product(sizes)
    if rows * columns * x.element_size() > _LARGEST:
        raise RuntimeError("its patches would take %d MiB" % (rows * columns * x.element_size() >> 20))
    steps = x.stride()
    view = x.as_strided(
        [x.shape[1], *kernel, x.shape[0], *sizes],
        [
            steps[1],
            *(d * s for d, s in zip(c.dilation, steps[2:])),
            steps[0],
            *(n * s for n, s in zip(c.stride, steps[2:])),
        ],
        x.storage_offset(),
    )
    return view.reshape(rows, columns), sizes


def run(c: Conv, csr: torch.Tensor) -> torch.Tensor:
    """The convolution as ``csr @ patches``, laid out as its own result would be, with ``csr`` from :func:`matrix` of its kernel."""
    columns, sizes = patches(c)
    form = torch.contiguous_format
    if channels_last(c):
        form = torch.channels_last if len(sizes) == 2 else torch.channels_last_3d
    out = torch.mm(csr, columns).reshape(csr.shape[0], c.x.shape[0], *sizes).transpose(0, 1)
    out = out.contiguous(memory_format=form)
    if c.bias is not None:
        out += c.bias.view(-1, *[1] * len(sizes))
    return out.squeeze(0) if c.single else out


def _product(numbers: List[int]) -> int:
    n = 1
    for x in numbers:
        n *= x
    return n
