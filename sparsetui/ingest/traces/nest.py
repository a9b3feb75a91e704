"""Which event lies within which, from nothing but start and length: parents, own time, and what does not nest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    sorting = _sorting(lanes, starts, lengths)
    start, length = starts[sorting], lengths[sorting]
    end = start + length
    parent = _parents(lanes[sorting], start, end)
    below = np.flatnonzero(parent >= 0)
    until = end[parent[below]]
    beyond = end[below] > until
    overlapping = int((end[below] > until + _SLACK).sum())
    shared = np.where(beyond, until - start[below], length[below])
    own = np.maximum(length - np.bincount(parent[below], shared, len(which)), 0.0)
    return Nesting(which[sorting], parent, own, overlapping, out_of_order)


def _sorting(
    lanes: npt.NDArray[np.int32], starts: npt.NDArray[np.float64], lengths: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """By lane, start and falling length. Profilers write nearly in this order, so that sorting key by key is quick; lengths
    count only where starts are equal."""
    order = np.argsort(starts, kind="stable")
    order = order[np.argsort(lanes[order], kind="stable")]
    lane, start = lanes[order], starts[order]
    tied = np.zeros(len(order) + 1, bool)
    tied[1:-1] = (lane[1:] == lane[:-1]) & (start[1:] == start[:-1])
    rows = np.flatnonzero(tied[1:] | tied[:-1])
    if len(rows):
        among = order[rows]
        order[rows] = among[np.lexsort((-lengths[among], starts[among], lanes[among]))]
    return order


def _parents(
    lane: npt.NDArray[np.int32], start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """For events sorted by lane and start the nearest one before that has not ended; -1 for none.

    Each begins with its neighbour as a candidate. Where that has ended, so has for this event whatever it passed over
    itself, so all jump to their candidate's candidate at once: a row of siblings halves in each round.
    """
    parent: npt.NDArray[np.int64] = np.arange(-1, len(lane) - 1)
    parent[np.flatnonzero(lane[1:] != lane[:-1]) + 1] = -1
    open_ = np.flatnonzero(parent >= 0)
    while len(open_):
        open_ = open_[end[parent[open_]] <= start[open_]]
        parent[open_] = parent[parent[open_]]
        open_ = open_[parent[open_] >= 0]
    return parent


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
