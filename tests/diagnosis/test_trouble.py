"""What the host took from the blocks: when that explains a gap, and when it only looks as if it did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsetui.diagnosis.case import Case, Trial
from sparsetui.diagnosis.stats import Block, Comparison, Round, compare, in_calm, trouble
from sparsetui.diagnosis.stats.trouble import best_clock, lost
from sparsetui.diagnosis.suspects import suspects
from sparsetui.diagnosis.verdict import Judgement, judge
from sparsetui.evidence.records import Finding
from sparsetui.runner.calm import Waiting

ID = "execution.throttled"


def rounds(ratio: float, n: int = 8, sd: float = 0.01) -> list[Round]:
    rng = np.random.default_rng(3)

    def blocks(variant: str, k: int, ms: float) -> list[Block]:
        return [Block(variant, f"{variant}{k}", i, tuple(ms * rng.lognormal(0, 0.01, 20))) for i in range(4)]

    return [Round(blocks("failing", k, ratio * rng.lognormal(0, sd)), blocks("comparator", k, rng.lognormal(0, sd)))
            for k in range(n)]  # fmt: skip


def conditions(
    failing: float, comparator: float, n: int = 8, key: str = "delay_s", **more: Any
) -> list[dict[str, Any]]:
    """Blocks of 0.1 s of which so much was taken, with a spread of two hundredths."""
    rng = np.random.default_rng(5)
    return [
        {"round": k, "variant": v, "wall_s": 0.1, key: 0.1 * max(0.0, share + rng.normal(0, 0.02)), "steal": 0.0, **more}
        for k in range(n) for v, share in (("failing", failing), ("comparator", comparator)) for _ in range(4)
    ]  # fmt: skip


def judged(
    ratio: float, blocks: list[dict[str, Any]], calm: float | None = None, failed: str = "", pairs: int = 5
) -> tuple[Judgement, Finding | None]:
    compared = compare(rounds(ratio))
    trials = {}
    if calm is not None or failed:
        after = compare(rounds(calm or 1.0, pairs)) if calm is not None else None
        closed = in_calm(compared, after) if after is not None else None
        check: dict[str, Any] = {"applied": pairs if after is not None else 0, "equal": True}
        if after is not None:
            check.update(ratio=after.ratio.value, ci=after.ratio.ci)
        trials[("calm", "failing")] = Trial("calm", closed, check, ("E9",), failed)
    case = Case(comparison=compared, extra={("conditions", ""): {"blocks": blocks}}, trials=trials,
                evidence_ids={("clock", ""): "E4"})  # fmt: skip
    j = judge(case)
    return j, next((f for f in j.findings if f.mechanism == ID), None)


def test_a_gap_of_one_variants_waiting_that_is_gone_in_calm_is_proved() -> None:
    j, f = judged(2.0, conditions(0.5, 0.02), calm=1.0)
    assert (j.verdict.mechanism, j.verdict.confidence) == (ID, "confirmed")
    assert f is not None
    assert f.share_of_regression is not None
    assert f.share_of_regression.value == pytest.approx(0.96, abs=0.08)
    assert "50 % of the failing variant's blocks" in f.summary
    assert "over 5 pairs in calm the ratio is" in f.summary


def test_a_gap_that_stays_in_calm_is_the_releases_own() -> None:
    j, f = judged(2.0, conditions(0.5, 0.02), calm=1.9)
    assert f is not None
    assert not f.material
    assert j.verdict.mechanism is None


def test_a_gap_of_which_more_than_half_stays_is_not_called_gone() -> None:
    j, f = judged(2.0, conditions(0.5, 0.02), calm=1.55)
    assert f is not None
    assert not f.material
    assert j.verdict.status == "cannot_answer"


def test_what_hits_both_alike_is_no_fault_even_where_the_gap_is_gone_in_calm() -> None:
    j, f = judged(1.3, conditions(0.4, 0.4), calm=1.0)
    assert f is not None
    assert not f.material
    assert "both alike" in f.summary
    assert f.reason == "both variants were hit alike, and a gap comes only of what hits one more"
    assert j.verdict.mechanism is None
    assert j.verdict.status == "cannot_answer"


def test_an_identical_pair_on_a_noisy_host_is_no_fault() -> None:
    j, f = judged(1.0, conditions(0.4, 0.4))
    assert j.verdict.status == "no_fault"
    assert f is not None
    assert not f.material


def test_more_waiting_of_one_without_a_gap_costs_nothing() -> None:
    j, f = judged(1.0, conditions(0.3, 0.02))
    assert j.verdict.status == "no_fault"
    assert f is not None
    assert f.reason.startswith("it costs nothing that matters")


def test_no_more_is_credited_than_was_taken() -> None:
    """A tenth of the time was taken, and yet the whole gap is gone in calm: something else came with the calm."""
    _, f = judged(2.0, conditions(0.1, 0.0), calm=1.0)
    assert f is not None
    assert f.share_of_regression is not None
    assert f.share_of_regression.value == pytest.approx(0.1 / 0.5, abs=0.05)


def test_without_calm_nothing_is_blamed_and_the_line_says_why() -> None:
    waiting = Waiting()
    told = {"wall_s": 0.1, "delay_s": 0.05}
    assert waiting.disturbed("failing", told, 0.0)
    assert not waiting.disturbed("comparator", {"wall_s": 0.1, "delay_s": 0.001}, 0.0)
    waiting.used.append(0.9)
    line = waiting.said(9.3, 0)
    assert line == (
        "not settled: calm never came in 9.3 s: threads waited for a CPU in 1 of 2 blocks, of the failing variant; "
        "others used 90 % of the calmest core; settled by a run on a quiet host, at the same priority and on the same cores "
        "for both"
    )
    j, f = judged(2.0, conditions(0.5, 0.02), failed=line)
    assert f is not None
    assert (f.material, f.confidence, f.reason) == (False, "suspected", line)
    assert not f.settled
    assert j.verdict.status == "cannot_answer"
    assert "calm never came" in j.verdict.summary


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"wall_s": 0.1, "throttled": 1, "stopped_s": 0.0}, "a CPU quota stopped the cgroup"),
        ({"wall_s": 0.1, "steal": 0.2}, "another guest had the CPU"),
        ({"wall_s": 0.1, "freq_mhz": 1500.0}, "the clock was below the best seen"),
    ],
)
def test_each_disturbance_is_named(told: dict[str, Any], words: str) -> None:
    waiting = Waiting()
    assert waiting.disturbed("failing", told, 3000.0)
    assert words in waiting.said(5.0, 1)
    assert waiting.quota == bool(told.get("throttled"))


def test_the_largest_part_taken_counts() -> None:
    assert lost({"wall_s": 0.2, "delay_s": 0.05, "stopped_s": 0.1, "steal": 0.3}) == pytest.approx(0.5)
    assert lost({"wall_s": 0.2, "steal": 0.3}) == pytest.approx(0.3)
    assert lost({"wall_s": 0.2, "freq_mhz": 2000.0}, 4000.0) == pytest.approx(0.5)
    assert lost({"wall_s": 0.2, "freq_mhz": 3900.0}, 4000.0) == 0.0
    assert lost({"wall_s": 0.2}) is None, "nothing told is not nothing taken"
    assert best_clock([{"freq_mhz": 2.0}, {}, {"freq_mhz": 3.0}]) == 3.0


def test_few_rounds_do_not_tell_on_whom_it_fell() -> None:
    assert trouble(conditions(0.5, 0.0, n=2)) is None
    assert trouble([{"round": 0, "variant": "failing", "wall_s": 1.0}] * 8) is None
    told = trouble(conditions(0.5, 0.0, n=3))
    assert told is not None
    assert told.one_sided


def test_one_bad_round_is_no_rule() -> None:
    blocks = conditions(0.02, 0.02)
    for b in blocks:
        if b["round"] == 4 and b["variant"] == "failing":
            b["delay_s"] = 0.09
    told = trouble(blocks)
    assert told is not None
    assert not told.one_sided


def test_rounds_that_point_both_ways_are_chance() -> None:
    blocks = conditions(0.3, 0.02, n=6)
    for b in blocks:
        if b["round"] % 2 and b["variant"] == "comparator":
            b["delay_s"] = 0.04
        if b["round"] % 2 and b["variant"] == "failing":
            b["delay_s"] = 0.02
    told = trouble(blocks)
    assert told is not None
    assert told.extra.value is not None
    assert told.extra.value > 0.02
    assert not told.one_sided


def test_calm_is_waited_for_only_where_one_variant_was_hit_more() -> None:
    for failing, comparator, wanted in ((0.4, 0.4, None), (0.4, 0.02, "calm"), (0.02, 0.4, None)):
        case = Case(
            comparison=compare(rounds(1.5)), extra={("conditions", ""): {"blocks": conditions(failing, comparator)}}
        )
        (s,) = [s for s in suspects(case) if s.mechanism.id == ID]
        assert s.intervention == wanted


def test_two_calm_pairs_say_nothing() -> None:
    before: Comparison = compare(rounds(2.0))
    closed = in_calm(before, compare(rounds(1.0, 2)))
    assert not closed.closes
    assert closed.effect.value is None


def test_a_missing_speedup_is_measured_from_the_ideal_in_calm_too() -> None:
    before, after = compare(rounds(1.0)), compare(rounds(0.5, 6))
    closed = in_calm(before, after, question="missing-speedup", ideal_ratio=0.5)
    assert closed.closes
    assert closed.share.value == pytest.approx(1.0, abs=0.05)
    assert not in_calm(before, compare(rounds(0.9, 6)), question="missing-speedup", ideal_ratio=0.5).closes
