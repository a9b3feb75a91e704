"""From suspicions to a verdict: materiality, confidence, and what could not be settled.

Mechanisms are tried in stage order and the first material one is the verdict. A mechanism is material if it breaks a claim or
an invariant, or if there is a gap to explain and its intervention closes a share of it whose interval excludes zero. What a
mechanism costs in the comparator too is no cause of the difference, and is taken off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from sparsetui.diagnosis.budget import regression_budget
from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.gains import (
    LEAST_SHARE,
    ONE_SIDED,
    closes,
    minor,
    net_closure,
    net_ms,
    rival_ms,
    share_of_gap,
    share_text,
    still_open,
    trial,
    tried,
    twin_share,
    why_untried,
)
from sparsetui.diagnosis.stats import Closure
from sparsetui.diagnosis.suspects import Suspect, gap, suspects
from sparsetui.evidence.records import Confidence, Finding, Number, RegressionBudget, Unanswered, Verdict, unavailable

_NOT_SETTLED, _NO_GAP_YET = "not settled", "whether there is a gap at all is undecided"
_UNTRIED_SHARE = 0.10  # of the step: what an untried mechanism must hold before two passes may blame it


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    findings: tuple[Finding, ...]
    unanswered: tuple[Unanswered, ...]
    budget: RegressionBudget | None


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


def _finding(case: Case, s: Suspect, state: str, why: str) -> Finding:
    m, seen = s.mechanism, s.failing
    t = trial(case, s)
    measured = t is not None and tried(case, s)
    confirmed = bool(seen.proved) or (measured and t is not None and t.closure is not None and t.closure.closes)
    agree = len({p for p in seen.passes if p in case.evidence_ids or not case.evidence_ids}) >= 2
    confidence: Confidence = "confirmed" if confirmed else "supported" if agree else "suspected"
    untried = seen.untried or "no intervention removes this mechanism"
    share = share_of_gap(case, s) if s.intervention else unavailable(untried)
    material, reason, by_twin = False, "", False
    if seen.broken and not (s.shared and _same_claim(s)):
        material, reason = True, seen.broken
        if m.yields and state == "open" and t is not None and t.valid and minor(share):
            material, reason = False, f"{seen.broken}, but the gap stays where that is put right: {share_text(share)}"
    elif state == "none":
        reason = f"it costs nothing that matters here: {why}"
    elif state == "undecided":
        reason = f"{_NO_GAP_YET}: {why}"
    elif seen.saves is not None and _twin_decides(case, s):
        material, reason, share = _by_twin(case, s, agree, share)
        by_twin = material
        confidence = "supported" if agree else "suspected"
    elif measured:
        material = closes(case, s, LEAST_SHARE)
        reason = share_text(share)
        if not material and (share.value is not None or share.reason == ONE_SIDED):
            reason = f"{_NOT_SETTLED if still_open(share) else 'it accounts for too little'}: {reason}"
    elif t is not None and t.check and not t.check.get("equal", True) and not m.fallback:
        reason = "its intervention changed the outputs, so it proves nothing"
    elif (m.net and not m.fallback) or m.rivals:
        only = "it is blamed by its intervention only, which was not measured"
        reason = t.failed if t is not None and t.failed else f"{_NOT_SETTLED}: {only}" if m.rivals else only
    else:
        extra = seen.share - (s.comparator.share if s.comparator else 0.0)
        if agree and extra >= _UNTRIED_SHARE:
            material = True
            why = why_untried(case, s)
            reason = f"it holds {100 * extra:.3g} % of the step; {seen.untried or 'no intervention could be measured'}"
            reason += f" ({why})" if why else ""
        else:
            little = seen.untried or "no intervention was measured, and too little is at stake"
            reason = why_untried(case, s) or little
    ids = list(case.ids(*seen.passes))
    if t is not None:
        ids += [e for e in t.evidence if e not in ids]
    proof = t.evidence[-1] if t is not None and t.evidence and t.valid and not by_twin else None
    summary = seen.summary
    if seen.proved:
        summary, proof = f"{summary}; {seen.proved}", next(iter(case.ids(seen.passes[0])), proof)
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


def _twin_decides(case: Case, s: Suspect) -> bool:
    """Where the live form gains nothing, a form of the twin that no rewrite can make of these weights may still: then its
    figures decide, or the want of them. Where nothing was tried and no twin was timed, what two passes saw has to do."""
    t, saves = trial(case, s), s.failing.saves
    valid = t is not None and t.valid
    if valid and closes(case, s, LEAST_SHARE):
        return False
    return valid or (saves is not None and saves.value is not None)


def _by_twin(case: Case, s: Suspect, agree: bool, live: Number) -> tuple[bool, str, Number]:
    """``(material, reason, share of the gap)`` by the twin's figures, beside those of the live form where it was tried."""
    t, saves, share = trial(case, s), s.failing.saves, twin_share(case, s)
    assert saves is not None
    tried = (
        f"; live, {share_text(live)}" if t is not None and t.valid else f"; live, {t.failed}" if t and t.failed else ""
    )
    if saves.value is None or saves.ci is None:
        return False, f"{_NOT_SETTLED}: {share_text(live)}, and {saves.reason or 'its twin was not timed'}", live
    if saves.ci[0] <= 0.0 or share.value is None:
        open_yet = t is not None and t.valid and still_open(live)
        return (
            False,
            f"{_NOT_SETTLED if open_yet else 'dense is right here'}: no form of its twin is clearly faster{tried}",
            live,
        )
    said = f"its twin, timed apart from the step, saves {100 * saves.value:.3g} % of it"
    if agree and share.value >= LEAST_SHARE and _part(case, share) >= _UNTRIED_SHARE:
        return True, said + tried, share
    return False, f"it accounts for too little: {said}{tried}", share


def _part(case: Case, share: Number) -> float:
    """A share of the gap as a share of the failing step."""
    c = case.comparison
    if share.value is None or c is None or c.ratio.value is None:
        return 0.0
    ideal = case.ideal_ratio if case.question == "missing-speedup" else 1.0
    return share.value * (1.0 - (ideal or 1.0) / c.ratio.value)


def _same_claim(s: Suspect) -> bool:
    """The comparator breaks the very same claim, so the release did not break it."""
    return s.comparator is not None and bool(s.comparator.broken) and s.mechanism.stage not in ("ingress", "lowering")


def _without_void(case: Case, found: Sequence[Suspect], findings: Sequence[Finding]) -> list[Finding]:
    """A mechanism that says 'nothing earlier is wrong' gives way to a rival that closes as much."""
    out = []
    for s, f in zip(found, findings, strict=True):
        best = net_ms(case, s)
        if f.material and s.mechanism.rivals and best is not None:
            for rival in s.mechanism.rivals:
                theirs = rival_ms(case, rival)
                if theirs is not None and theirs[0] > 0 and theirs[2] >= best[1]:
                    f = msgspec.structs.replace(
                        f, material=False, reason=f"{rival} gains as much, so an earlier mechanism explains it"
                    )
                    break
        out.append(f)
    return out


def _fault(first: Finding, later: Sequence[Finding]) -> Verdict:
    named = list(dict.fromkeys(p.module for p in first.where if p.module))
    where = ", ".join(named[:2]) + (f" and {len(named) - 2} more" if len(named) > 2 else "")
    text = f"{first.mechanism}: {first.summary}" + (f" (in {where})" if where else "")
    if (
        first.share_of_regression is not None
        and first.share_of_regression.value is not None
        and first.confidence == "confirmed"
    ):
        text += f"; {share_text(first.share_of_regression)}"
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
        if net_ms(case, s) is None:
            continue  # how much of it the comparator pays as well is not known
        closures[s.mechanism.id] = net_closure(case, s, t.closure)
    return regression_budget(case.comparison, closures, case.question, ideal_ratio=case.ideal_ratio)


def facts_of(findings: Sequence[Finding]) -> Mapping[str, str]:
    """Mechanism id -> material | ruled out, for playbooks."""
    return {f.mechanism: "material" if f.material else "ruled out" for f in findings}
