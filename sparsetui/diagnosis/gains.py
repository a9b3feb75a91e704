"""What an intervention gains: in ms, net of what it gains in the comparator too, and as a share of the gap."""

from __future__ import annotations

import math

import msgspec

from sparsetui.diagnosis.case import Case, Trial
from sparsetui.diagnosis.stats import Closure
from sparsetui.diagnosis.stats.comparison import PROCESS_SD
from sparsetui.diagnosis.suspects import Suspect
from sparsetui.evidence.records import Number, unavailable

LEAST_SHARE = 0.03  # an intervention that closes less of the gap than this is noted, not blamed
ONE_SIDED = "it is present in both variants, and what it costs in the comparator was not measured"
_FLOOR_CAP = 0.02  # a rough floor between processes does not hide what is plain inside one
_MOST = 0.5
_TELLS_NOTHING = 5.0  # of the gap: a wider interval of a share says nothing, and its figures only confuse


def trial(case: Case, s: Suspect, variant: str = "failing") -> Trial | None:
    return case.trials.get((s.intervention, variant)) if s.intervention else None


def tried(case: Case, s: Suspect) -> bool:
    """The intervention was measured, so that what it gains decides. One that may be done without counts only where it applied
    to every variant that it had to be measured on."""
    variants = s.tried_on if s.mechanism.fallback else ("failing",)
    return all(t is not None and t.valid for t in (trial(case, s, v) for v in variants))


def why_untried(case: Case, s: Suspect) -> str:
    """Why the intervention could not be measured, where a trial says so."""
    found = ((v, trial(case, s, v)) for v in s.tried_on)
    return next(
        (t.failed if v == "failing" else f"in the comparator, {t.failed}" for v, t in found if t and t.failed), ""
    )


def net_ms(case: Case, s: Suspect) -> tuple[float, float, float] | None:
    """``(ms, low, high)`` that the intervention closes of the difference: failing's gain less the comparator's own.

    What both gain cancels only as well as two processes agree. A bounded mechanism is credited with what is at stake in the
    failing variant, as far as the intervention removes it, and the comparator's whole gain is taken off all the same.
    """
    t = trial(case, s)
    c = case.comparison
    if t is None or not t.valid or t.closure is None or c is None:
        return None
    mine = _gain(t.closure, c.failing_ms.value)
    if mine is None:
        return None
    value, half = mine
    if s.mechanism.bounded:
        value = min(value, s.failing.share * float(t.check.get("reach", 1.0)) * float(c.failing_ms.value or 0.0))
    if len(s.tried_on) > 1:
        theirs = _their_gain(case, s, value)
        if theirs is None:
            return None
        common = max(0.0, min(value, theirs[0]))
        value -= theirs[0]
        half = math.hypot(half, theirs[1], 2.0 * PROCESS_SD * common)
    return _sober(case, t.closure, value, half)


def _sober(case: Case, closure: Closure, value: float, half: float) -> tuple[float, float, float]:
    """``(ms, low, high)`` of a gain, no larger than the gap unless the plain step bears it out.

    The pass-through mode costs time for each op. Where the mechanism's ops are gone, so is what the mode cost for them, and
    control less intervened says too much by that. It is taken to be their share of the ops; where that is not known it may be
    all that the mode cost. A gain beyond the gap, which something else would have to eat up, is claimed only as far as it
    stands without.
    """
    whole, off, on = _gap_ms(case).value, closure.control_ratio.value, closure.closed_ratio.value
    step = case.comparison.failing_ms.value if case.comparison else None
    if whole is None or off is None or on is None or step is None or not 0.0 < whole < value:
        return value, value - half, value + half
    less = max(0.0, off - 1.0) * step * (1.0 if closure.skipped is None else closure.skipped)
    sober = max(whole, value - less)
    return min(sober, value), min(value - half, value - less), value + half


def _their_gain(case: Case, s: Suspect, mine: float) -> tuple[float, float] | None:
    """What the intervention takes off the comparator's step, given what it gains in the failing one; ``None`` if unknown.

    Where the comparator has the mechanism in a form that cannot be rewritten (its operand is made anew in each step, say),
    it is taken to gain in proportion to the time that the census saw in it, give or take all of that.
    """
    other, c = trial(case, s, "comparator"), case.comparison
    if other is None or c is None or (s.mechanism.fallback and not other.valid):
        return None
    if other.check and not other.check.get("applied"):
        if s.comparator is None or s.failing.ms <= 0.0:
            return 0.0, 0.0
        likely = max(0.0, mine) * s.comparator.ms / s.failing.ms
        return likely, likely
    return _gain(other.closure, c.comparator_ms.value) if other.valid and other.closure is not None else None


def _gain(closure: Closure, step_ms: float | None) -> tuple[float, float] | None:
    """``(ms, half width)`` that the intervention takes off this variant's step."""
    e = closure.effect
    if e.value is None or e.ci is None or step_ms is None:
        return None
    return e.value * step_ms, (e.ci[1] - e.ci[0]) / 2 * step_ms


def rival_ms(case: Case, rival: str) -> tuple[float, float, float] | None:
    t = case.trials.get((rival, "failing"))
    if t is None or not t.valid or t.closure is None or not t.closure.closes or case.comparison is None:
        return None
    g = _gain(t.closure, case.comparison.failing_ms.value)
    return None if g is None else (g[0], g[0] - g[1], g[0] + g[1])


def _gap_ms(case: Case) -> Number:
    c = case.comparison
    if c is None or c.failing_ms.value is None or c.ratio.value is None or c.ratio.ci is None:
        return unavailable("latency was not measured", "ms")
    ideal = case.ideal_ratio if case.question == "missing-speedup" else 1.0
    assert ideal is not None

    def at(r: float) -> float:
        return float(c.failing_ms.value or 0.0) * (1.0 - ideal / r)

    return Number(
        value=at(c.ratio.value), ci=(at(c.ratio.ci[0]), at(c.ratio.ci[1])), n=c.rounds, unit="ms", quality="derived"
    )


def share_of_gap(case: Case, s: Suspect) -> Number:
    """The share of the gap that the intervention closes, with the uncertainty of both."""
    net, whole = net_ms(case, s), _gap_ms(case)
    if net is None:
        t = trial(case, s)
        if t is not None and t.valid and len(s.tried_on) > 1 and _their_gain(case, s, 0.0) is None:
            return unavailable(ONE_SIDED)
        return unavailable("no valid intervention was measured")
    if whole.value is None or whole.ci is None or whole.value <= 0:
        return unavailable("there is no gap between the variants to close")
    t = trial(case, s)
    n = t.closure.n if t and t.closure else None
    value = net[0] / whole.value
    of_gap = value * (whole.ci[1] - whole.ci[0]) / 2 / whole.value
    low, high = (math.hypot((end - net[0]) / whole.value, of_gap) for end in net[1:])
    return Number(value=value, ci=(value - low, value + high), n=n, quality="derived")


def closes(case: Case, s: Suspect, least: float) -> bool:
    """The intervention itself gains (strictly decided inside one process), and the share it closes is above ``least``."""
    t = trial(case, s)
    if t is None or not t.valid or t.closure is None or not t.closure.closes:
        return False
    share, net, c = share_of_gap(case, s), net_ms(case, s), case.comparison
    if share.value is None or share.ci is None or net is None or c is None or c.failing_ms.value is None:
        return False
    above_floor = net[0] / c.failing_ms.value > min(c.floor.value or 0.0, _FLOOR_CAP)
    return share.ci[0] > 0.0 and share.value >= least and above_floor


def twin_share(case: Case, s: Suspect) -> Number:
    """The share of the gap that the best form of the failing variant's twin would close, less what the comparator's would.

    A twin is timed apart from the step, so this is an estimate, and no line of the regression budget.
    """
    mine, theirs, whole, c = (
        s.failing.saves,
        s.comparator.saves if s.comparator else None,
        _gap_ms(case),
        case.comparison,
    )
    if mine is None or mine.value is None or mine.ci is None:
        return unavailable(mine.reason if mine is not None and mine.reason else "it has no twin")
    if whole.value is None or whole.value <= 0 or c is None or not c.failing_ms.value:
        return unavailable("there is no gap between the variants to close")
    part, (low, high) = whole.value / c.failing_ms.value, mine.ci
    value = mine.value
    if theirs is not None and theirs.value is not None and c.comparator_ms.value and case.question == "regression":
        less = theirs.value * c.comparator_ms.value / c.failing_ms.value
        value, low, high = value - less, low - less, high - less
    return Number(value=value / part, ci=(low / part, high / part), n=mine.n, quality="estimated",
                  reason="of a twin that was timed apart from the step")  # fmt: skip


def still_open(share: Number) -> bool:
    """The share may yet turn out to matter: its interval reaches above the least that counts."""
    if share.value is None:
        return share.reason == ONE_SIDED
    return share.ci is not None and share.value >= LEAST_SHARE and share.ci[1] > LEAST_SHARE


def minor(share: Number) -> bool:
    """The share was measured, and even the upper end of its interval leaves most of the gap to others."""
    return share.value is not None and share.ci is not None and share.ci[1] < _MOST and share.ci[0] <= LEAST_SHARE


def share_text(share: Number) -> str:
    if share.value is None:
        return share.reason or "no share"
    low, high = share.ci or (math.nan, math.nan)
    figures = f"{100 * share.value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
    if high - low > _TELLS_NOTHING:
        return "how much of the gap its intervention closes cannot be told: its interval is wider than the gap several times over"
    if low > 1.0:
        return f"its intervention gains more than the gap: {figures} of it"
    return f"its intervention closes {figures} of the gap"


def net_closure(case: Case, s: Suspect, closure: Closure) -> Closure:
    """The closure with its effect reduced to what counts: net of the comparator's gain, and no more than is at stake."""
    net, step = net_ms(case, s), case.comparison.failing_ms.value if case.comparison else None
    if net is None or not step or closure.effect.value is None:
        return closure
    if len(s.tried_on) < 2 and net[0] >= closure.effect.value * step:
        return closure
    effect = msgspec.structs.replace(closure.effect, value=net[0] / step, ci=(net[1] / step, net[2] / step))
    return msgspec.structs.replace(closure, effect=effect)
