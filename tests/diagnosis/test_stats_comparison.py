"""What a comparison says, and what it must not depend on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.diagnosis.stats import (
    Block,
    Round,
    compare,
    decision_level,
    needs_more,
    quantile_summary,
    ratio_quantiles,
)
from sparsetui.diagnosis.stats import rounds_to_decide as to_decide

few = settings(max_examples=40, deadline=None)
levels = st.lists(st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3)), min_size=2, max_size=12)


def round_of(index: int, failing: float, comparator: float, pairs: int = 4, noise: float = 0.0) -> Round:
    """An ABBA round whose blocks sit at the given log levels."""
    rng = np.random.default_rng(index)
    sides: dict[str, list[Block]] = {"failing": [], "comparator": []}
    for order in range(2 * pairs):
        name, level = ("failing", failing) if order % 4 in (0, 3) else ("comparator", comparator)
        times = np.exp(level + noise * rng.standard_normal(9)).tolist()
        sides[name].append(Block(name, f"{name}-{index}", order, times))
    return Round(sides["failing"], sides["comparator"])


def rounds_of(pairs: list[tuple[float, float]]) -> list[Round]:
    return [round_of(i, f, c) for i, (f, c) in enumerate(pairs)]


def steady(n: int, shift: float, sd: float = 0.01, seed: int = 0) -> list[Round]:
    rng = np.random.default_rng(seed)
    return rounds_of([(shift + a, b) for a, b in rng.normal(0.0, sd, (n, 2))])


@few
@given(levels)
def test_swapping_the_variants_inverts_the_answer(pairs: list[tuple[float, float]]) -> None:
    there, back = compare(rounds_of(pairs)), compare(rounds_of([(c, f) for f, c in pairs]))
    assert there.log_ratio == pytest.approx(-back.log_ratio, abs=1e-9)
    assert there.se == pytest.approx(back.se)
    assert back.verdict == {"slower": "faster", "faster": "slower"}.get(there.verdict, there.verdict)


@few
@given(levels, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(pairs: list[tuple[float, float]], scale: float) -> None:
    shift = math.log(scale)
    plain, scaled = compare(rounds_of(pairs)), compare(rounds_of([(f + shift, c + shift) for f, c in pairs]))
    assert plain.log_ratio == pytest.approx(scaled.log_ratio, abs=1e-9)
    assert plain.floor.value == pytest.approx(scaled.floor.value, rel=1e-6)
    assert plain.verdict == scaled.verdict
    assert scaled.failing_ms.value == pytest.approx(scale * plain.failing_ms.value)


@few
@given(levels, st.randoms())
def test_the_order_of_rounds_does_not_matter(pairs: list[tuple[float, float]], random: object) -> None:
    rounds = rounds_of(pairs)
    shuffled = list(rounds)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a, b = compare(rounds), compare(shuffled)
    assert a.log_ratio == pytest.approx(b.log_ratio, abs=1e-9)
    assert a.se == pytest.approx(b.se)


@few
@given(levels, st.floats(0.5, 0.9))
def test_the_interval_holds_the_ratio_and_widens_with_the_level(pairs: list[tuple[float, float]], level: float) -> None:
    narrow, wide = compare(rounds_of(pairs), level=level).ratio, compare(rounds_of(pairs), level=level + 0.05).ratio
    assert narrow.ci is not None
    assert wide.ci is not None
    assert wide.ci[0] <= narrow.ci[0] <= narrow.value <= narrow.ci[1] <= wide.ci[1]


@few
@given(levels)
def test_a_claim_is_always_beyond_floor_and_resolution(pairs: list[tuple[float, float]]) -> None:
    seen = compare(rounds_of(pairs))
    assert seen.floor.value is not None
    assert seen.floor.value >= seen.resolution
    if seen.verdict == "slower":
        assert seen.ratio.value > 1.0 + seen.floor.value
        assert seen.ratio.ci[0] > 1.0 + seen.resolution
    assert seen.differs == (seen.verdict in ("slower", "faster"))


def test_a_host_that_drifts_between_rounds_costs_no_precision_inside_them() -> None:
    rng = np.random.default_rng(4)
    pairs = [(0.1 + a, b) for a, b in rng.normal(0.0, 0.01, (8, 2))]
    drift = np.cumsum(rng.normal(0.0, 0.1, 8))
    calm = compare(rounds_of(pairs))
    drifting = compare(rounds_of([(f + d, c + d) for (f, c), d in zip(pairs, drift, strict=True)]))
    assert drifting.log_ratio == pytest.approx(calm.log_ratio, abs=1e-9)
    assert drifting.verdict == calm.verdict == "slower"


def test_drift_inside_a_round_cancels_in_adjacent_pairs() -> None:
    sides: dict[str, list[Block]] = {"failing": [], "comparator": []}
    for order in range(16):
        name = "failing" if order % 4 in (0, 3) else "comparator"
        level = (0.2 if name == "failing" else 0.0) + 0.05 * order
        sides[name].append(Block(name, name, order, [math.exp(level)] * 5))
    seen = compare([Round(sides["failing"], sides["comparator"])])
    assert seen.log_ratio == pytest.approx(0.2, abs=1e-9)


def test_a_block_hit_by_a_neighbour_does_not_move_its_round() -> None:
    rounds = [round_of(i, 0.0, 0.0, noise=0.01) for i in range(6)]
    hit = rounds[2].failing[1]
    rounds[2].failing[1] = Block(hit.variant, hit.replica, hit.order, [t * 3.0 for t in hit.times_ms])
    assert abs(compare(rounds).log_ratios[2]) < 0.03


def test_one_pair_of_processes_decides_nothing_however_many_steps() -> None:
    seen = compare([round_of(0, 0.5, 0.0)])
    assert (seen.verdict, seen.differs, seen.rounds) == ("undecided", False, 1)
    assert seen.ratio.value == pytest.approx(math.exp(0.5))
    assert seen.ratio.ci is None
    assert "one pair" in (seen.ratio.reason or "")
    assert seen.floor.quality == "unavailable"
    assert needs_more(seen)
    assert to_decide(seen) is None


def test_rounds_that_share_a_process_are_one_observation() -> None:
    rounds = [round_of(0, 0.03, 0.0) for _ in range(8)]
    assert compare(rounds).rounds == 1
    chained = rounds_of([(0.03, 0.0)] * 6)
    chained[3] = Round(chained[2].failing, chained[3].comparator)
    assert compare(chained).rounds == 5


def test_nothing_measured_is_said_to_be_so() -> None:
    empty = compare([Round([Block("failing", "f", 0, [])], [Block("comparator", "c", 1, [math.nan, -1.0])])])
    assert (empty.verdict, empty.rounds) == ("undecided", 0)
    assert empty.ratio.quality == "unavailable"
    assert needs_more(empty)


def test_a_round_that_lost_blocks_still_counts() -> None:
    rounds = steady(6, 0.3)
    rounds[0] = Round(rounds[0].failing[:1], rounds[0].comparator[2:])
    rounds[1] = Round([], rounds[1].comparator)
    seen = compare(rounds)
    assert seen.rounds == 5
    assert seen.verdict == "slower"


@pytest.mark.parametrize(("shift", "verdict"), [(0.2, "slower"), (-0.2, "faster"), (0.0, "same")])
def test_the_verdict_names_the_direction(shift: float, verdict: str) -> None:
    seen = compare(steady(12, shift, sd=0.006))
    assert seen.verdict == verdict
    assert not needs_more(seen)
    assert seen.band >= seen.threshold


def test_two_rounds_do_not_claim_what_one_unlucky_process_could_do() -> None:
    assert not compare(rounds_of([(0.14, 0.0), (0.14, 0.0)])).differs
    assert not compare(rounds_of([(0.12, 0.0)] * 3)).differs
    assert compare(rounds_of([(math.log(5), 0.0)] * 3)).differs


def test_same_is_not_said_of_a_host_too_noisy_to_tell() -> None:
    seen = compare(steady(8, 0.0, sd=0.15))
    assert seen.verdict == "undecided"
    assert seen.band == pytest.approx(2 * seen.threshold)


def test_same_is_not_said_on_fewer_than_four_rounds() -> None:
    assert compare(steady(3, 0.0, sd=0.001)).verdict == "undecided"
    assert compare(steady(4, 0.0, sd=0.001)).verdict == "same"


def test_a_shift_as_small_as_the_resolution_is_not_claimed_however_sure() -> None:
    seen = compare(steady(60, 0.0065, sd=0.006))
    assert seen.floor.value == seen.resolution
    assert seen.ratio.value > 1.0 + seen.floor.value
    assert 1.0 < seen.ratio.ci[0] < 1.0 + seen.resolution
    assert seen.verdict == "same"


def test_looks_before_the_last_are_stricter() -> None:
    assert decision_level(4, 12) > decision_level(12, 12) == decision_level(12) == decision_level(14, 12)
    rounds = steady(8, 0.035, sd=0.012, seed=2)
    early, last = compare(rounds, planned=16), compare(rounds)
    assert early.floor.value > last.floor.value
    assert early.ratio == last.ratio


def test_rounds_to_decide_shrinks_with_the_effect_and_never_asks_for_fewer_than_there_are() -> None:
    small, large = (compare(steady(5, shift, sd=0.02, seed=1)) for shift in (0.03, 0.3))
    assert to_decide(large) == 5
    more = to_decide(small)
    assert more is not None
    assert more > 5
    assert to_decide(compare(steady(5, 0.02, sd=0.2, seed=1)), most=12) is None


def test_spreads_of_both_levels_are_told_apart() -> None:
    rng = np.random.default_rng(6)
    rounds = [round_of(i, *rng.normal(0.0, 0.03, 2), pairs=8, noise=0.02) for i in range(150)]
    seen = compare(rounds)
    assert seen.between_sd == pytest.approx(0.03, rel=0.2)
    # a block's median of nine steps has about 0.41 of a step's sd
    assert seen.within_sd == pytest.approx(0.41 * 0.02, rel=0.2)


def test_quantiles_are_shown_only_where_enough_steps_lie_beyond() -> None:
    rng = np.random.default_rng(0)
    blocks = [Block("failing", f"r{i}", i, np.exp(rng.normal(0, 0.1, 50)).tolist()) for i in range(4)]
    seen = quantile_summary(blocks)
    times = np.concatenate([b.times_ms for b in blocks])
    assert seen["p50"].value == pytest.approx(np.quantile(times, 0.5))
    assert seen["p95"].value == pytest.approx(np.quantile(times, 0.95))
    assert seen["p50"].ci[0] < seen["p50"].value < seen["p50"].ci[1]
    assert seen["p50"].n == 200
    assert seen["p99"].quality == "unavailable"
    assert "1000 steps" in (seen["p99"].reason or "")
    assert quantile_summary([])["p50"].value is None


def test_quantiles_of_a_single_process_say_what_they_leave_out() -> None:
    blocks = [Block("failing", "only", i, np.linspace(1, 2, 50).tolist()) for i in range(4)]
    assert "one process" in (quantile_summary(blocks)["p50"].reason or "")


def test_the_interval_of_a_quantile_covers_processes_too() -> None:
    rng = np.random.default_rng(1)
    apart = [Block("failing", f"r{i}", i, np.exp(0.1 * i + rng.normal(0, 0.01, 400)).tolist()) for i in range(6)]
    low, high = quantile_summary(apart)["p50"].ci or (0.0, 0.0)
    assert high / low > 1.15


def test_the_ratio_of_quantiles_is_that_of_the_pooled_steps() -> None:
    rounds = [round_of(i, 0.4, 0.0, pairs=16, noise=0.1) for i in range(6)]
    seen = ratio_quantiles(rounds)
    for name in ("p50", "p95"):
        assert seen.ratios[name].value == pytest.approx(math.exp(0.4), rel=0.08)
        assert seen.ratios[name].ci[0] < seen.ratios[name].value < seen.ratios[name].ci[1]
    assert seen.ratios["p99"].quality == "unavailable"
    assert seen.tail_slower
    assert not ratio_quantiles(rounds[:4]).tail_slower
    assert not ratio_quantiles([]).tail_slower
