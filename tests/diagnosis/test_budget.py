"""The gap split by mechanism: everything adds up, and the rest is never hidden."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.diagnosis.budget import regression_budget
from sparsetui.diagnosis.stats import Closure, Comparison
from sparsetui.evidence.records import Number, RegressionBudget, unavailable


def compared(failing: float = 3.0, comparator: float = 2.0, spread: float = 0.02) -> Comparison:
    ratio = failing / comparator
    return Comparison(
        ratio=Number(ratio, (ratio * (1 - spread), ratio * (1 + spread)), 10, "×"),
        failing_ms=Number(failing, (failing * (1 - spread), failing * (1 + spread)), 10, "ms"),
        comparator_ms=Number(comparator, None, 10, "ms"),
        floor=Number(0.01),
        verdict="slower",
        differs=True,
        reason="",
        rounds=10,
        blocks=80,
    )


def closed(effect: float, half: float = 0.01, ideal_ratio: float | None = None) -> Closure:
    number = Number(effect, (effect - half, effect + half), 6)
    return Closure(
        question="regression", share=number, effect=number, closed_ratio=Number(1 - effect), control_ratio=Number(1.0),
        off_ms=Number(3.0), closed_ms=Number(3.0 * effect), closes=effect > half, worsens=False, n=6, replicas=1,
        ideal_ratio=ideal_ratio,
    )  # fmt: skip


def by_name(budget: RegressionBudget) -> dict[str, float]:
    return {line.mechanism: float(line.ms.value or 0.0) for line in budget.lines}


def test_each_mechanism_gets_what_its_intervention_took_off_the_failing_step() -> None:
    budget = regression_budget(compared(), {"kernel.generic": closed(0.2), "lowering.mask-recompute": closed(0.1)})
    assert budget.gap_ms.value == pytest.approx(1.0)
    assert by_name(budget) == pytest.approx({"lowering.mask-recompute": 0.3, "kernel.generic": 0.6, "unexplained": 0.1})
    assert [line.mechanism for line in budget.lines] == ["lowering.mask-recompute", "kernel.generic", "unexplained"]


def test_a_later_stage_gets_only_what_is_left_and_says_so() -> None:
    budget = regression_budget(
        compared(), {"scheduling.format-conversion": closed(0.3), "kernel.generic": closed(0.25)}
    )
    first, second, rest = budget.lines
    assert first.ms.value == pytest.approx(0.75)
    assert first.ms.reason is None
    assert second.ms.value == pytest.approx(0.25)
    assert "closes 0.9 ms alone" in (second.ms.reason or "")
    assert rest.ms.value == pytest.approx(0.0)


def test_one_intervention_that_gains_more_than_the_gap_is_not_cut() -> None:
    budget = regression_budget(compared(), {"kernel.generic": closed(0.5), "execution.index-copy": closed(0.1)})
    assert by_name(budget) == pytest.approx({"kernel.generic": 1.5, "execution.index-copy": 0.0, "unexplained": -0.5})
    assert "more than the gap" in (budget.lines[0].ms.reason or "")


def test_interventions_that_did_not_help_are_no_part_of_the_gap() -> None:
    cost = closed(-0.1)
    missing = msgspec.structs.replace(closed(0.1), effect=unavailable("crashed"))
    assert by_name(regression_budget(compared(), {"kernel.generic": cost, "lowering.densified": missing})) == {
        "unexplained": pytest.approx(1.0)
    }


def test_a_missing_speedup_splits_the_distance_to_the_ideal() -> None:
    budget = regression_budget(compared(2.0, 2.0), {"kernel.generic": closed(0.25, ideal_ratio=0.5)}, "missing-speedup")
    assert budget.gap_ms.value == pytest.approx(1.0)
    assert by_name(budget) == pytest.approx({"kernel.generic": 0.5, "unexplained": 0.5})
    assert regression_budget(compared(2.0, 2.0), {}, "missing-speedup").gap_ms.quality == "unavailable"


@pytest.mark.parametrize("failing", [2.0, 1.5])
def test_without_a_gap_there_is_nothing_to_split_and_that_is_said(failing: float) -> None:
    budget = regression_budget(compared(failing, 2.0), {"kernel.generic": closed(0.2)})
    assert [line.mechanism for line in budget.lines] == ["unexplained"]
    assert "no gap" in (budget.lines[0].ms.reason or "")


def test_an_uncompared_pair_has_an_unavailable_gap() -> None:
    none = msgspec.structs.replace(compared(), ratio=unavailable("the comparator crashed"))
    budget = regression_budget(none, {})
    assert budget.gap_ms.reason == "the comparator crashed"
    assert budget.lines[-1].ms.reason == "the comparator crashed"


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["ingress.a", "lowering.b", "kernel.c", "kernel.d", "execution.e"]), st.floats(0.001, 0.4)
    )
)
def test_lines_add_up_to_the_gap_and_hold_their_intervals(effects: dict[str, float]) -> None:
    budget = regression_budget(compared(), {name: closed(e) for name, e in effects.items()})
    assert sum(by_name(budget).values()) == pytest.approx(1.0)
    assert sum(float(line.share.value or 0.0) for line in budget.lines) == pytest.approx(1.0)
    assert budget.lines[-1].mechanism == "unexplained"
    for line in budget.lines:
        assert line.ms.ci[0] <= line.ms.value <= line.ms.ci[1]
        assert line.share.ci[0] <= line.share.value <= line.share.ci[1]
