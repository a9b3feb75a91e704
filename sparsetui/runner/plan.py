"""The plan of a whole investigation: in which order the passes run, and how the budget is spread.

What decides cheaply comes first. Latency and interventions share what is left; what the interventions do not need goes back to
the clock, which is where the uncertainty usually is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsetui.diagnosis.suspects import Suspect, suspects
from sparsetui.runner import calm, clocking, trials
from sparsetui.runner.equipment import VARIANTS

if TYPE_CHECKING:
    from sparsetui.runner.lab import Lab

_CLOCK_SHARE = 0.45  # of what is left after the passes, while there are suspects to try
_NATIVE_FROM = 0.55  # of the budget that must still be left for the native pass to run before the clock
_NATIVE_LEAST_S = 15.0  # with less than this, the three seconds that samplers take are better spent on rounds
_CALM_SHARE = 0.35  # of the budget: what waiting for calm may take, where the host is at work on one variant
_TRIAL_S = 0.8  # the least that an intervention needs, before steps are slow
_LATE = 0.05  # of the budget: a round or a trial may take so much longer than it was thought to
_GROWTH_S, _GROWTH_STEPS = 0.2, 48  # the calls, and the steps that the probe takes
_KEEP_FOR_TAILS = 0.1  # of the budget: once the question is answered, tails may take time down to this
_CLOSE_S = 0.5  # to fold, judge and write


def run_plan(lab: Lab) -> None:
    """What decides by itself, then the clock, then interventions in stage order, then whatever the budget still allows."""
    if not lab.ready():
        return
    for name in ("inventory", "lock", "census", "profile", "outputs", "quality"):
        lab.check_cancelled()
        lab.run_pass(name)
        if lab.faults:
            lab.autopsy()
            lab.extra_probes(late=False)
            return
    lab.extra_probes(late=False)
    if lab.left > max(_NATIVE_FROM * lab.budget_s, _NATIVE_LEAST_S):
        lab.run_pass("native")
    # one that must give way to its rivals is tried after them
    waiting = sorted((s for s in suspects(lab.case()) if s.intervention), key=lambda s: bool(s.mechanism.rivals))
    reserve = min(lab.left * (1 - _CLOCK_SHARE), sum(_cost(lab, s) for s in waiting))
    clocking.take_clock(lab, until=reserve + _keep_s(lab), spare=_CALM_SHARE * lab.budget_s)
    if lab.faults:
        return
    _interventions(lab, waiting)
    if lab.open_gap == "undecided" and lab.left > 0.1 * lab.budget_s:
        clocking.take_clock(lab, until=_keep_s(lab), spare=_CALM_SHARE / 2 * lab.budget_s)
    if lab.open_gap == "open":
        calm.look(lab, keep_s=_keep_s(lab))
        trials.sharpen(lab, waiting, keep_s=_keep_s(lab))
    if lab.left > 0.2 * lab.budget_s:
        lab.run_pass("native")
    lab.extra_probes(late=True)
    if not lab.calm:  # rounds from before and after the calm would be of two hosts
        clocking.take_tails(lab, until=_KEEP_FOR_TAILS * lab.budget_s)


def _interventions(lab: Lab, waiting: list[Suspect]) -> None:
    nothing_to_explain = lab.open_gap == "none"
    for i, s in enumerate(waiting):
        if nothing_to_explain and not s.failing.broken:
            continue  # an intervention would prove what does not matter
        if lab.left < _CLOSE_S and i > 0:
            return
        share = max(0.5, (lab.left - _keep_s(lab)) / (len(waiting) - i))
        trials.try_out(lab, s, seconds=min(share, 2.5 * _cost(lab, s)))


def _keep_s(lab: Lab) -> float:
    """Seconds that the clock and the interventions leave over: for looking for growth, which is a fault by itself, and to judge."""
    growth = sum(min(lab.budget_s / 30, _GROWTH_STEPS * lab.step_ms(v) / 1e3) for v in VARIANTS)
    return max(_CLOSE_S, _LATE * lab.budget_s + _GROWTH_S + growth)


def _cost(lab: Lab, s: Suspect) -> float:
    """Seconds that a trial of this suspect takes: the check, the twins, and a handful of cycles of six blocks."""
    return sum(_TRIAL_S + 4 * 6 * 4 * lab.step_ms(v) / 1e3 for v in s.tried_on)
