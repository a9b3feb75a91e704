"""The verdict when a variant could not be run: a fault of the model's own where evidence shows one, else an honest refusal."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.verdict import Judgement, judge
from sparsetui.evidence.records import Unanswered, Verdict
from sparsetui.worker.faults import Fault


def judge_failed(case: Case, faults: Mapping[str, Fault]) -> Judgement:
    """What the evidence from before the failure already decides stands; the failure itself is said either way."""
    said = "; ".join(f"the {v} variant ends in {_line(f)}" for v, f in faults.items())
    judgement = judge(case)
    asks = tuple(Unanswered(f"How does the {v} variant perform?", _line(f), _settle(f)) for v, f in faults.items())
    if judgement.verdict.status == "fault":
        verdict = msgspec.structs.replace(
            judgement.verdict, summary=f"{judgement.verdict.summary}. Nothing could be measured after it: {said}"
        )
        return Judgement(verdict, judgement.findings, asks, judgement.budget)
    return Judgement(Verdict(status="cannot_answer", summary=f"No verdict: {said}"), judgement.findings, asks, None)


def _line(f: Fault) -> str:
    """What happened, without whose worker was asked what."""
    return f.message.removeprefix(f"{f.label}: ").removeprefix(f"{f.verb}: ")


def _settle(f: Fault) -> str:
    if f.kind == "launch":
        return (
            "give the variant an interpreter that has torch >= 2.2 (python = … in the workload), see sparsetui doctor"
        )
    if f.kind == "timeout":
        return "give it a larger --budget, or find why it does not return; its last words are in the session's log"
    if f.kind == "memory":
        return "run on a host with more memory, or give the workload smaller inputs"
    return "mend the entry so that it runs alone; the traceback and stderr are in the session (sparsetui sessions show)"
