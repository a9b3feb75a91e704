"""Ranks of one run side by side: who lags, who waits, and for whom."""

from __future__ import annotations

import pytest

from sparsetui.diagnosis.ranks import Rank, judge, of_traces, section


def test_the_rank_that_waits_least_is_the_one_that_is_waited_for() -> None:
    found = judge([Rank("rank 0", 60, 40), Rank("rank 1", 98, 2), Rank("rank 2", 61, 39), Rank("rank 3", 59, 41)])
    assert found.waits == "rank 3"
    assert found.waited_for == "rank 1"
    assert found.stragglers == ("rank 1",)
    assert "1.63× as long" in found.why
    assert found.spread.value == pytest.approx(98 / 59)


def test_ranks_that_wait_alike_name_nobody() -> None:
    found = judge([Rank("rank 0", 90, 10), Rank("rank 1", 91, 9), Rank("rank 2", 89, 11)])
    assert (found.waits, found.waited_for, found.stragglers) == ("", "", ())
    assert "none waits" in found.summary


def test_a_rank_that_is_late_without_working_longer_is_held_up_from_outside() -> None:
    found = judge([Rank("rank 0", 60, 40), Rank("rank 1", 60, 5), Rank("rank 2", 60, 40)])
    assert found.waited_for == "rank 1"
    assert "outside" in found.why


def test_few_samples_name_nobody() -> None:
    few = [Rank("1:10", 0.8, 0.2, samples=10), Rank("2:10", 0.9, 0.1, samples=10)]
    assert judge(few).waited_for == ""
    many = [Rank("1:10", 0.8, 0.2, samples=4000), Rank("2:10", 0.9, 0.1, samples=4000)]
    assert judge(many).waited_for == "2:10"


def test_of_two_ranks_none_is_called_a_straggler() -> None:
    assert judge([Rank("a", 10, 0), Rank("b", 5, 5)]).stragglers == ()


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    with pytest.raises(ValueError, match="at least two"):
        judge([Rank("a", 1, 1)])


def test_a_rank_without_any_work_gives_no_spread() -> None:
    assert judge([Rank("a", 0, 1), Rank("b", 1, 0)]).spread.value is None


def test_traces_of_several_ranks_become_a_section() -> None:
    rows = [
        {"file": "/t/r0.json", "rank": 0, "compute_ms": 60.0, "collective_ms": 40.0, "step_p50_ms": 10.0},
        {"file": "/t/r1.json", "rank": 1, "compute_ms": 95.0, "collective_ms": 5.0, "step_p50_ms": 10.1},
        {"file": "/t/extra.json", "rank": None, "compute_ms": 61.0, "collective_ms": 39.0, "step_p50_ms": None},
    ]
    ranks = of_traces({"ranks": rows})
    assert [r.name for r in ranks] == ["rank 0", "rank 1", "extra.json"]
    body = section(ranks, judge(ranks))
    assert body["waited_for"] == "rank 1"
    assert [r["role"] for r in body["rows"]] == ["waits", "waited for", ""]
    assert body["rows"][2]["step_ms"].reason
