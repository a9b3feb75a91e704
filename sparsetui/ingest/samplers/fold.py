"""From stacks to the time table: which path each sample was on, and with what interval.

The leaf tells what ran, its callers tell what for. A product kernel is itself wherever it lies. A memcpy, an
allocation or a sort is what the nearest native caller makes of it: under ``_to_sparse_csr`` it is conversion.
"""

from __future__ import annotations

import math
import os
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec

from sparsetui.evidence.kernels import Catalogue
from sparsetui.evidence.records import Missing, Number, PathShare, Sampler, TimeTable
from sparsetui.ingest.samplers.base import Frame, Stack

_PRODUCTS = frozenset({"sparse-csr", "sparse-csr-rhs", "sparse-csc", "sparse-coo", "sparse-bsr", "sparse-nm"})
# BLAS's vector routines: the inner loop of a product that ATen wrote itself, or a copy
_VECTOR_ROUTINE = re.compile(r"cpublas(_|::)(axpy|copy)")
_VECTOR = "vector"
# Helpers: what they cost belongs to the conversion or the sort that called them.
_HELPERS = frozenset({"copy", "alloc", "elementwise", "sort", "other"})


Classify = Callable[[str, str], str]


class Seen(msgspec.Struct, frozen=True):
    """One stack, read: its path, the symbol that decided, and the user's own frame that led there."""

    path: str
    symbol: str
    caller: str


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The kernel catalogue with the user's own rules, read once. Raises ``CatalogueError``."""
    return Catalogue.load()


def classify(symbol: str, module: str) -> str:
    """The path name of one native frame, by the kernel catalogue; ``unknown`` when it has no entry."""
    return catalogue().classify(symbol, module).path


def read(frames: Sequence[Frame], classify: Classify = classify) -> Seen:
    """Classify one stack (root to leaf). ``classify`` gives the path of a native symbol in a module."""
    path, symbol = _path(frames, classify)
    return Seen(path, symbol, _caller(frames))


def _path(frames: Sequence[Frame], classify: Classify) -> tuple[str, str]:
    if not frames:
        return "unknown", ""
    leaf = frames[-1]
    if leaf.python:
        return "python", f"{leaf.symbol} ({os.path.basename(leaf.file)})"
    native: list[tuple[str, str]] = []  # leaf first, up to the Python frame that called in
    for frame in reversed(frames):
        if frame.python:
            break
        native.append(_named(frame.symbol, frame.module, classify))
    # the operating system works for whoever called it; by itself it is known as that and no more
    known = [(p, s) for p, s in native if p != "unknown" and s != "[kernel]"]
    if native[0][0] == "unknown":
        # a caller tells what an unknown function is for, but that some framework called it tells nothing
        known = [(p, s) for p, s in known if p != "other"]
        if not known:
            return "unknown", native[0][1]
    if not known:
        return next((n for n in native if n[0] != "unknown"), ("unknown", native[0][1]))
    path, symbol = known[0]
    above = known[1:]
    if path == "dense":
        # a convolution or an attention that calls GEMM is named by what it computes
        return next(((p, s) for p, s in above if p in ("conv", "attention")), (path, symbol))
    if path not in _HELPERS and path != _VECTOR:
        return path, symbol
    sorting: tuple[str, str] | None = None
    for p, s in above:
        if p == "conversion":
            return p, s
        if p == "sort":
            sorting = sorting or (p, s)
        elif p in _PRODUCTS or p in ("dense", "attention", "conv"):
            if path in ("other", _VECTOR):
                return p, s
            break
    if sorting:
        return sorting
    if path == "other":
        return next(((p, s) for p, s in above if p in _HELPERS and p != "other"), (path, symbol))
    return ("elementwise" if path == _VECTOR else path), symbol


@lru_cache(maxsize=1 << 16)
def _named(symbol: str, module: str, classify: Classify) -> tuple[str, str]:
    """The path of a native frame and its label; of a stripped library its name, for a bare address means nothing later."""
    path = _VECTOR if _VECTOR_ROUTINE.search(symbol) else classify(symbol, module)
    return path, f"{module} (no symbol)" if symbol.startswith("0x") and module else symbol


@lru_cache(maxsize=4096)
def _library(file: str) -> bool:
    """Whether a Python file belongs to an installed package or to Python itself rather than to the user."""
    if file.startswith("<") or not file:
        return True
    if "/site-packages/" in file or "/dist-packages/" in file:
        return True
    if "/lib/python3" in file or file.startswith(sysconfig.get_paths()["stdlib"] + "/"):
        return True
    return file.startswith("torch/")  # how py-spy shortens an installed package


def _caller(frames: Sequence[Frame]) -> str:
    """The innermost Python frame of the user's own code, else the innermost Python frame: ``serving.py:41 forward``."""
    python = [f for f in reversed(frames) if f.python]
    chosen = next((f for f in python if not _library(f.file)), python[0] if python else None)
    if chosen is None:
        return ""
    return f"{os.path.basename(chosen.file)}:{chosen.line} {chosen.symbol}"


def wilson(hits: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % score interval of a binomial share (E. B. Wilson, 1927); (0, 1) without observations."""
    if n <= 0:
        return 0.0, 1.0
    p = hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # at the ends the bound is the share itself, whatever rounding makes of it
    return 0.0 if hits == 0 else max(0.0, centre - half), 1.0 if hits == n else min(1.0, centre + half)


def share(hits: int, n: int) -> Number:
    """A share of ``n`` samples with its interval."""
    if n <= 0:
        return Number(value=None, quality="unavailable", reason="no samples yet")
    low, high = wilson(hits, n)
    return Number(value=hits / n, ci=(round(low, 4), round(high, 4)), n=n)


class Tally:
    """Counts by path of one sampler; grows as samples come."""

    def __init__(self) -> None:
        self.n = 0
        self.by_path: Counter[str] = Counter()
        self.symbols: dict[str, Counter[str]] = defaultdict(Counter)
        self.callers: dict[str, Counter[str]] = defaultdict(Counter)
        self.threads: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.by_thread: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)

    def add(self, stacks: Iterable[Stack]) -> None:
        for stack in stacks:
            seen = read(stack.frames)
            key = (stack.pid, stack.thread)
            self.n += stack.count
            self.by_path[seen.path] += stack.count
            if seen.symbol:
                self.symbols[seen.path][seen.symbol] += stack.count
            if seen.caller:
                self.callers[seen.path][seen.caller] += stack.count
            self.threads[seen.path].add(key)
            self.by_thread[key][seen.path] += stack.count

    def only(self, keys: set[tuple[int, int]]) -> Counter[str]:
        """Counts by path of the threads in ``keys``."""
        out: Counter[str] = Counter()
        for key in keys & self.by_thread.keys():
            out.update(self.by_thread[key])
        return out


def names(counter: Counter[str], top: int = 4) -> tuple[str, ...]:
    return tuple(name for name, _ in counter.most_common(top))


def table(tally: Tally, samplers: Sequence[Sampler] = (), missing: Sequence[Missing] = ()) -> TimeTable:
    """The time table of one tally."""
    rows = [
        PathShare(
            path,
            share(hits, tally.n),
            names(tally.symbols[path]),
            names(tally.callers[path]),
            len(tally.threads[path]),
        )
        for path, hits in tally.by_path.most_common()
    ]
    return TimeTable(tuple(rows), tuple(samplers), tuple(missing))


def blend(stacks: Tally, leaves: Tally, samplers: Sequence[Sampler] = (), missing: Sequence[Missing] = ()) -> TimeTable:
    """One table of two samplers: ``stacks`` sees Python's threads with their callers, ``leaves`` sees every thread.

    A stratified estimate: the threads that both see are described by ``stacks``, the others (OpenMP's) by ``leaves``;
    the weight of the two strata is the share of CPU samples that ``leaves`` took in each.
    """
    shared = set(stacks.by_thread)
    rest = set(leaves.by_thread) - shared
    inside = sum(leaves.only(shared & leaves.by_thread.keys()).values())
    outside_counts = leaves.only(rest)
    outside = sum(outside_counts.values())
    if not stacks.n or not leaves.n or not inside:
        return table(leaves if not stacks.n or (not inside and leaves.n > stacks.n) else stacks, samplers, missing)
    weight = inside / (inside + outside)
    rows = []
    for path in set(stacks.by_path) | set(outside_counts):
        p, q = stacks.by_path[path] / stacks.n, outside_counts[path] / outside if outside else 0.0
        value = weight * p + (1 - weight) * q
        p_low, p_high = wilson(stacks.by_path[path], stacks.n)
        q_low, q_high = wilson(outside_counts[path], outside) if outside else (0.0, 0.0)
        spread = weight * (1 - weight) / leaves.n * (p - q) ** 2  # the weight is itself an estimate
        low = math.sqrt((weight * (p - p_low)) ** 2 + ((1 - weight) * (q - q_low)) ** 2 + 3.84 * spread)
        high = math.sqrt((weight * (p_high - p)) ** 2 + ((1 - weight) * (q_high - q)) ** 2 + 3.84 * spread)
        interval = (round(max(0.0, value - low), 4), round(min(1.0, value + high), 4))
        symbols = stacks.symbols[path] + leaves.symbols[path]
        threads = stacks.threads[path] | {k for k in rest if leaves.by_thread[k][path]}
        rows.append(
            PathShare(
                path,
                Number(value, interval, stacks.n + outside),
                names(symbols),
                names(stacks.callers[path]),
                len(threads),
            )
        )
    rows.sort(key=lambda r: -(r.share.value or 0.0))
    return TimeTable(tuple(rows), tuple(samplers), tuple(missing))
