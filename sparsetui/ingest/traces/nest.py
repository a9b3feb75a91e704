"""Which event lies within which, from nothing but start and length: parents, own time, and what does not nest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BLOCK = 200_000
# Old traces cut times to whole microseconds, so that a child may seem to outlast its parent by that much.
_SLACK = 2.0


@dataclass
class Nesting:
    """For the events at ``order`` (sorted by lane and start): the parent's position in ``order`` (-1 for none) and own
    time in µs. ``overlapping`` counts events that end after the one they began in, ``out_of_order`` those written
    before an earlier one of their lane."""

    order: npt.NDArray[np.int64]
    parent: npt.NDArray[np.int64]
    own: npt.NDArray[np.float64]
    overlapping: int
    out_of_order: int


def nest(
    lane: npt.NDArray[np.int32], ts: npt.NDArray[np.float64], dur: npt.NDArray[np.float64], which: npt.NDArray[np.int64]
) -> Nesting:
    """The nesting of the events ``which`` (indices into the arrays, in file order)."""
    lanes, starts, lengths = lane[which], ts[which], dur[which]
    by_lane = np.argsort(lanes, kind="stable")
    same = lanes[by_lane][1:] == lanes[by_lane][:-1]
    out_of_order = int((same & (starts[by_lane][1:] < starts[by_lane][:-1])).sum())
    sorting = np.lexsort((-lengths, starts, lanes))
    n = len(which)
    parent = np.full(n, -1, np.int64)
    inside = np.zeros(n, np.float64)
    overlapping = 0
    stack: list[tuple[int, float]] = []  # position, end
    current = -1
    for first in range(0, n, _BLOCK):
        block = sorting[first : first + _BLOCK]
        parents: list[int] = []
        shared: list[float] = []
        for i, (own_lane, start, length) in enumerate(
            zip(lanes[block].tolist(), starts[block].tolist(), lengths[block].tolist(), strict=True), first
        ):
            if own_lane != current:
                stack.clear()
                current = own_lane
            end = start + length
            while stack and stack[-1][1] <= start:
                stack.pop()
            if stack:
                above, until = stack[-1]
                parents.append(above)
                if end > until:
                    overlapping += end > until + _SLACK
                    shared.append(until - start)
                else:
                    shared.append(length)
            else:
                parents.append(-1)
                shared.append(0.0)
            stack.append((i, end))
        parent[first : first + len(block)] = parents
        np.add.at(inside, np.maximum(parent[first : first + len(block)], 0), shared)
    own = np.maximum(lengths[sorting] - inside, 0.0)
    return Nesting(which[sorting], parent, own, overlapping, out_of_order)


def inherit(parent: npt.NDArray[np.int64], marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """``marked`` and everything below it. A parent stands before its children, so few rounds of doubling suffice."""
    flags = marked.copy()
    up = parent.copy()
    while True:
        has = up >= 0
        if not has.any():
            return flags
        flags[has] |= flags[up[has]]
        further = np.full(len(up), -1, np.int64)
        further[has] = up[up[has]]
        up = further
