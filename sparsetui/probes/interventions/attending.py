"""Masked attention in one op, or in one for each shape of block that the mask leaves."""

from __future__ import annotations

import math
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

_MOST_PATTERNS = 64  # of rows that see the same keys; more are no blocks
_CHUNKS = (32, 64, 128, 256)  # rows that are looked at together where hardly two see the same keys
_MOST_PARTS = 32
_WORTH = 0.6  # of the scores that have to be made at most, for blocks to be tried
_CALL = 4096  # scores that a call of its own costs as much as, to the order
_LARGEST = 1 << 24  # scores of a mask that is searched for blocks


class Part(NamedTuple):
    """So many ``blocks`` of equal shape: ``rows`` of queries [blocks * r] and ``keys`` [blocks * c] of each, one block after the
    other, None where that is all of them in order; and the ``bias`` [blocks, r, c] of those, None where it is zero."""

    blocks: int
    rows: Optional[torch.Tensor]
    keys: Optional[torch.Tensor]
    bias: Optional[torch.Tensor]


class Blocks(NamedTuple):
    """The parts that hold every score which the mask leaves. ``back`` puts their rows in order, None where they are."""

    parts: Tuple[Part, ...]
    back: Optional[torch.Tensor]


def attend(
    q: torch.Tensor,
    kt: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    batch: Sequence[int],
    blocks: Optional[Blocks] = None,
) -> torch.Tensor:
    """``softmax(scale * q @ kt + bias) @ v``, laid out as the product's result would be.

    ``q`` is [..., S, D], ``kt`` has keys as columns; the leading dimensions of all come to ``batch``. For ``bias`` see
    :class:`.chains.Softmax`. With ``blocks`` only those scores are made that the mask leaves.
    """
    sides = [t.expand(*batch, *t.shape[-2:]) for t in (q, kt.transpose(-2, -1), v)]
    if len(batch) != 2:
        n = math.prod(batch)
        groups = _groups(bias, n)
        sides = [t.reshape(groups, n // groups, *t.shape[-2:]) for t in sides]
    if blocks is not None:
        out = _in_blocks(sides, scale, blocks)
    else:
        q4, k4, v4 = (t if t.stride(-1) == 1 else t.contiguous() for t in sides)
        out = torch.nn.functional.scaled_dot_product_attention(q4, k4, v4, attn_mask=bias, scale=scale)
    return out.reshape(*batch, *out.shape[-2:]).contiguous()


def _groups(bias: torch.Tensor, n: int) -> int:
    """Into how many groups a bias splits a batch of ``n``. One for each, where it is the same for all: then nothing has to be
    moved to lay the result out."""
    if bias.dim() == 2:
        return n
    return int(bias.shape[0]) if bias.shape[1] == 1 else n // int(bias.shape[1])


def _in_blocks(sides: List[torch.Tensor], scale: float, blocks: Blocks) -> torch.Tensor:
    outs = []
    a, b, _, _ = sides[0].shape
    for part in blocks.parts:
        taken = ((t, places) for t, places in zip(sides, (part.rows, part.keys, part.keys)))
        q, k, v = (
            (t if places is None else t.index_select(2, places)).reshape(a, b * part.blocks, -1, t.shape[-1])
            for t, places in taken
        )
        mask = None if part.bias is None else part.bias.repeat(b, 1, 1)[None]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        outs.append(out.reshape(a, b, -1, out.shape[-1]))
    out = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    return out if blocks.back is None else out.index_select(2, blocks.back)


def blocks_of(bias: torch.Tensor) -> Optional[Blocks]:
    """The blocks that a bias [S, T] leaves, where they hold clearly fewer scores than the whole."""
    if bias.dim() != 2 or bias.device.type != "cpu" or not 1 < bias.numel() <= _LARGEST:
        return None
    seen = bias > -math.inf
    if bool(seen.all()):
        return None
    best = min(_divisions(seen), key=lambda groups: _cost(groups), default=[])
    shapes: Dict[Tuple[int, int], List[Tuple[torch.Tensor, torch.Tensor]]] = {}
    for rows, keys in best:
        shapes.setdefault((len(rows), len(keys)), []).append((rows, keys))
    if not best or _cost(best) > _WORTH * bias.numel() or len(shapes) > _MOST_PARTS:
        return None
    parts: List[Part] = []
    order: List[torch.Tensor] = []
    for groups in shapes.values():
        left = torch.stack([bias.index_select(0, rows).index_select(1, keys) for rows, keys in groups])
        rows, keys = torch.cat([r for r, _ in groups]), torch.cat([k for _, k in groups])
        order.append(rows)
        parts.append(Part(len(groups), _unless_all(rows, len(bias)), _unless_all(keys, bias.shape[1]),
                          left if bool(left.count_nonzero()) else None))  # fmt: skip
    back = _unless_all(torch.cat(order), len(bias))
    return Blocks(tuple(parts), None if back is None else torch.argsort(back))


def _unless_all(places: torch.Tensor, count: int) -> Optional[torch.Tensor]:
    return None if len(places) == count and bool((places == torch.arange(count)).all()) else places


def _divisions(seen: torch.Tensor) -> List[List[Tuple[torch.Tensor, torch.Tensor]]]:
    """Ways to divide the rows: by what they see, and by where they stand. Each group has its rows and the keys they see."""
    patterns, of = torch.unique(seen, dim=0, return_inverse=True)
    out = []
    if len(patterns) <= _MOST_PATTERNS:
        by_place = sorted(range(len(patterns)), key=lambda p: int((of == p).nonzero()[0]))
        out.append([((of == p).nonzero()[:, 0], patterns[p].nonzero()[:, 0]) for p in by_place])
    places = torch.arange(len(seen))
    sizes = (size for size in _CHUNKS if size < len(seen))
    out += [[(rows, seen[rows].any(0).nonzero()[:, 0]) for rows in torch.split(places, size)] for size in sizes]
    return [groups for groups in out if all(len(keys) for _, keys in groups)]


def _cost(groups: List[Tuple[torch.Tensor, torch.Tensor]]) -> float:
    shapes = {(len(rows), len(keys)) for rows, keys in groups}
    return float(sum(len(rows) * len(keys) for rows, keys in groups) + _CALL * len(shapes))


def faster(
    shapes: Sequence[Sequence[int]], bias: torch.Tensor, scale: float, batch: Sequence[int], blocks: Blocks
) -> bool:
    """Whether blocks beat the whole on queries, transposed keys and values of these shapes: the best of some turns each."""
    own = torch.Generator().manual_seed(0)  # the numbers that the step draws stay its own
    q, kt, v = (torch.randn(*shape, generator=own, dtype=bias.dtype) for shape in shapes)
    times: Dict[bool, List[float]] = {True: [], False: []}
    with torch.no_grad():
        for _ in range(4):
            for use in (True, False):
                t0 = time.perf_counter()
                attend(q, kt, v, bias, scale, batch, blocks if use else None)
                times[use].append(time.perf_counter() - t0)
    return min(times[True]) < min(times[False])
