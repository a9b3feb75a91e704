"""Timed events that are too many for memory: kept in a file without a name, and read back in windows of time.

Each window holds what began in it. A call of the host that goes on beyond its window is cut at the border, and its rest
heads the next window, so that what lies inside it is subtracted from it there: own times add up as if there were no borders.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

RECORD = np.dtype(
    [("kind", "i1"), ("name", "<i4"), ("lane", "<i4"), ("ts", "<f8"), ("dur", "<f8"), ("corr", "<i8"),
     ("occupancy", "<f4"), ("shape", "<i4")]
)  # fmt: skip
Records = npt.NDArray[np.void]
#: ``corr`` of the rest of a cut call: it is no call of its own
CONTINUES = -1
_CHUNK = 400_000  # records read at a time


class Spill:
    """Records on disk, for windows of about ``size``. Raises OSError where there is no room."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._every = max(1, min(64, size // 64))  # one start in so many is remembered, to place the borders
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="sparsetui-")  # noqa: SIM115
        self._sample: list[npt.NDArray[np.float64]] = []
        self.records = 0

    def add(self, records: Records) -> None:
        self._file.seek(0, 2)
        self._file.write(records.tobytes())
        self._sample.append(records["ts"][:: self._every].copy())
        self.records += len(records)

    def windows(self, host: tuple[int, ...]) -> Iterator[tuple[Records, int]]:
        """The windows in order of time, and how many records of each had to be left out.

        ``host`` are the kinds that nest. What began within one window beyond twice its size is left out.
        """
        rest = np.zeros(0, RECORD)
        for low, high in self._borders():
            parts, have, beyond = [rest], len(rest), 0
            for chunk in self._chunks():
                mine = chunk[(chunk["ts"] >= low) & (chunk["ts"] < high)]
                if have + len(mine) > 2 * self.size + len(rest):
                    beyond += len(mine)
                    continue
                parts.append(mine)
                have += len(mine)
            window = np.concatenate(parts)
            parts.clear()
            rest = _cut(window, high, host)
            yield window, beyond

    def close(self) -> None:
        self._file.close()

    def _borders(self) -> list[tuple[float, float]]:
        """Half-open spans of time that hold about ``size`` records each, by the sample of starts."""
        starts = np.sort(np.concatenate([*self._sample, np.zeros(0)]))
        if not len(starts):
            return [(-np.inf, np.inf)]
        count = max(1, -(-self.records // self.size))
        inner = np.unique(starts[(np.arange(1, count) * len(starts)) // count])
        edges = [-np.inf, *inner.tolist(), np.inf]
        return list(itertools.pairwise(edges))

    def _chunks(self) -> Iterator[Records]:
        self._file.seek(0)
        while data := self._file.read(_CHUNK * RECORD.itemsize):
            yield np.frombuffer(data, RECORD)


def _cut(window: Records, high: float, host: tuple[int, ...]) -> Records:
    """Cut the host's calls that go on beyond ``high``, in place; their rests, outermost first."""
    if not np.isfinite(high):
        return np.zeros(0, RECORD)
    end = window["ts"] + window["dur"]
    over = np.flatnonzero((end > high) & np.isin(window["kind"], host))
    rest = window[over].copy()
    rest["ts"], rest["dur"] = high, end[over] - high
    rest["corr"], rest["occupancy"] = CONTINUES, np.nan
    window["dur"][over] = high - window["ts"][over]
    return rest[np.argsort(-rest["dur"], kind="stable")]


def records(columns: tuple[npt.NDArray[Any], ...]) -> Records:
    """Columns, in the order of :data:`RECORD`, as records."""
    out = np.empty(len(columns[0]), RECORD)
    for name, column in zip(RECORD.names or (), columns, strict=True):
        out[name] = column
    return out
