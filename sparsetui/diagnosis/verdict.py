"""From suspicions to a verdict: materiality, confidence, and what could not be settled.

Mechanisms are tried in stage order and the first material one is the verdict. A mechanism is material if it breaks a claim or
an invariant, or if there is a gap to explain and its intervention closes a share of it whose interval excludes zero. What a
mechanism costs in the comparator too is no cause of the difference, and is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sparsetui.diagnosis.budget import regression_budget
from sparsetui.diagnosis.case import Case, Trial
from sparsetui.diagnosis.catalogue import all_mechanisms
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.stats import Closure, Comparison
from sparsetui.diagnosis.stats.closures import Question
from sparsetui.evidence.records import (
    Confidence,
    Finding,
    Number,
    RegressionBudget,
    Unanswered,
    Verdict,
    unavailable,
)

LEAST_SHARE = 0.03  # an intervention that closes less of the gap than this is noted, not blamed
_CLAIM_SLACK = 0.04  # a claimed speed-up may be missed by so much before it counts as missing, however rough the floor
_FLOOR_CAP = 0.02  # a rough floor between processes does not hide what is plain inside one
_MOST = 0.5
_NOT_SETTLED, _NO_GAP_YET = "not settled", "whether there is a gap at all is undecided"
_ONE_SIDED = "it is present in both variants, and what it costs in the comparator was not measured"
_UNTRIED_SHARE = 0.10  # of the step: what an untried mechanism must hold before two passes may blame it


@dataclass(frozen=True)
class Suspect:
    """A mechanism that is present in the failing variant, and how it stands in the comparator."""

    mechanism: Mechanism
    failing: Suspicion
    comparator: Suspicion | None
    question: Question = "regression"

    @property
    def intervention(self) -> str | None:
        return self.failing.intervention or self.mechanism.intervention

    @property
    def shared(self) -> bool:
        """Present in the comparator as well."""
        return self.comparator is not None or self.mechanism.net

    @property
    def tried_on(self) -> tuple[str, ...]:
        """The variants its intervention has to be measured on.

        What a regression's comparator pays as well is not to blame, so only the difference counts. A missing speed-up is
        missed against the comparator as it is, and there all that the failing variant pays counts.
        """
        return ("failing", "comparator") if self.shared and self.question == "regression" else ("failing",)


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    findings: tuple[Finding, ...]
    unanswered: tuple[Unanswered, ...]
    budget: RegressionBudget | None


def suspects(case: Case) -> list[Suspect]:
    """Every mechanism that is present in the failing variant, in the order they are tried."""
    out = []
    for m in all_mechanisms():
        found = m.suspect(case, "failing")
        if found is not None:
            out.append(Suspect(m, found, m.suspect(case, "comparator"), case.question))
    return out


def gap(case: Case) -> tuple[str, str]:
    """``(state, why)``: state is ``open`` (there is a gap to explain), ``none`` or ``undecided``."""
    c = case.comparison
    if c is None:
        return "undecided", "latency was not measured"
    if case.declared.wanted is not None:
        return _speedup_gap(c, case.declared.wanted, "declared" if case.declared.speedup else "asked for")
    if c.verdict == "slower":
        return "open", c.reason
    if c.verdict in ("faster", "same"):
        return "none", c.reason
    return ("undecided", c.reason) if _could_matter(c) else ("none", c.reason)


def _could_matter(c: Comparison) -> bool:
    """An undecided comparison matters only if a slowdown beyond the threshold is still possible."""
    if c.decision_ci is None:
        return True
    return c.decision_ci[1] > 1.0 + max(c.band, c.threshold)


def _speedup_gap(c: Comparison, speedup: float, said: str) -> tuple[str, str]:
    ideal = 1.0 / speedup
    if c.ratio.value is None or c.ratio.ci is None or c.decision_ci is None:
        return "undecided", c.reason
    slack = 1.0 + min(c.floor.value or 0.0, _CLAIM_SLACK)
    real = 1.0 / c.ratio.value
    text = f"real speed-up {real:.3g}, {said} {speedup:.3g}"
    if c.decision_ci[0] > ideal * slack:
        return "open", text
    if c.ratio.value <= ideal * slack:
        return "none", text
    return "undecided", text + f" (interval of the ratio {c.decision_ci[0]:.3f} to {c.decision_ci[1]:.3f})"


def judge(case: Case) -> Judgement:
    """The whole decision. Deterministic in the case."""
    state, why = gap(case)
    found = suspects(case)
    findings = [_finding(case, s, state, why) for s in found]
    findings = _without_void(case, found, findings)
    material = [f for f in findings if f.material]
    budget = _budget(case, found, findings)
    unanswered: list[Unanswered] = []
    if material:
        verdict = _fault(material[0], material[1:])
    elif (
        state == "open"
        and case.declared.speedup is None
        and case.question == "missing-speedup"
        and not _pending(findings)
    ):
        verdict = Verdict(status="no_fault", summary=f"No fault: {why}; no claim is broken, and nothing that was switched off "
                          "live would make it faster")  # fmt: skip
    elif state == "open":
        verdict, ask = _unexplained(case, findings, why)
        unanswered.append(ask)
    elif state == "undecided":
        verdict = Verdict(status="cannot_answer", summary=f"Cannot tell whether the failing variant is slower: {why}")
        unanswered.append(Unanswered("Is the failing variant slower than the comparator?", why,
                                     "run again with a larger --budget, on a quieter host"))  # fmt: skip
    else:
        verdict = Verdict(status="no_fault", summary=f"No fault: {why}; no claim is broken.")
    unanswered += [
        Unanswered(f"{f.mechanism}: {f.question}", f.reason, "run again with a larger --budget, on a quieter host")
        for f in findings
        if not f.settled
    ]
    return Judgement(verdict, tuple(findings), tuple(unanswered), budget)


def trial(case: Case, s: Suspect, variant: str = "failing") -> Trial | None:
    return case.trials.get((s.intervention, variant)) if s.intervention else None


def _net(case: Case, s: Suspect) -> tuple[float, float, float] | None:
    """``(ms, low, high)`` that the intervention closes of the difference: failing's gain less the comparator's own."""
    t = trial(case, s)
    c = case.comparison
    if t is None or not t.valid or t.closure is None or c is None:
        return None
    mine = _gain(t.closure, c.failing_ms.value)
    if mine is None:
        return None
    value, half = mine
    if len(s.tried_on) > 1:
        theirs = _their_gain(case, s, value)
        if theirs is None:
            return None
        value -= theirs[0]
        half = math.hypot(half, theirs[1])
    return value, value - half, value + half


def _their_gain(case: Case, s: Suspect, mine: float) -> tuple[float, float] | None:
    """What the intervention takes off the comparator's step, given what it gains in the failing one; ``None`` if unknown.

    Where the comparator has the mechanism in a form that cannot be rewritten (its operand is made anew in each step, say),
    it is taken to gain in proportion to the time that the census saw in it, give or take all of that.
    """
    other, c = trial(case, s, "comparator"), case.comparison
    if other is None or c is None:
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


def _share(case: Case, s: Suspect) -> Number:
    """The share of the gap that the intervention closes, with the uncertainty of both."""
    net, whole = _net(case, s), _gap_ms(case)
    if net is None:
        t = trial(case, s)
        if t is not None and t.valid and len(s.tried_on) > 1 and _their_gain(case, s, 0.0) is None:
            return unavailable(_ONE_SIDED)
        return unavailable("no valid intervention was measured")
    if whole.value is None or whole.ci is None or whole.value <= 0:
        return unavailable("there is no gap between the variants to close")
    t = trial(case, s)
    n = t.closure.n if t and t.closure else None
    value = net[0] / whole.value
    rel = math.hypot((net[2] - net[0]) / whole.value, value * (whole.ci[1] - whole.ci[0]) / 2 / whole.value)
    return Number(value=value, ci=(value - rel, value + rel), n=n, quality="derived")


def _closes(case: Case, s: Suspect, least: float) -> bool:
    """The intervention itself gains (strictly decided inside one process), and the share it closes is above ``least``."""
    t = trial(case, s)
    if t is None or not t.valid or t.closure is None or not t.closure.closes:
        return False
    share, net, c = _share(case, s), _net(case, s), case.comparison
    if share.value is None or share.ci is None or net is None or c is None or c.failing_ms.value is None:
        return False
    above_floor = net[0] / c.failing_ms.value > min(c.floor.value or 0.0, _FLOOR_CAP)
    return share.ci[0] > 0.0 and share.value >= least and above_floor


def _finding(case: Case, s: Suspect, state: str, why: str) -> Finding:
    m, seen = s.mechanism, s.failing
    t = trial(case, s)
    confirmed = bool(seen.removed) or (t is not None and t.valid and t.closure is not None and t.closure.closes)
    agree = len({p for p in seen.passes if p in case.evidence_ids or not case.evidence_ids}) >= 2
    confidence: Confidence = "confirmed" if confirmed else "supported" if agree else "suspected"
    share = _share(case, s) if s.intervention else unavailable("no intervention removes this mechanism")
    material, reason = False, ""
    if seen.broken and not (s.shared and _same_claim(s)):
        material, reason = True, seen.broken
        if m.yields and state == "open" and t is not None and t.valid and _minor(share):
            material, reason = False, f"{seen.broken}, but the gap stays where that is put right: {_share_text(share)}"
    elif state == "none":
        reason = f"it costs nothing that matters here: {why}"
    elif state == "undecided":
        reason = f"{_NO_GAP_YET}: {why}"
    elif t is not None and t.valid:
        material = _closes(case, s, LEAST_SHARE)
        reason = _share_text(share)
        if not material and (share.value is not None or share.reason == _ONE_SIDED):
            reason = f"{_NOT_SETTLED if _open(share) else 'it accounts for too little'}: {reason}"
    elif t is not None and t.check and not t.check.get("equal", True):
        reason = "its intervention changed the outputs, so it proves nothing"
    elif m.net:
        reason = (
            t.failed if t is not None and t.failed else "it is blamed by its intervention only, which was not measured"
        )
    else:
        extra = seen.share - (s.comparator.share if s.comparator else 0.0)
        if agree and extra >= _UNTRIED_SHARE:
            material = True
            reason = f"it holds {100 * extra:.3g} % of the step; no intervention could be measured"
        else:
            reason = (
                t.failed if t is not None and t.failed else "no intervention was measured, and too little is at stake"
            )
    ids = list(case.ids(*seen.passes))
    if t is not None:
        ids += [e for e in t.evidence if e not in ids]
    proof = t.evidence[-1] if t is not None and t.evidence and t.valid else None
    summary = seen.summary
    if seen.removed:
        summary, proof = f"{summary}; gone with {seen.removed}", next(iter(case.ids(seen.passes[0])), proof)
        share = unavailable("what was switched off shows in results or memory, not in time")
    return Finding(
        stage=m.stage,
        mechanism=m.id,
        confidence=confidence,
        material=material,
        summary=summary,
        owner=m.role,
        where=seen.where,
        share_of_regression=share,
        figure=seen.figure,
        evidence=tuple(ids),
        intervention=proof,
        question=m.question,
        fix=m.fix,
        boundary=m.boundary,
        rollback=m.rollback,
        closes=m.closes,
        reason=reason,
        settled=not reason.startswith((_NOT_SETTLED, _NO_GAP_YET)),
    )


def _open(share: Number) -> bool:
    """The share may yet turn out to matter: its interval reaches above the least that counts."""
    if share.value is None:
        return share.reason == _ONE_SIDED
    return share.ci is not None and share.value >= LEAST_SHARE and share.ci[1] > LEAST_SHARE


def _minor(share: Number) -> bool:
    """The share was measured, and even the upper end of its interval leaves most of the gap to others."""
    return share.value is not None and share.ci is not None and share.ci[1] < _MOST and share.ci[0] <= LEAST_SHARE


def _same_claim(s: Suspect) -> bool:
    """The comparator breaks the very same claim, so the release did not break it."""
    return s.comparator is not None and bool(s.comparator.broken) and s.mechanism.stage not in ("ingress", "lowering")


def _share_text(share: Number) -> str:
    if share.value is None:
        return share.reason or "no share"
    low, high = share.ci or (math.nan, math.nan)
    figures = f"{100 * share.value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
    if low > 1.0:
        return f"its intervention gains more than the gap: {figures} of it"
    return f"its intervention closes {figures} of the gap"


def _without_void(case: Case, found: Sequence[Suspect], findings: Sequence[Finding]) -> list[Finding]:
    """A mechanism that says 'nothing earlier is wrong' gives way to a rival that closes as much."""
    out = []
    for s, f in zip(found, findings, strict=True):
        best = _net(case, s)
        if f.material and s.mechanism.rivals and best is not None:
            for rival in s.mechanism.rivals:
                theirs = _rival_net(case, rival)
                if theirs is not None and theirs[0] > 0 and theirs[2] >= best[1]:
                    f = msgspec.structs.replace(
                        f, material=False, reason=f"{rival} gains as much, so an earlier mechanism explains it"
                    )
                    break
        out.append(f)
    return out


def _rival_net(case: Case, rival: str) -> tuple[float, float, float] | None:
    t = case.trials.get((rival, "failing"))
    if t is None or not t.valid or t.closure is None or not t.closure.closes or case.comparison is None:
        return None
    g = _gain(t.closure, case.comparison.failing_ms.value)
    return None if g is None else (g[0], g[0] - g[1], g[0] + g[1])


def _fault(first: Finding, later: Sequence[Finding]) -> Verdict:
    named = [p.module for p in first.where if p.module]
    where = ", ".join(named[:2]) + (f" and {len(named) - 2} more" if len(named) > 2 else "")
    text = f"{first.mechanism}: {first.summary}" + (f" (in {where})" if where else "")
    if (
        first.share_of_regression is not None
        and first.share_of_regression.value is not None
        and first.confidence == "confirmed"
    ):
        text += f"; {_share_text(first.share_of_regression)}"
    if later:
        text += f". Also material: {', '.join(map(_with_share, later))}"
    return Verdict(
        status="fault",
        summary=text,
        stage=first.stage,
        mechanism=first.mechanism,
        confidence=first.confidence,
        where=first.where,
        share_of_regression=first.share_of_regression,
        owner=first.owner,
        evidence=first.evidence,
        intervention=first.intervention,
        fix=first.fix,
        boundary=first.boundary,
        rollback=first.rollback,
    )


def _with_share(f: Finding) -> str:
    share = f.share_of_regression
    closed = f" ({100 * share.value:.0f} % of the gap)" if share is not None and share.value is not None else ""
    return f.mechanism + closed


def _pending(findings: Sequence[Finding]) -> list[Finding]:
    """Findings whose share of the gap may yet turn out to matter."""
    return [f for f in findings if f.reason.startswith(_NOT_SETTLED)]


def _unexplained(case: Case, findings: Sequence[Finding], why: str) -> tuple[Verdict, Unanswered]:
    pending = _pending(findings)
    if pending:
        text = f"The gap is real ({why}); its cause is not settled: " + "; ".join(
            f"{f.mechanism}, {f.reason}" for f in pending
        )
        settle = "run again with a larger --budget, on a quieter host: the interventions need more cycles"
        return Verdict(status="cannot_answer", summary=text), Unanswered(
            "Which mechanism causes the gap?", text, settle
        )
    closest = [f.mechanism for f in findings]
    text = f"The gap is real ({why}), but no mechanism of the catalogue accounts for it"
    if closest:
        text += f"; ruled out: {', '.join(closest)}"
    settle = "look at the op table and the native stacks of this session, or import a trace of both variants"
    if not case.native:
        settle = "run with py-spy or perf permitted (sparsetui doctor), so that the native pass can name the kernels"
    return (
        Verdict(status="cannot_answer", summary=text),
        Unanswered("Which mechanism causes the gap?", text, settle),
    )


def _budget(case: Case, found: Sequence[Suspect], findings: Sequence[Finding]) -> RegressionBudget | None:
    if case.comparison is None:
        return None
    closures: dict[str, Closure] = {}
    for s, f in zip(found, findings, strict=True):
        t = trial(case, s)
        if t is None or not t.valid or t.closure is None:
            continue
        if s.mechanism.rivals and not f.material:
            continue  # void: another line already accounts for it
        if _net(case, s) is None:
            continue  # how much of it the comparator pays as well is not known
        closures[s.mechanism.id] = _net_closure(case, s, t.closure)
    return regression_budget(case.comparison, closures, case.question, ideal_ratio=case.ideal_ratio)


def _net_closure(case: Case, s: Suspect, closure: Closure) -> Closure:
    """The closure with its effect reduced by what the same intervention gains in the comparator."""
    net, step = _net(case, s), case.comparison.failing_ms.value if case.comparison else None
    if len(s.tried_on) < 2 or net is None or not step:
        return closure
    effect = msgspec.structs.replace(closure.effect, value=net[0] / step, ci=(net[1] / step, net[2] / step))
    return msgspec.structs.replace(closure, effect=effect)


def facts_of(findings: Sequence[Finding]) -> Mapping[str, str]:
    """Mechanism id -> material | ruled out, for playbooks."""
    return {f.mechanism: "material" if f.material else "ruled out" for f in findings}
