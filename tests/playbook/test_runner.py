from __future__ import annotations

import pytest

from sparsetui.playbook.runner import describe, holds, next_step, walk
from sparsetui.playbook.spec import Condition, PlaybookError, parse

BOOK = """\
id: t
title: T
question: regression
steps:
  - id: gap
    stage: execution
    ask: slower?
    run: [clock]
    owner: PR
    branches:
      - when: {fact: latency_ratio.p50, op: ">", value: {fact: sla.p50_ms}}
        because: too slow
        go: why
    unknown: {end: {kind: cannot_answer, say: no clock, owner: PR, settle: run the clock}}
    otherwise: {end: {kind: no_fault, say: fine, owner: PR}}
  - id: why
    stage: scheduling
    ask: conversions?
    run: [census, profile]
    owner: RT
    branches:
      - when: {fact: conversions, op: ">=", value: 1}
        end: {kind: mechanism, mechanism: scheduling.format-conversion, say: again and again, owner: RT}
    otherwise: {end: {kind: cannot_answer, say: unseen, owner: RT, settle: look}}
"""


def one(fact: str, op: str, value: object = None) -> Condition:
    return Condition(line=1, fact=fact, op=op, value=value)  # type: ignore[arg-type]


def test_the_trail_says_what_decided_with_its_figure() -> None:
    trail = walk(parse(BOOK), {"latency_ratio.p50": 5.34, "sla.p50_ms": 1.1, "conversions": 2.0})
    assert [v.step for v in trail.trail] == ["gap", "why"]
    assert trail.trail[0].found == "latency_ratio.p50 = 5.34 > sla.p50_ms = 1.1: too slow"
    assert trail.trail[0].next == "why"
    assert trail.trail[1].next == "end: mechanism"
    assert trail.end.mechanism == "scheduling.format-conversion"
    assert trail.end.owner == "runtime systems architect"


def test_an_unknown_fact_takes_its_own_branch_and_says_what_would_settle_it() -> None:
    trail = walk(parse(BOOK), {"latency_ratio.p50": None, "sla.p50_ms": 1.1})
    assert trail.end.kind == "cannot_answer"
    assert trail.end.settle == "run the clock"
    assert trail.trail[0].found == "not measured: latency_ratio.p50"


def test_what_did_not_hold_is_told_with_its_figure() -> None:
    trail = walk(parse(BOOK), {"latency_ratio.p50": 1.0, "sla.p50_ms": 1.1})
    assert trail.trail[0].found == "latency_ratio.p50 = 1, not > sla.p50_ms = 1.1"


def test_without_an_unknown_branch_otherwise_is_taken() -> None:
    trail = walk(parse(BOOK), {"latency_ratio.p50": 5.0, "sla.p50_ms": 1.0})
    assert trail.end.say == "unseen"


def test_a_false_condition_is_not_an_unknown_one() -> None:
    assert walk(parse(BOOK), {"latency_ratio.p50": 1.0, "sla.p50_ms": 1.1}).end.kind == "no_fault"


def test_the_live_runner_is_told_which_passes_a_step_wants() -> None:
    book = parse(BOOK)
    facts: dict[str, float | None] = {}
    first = next_step(book, facts, set())
    assert first is not None
    assert (first.step.id, first.passes) == ("gap", ("clock",))
    assert next_step(book, facts, {"clock"}) is None  # the clock failed: nothing more can be asked
    facts.update({"latency_ratio.p50": 5.0, "sla.p50_ms": 1.0})
    second = next_step(book, facts, {"clock", "census"})
    assert second is not None
    assert (second.step.id, second.passes) == ("why", ("profile",))
    assert next_step(book, facts, {"clock", "census", "profile"}) is None


@pytest.mark.parametrize(
    ("condition", "facts", "truth"),
    [
        (one("a", ">", 1), {"a": 2}, True),
        (one("a", ">", 1), {"a": 1}, False),
        (one("a", ">", 1), {}, None),
        (one("a", ">", 1), {"a": "x"}, None),
        (one("a", ">", 1), {"a": True}, None),
        (one("a", "<=", 1), {"a": 1}, True),
        (one("a", "==", True), {"a": 1}, False),
        (one("a", "==", "x"), {"a": "x"}, True),
        (one("a", "in", ("x", "y")), {"a": "y"}, True),
        (one("a", "in", ("x", "y")), {"a": "z"}, False),
        (one("a", "known"), {"a": 0}, True),
        (one("a", "unknown"), {}, True),
        (Condition(1, combine="not", parts=(one("a", ">", 1),)), {}, None),
        (Condition(1, combine="all", parts=(one("a", ">", 1), one("b", ">", 1))), {"a": 0}, False),
        (Condition(1, combine="all", parts=(one("a", ">", 1), one("b", ">", 1))), {"a": 2}, None),
        (Condition(1, combine="any", parts=(one("a", ">", 1), one("b", ">", 1))), {"a": 2}, True),
        (Condition(1, combine="any", parts=(one("a", ">", 1), one("b", ">", 1))), {"a": 0}, None),
    ],
)
def test_conditions_are_three_valued(
    condition: Condition, facts: dict[str, float | str | bool | None], truth: bool | None
) -> None:
    assert holds(condition, facts) is truth
    assert describe(condition, facts)


def test_a_walk_never_runs_in_circles() -> None:
    looping = BOOK.replace(
        "otherwise: {end: {kind: cannot_answer, say: unseen, owner: RT, settle: look}}", "otherwise: {go: gap}"
    )
    with pytest.raises(PlaybookError, match="no cycles"):
        walk(parse(looping), {"latency_ratio.p50": 5.0, "sla.p50_ms": 1.0})
    with pytest.raises(PlaybookError, match="no step 'why'"):
        walk(parse(BOOK.replace("id: why", "id: because")), {"latency_ratio.p50": 5.0, "sla.p50_ms": 1.0})
