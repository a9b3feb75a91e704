"""Intervals of plain arrays against brute force and against what must hold for any data."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.diagnosis.stats import (
    hodges_lehmann,
    paired_bootstrap,
    paired_difference,
    robust_location,
    signed_rank_interval,
    slope,
    t_interval,
    t_quantile,
)

floats = st.floats(-1e3, 1e3, allow_nan=False).map(lambda v: round(v, 6))
samples = st.lists(floats, min_size=2, max_size=14)
few = settings(max_examples=60, deadline=None)


def _brute_force_interval(x: list[float], level: float) -> tuple[float, float] | None:
    """All centres the exact signed-rank test does not reject, found by trying points between Walsh averages."""
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(x, 2))
    n = len(x)
    sums = [
        sum(r for r, s in zip(range(1, n + 1), signs, strict=True) if s)
        for signs in itertools.product((0, 1), repeat=n)
    ]
    kept = []
    for low, high in itertools.pairwise(walsh):
        middle = (low + high) / 2
        above = sum(w > middle for w in walsh)  # the signed-rank statistic at this centre
        tail = min(sum(s <= above for s in sums), sum(s >= above for s in sums)) / len(sums)
        if 2 * tail > 1 - level + 1e-12:
            kept += [low, high]
    if len(kept) == 2 * (len(walsh) - 1):  # not even the outermost gap is rejected
        return None
    return min(kept), max(kept)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [3, 5, 6, 8])
def test_signed_rank_interval_is_the_exact_one(n: int, level: float) -> None:
    x = list(np.random.default_rng(n).normal(3.0, 1.0, n))
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(x, 2))
    mine, brute = signed_rank_interval(x, level), _brute_force_interval(x, level)
    if brute is None:
        assert mine is None or mine == (walsh[0], walsh[-1])
    else:
        assert mine == pytest.approx(brute)


def test_signed_rank_cannot_reach_a_level_that_the_sample_is_too_small_for() -> None:
    assert signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) is None  # 5 values reach 93.75 %
    assert signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.93) == (1.0, 5.0)


def test_the_normal_approximation_joins_the_exact_interval() -> None:
    x = np.random.default_rng(1).normal(0.0, 1.0, 26)
    exact, approximate = signed_rank_interval(x[:25]), signed_rank_interval(x)
    assert exact is not None
    assert approximate is not None
    assert abs((exact[1] - exact[0]) / (approximate[1] - approximate[0]) - 1.0) < 0.15


@few
@given(samples)
def test_hodges_lehmann_lies_among_the_data_and_moves_with_it(x: list[float]) -> None:
    centre = hodges_lehmann(x)
    assert min(x) - 1e-9 <= centre <= max(x) + 1e-9
    assert hodges_lehmann([v + 5.0 for v in x]) == pytest.approx(centre + 5.0, abs=1e-6)
    assert hodges_lehmann([-v for v in x]) == pytest.approx(-centre, abs=1e-6)


@few
@given(samples, st.floats(0.5, 0.9), st.floats(0.01, 0.09))
def test_intervals_widen_with_the_level_and_hold_the_centre(x: list[float], level: float, more: float) -> None:
    where = robust_location(x, prior_sd=0.01, prior_df=4.0)
    for narrow, wide in (
        (where.interval(level), where.interval(level + more)),
        (t_interval(x, level), t_interval(x, level + more)),
    ):
        assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
    assert where.interval(level)[0] <= where.value <= where.interval(level)[1]
    narrow_rank, wide_rank = signed_rank_interval(x, level), signed_rank_interval(x, level + more)
    if narrow_rank and wide_rank:
        assert wide_rank[0] <= narrow_rank[0] <= hodges_lehmann(x) <= narrow_rank[1] <= wide_rank[1]


@few
@given(samples, st.randoms())
def test_robust_location_does_not_mind_the_order(x: list[float], random: object) -> None:
    shuffled = list(x)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a, b = robust_location(x, prior_sd=0.5, prior_df=4.0), robust_location(shuffled, prior_sd=0.5, prior_df=4.0)
    assert (a.value, a.se) == (pytest.approx(b.value, abs=1e-6), pytest.approx(b.se, rel=1e-6, abs=1e-9))


def test_one_wild_value_in_ten_hardly_moves_the_robust_centre() -> None:
    x = np.random.default_rng(2).normal(0.0, 0.01, 10)
    x[3] = 0.9
    assert abs(robust_location(x, prior_sd=0.02, prior_df=4.0).value) < 0.015
    assert x.mean() > 0.08


def test_few_values_that_happen_to_agree_are_not_certain() -> None:
    lucky = robust_location([0.0300, 0.0301, 0.0300], prior_sd=0.02, prior_df=4.0)
    assert lucky.interval(0.95)[0] < 0.01
    assert lucky.sd < 1e-3  # what was measured stays what was measured


def test_the_prior_yields_to_a_host_that_is_worse() -> None:
    wild = [-0.3, 0.2, 0.1, -0.1, 0.25, -0.2]
    with_prior, without = robust_location(wild, prior_sd=0.02, prior_df=4.0), robust_location(wild)
    assert with_prior.se == pytest.approx(without.se, rel=0.01)
    assert with_prior.df == pytest.approx(without.df, rel=0.01)


def test_a_twin_sharpens_only_while_it_is_no_wider() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(0.0, 0.02, 10)
    calm, drifting = rng.normal(0.0, 0.02, 10), rng.normal(0.0, 0.2, 10)
    alone = robust_location(x)
    assert robust_location(x, twin=calm).df == 18.0
    assert robust_location(x, twin=drifting) == alone


def test_a_single_value_needs_a_prior() -> None:
    with pytest.raises(ValueError, match="no spread"):
        robust_location([1.0])
    assert math.isfinite(robust_location([1.0], prior_sd=0.1, prior_df=4.0).se)
    with pytest.raises(ValueError, match="finite"):
        robust_location([math.nan])


def test_t_quantiles_are_those_of_the_tables() -> None:
    assert t_quantile(0.975, 9) == pytest.approx(2.262157, abs=1e-6)
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959964, abs=1e-6)


def test_t_interval_is_the_textbook_one() -> None:
    low, high = t_interval([1.0, 2.0, 3.0, 4.0])
    assert (low, high) == (pytest.approx(0.445740, abs=1e-5), pytest.approx(4.554260, abs=1e-5))
    with pytest.raises(ValueError, match="at least 2"):
        t_interval([1.0])


def test_paired_bootstrap_keeps_pairs_together_and_is_seeded() -> None:
    base = np.random.default_rng(0).normal(0.0, 10.0, 30)
    data = np.stack([base, base + 1.0], axis=1)

    def difference(rows: np.ndarray) -> np.ndarray:
        return np.asarray((rows[..., 1] - rows[..., 0]).mean(axis=1))

    estimate, low, high = paired_bootstrap(difference, data)
    assert low == pytest.approx(1.0)
    assert high == pytest.approx(1.0)
    assert estimate == pytest.approx(1.0)
    assert paired_bootstrap(lambda r: r[..., 0].mean(axis=1), data) == paired_bootstrap(
        lambda r: r[..., 0].mean(axis=1), data
    )


@few
@given(st.floats(-5.0, 5.0), st.integers(5, 40))
def test_slope_finds_a_line_exactly(rise: float, n: int) -> None:
    fit = slope([7.0 + rise * i for i in range(n)])
    assert fit.value == pytest.approx(rise, abs=1e-9)
    assert fit.ci[0] <= fit.value <= fit.ci[1]


def test_slope_of_noise_does_not_grow_and_one_outlier_does_not_make_it() -> None:
    x = np.random.default_rng(8).normal(100.0, 1.0, 200)
    x[150] = 1e6
    assert not slope(x).grows


def test_slope_of_a_leak_grows_and_of_a_settling_heap_does_not() -> None:
    rng = np.random.default_rng(9)
    assert slope(3.0 * np.arange(600) + rng.normal(0.0, 20.0, 600)).grows
    settling = np.minimum(np.arange(600), 400) * 4.0 + 100.0
    fit = slope(settling)
    assert fit.ci[0] > 0.0
    assert not fit.grows


def test_slope_of_a_long_series_stays_per_step() -> None:
    assert slope(0.5 * np.arange(5000)).value == pytest.approx(0.5)
    with pytest.raises(ValueError, match="at least 3"):
        slope([1.0, 2.0])


def test_paired_difference_is_a_ratio_with_its_interval() -> None:
    seen = paired_difference([2.0, 2.02, 1.98, 2.01], [1.0, 1.0, 1.01, 1.0])
    assert seen.value == pytest.approx(2.0, rel=0.01)
    assert seen.ci is not None
    assert 1.9 < seen.ci[0] < 2.0 < seen.ci[1] < 2.1
    with pytest.raises(ValueError, match="equal lengths"):
        paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        paired_difference([1.0, 0.0], [1.0, 1.0])
