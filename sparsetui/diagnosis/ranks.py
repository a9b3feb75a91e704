"""Several ranks of one run side by side: how far they spread, who lags, who waits, and for whom.

In a synchronous run the rank that comes last into a collective waits least in it, and all others wait for it. So waiting is
evidence about the *others*: the rank to look at is the one with the least of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sparsetui.evidence.records import Number, unavailable

MATTERS = 0.05  # of a rank's time: waiting that differs by less names nobody
LAGS = 1.1  # × the others' median work, and three robust standard deviations beyond it


class Rank(msgspec.Struct, frozen=True):
    """One rank, over the same span as the others: ``work`` and ``waiting`` in one unit (ms of a step, or shares of time).

    ``waiting`` is time in collectives, barriers and waits. ``samples`` counts what a sampler's shares rest on.
    """

    name: str
    work: float
    waiting: float
    host: str = ""
    step_ms: float | None = None
    samples: int | None = None

    @property
    def share(self) -> float:
        """Share of the rank's time that it waited."""
        total = self.work + self.waiting
        return self.waiting / total if total > 0 else 0.0


class RankVerdict(msgspec.Struct, frozen=True):
    """``waits`` and ``waited_for`` are empty where the ranks do not differ enough to say."""

    summary: str
    spread: Number  # most work over least
    waits: str = ""
    waited_for: str = ""
    stragglers: tuple[str, ...] = ()
    why: str = ""


def judge(ranks: Sequence[Rank]) -> RankVerdict:
    """What the ranks show of each other. Raises ValueError on fewer than two."""
    if len(ranks) < 2:
        raise ValueError("ranks are compared with each other: at least two are needed")
    work = np.array([r.work for r in ranks])
    waiting = np.array([r.share for r in ranks])
    least = float(work.min())
    spread = (
        Number(float(work.max()) / least, n=len(ranks), unit="×", quality="derived", reason="most work over least")
        if least > 0
        else unavailable("a rank did no work that was seen")
    )
    lag = _stragglers(ranks, work)
    most, fewest = ranks[int(waiting.argmax())], ranks[int(waiting.argmin())]
    gap = most.share - fewest.share
    noise = _sampling_noise(most, fewest)
    if gap < max(MATTERS, noise):
        why = f"waiting differs by {gap:.0%} of the time, " + (
            f"less than the {MATTERS:.0%} that count"
            if noise <= MATTERS
            else f"within the {noise:.0%} that so few samples leave open"
        )
        return RankVerdict(f"{len(ranks)} ranks, none waits for another: {why}.", spread, stragglers=lag, why=why)
    others = np.array([r.work for r in ranks if r is not fewest])
    longer = fewest.work / float(np.median(others)) if np.median(others) > 0 else float("inf")
    why = (
        f"it works {longer:.2f}× as long as the others before it arrives"
        if longer > 1 + MATTERS / 2
        else "its own work is no longer than theirs: what holds it up is outside of what was seen (input, host, another stream)"
    )
    shares = f"{most.name} waits {most.share:.0%} of its time, {fewest.name} {fewest.share:.0%}"
    said = f"{shares}: the others wait for {fewest.name}; {why}."
    return RankVerdict(said, spread, most.name, fewest.name, lag, why)


def _stragglers(ranks: Sequence[Rank], work: Any) -> tuple[str, ...]:
    out = []
    for i, r in enumerate(ranks):
        rest = np.delete(work, i)
        centre = float(np.median(rest))
        scale = 1.4826 * float(np.median(np.abs(rest - centre)))
        if centre > 0 and r.work > LAGS * centre and r.work > centre + 3 * scale:
            out.append(r.name)
    return tuple(out) if len(ranks) > 2 else ()


def _sampling_noise(a: Rank, b: Rank) -> float:
    """Twice the standard error of the difference of two sampled shares; 0 for times that were recorded whole."""
    if a.samples is None or b.samples is None:
        return 0.0
    var = sum(r.share * (1 - r.share) / max(1, r.samples or 0) for r in (a, b))
    return float(2.0 * var**0.5)


def section(ranks: Sequence[Rank], verdict: RankVerdict) -> dict[str, Any]:
    """The body of the section ``ranks``."""
    rows = [
        {"rank": r.name, "host": r.host, "work": Number(r.work, n=r.samples), "waiting": Number(r.waiting, n=r.samples),
         "waiting_share": Number(r.share, n=r.samples, unit="of its time"),
         "step_ms": Number(r.step_ms, unit="ms") if r.step_ms is not None else unavailable("its steps were not marked"),
         "role": "waited for" if r.name == verdict.waited_for else "waits" if r.name == verdict.waits
         else "straggler" if r.name in verdict.stragglers else ""}
        for r in ranks
    ]  # fmt: skip
    body: dict[str, Any] = {
        "summary": verdict.summary,
        "waits": verdict.waits,
        "waited_for": verdict.waited_for,
        "stragglers": ", ".join(verdict.stragglers),
        "most_work_over_least": verdict.spread,
        "rows": rows,
    }
    return {k: v for k, v in body.items() if v != ""}


def of_traces(spread: dict[str, Any]) -> list[Rank]:
    """Ranks from what :func:`sparsetui.ingest.traces.spread` found in the traces of one run."""
    out = []
    for r in spread["ranks"]:
        name = f"rank {r['rank']}" if r["rank"] is not None else str(r["file"]).rsplit("/", 1)[-1]
        out.append(
            Rank(name, float(r["compute_ms"] or 0.0), float(r["collective_ms"] or 0.0), step_ms=r["step_p50_ms"])
        )
    names = [r.name for r in out]
    return [
        msgspec.structs.replace(r, name=f"{r.name} #{i}") if names.count(r.name) > 1 else r for i, r in enumerate(out)
    ]
