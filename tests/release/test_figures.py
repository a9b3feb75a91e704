"""What the release half concludes from times: queues, floors, ratios, mixes, verdicts in words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsetui.diagnosis.energy import by_variant, per_request
from sparsetui.diagnosis.stats import Block
from sparsetui.evidence.records import Number, unavailable
from sparsetui.probes.energy import Meter
from sparsetui.release import lens, queueing, replay, rollback
from sparsetui.release.arms import REFERENCE, Cycles, fastest, slower
from sparsetui.release.rows import crossover
from sparsetui.release.targets import plan
from sparsetui.session.state import SessionState
from sparsetui.workload.spec import Sla, load

TIMES = st.lists(st.floats(0.01, 50), min_size=2, max_size=60)


@given(TIMES, st.data())
def test_the_queue_is_lindleys(service, data) -> None:
    gaps = data.draw(st.lists(st.floats(0, 60), min_size=len(service), max_size=len(service)))
    wait, expected = 0.0, []
    for s, g in zip(service, gaps, strict=True):
        expected.append(wait + s)
        wait = max(0.0, wait + s - g)
    assert queueing.latencies(np.array(service), np.array(gaps)) == pytest.approx(expected, abs=1e-6)


def test_throughput_at_the_sla_is_below_capacity_and_grows_with_the_limit() -> None:
    times = [1.0] * 2000
    tight, loose = (queueing.throughput(times, Sla(p99_ms=v)) for v in (2.0, 20.0))
    assert tight.value is not None
    assert loose.value is not None
    assert 0 < tight.value < loose.value < 1000
    assert tight.quality == "derived"


def test_without_an_sla_or_beyond_it_there_is_no_throughput() -> None:
    assert "no [sla]" in str(queueing.throughput([1.0] * 2000, None).reason)
    assert "missed at any rate" in str(queueing.throughput([9.0] * 2000, Sla(p50_ms=2)).reason)
    assert "do not support p99" in str(queueing.throughput([1.0] * 50, Sla(p99_ms=2)).reason)


@pytest.mark.parametrize(
    ("p50", "p99", "said"),
    [
        (Number(1, (0.9, 1.1)), Number(4, (3, 5)), "held"),
        (Number(1, (0.9, 1.1)), Number(9, (8, 12)), "cannot tell: p99 straddles 10 ms"),
        (Number(1, (0.9, 1.1)), Number(20, (18, 22)), "broken: p99"),
        (Number(3, (2.9, 3.1)), unavailable("few"), "broken: p50"),
    ],
)
def test_the_sla_verdict_needs_the_whole_interval(p50, p99, said) -> None:
    assert queueing.judge({"p50": p50, "p99": p99}, Sla(p50_ms=2, p99_ms=10)) == said


def _cycles(levels: dict[str, float], n: int = 8, seed: int = 0, noise: float = 0.01) -> Cycles:
    rng = np.random.default_rng(seed)
    c = Cycles()
    for _ in range(n):
        order = c.order([REFERENCE, *(a for a in levels if a != REFERENCE)])
        drift = rng.normal(0, 0.1)
        c.add(order, [Block(a, "one", i, [levels[a] * math.exp(drift + rng.normal(0, noise))] * 5)
                      for i, a in enumerate(order)])  # fmt: skip
    return c


def test_arms_are_compared_within_cycles_so_that_drift_cancels() -> None:
    c = _cycles({REFERENCE: 2.0, "csr": 1.0, "mixed": 1.2})
    r = c.ratio("csr")
    assert r.ci is not None
    assert r.ci[0] < 0.5 < r.ci[1] * 1.03
    assert r.ci[1] - r.ci[0] < 0.05
    assert (c.floor().value or 1) < 0.03
    assert fastest(c, [REFERENCE, "csr", "mixed"]) == "csr"


def test_a_mix_that_measures_slower_than_the_best_single_format_is_seen() -> None:
    assert slower(_cycles({REFERENCE: 2.0, "csr": 1.0, "mixed": 1.2}), "mixed", "csr")
    assert not slower(_cycles({REFERENCE: 2.0, "csr": 1.0, "mixed": 1.0}), "mixed", "csr")


def test_a_mix_is_seen_as_slower_where_only_the_figures_of_its_row_say_so() -> None:
    """An arm left out of most cycles is compared on few of them; what a reader sees are both ratios against dense."""
    c = _cycles({REFERENCE: 2.0, "csr": 1.0, "mixed": 1.0}, n=8)
    late = {cycle: level + 0.2 for cycle, level in c.levels("mixed").items()}
    c.blocks["mixed"] = [(i, Block("mixed", "one", 0, [math.exp(v)] * 5)) for i, v in late.items() if i > 3]
    c.blocks["csr"] = [(i, b) for i, b in c.blocks["csr"] if i < 3]  # no cycle holds both
    assert c.ratio("mixed", "csr").value is None
    assert slower(c, "mixed", "csr")


def test_hopeless_arms_are_timed_in_few_cycles() -> None:
    c = _cycles({REFERENCE: 1.0, "coo": 20.0, "csr": 1.0}, n=12)
    assert len(c.times("coo")) < len(c.times("csr"))
    assert c.ratio("coo").value == pytest.approx(20, rel=0.1)
    slow = c.quantiles("coo")["p50"]
    assert slow.value == pytest.approx(20, rel=0.4)
    assert "only 15 steps" in str(slow.reason)


def test_what_the_harness_costs_is_taken_off() -> None:
    c = _cycles({REFERENCE: 1.5, "csr": 1.0}, noise=0.0, n=6)
    c.blocks["alone"] = [(i, Block("alone", "one", 9, [math.exp(c.levels(REFERENCE)[i]) / 1.5] * 5)) for i in range(6)]
    assert c.net("csr", "alone").value == pytest.approx(0.5, abs=0.02)  # (1.0 - 0.5) / 1.0


def test_crossover_lies_between_the_grid_points_that_straddle_it() -> None:
    found = crossover([(0.5, 0.25), (0.8, 0.5), (0.9, 2.0)])
    assert found.value == pytest.approx(0.85)
    assert found.ci == (0.8, 0.9)
    assert "slower than dense up to 0.9" in str(crossover([(0.5, 0.2), (0.9, 0.7)]).reason)
    assert crossover([(0.5, 1.2), (0.9, 3.0)]).value == 0.5


def _layer(name: str, zeros: float, shape: tuple[int, int] = (8, 8)) -> dict[str, object]:
    return {"name": name, "zeros": zeros, "shape": list(shape)}


def test_the_denser_variant_is_pruned_to_the_failing_ones_zeros() -> None:
    found = plan({"failing": [_layer("a", 0.9), _layer("b", 0.0)],
                  "comparator": [_layer("a", 0.0), _layer("b", 0.0)]}, None)  # fmt: skip
    assert not isinstance(found, str)
    assert (found.source, found.targets) == ("comparator", {"a": 0.9, "b": 0.0})
    assert "2 weights by name" in found.how


def test_other_names_are_matched_by_shape_and_a_hidden_sparsity_is_the_declared_one() -> None:
    by_shape = plan({"failing": [_layer("x", 0.8, (4, 8))], "comparator": [_layer("a", 0.0, (4, 8))]}, None)
    assert not isinstance(by_shape, str)
    assert by_shape.targets == {"a": 0.8}
    declared = plan({"failing": [], "comparator": [_layer("a", 0.0)]}, 0.7)
    assert not isinstance(declared, str)
    assert declared.targets == {"a": 0.7}
    assert isinstance(plan({"comparator": [_layer("a", 0.0)]}, None), str)
    assert isinstance(plan({}, 0.9), str)


def test_a_tail_that_fails_is_told_apart_from_a_shift_of_everything() -> None:
    limits = {"p50": 10.0, "p99": 50.0}
    tail = {"p50": Number(2, (1.9, 2.1)), "p99": Number(90, (80, 99))}
    both = {"p50": Number(20, (19, 21)), "p99": Number(90, (80, 99))}
    assert replay.tell(replay._held(tail, limits, strict=True)).endswith("only the tail fails")
    assert "every request is slower" in replay.tell(replay._held(both, limits, strict=True))
    edge = {"p50": Number(9, (8, 11)), "p99": Number(20, (19, 21))}
    assert replay._held(edge, limits, strict=True)["p50"] == "not told apart from its limit"
    assert replay._held(edge, limits, strict=False)["p50"] == "held"
    wide = {"p50": Number(12, (8, 30)), "p99": Number(20, (19, 21))}
    assert replay._held(wide, limits, strict=False)["p50"] == "not told apart from its limit", "noise holds nothing"


def test_without_an_sla_the_comparator_and_a_margin_are_the_limit() -> None:
    seen = {"p50": Number(2, (1.9, 2.1)), "p95": Number(3, (2.8, 3.2)), "p99": unavailable("few")}
    assert replay.relative_limits(seen, Number(0.02)) == pytest.approx({"p50": 2 * 1.06, "p95": 3 * 1.06})
    calm = replay.relative_limits(seen, unavailable("no floor"))
    assert calm["p50"] == pytest.approx(2 * 1.05), "identical code differs by some per cent"
    assert replay._above(calm, Number(0.5, unit="ms"))["p50"] == pytest.approx(calm["p50"] + 0.5)
    assert replay._above(calm, unavailable("no fix")) == calm


def test_a_queue_grows_or_holds() -> None:
    assert replay.grows([1.0 + i for i in range(60)], 1.0) is True
    assert replay.grows([1.0, 1.1] * 30, 1.0) is False
    assert replay.grows([1.0] * 6, 1.0) is None


# Energy


def _block(count: int, **conditions: object) -> Block:
    return Block("failing", "one", 0, [1.0] * count, conditions)


def test_energy_is_measured_estimated_or_unavailable_and_never_zero() -> None:
    counted = per_request([_block(10, joules={"rapl": 5.0}, cpu_s=9.0)] * 3, 10.0)
    assert (counted.value, counted.quality) == (0.5, "measured")
    guessed = per_request([_block(10, joules={}, cpu_s=0.2)] * 3, 10.0)
    assert (guessed.value, guessed.quality) == (pytest.approx(0.2), "estimated")
    none = per_request([_block(10, cpu_s=0.2)], None, ["RAPL is not readable"])
    assert none.value is None
    assert "RAPL is not readable" in str(none.reason)
    assert "watts_per_core" in str(none.reason)


def test_energy_of_different_quality_gives_no_ratio() -> None:
    a, b = [_block(10, joules={"rapl": 5.0})] * 2, [_block(10, cpu_s=0.2)] * 2
    assert "ratio" not in by_variant({"failing": a, "comparator": b}, 10.0)
    assert by_variant({"failing": a, "comparator": a}, None)["ratio"].value == 1.0


def test_rapl_packages_are_read_once_and_wrap(tmp_path: Path) -> None:
    for name, title, value in (
        ("intel-rapl:0", "package-0", 900),
        ("intel-rapl:0:0", "core", 500),
        ("intel-rapl:1", "psys", 7),
    ):
        folder = tmp_path / name
        folder.mkdir()
        for file, text in (("name", title), ("energy_uj", value), ("max_energy_range_uj", 1000)):
            (folder / file).write_text(f"{text}\n")
    m = Meter(str(tmp_path))
    before = m.read()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100\n")
    assert m.sources == ["rapl"]
    assert m.since(before) == {"rapl": pytest.approx(200e-6)}


def test_a_host_without_counters_says_so(tmp_path: Path) -> None:
    m = Meter(str(tmp_path))
    assert m.sources == []
    assert any("no RAPL counters" in why for why in m.missing)


# The lens and the way back


def _point(label: str, pressure: float, tail: float) -> dict[str, object]:
    return {
        "label": label,
        "pressure": Number(pressure, (pressure * 0.9, pressure * 1.1)),
        "tail": Number(tail, (tail * 0.9, tail * 1.1)),
    }


def test_zones_come_from_the_comparator_the_floor_and_the_tails_seen() -> None:
    points = [
        _point("comparator", 0.2, 1.5),
        _point("calm", 0.5, 1.5),
        _point("shaky", 0.6, 4.0),
        _point("full", 0.99, 1.4),
    ]
    zones = lens.zones_of(points, points[0], Number(0.02))
    assert [(z["name"], round(z["low"], 3)) for z in zones] == [
        ("baseline", 0.0), ("tuning candidate", 0.22), ("unstable tail", 0.6), ("saturation", 0.98)]  # fmt: skip
    assert [lens.zone_of(p, zones, points[0]) for p in points] == [
        "baseline",
        "tuning candidate",
        "unstable tail",
        "saturation",
    ]
    calm = points[:2]
    assert "unstable tail" not in [z["name"] for z in lens.zones_of(calm, calm[0], Number(0.02))]


def test_bytes_touched_count_a_sparse_weight_as_it_is_stored() -> None:
    weight = {"name": "w", "shape": [4, 4], "bytes": {"values": 12, "indices": 20}}
    row = {"family": "product", "calls": 4, "out_bytes": 32, "weight": weight,
           "operands": [{"shape": [2, 4], "dtype": "float32", "layout": "strided"},
                        {"shape": [4, 4], "dtype": "float32", "layout": "csr"}]}  # fmt: skip
    census = {"steps": 2, "rows": [row, {**row, "family": "view", "weight": None}]}
    assert lens.touched(census) == 2 * (32 + 32 + 32)
    assert lens.weights(census, per_call=False) == 32
    assert lens.working_set(census) == 32 + 32 + 32


def test_the_last_cache_is_read_from_sysfs(tmp_path: Path) -> None:
    for i, (level, kind, size) in enumerate([(1, "Data", "32K"), (1, "Instruction", "64K"), (3, "Unified", "16M")]):
        (tmp_path / f"index{i}").mkdir()
        for file, text in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / f"index{i}" / file).write_text(f"{text}\n")
    assert lens.last_cache(tmp_path) == 16 << 20
    assert lens.last_cache(tmp_path / "none") is None


CASES = Path(__file__).parent / "cases"


def test_rollback_criteria_follow_from_sla_and_floor() -> None:
    state = SessionState(metrics={"latency_ms": {
        "comparator": {"p50": Number(2.0, (1.9, 2.1)), "p99": Number(4.0, (3.5, 4.5))}, "noise_floor": Number(0.04)}},
        owners={"production reliability owner": "@sre"})  # fmt: skip
    from msgspec import structs

    with_sla = load(CASES / "service.toml")
    found = {c["key"]: c for c in rollback.criteria(state, with_sla)}
    assert found["p99"]["limit"] == 400
    assert "@sre" in found["p99"]["who"]
    assert found["drift"]["limit"] == 0.2
    bare = structs.replace(with_sla, sla=None, quality=None)
    found = {c["key"]: c for c in rollback.criteria(state, bare)}
    assert found["p50"]["limit"] == pytest.approx(2.1 * 1.12)  # three floors of 4 %
    assert set(found) == {"p50", "p99", "alive"}
    assert rollback.criteria(SessionState(), bare) == []


@pytest.mark.parametrize(
    ("figure", "fires"),
    [(Number(1, (0.5, 1.5)), "no"), (Number(3, (2.5, 3.5)), "yes"), (Number(2, (1.5, 2.5)), "no"),
     (Number(2.2, (1.5, 2.5)), "cannot be told apart from its threshold"), (unavailable("few"), "cannot be told (few)")],
)  # fmt: skip
def test_a_criterion_fires_or_not(figure, fires) -> None:
    assert rollback._fires(figure, 2.0) == fires
