"""The same rounds as an undisturbed host would have shown them: what lets a noisy host still say that nothing changed.

A neighbour that takes the core or the caches slows some steps and leaves others alone. The lower fifth of the repeats of each
input, pooled over a round, is therefore far steadier than block medians: on a two-core host with a load of four its standard
error was a third to two thirds of theirs. It is blind to whatever slows only some of an input's steps, so it may end a search
for a slowdown and never claim one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from sparsetui.diagnosis.stats.comparison import Comparison, compare
from sparsetui.diagnosis.stats.rounds import Block, Round

QUANTILE = 0.2
_LEAST = 5  # repeats an input needs before its lower fifth means something


def calm(taken: Round, inputs: int) -> Round | None:
    """``taken`` with one level a variant: the mean log of each input's lower fifth. ``None`` where repeats are too few.

    ``inputs`` is the number of distinct inputs that the steps went through in order. Both variants get as many repeats of each
    input, since a quantile of fewer lies higher.
    """
    mine, theirs = _by_input(taken.failing, inputs), _by_input(taken.comparator, inputs)
    pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if min(len(a), len(b)) >= _LEAST]
    if not pairs:
        return None
    levels = np.zeros(2)
    for a, b in pairs:
        n = min(len(a), len(b))
        levels += [math.log(np.quantile(x[:n], QUANTILE)) for x in (a, b)]
    f, c = np.exp(levels / len(pairs))
    return Round(
        _blocks("failing", taken.failing[0].replica, float(f)),
        _blocks("comparator", taken.comparator[0].replica, float(c)),
    )


def _by_input(blocks: Sequence[Block], inputs: int) -> list[list[float]]:
    out: list[list[float]] = [[] for _ in range(max(1, inputs))]
    at = 0
    for b in blocks:
        for k, t in enumerate(b.times_ms):
            if t > 0 and math.isfinite(t):
                out[(at + k) % len(out)].append(t)
        at += len(b.times_ms)
    return out


def _blocks(variant: str, replica: str, level: float) -> list[Block]:
    return [Block(variant, replica, i, (level,)) for i in (0, 1)]


def settle_by_calm(found: Comparison, rounds: Sequence[Round], inputs: int, threshold: float) -> Comparison:
    """``found`` as it is, or ``same`` where it is undecided, its interval holds 1, and the undisturbed steps agree."""
    if found.verdict != "undecided" or found.ratio.ci is None or not found.ratio.ci[0] <= 1.0 <= found.ratio.ci[1]:
        return found
    still = [r for r in (calm(r, inputs) for r in rounds) if r is not None]
    if len(still) < len(rounds):
        return found
    quiet = compare(still, threshold=threshold)
    if quiet.verdict != "same" or quiet.ratio.value is None or quiet.ratio.ci is None:
        return found
    low, high = quiet.ratio.ci
    all_steps = f"{found.ratio.value:.3f} [{found.ratio.ci[0]:.3f}, {found.ratio.ci[1]:.3f}]"
    why = f"all steps {all_steps} on a disturbed host; the undisturbed fifth of each input's steps {quiet.ratio.value:.3f} "
    why += f"[{low:.3f}, {high:.3f}], the same within ±{quiet.band:.0%}"
    return msgspec.structs.replace(found, verdict="same", reason=why)
