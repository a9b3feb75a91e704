"""The random-effects estimate over hosts: against published figures, and by its properties."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.fleet.pooling import apart, paule_mandel, pool, tau_interval

# Log risk ratios and variances of the BCG vaccine trials (Colditz et al. 1994), a data set that every package on random
# effects is tried on. Reference: metafor's manual gives tau² 0.3181 by Paule and Mandel, and the Q-profile
# interval from 0.1197 to 1.1115.
BCG_Y = [
    -0.8893,
    -1.5854,
    -1.3481,
    -1.4416,
    -0.2175,
    -0.7861,
    -1.6209,
    0.0120,
    -0.4694,
    -1.3713,
    -0.3394,
    0.4459,
    -0.0173,
]
BCG_V = [0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730, 0.0124, 0.5325, 0.0714]


def test_the_bcg_trials_give_the_published_figures() -> None:
    y, v = np.array(BCG_Y), np.array(BCG_V)
    assert paule_mandel(y, v) == pytest.approx(0.3181, abs=2e-3)
    low, high = tau_interval(y, v)
    assert low**2 == pytest.approx(0.1197, abs=2e-3)
    assert high**2 == pytest.approx(1.1115, abs=6e-3)


def test_hosts_that_agree_better_than_their_errors_have_no_spread_of_their_own() -> None:
    found = pool([0.30, 0.31, 0.29, 0.30], [0.05] * 4)
    assert found.tau == 0.0
    assert found.tau_ci[0] == 0.0
    assert found.i2 == 0.0
    assert found.ci[0] < 0.3 < found.ci[1]


def test_two_hosts_that_agree_by_chance_are_no_proof() -> None:
    one = pool([0.3], [0.01])
    two = pool([0.3, 0.3001], [0.01, 0.01])
    assert two.ci[1] - two.ci[0] > 4 * 0.01
    assert one.ci[1] - one.ci[0] > two.ci[1] - two.ci[0]


def test_what_was_seen_is_never_shrunk_away() -> None:
    found = pool([0.0, 1.0], [0.01, 0.01])
    assert found.spread >= found.tau > 0.5


hosts = st.lists(st.tuples(st.floats(-3, 3), st.floats(0.001, 1.0)), min_size=2, max_size=30)


@given(hosts, st.floats(-2, 2))
@settings(max_examples=60, deadline=None)
def test_shifting_all_hosts_shifts_the_mean_and_nothing_else(drawn: list[tuple[float, float]], by: float) -> None:
    y, se = [a for a, _ in drawn], [s for _, s in drawn]
    was, now = pool(y, se), pool([a + by for a in y], se)
    assert now.mean == pytest.approx(was.mean + by, abs=1e-5)
    assert now.tau == pytest.approx(was.tau, abs=1e-4)
    assert now.ci[1] - now.ci[0] == pytest.approx(was.ci[1] - was.ci[0], rel=1e-3, abs=1e-5)


@given(hosts, st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_hosts_does_not_matter(drawn: list[tuple[float, float]], random: Random) -> None:
    mixed = list(drawn)
    random.shuffle(mixed)
    was, now = pool(*zip(*drawn, strict=True)), pool(*zip(*mixed, strict=True))
    assert now.mean == pytest.approx(was.mean, abs=1e-5)
    low, high = was.tau_ci
    assert low <= was.tau + 1e-6
    assert high >= was.tau - 1e-6


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        se = rng.uniform(0.01, 0.06, 5)
        y = 0.3 + 0.05 * rng.standard_normal(5) + se * rng.standard_normal(5)
        low, high = pool(y, se).ci
        held += low < 0.3 < high
    assert held >= 0.93 * 300


def test_the_odd_one_is_found_and_only_it() -> None:
    y = [0.0, 0.02, -0.01, 0.03, 0.7]
    (found,) = apart(y, [0.02] * 5, math.log(1.2))
    assert found[0] == 4
    assert found[1] == pytest.approx(0.69, abs=0.03)


def test_two_sick_hosts_cannot_hide_each_other() -> None:
    y = [0.0, 0.02, -0.01, 0.03, 0.01, 0.7, 0.8]
    assert {i for i, _, _ in apart(y, [0.02] * 7, math.log(1.2))} == {5, 6}


def test_of_two_hosts_none_is_the_odd_one() -> None:
    assert apart([0.0, 1.0], [0.01, 0.01], math.log(1.2)) == []


def test_a_host_that_is_a_little_off_is_let_be() -> None:
    assert apart([0.0, 0.001, -0.001, 0.0005, 0.15], [0.001] * 5, math.log(1.2)) == []


def test_what_does_not_matter_is_not_named_however_sure_it_is() -> None:
    y, se = [*[0.0] * 20, 0.7], [0.01] * 21
    assert [i for i, _, _ in apart(y, se, 0.5)] == [20]
    assert apart(y, se, 0.8) == []


def test_a_healthy_fleet_has_no_odd_one() -> None:
    rng = np.random.default_rng(2)
    named = 0
    for _ in range(200):
        se = rng.uniform(0.01, 0.05, 8)
        named += bool(apart(0.04 * rng.standard_normal(8) + se * rng.standard_normal(8), se, math.log(1.2)))
    assert named <= 2


@pytest.mark.parametrize(
    ("y", "se"), [([], []), ([1.0], []), ([math.nan], [0.1]), ([0.0], [math.inf]), ([0.0], [-1.0])]
)
def test_figures_that_are_none_are_refused(y: list[float], se: list[float]) -> None:
    with pytest.raises(ValueError, match=r"host"):
        pool(y, se)
