"""Weights by path, symbol, caller and thread while stacks go by.

What a stack was on is decided as for the stacks of a live process (:mod:`sparsetui.ingest.samplers.fold`): the leaf tells
what ran, its callers tell what for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparsetui.evidence.kernels import Catalogue
from sparsetui.ingest.samplers import fold
from sparsetui.ingest.samplers.base import Frame

_DEEPEST = 4096
_FRAME = re.compile(r"^(?P<symbol>.*\S)\s+\((?P<where>[^()]*)\)$", re.S)
_SOURCE = re.compile(r"^(?P<file>.*\.pyx?|<(?:string|stdin|frozen .*|ipython.*)>)(?::(?P<line>\d{1,9}))?$")
_ROOT = re.compile(r"^(thread \(?0x[0-9a-fA-F]+|thread \d+|process \d+|tid[ :]\d+)")
_PERF_MARK = re.compile(r"_\[[kji]\]$")


@dataclass(frozen=True)
class Root:
    """No call: the thread or process that a stack belongs to."""

    name: str


def frame(text: str) -> Frame | Root:
    """A frame as samplers write it: ``func (file.py:12)``, ``symbol (libx.so)``, ``symbol_[k]`` or just a name."""
    text = text.strip()[:4096]
    if _ROOT.match(text):
        return Root(text)
    m = _FRAME.match(text)
    return located(m["symbol"], m["where"]) if m else Frame(_PERF_MARK.sub("", text))


def located(symbol: str, where: str, line: int = 0) -> Frame:
    """A frame whose place is known: a Python file (with its line), or the library that holds the symbol."""
    m = _SOURCE.match(where)
    if m is None:
        return Frame(symbol, where.replace("\\", "/").rsplit("/", 1)[-1])
    return Frame(symbol, "", m["file"], line or int(m["line"] or 0), True)


@dataclass(eq=False)
class Tally:
    """Sums over stacks; what is kept of names is bounded, whatever a file holds."""

    catalogue: Catalogue
    total: float = 0.0
    samples: int = 0
    paths: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, dict[str, float]] = field(default_factory=dict)
    functions: dict[str, dict[str, float]] = field(default_factory=dict)  # the leaf itself, whatever it was for
    callers: dict[str, dict[str, float]] = field(default_factory=dict)
    lanes: dict[str, set[str]] = field(default_factory=dict)
    threads: dict[str, dict[str, float]] = field(default_factory=dict)
    _frames: dict[str, Frame | Root] = field(default_factory=dict)

    def frame(self, text: str) -> Frame | Root:
        known = self._frames.get(text)
        if known is None:
            if len(self._frames) > 200_000:
                self._frames.clear()
            known = self._frames[text] = frame(text)
        return known

    def add(self, stack: Sequence[Frame | Root], weight: float, thread: str = "", samples: int = 1) -> None:
        """``stack`` from the outermost call to the innermost."""
        calls = [f for f in stack[-_DEEPEST:] if isinstance(f, Frame)]
        if not calls or not weight > 0:
            return
        thread = thread or " ".join(f.name for f in stack[:8] if isinstance(f, Root))
        seen = fold.read(calls, self._classify)
        self.total += weight
        self.samples += samples
        self.paths[seen.path] = self.paths.get(seen.path, 0.0) + weight
        self.counts[seen.path] = self.counts.get(seen.path, 0) + samples
        _more(self.symbols.setdefault(seen.path, {}), seen.symbol, weight)
        _more(self.functions.setdefault(seen.path, {}), calls[-1].symbol, weight)
        if seen.caller:
            _more(self.callers.setdefault(seen.path, {}), seen.caller, weight)
        if len(self.threads) < 10_000 or thread in self.threads:
            _more(self.threads.setdefault(thread, {}), seen.path, weight)
            self.lanes.setdefault(seen.path, set()).add(thread)

    def _classify(self, symbol: str, module: str) -> str:
        return self.catalogue.classify(symbol, module).path


def _more(sums: dict[str, float], key: str, weight: float) -> None:
    if key in sums or len(sums) < 20_000:
        sums[key] = sums.get(key, 0.0) + weight
