"""A pruned layer family without a sparse path: when its twin or its live form makes it the cause, and when dense is right."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from payloads import Payload, census, op, operand, product, timed, trial, weight

from sparsetui.diagnosis.case import Case, Declared
from sparsetui.diagnosis.catalogue import by_id
from sparsetui.diagnosis.verdict import Judgement, judge
from sparsetui.evidence.records import Finding

ID = "lowering.unsupported-family"


def conv(zeros: float = 0.9, ns: int = 600_000, **more: Any) -> Payload:
    return op(
        "convolution",
        "conv",
        operand(),
        weight=weight("strided", zeros, eligible=zeros > 0.5),
        path="conv",
        ns=ns,
        **more,
    )


def form(
    best: str = "channels", ms: float = 0.2, saves: tuple[float, float, float] = (0.38, 0.4, 0.42), **more: Any
) -> Payload:
    """One row of the twin: dense takes 0.6 ms."""
    forms = {"dense": 0.6, "unfold + CSR": 0.9, "channels": 0.7, **({best: ms} if best != "dense" else {})}
    return {
        "kind": "conv",
        "calls": 1.0,
        "forms": forms,
        "best": best,
        "saves_ms": list(saves),
        "n": 40,
        "refused": {},
        **more,
    }


def twin(*rows: Payload, variant: str = "failing") -> dict[tuple[str, str], Payload]:
    return {("families", variant): {"rows": list(rows), "summary": "dense 0.6 ms a step", "left_out": 0}}


NONE = form("dense", saves=(0.0, 0.0, 0.0))
BESIDE = (product(ns=100_000), conv())
PLAIN = (product("strided", w=weight("strided", 0.0, eligible=False)), conv(0.0))


def asked(ratio: float = 1.0, speedup: float = 2.0, claimed: bool = True, **more: Any) -> Case:
    """A missing speed-up: the failing variant takes ``ratio`` of the comparator's time."""
    wanted = Declared(speedup=speedup) if claimed else Declared(asked_speedup=speedup)
    seen = {"failing": census(*BESIDE), "comparator": census(*PLAIN)}
    return timed(ratio, **{"declared": wanted, "census": seen, **more})


def tried(case: Case, closed: float, **check: Any) -> Case:
    return dataclasses.replace(case, trials=trial("family-twin", closed, case, **check))


def of(j: Judgement) -> Finding:
    return next(f for f in j.findings if f.mechanism == ID)


def test_channels_that_would_be_faster_are_what_is_at_stake() -> None:
    j = judge(asked(extra=twin(form())))
    f = of(j)
    assert (j.verdict.mechanism, j.verdict.confidence) == (ID, "supported")
    assert f.figure is not None
    assert f.figure.value == pytest.approx(0.6 * 0.4 / 0.6)  # of a step of 1 ms in which it takes 0.6
    assert f.figure.unit == "share of the step that channels would save"
    assert f.share_of_regression is not None
    assert f.share_of_regression.value == pytest.approx(0.4 / 0.5, rel=0.05)  # of a gap of half a step
    assert f.share_of_regression.quality == "estimated"
    assert f.intervention is None
    assert "channels would be faster" in f.summary


def test_where_no_form_is_faster_dense_is_right_and_nothing_claims_otherwise() -> None:
    case = asked(claimed=False, extra=twin(NONE))
    j = judge(dataclasses.replace(case, trials={**trial("family-twin", 1.2, case), **trial("dense-twin", 1.2, case)}))
    f = of(j)
    assert j.verdict.status == "no_fault"
    assert (f.material, f.settled) == (False, True)
    assert f.reason.startswith("dense is right here: no form of its twin is clearly faster")
    assert "none is clearly faster" in f.summary
    assert f.figure is not None
    assert f.figure.value == 0.0


def test_a_declared_speedup_that_no_form_would_bring_is_left_unexplained() -> None:
    j = judge(asked(extra=twin(NONE)))
    assert j.verdict.status == "cannot_answer"
    assert not of(j).material


@pytest.mark.parametrize("closed", [1.0, 1.4])
def test_a_live_form_that_gains_nothing_does_not_hide_what_channels_would(closed: float) -> None:
    case = tried(asked(extra=twin(form())), closed)
    j = judge(case)
    f = of(j)
    assert (j.verdict.mechanism, f.confidence, f.intervention) == (ID, "supported", None)
    assert "its twin, timed apart from the step, saves 40 % of it; live, " in f.reason
    assert "E-family-twin" in f.evidence
    assert j.budget is not None
    assert [line.mechanism for line in j.budget.lines][-1] == "unexplained"
    assert (j.budget.lines[-1].share.value or 0.0) > 0.9, "what is only estimated is in no line"


def test_a_live_form_that_gains_confirms_it() -> None:
    j = judge(tried(asked(extra=twin(form())), 0.7))
    f = of(j)
    assert (j.verdict.mechanism, f.confidence, f.intervention) == (ID, "confirmed", "E-family-twin")
    assert f.share_of_regression is not None
    assert f.share_of_regression.quality == "derived"
    assert f.share_of_regression.value == pytest.approx(0.3 / 0.5, abs=0.05)


def test_a_live_form_that_gains_nothing_settles_nothing_where_the_twin_was_not_timed() -> None:
    j = judge(tried(asked(), 1.0))
    assert j.verdict.status == "cannot_answer"
    assert of(j).reason.startswith("not settled")
    assert not of(j).settled


def test_without_trial_and_twin_two_passes_decide() -> None:
    j = judge(asked())
    assert (j.verdict.mechanism, j.verdict.confidence) == (ID, "supported")
    assert "of the step" in of(j).reason


def test_a_live_form_that_changed_the_outputs_leaves_the_word_to_the_twin() -> None:
    case = asked(extra=twin(form()))
    assert judge(tried(case, 0.5, equal=False)).verdict.mechanism == ID
    assert not of(judge(tried(asked(claimed=False, extra=twin(NONE)), 0.5, equal=False))).material


def test_forms_that_could_not_be_made_rule_nothing_out() -> None:
    lost = form(
        "dense",
        saves=(0.0, 0.0, 0.0),
        forms={"dense": 0.6},
        refused={"channels": "grouped", "unfold + CSR": "transposed"},
    )
    j = judge(asked(extra=twin(lost)))
    assert j.verdict.mechanism == ID, "as where no twin was timed"
    assert "no form of its twin could be made" in of(j).summary


def test_an_interval_across_zero_saves_nothing() -> None:
    assert not of(judge(asked(claimed=False, extra=twin(form(saves=(-0.05, 0.4, 0.5)))))).material


def test_what_would_save_less_than_a_tenth_of_the_step_is_too_little() -> None:
    f = of(judge(asked(claimed=False, extra=twin(form(saves=(0.05, 0.06, 0.07))))))
    assert not f.material
    assert f.reason.startswith("it accounts for too little: its twin")


def test_signatures_count_by_their_calls_and_the_best_form_of_each() -> None:
    rows = (form(calls=3.0), form("unfold + CSR", 0.4, (0.19, 0.2, 0.21)), NONE, form(saves=(-0.1, 0.4, 0.5)))
    found = by_id(ID).suspect(asked(extra=twin(*rows)), "failing")
    assert found is not None
    assert found.saves is not None
    assert found.saves.value == pytest.approx(0.6 * (3 * 0.4 + 0.2) / (6 * 0.6))
    assert found.figure is not None
    assert found.figure.unit == "share of the step that channels and unfold + CSR would save"


def test_what_was_left_out_saves_nothing() -> None:
    some = twin(form())
    some[("families", "failing")]["covers"] = 0.25
    found = by_id(ID).suspect(asked(extra=some), "failing")
    assert found is not None
    assert found.saves is not None
    assert found.saves.value == pytest.approx(0.25 * 0.4)


def regression(*comparator: Payload, **more: Any) -> Case:
    return timed(1.5, census={"failing": census(*BESIDE), "comparator": census(*comparator)}, **more)


def test_what_the_comparator_runs_dense_as_well_explains_no_regression() -> None:
    case = regression(*PLAIN)
    found = by_id(ID).suspect(case, "failing")
    assert found is not None
    assert (found.intervention, found.share) == (None, 0.0)
    assert by_id(ID).wants is not None
    assert not by_id(ID).wants(case)  # type: ignore[misc]
    j = judge(case)
    assert not of(j).material
    assert "dense as well" in of(j).reason
    assert j.verdict.status == "cannot_answer"


def test_what_the_comparator_does_not_run_dense_may() -> None:
    smaller = conv(0.0, outputs=[operand(shape=(8, 8))])
    case = regression(PLAIN[0], smaller, extra=twin(form()))
    assert by_id(ID).wants(case)  # type: ignore[misc]
    assert judge(case).verdict.mechanism == ID


def test_of_calls_that_the_comparator_makes_fewer_of_the_rest_counts() -> None:
    more = {"failing": census(product(ns=100_000), conv(calls=4)), "comparator": census(PLAIN[0], conv(0.0, calls=1))}
    found = by_id(ID).suspect(timed(1.5, census=more), "failing")
    assert found is not None
    assert found.ms == pytest.approx(0.6 * 3 / 4)


def test_a_broken_claim_is_broken_whatever_would_be_faster() -> None:
    case = regression(*PLAIN, declared=Declared(layout="csr"), extra=twin(NONE))
    assert by_id(ID).wants(case)  # type: ignore[misc]
    j = judge(case)
    assert (j.verdict.status, j.verdict.mechanism) == ("fault", ID)
    assert "declares layout csr" in of(j).reason
    assert "none is clearly faster" in of(j).summary


@pytest.mark.parametrize(("layer", "family"), [("recurrent", "recurrent"), ("batched", "batched")])
def test_products_of_a_kind_of_their_own_are_a_family(layer: str, family: str) -> None:
    other = product("strided", w=weight("strided"), layer=layer)
    case = asked(census={"failing": census(product(layer="product"), other), "comparator": census(*PLAIN)})
    found = by_id(ID).suspect(case, "failing")
    assert found is not None
    assert f"pruned {family} ops" in found.summary
    assert by_id("lowering.dense-storage").suspect(case, "failing") is None
    assert by_id(ID).arguments is not None
    assert by_id(ID).arguments(case) == {"kinds": [family]}  # type: ignore[misc]


def test_a_family_of_which_some_run_sparse_has_a_path() -> None:
    rows = (product(layer="product"), product("strided", w=weight("strided"), layer="product"))
    case = asked(census={"failing": census(*rows), "comparator": census(*PLAIN)})
    assert by_id(ID).suspect(case, "failing") is None
    assert by_id("lowering.dense-storage").suspect(case, "failing") is not None
