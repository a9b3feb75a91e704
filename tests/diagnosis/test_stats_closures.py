"""What an intervention closes, and whose uncertainty decides it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.diagnosis.stats import ArmRound, Block, Closure, Comparison, Round, closure, compare


def comparison_of(ratio: float, sd: float = 0.01, n: int = 10, base_ms: float = 1.0) -> Comparison:
    rng = np.random.default_rng(1)
    rounds = []
    for i, (a, b) in enumerate(rng.normal(0.0, sd, (n, 2))):
        failing = [Block("failing", f"f{i}", o, [base_ms * ratio * math.exp(a)] * 5) for o in (0, 3)]
        comparator = [Block("comparator", f"c{i}", o, [base_ms * math.exp(b)] * 5) for o in (1, 2)]
        rounds.append(Round(failing, comparator))
    return compare(rounds)


def arms_of(
    off: float,
    control: float,
    intervened: float,
    *,
    cycles: int = 6,
    noise: float = 0.003,
    replicas: int = 1,
    drift: float = 0.0,
) -> list[ArmRound]:
    rng = np.random.default_rng(2)
    arms = []
    for c in range(cycles):
        host = math.exp(drift * c)
        levels = (off * host, control * host, intervened * host)
        sides = [
            [
                Block("failing", f"p{c % replicas}", o, list(level * np.exp(rng.normal(0.0, noise, 9))))
                for o in (k, 5 - k)
            ]
            for k, level in enumerate(levels)
        ]
        arms.append(ArmRound(*sides))
    return arms


def test_an_intervention_that_restores_the_comparator_closes_everything() -> None:
    seen = closure(arms_of(1.5, 1.52, 1.02), comparison_of(1.5))
    assert seen.closes
    assert seen.material
    assert seen.share.value == pytest.approx(1.0, abs=0.06)
    assert seen.share.ci[0] < 1.0 < seen.share.ci[1]
    assert seen.effect.value == pytest.approx(0.5 / 1.5, rel=0.02)
    assert seen.closed_ms.value == pytest.approx(0.5, rel=0.02)
    assert seen.closed_ratio.value == pytest.approx(1.02 / 1.52, rel=0.01)
    assert seen.control_ratio.value == pytest.approx(1.52 / 1.5, rel=0.01)


def test_the_mode_s_own_cost_cancels() -> None:
    cheap, costly = (closure(arms_of(1.0, 1.0 + m, 0.8 + m), comparison_of(1.25)) for m in (0.0, 0.3))
    assert costly.effect.value == pytest.approx(cheap.effect.value, rel=0.05)


def test_an_intervention_that_changes_nothing_is_not_material() -> None:
    seen = closure(arms_of(1.5, 1.5, 1.5), comparison_of(1.5))
    assert not seen.closes
    assert not seen.worsens
    assert not seen.material
    assert seen.share.ci[0] < 0.02


def test_an_intervention_that_costs_says_so() -> None:
    seen = closure(arms_of(1.5, 1.5, 1.8), comparison_of(1.5))
    assert seen.worsens
    assert not seen.material
    assert seen.share.value < 0.0


def test_cycles_too_noisy_to_tell_close_nothing() -> None:
    seen = closure(arms_of(1.5, 1.5, 1.4, cycles=4, noise=0.3), comparison_of(1.5))
    assert seen.closed_ratio.value < 1.0 - seen.resolution
    assert not seen.closes
    assert not seen.material


def test_a_gap_that_is_not_clear_of_zero_leaves_the_sign_but_no_share() -> None:
    seen = closure(arms_of(1.5, 1.5, 1.2), comparison_of(1.0, sd=0.02))
    assert seen.closes
    assert seen.closed_ratio.value == pytest.approx(0.8, rel=0.01)
    assert seen.share.quality == "unavailable"
    assert "not clear of zero" in seen.reason


def test_an_uncertain_gap_widens_the_share_and_not_the_effect() -> None:
    arms = arms_of(1.5, 1.5, 1.2)
    sure, unsure = closure(arms, comparison_of(1.5, sd=0.005)), closure(arms, comparison_of(1.5, sd=0.1))
    assert unsure.share.ci[1] - unsure.share.ci[0] > 2 * (sure.share.ci[1] - sure.share.ci[0])
    assert unsure.effect == sure.effect
    assert unsure.closed_ratio == sure.closed_ratio


def test_a_missing_speedup_is_measured_against_the_ideal() -> None:
    # declared 2x: ideal is 0.5 of the comparator; failing equals the comparator; the rewrite reaches 0.75
    seen = closure(arms_of(1.0, 1.0, 0.75), comparison_of(1.0), question="missing-speedup", ideal_ratio=0.5)
    assert seen.share.value == pytest.approx(0.5, abs=0.05)
    with pytest.raises(ValueError, match="ideal_ratio"):
        closure(arms_of(1.0, 1.0, 0.75), comparison_of(1.0), question="missing-speedup")


def test_drift_of_the_host_over_cycles_does_not_enter() -> None:
    calm, drifting = (closure(arms_of(1.5, 1.5, 1.2, drift=d), comparison_of(1.5)) for d in (0.0, 0.2))
    assert drifting.effect.value == pytest.approx(calm.effect.value)
    assert drifting.closed_ratio.ci == pytest.approx(calm.closed_ratio.ci)


def test_one_cycle_is_not_enough() -> None:
    seen = closure(arms_of(1.5, 1.5, 1.2, cycles=1), comparison_of(1.5))
    assert seen.share.quality == "unavailable"
    assert not seen.closes
    assert "two complete cycles" in seen.reason


def test_a_cycle_that_lost_an_arm_is_left_out() -> None:
    arms = arms_of(1.5, 1.5, 1.2)
    arms[0] = ArmRound(arms[0].off, [], arms[0].intervened)
    assert closure(arms, comparison_of(1.5)).n == 5


def test_replicas_that_disagree_widen_the_interval() -> None:
    one = arms_of(1.5, 1.5, 1.2, cycles=8)
    agree = [
        ArmRound(*([_moved(b, 1.0, f"p{i % 2}") for b in side] for side in (a.off, a.control, a.intervened)))
        for i, a in enumerate(one)
    ]
    apart = [
        ArmRound(a.off, a.control, [_moved(b, 1.0 + 0.1 * (i % 2), b.replica) for b in a.intervened])
        for i, a in enumerate(agree)
    ]
    width = [_width(closure(arms, comparison_of(1.5))) for arms in (agree, apart)]
    assert width[1] > 3 * width[0]
    assert closure(agree, comparison_of(1.5)).replicas == 2


def _moved(block: Block, factor: float, replica: str) -> Block:
    return Block(block.variant, replica, block.order, [t * factor for t in block.times_ms])


def _width(seen: Closure) -> float:
    low, high = seen.closed_ratio.ci or (0.0, 0.0)
    return high - low


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(0.3, 1.2))
def test_the_unit_of_time_does_not_matter(scale: float, intervened: float) -> None:
    a = closure(arms_of(1.5, 1.5, intervened), comparison_of(1.5))
    b = closure(arms_of(1.5 * scale, 1.5 * scale, intervened * scale), comparison_of(1.5, base_ms=scale))
    assert a.share.value == pytest.approx(b.share.value, rel=1e-6)
    assert a.closes == b.closes
    assert b.closed_ms.value == pytest.approx(a.closed_ms.value * scale, rel=1e-6)
    for number in (a.share, a.effect, a.closed_ratio, a.closed_ms):
        assert number.ci[0] <= number.value <= number.ci[1]
