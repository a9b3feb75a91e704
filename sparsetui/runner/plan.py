"""The plan of a whole investigation: in which order the passes run, and how the budget is spread.

What decides cheaply comes first. Latency and interventions share what is left; what the interventions do not need goes back to
the clock, which is where the uncertainty usually is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsetui.diagnosis.verdict import Suspect, suspects

if TYPE_CHECKING:
    from sparsetui.runner.investigation import Investigation

_CLOCK_SHARE = 0.45  # of what is left after the passes, while there are suspects to try
_TRIAL_S = 1.2  # the least that an intervention needs, before steps are slow
_CLOSE_S = 0.5  # to fold, judge and write


def run_plan(run: Investigation) -> None:
    """All passes, then the clock, then interventions in stage order, then the clock again for what is left."""
    if not run.ready():
        return
    for name in ("inventory", "lock", "outputs", "quality", "census", "profile", "native"):
        if not run.faults:
            run.check_cancelled()
            run.run_pass(name)
    if run.faults:
        return
    run.extra_probes()
    waiting = _worth_trying(run)
    reserve = min(run.left * (1 - _CLOCK_SHARE), sum(_cost(run, s) for s in waiting))
    run.take_clock(until=reserve + _CLOSE_S)
    if run.faults:
        return
    gap_open = run.open_gap
    for i, s in enumerate(waiting):
        share = max(0.5, (run.left - _CLOSE_S) / (len(waiting) - i))
        if gap_open == "none" and not s.failing.broken:
            continue  # nothing to explain: an intervention would prove what does not matter
        if run.left < 0.5 and i > 0:
            break
        run.try_out(s, seconds=min(share, 3 * _cost(run, s)))
    if run.open_gap == "undecided" and run.left > 2.0:
        run.take_clock(until=_CLOSE_S)


def _worth_trying(run: Investigation) -> list[Suspect]:
    return [s for s in suspects(run.case()) if s.intervention]


def _cost(run: Investigation, s: Suspect) -> float:
    """Seconds that a trial of this suspect takes: the check, the twins, and a handful of cycles of six blocks."""
    both = ("failing", "comparator") if s.shared else ("failing",)
    return sum(_TRIAL_S + 4 * 6 * 4 * run.step_ms(v) / 1e3 for v in both)
