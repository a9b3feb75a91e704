"""Arms of the matrix timed against each other: cycles of interleaved blocks, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparsetui.diagnosis.stats import Block, hodges_lehmann, quantile_summary, signed_rank_interval, t_interval
from sparsetui.diagnosis.stats.rounds import block_median
from sparsetui.evidence.records import Number, unavailable

REFERENCE = "dense"
_BLOCK_MS = 25.0
_HOPELESS = 4.0  # times the best: such an arm is timed in the first two cycles, and then in few
_RARELY = 8


def steps_for(step_ms: float) -> int:
    return min(200, max(2, math.ceil(_BLOCK_MS / max(step_ms, 1e-3))))


@dataclass
class Cycles:
    """Blocks of every arm, cycle by cycle. The reference stands at both ends of each cycle: its two blocks against each other
    are the A/A pairs that the noise floor comes from, and drift within a cycle cancels over cycles of both directions."""

    blocks: dict[str, list[tuple[int, Block]]] = field(default_factory=dict)
    pairs: list[float] = field(default_factory=list)  # log of the reference's two blocks
    done: int = 0

    def step_ms(self, arm: str) -> float | None:
        found = self.blocks.get(arm)
        return float(np.median([block_median(b) for _, b in found])) if found else None

    def order(self, arms: Sequence[str]) -> list[str]:
        """The next cycle's arms in their order."""
        known = {a: t for a in arms if (t := self.step_ms(a)) is not None}
        best = min(known.values(), default=0.0)
        rare = self.done >= 2 and self.done % _RARELY != 0
        inner = [a for a in arms if a != REFERENCE and not (rare and known.get(a, 0.0) > _HOPELESS * best)]
        turn = self.done % max(1, len(inner))
        inner = inner[turn:] + inner[:turn]
        return [REFERENCE, *(inner if self.done % 2 == 0 else inner[::-1]), REFERENCE]

    def add(self, order: Sequence[str], blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.blocks.setdefault(block.variant, []).append((self.done, block))
        ends = [block_median(b) for a, b in zip(order, blocks, strict=True) if a == REFERENCE]
        if len(ends) == 2:
            log = math.log(ends[0] / ends[1])
            self.pairs.append(log if self.done % 2 == 0 else -log)
        self.done += 1

    def levels(self, arm: str) -> dict[int, float]:
        """Log of the arm's median in ms, by cycle."""
        out: dict[int, list[float]] = {}
        for cycle, b in self.blocks.get(arm, ()):
            out.setdefault(cycle, []).append(math.log(block_median(b)))
        return {c: sum(v) / len(v) for c, v in out.items()}

    def ratio(self, arm: str, against: str = REFERENCE) -> Number:
        """Time of ``arm`` over that of ``against``, paired within cycles."""
        a, b = self.levels(arm), self.levels(against)
        logs = [a[c] - b[c] for c in sorted(a.keys() & b.keys())]
        if len(logs) < 2:
            return unavailable(f"only {len(logs)} cycles hold both", "×")
        centre, found = hodges_lehmann(logs), signed_rank_interval(logs) or t_interval(logs)
        return Number(value=math.exp(centre), ci=(math.exp(found[0]), math.exp(found[1])), n=len(logs), unit="×")

    def net(self, arm: str, alone: str) -> Number:
        """Time of ``arm`` over the plain step's, both without the harness: (arm − (reference − alone)) / alone by cycle. What
        the harness costs is taken as the same for every arm."""
        a, d, s = (self.levels(x) for x in (arm, REFERENCE, alone))
        ratios = [
            (math.exp(a[c]) - math.exp(d[c])) / math.exp(s[c]) + 1.0 for c in sorted(a.keys() & d.keys() & s.keys())
        ]
        if len(ratios) < 2:
            return unavailable(f"only {len(ratios)} cycles hold all three", "×")
        found = signed_rank_interval(ratios) or t_interval(ratios)
        return Number(
            value=hodges_lehmann(ratios), ci=(max(0.0, found[0]), found[1]), n=len(ratios), unit="×", quality="derived"
        )

    def floor(self) -> Number:
        """How far the same arm is from itself: the bound of the A/A interval, as a ratio − 1."""
        if len(self.pairs) < 3:
            return unavailable("fewer than three cycles")
        low, high = t_interval(self.pairs)
        return Number(value=math.exp(max(abs(low), abs(high))) - 1, n=len(self.pairs))

    def quantiles(self, arm: str) -> dict[str, Number]:
        """p50, p95, p99; of an arm so slow that few steps were taken, the median within their range."""
        out = quantile_summary(self.plain(arm))
        times = self.times(arm)
        if out["p50"].value is None and len(times) >= 3:
            why = f"only {len(times)} steps were taken: the interval is their range"
            out["p50"] = Number(float(np.median(times)), (min(times), max(times)), len(times), "ms", reason=why)
        return out

    def times(self, arm: str) -> list[float]:
        return [t for _, b in self.blocks.get(arm, ()) for t in b.times_ms]

    def plain(self, arm: str) -> list[Block]:
        return [b for _, b in self.blocks.get(arm, ())]


def fastest(cycles: Cycles, arms: Sequence[str]) -> str | None:
    """The arm of the lowest ratio to the reference."""
    known: Mapping[str, float] = {a: r.value for a in arms if (r := cycles.ratio(a)).value is not None}
    return min(known, key=lambda a: known[a]) if known else None


def slower(cycles: Cycles, arm: str, than: str) -> bool:
    """Whether ``arm`` measures slower than ``than`` beyond the floor, against each other or as each stands against the reference.

    Arms far from the best are left out of most cycles, so the two comparisons need not agree; a reader sees the second.
    """
    floor = cycles.floor().value or 0.0
    ratios = [cycles.ratio(arm, than).value]
    a, b = (1.0 if x == REFERENCE else cycles.ratio(x).value for x in (arm, than))
    ratios.append(a / b if a is not None and b else None)
    return any(r is not None and r > 1.0 + floor for r in ratios)
