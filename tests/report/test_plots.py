from __future__ import annotations

import math
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from sparsetui.evidence.records import BudgetLine, Finding, Number, RegressionBudget, unavailable
from sparsetui.report import plots
from sparsetui.report.cause import budget_section
from sparsetui.report.document import Document
from sparsetui.report.facts import facts_of
from sparsetui.report.markdown import to_markdown
from sparsetui.report.plots import LensPoint, RoofPoint, Roofs, Zone
from sparsetui.session.state import SessionState

FLOATS = st.floats(allow_nan=True, allow_infinity=True)
WIDTHS = st.integers(min_value=0, max_value=130)
LABELS = st.text(max_size=30)
quick = settings(max_examples=30, deadline=None)


def assert_fits(lines: list[str], width: int, unicode: bool) -> None:
    for line in lines:
        assert cell_len(line) <= width, (line, width)
        assert unicode or line.isascii(), line
        assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in line)


@quick
@given(st.lists(st.one_of(st.none(), FLOATS), max_size=200), WIDTHS, st.booleans())
def test_spark_is_exactly_as_wide_as_asked(values: list[float | None], width: int, unicode: bool) -> None:
    line = plots.spark(values, width, unicode)
    assert cell_len(line) == width
    assert unicode or line.isascii()


@quick
@given(st.one_of(st.none(), FLOATS), WIDTHS, st.booleans())
def test_bar_is_exactly_as_wide_as_asked(share: float | None, width: int, unicode: bool) -> None:
    line = plots.bar(share, width, unicode)
    assert cell_len(line) == width
    assert unicode or line.isascii()


def test_a_spike_survives_pooling() -> None:
    assert "█" in plots.spark([1.0] * 500 + [9.0] + [1.0] * 499, 20)


def test_two_strips_on_one_scale_compare() -> None:
    slow, fast = (plots.spark([v] * 5, 5, low=0, high=10) for v in (9.0, 1.0))
    assert slow == "█████"
    assert fast == "▁▁▁▁▁"


def test_a_gap_stays_a_gap() -> None:
    assert plots.spark([1.0, None, 2.0], 3) == "▁ █"


def test_bar_shows_the_small_the_large_and_the_negative() -> None:
    assert plots.bar(0.001, 10).strip() != ""
    assert plots.bar(0, 10).strip() == ""
    assert plots.bar(None, 10).strip() == ""
    assert plots.bar(1.5, 4) == "███▶"
    assert plots.bar(-0.2, 4) == "◀   "
    assert plots.bar(0.5, 4, unicode=False) == "##  "


@quick
@given(st.lists(FLOATS, max_size=80), st.lists(FLOATS, max_size=80), WIDTHS, st.integers(3, 20), st.booleans())
@example([], [1.7976931348623157e308, -1e292], 1, 3, False)
def test_distribution_fits(a: list[float], b: list[float], width: int, height: int, unicode: bool) -> None:
    lines = plots.distribution(a, b, width, height, unicode)
    assert_fits(lines, width, unicode)


def test_distribution_counts_what_lies_beyond_its_axis() -> None:
    lines = plots.distribution([1.0] * 998 + [2.0, 500.0], [1.0] * 1000, 60, 9)
    assert "1 beyond the axis" in lines[0]
    assert "n=1000" in lines[0]
    assert lines[-1].endswith("ms")


@quick
@given(st.lists(st.tuples(LABELS, st.one_of(st.none(), FLOATS)), max_size=8), WIDTHS, st.booleans())
def test_budget_fits(rows: list[tuple[str, float | None]], width: int, unicode: bool) -> None:
    def number(v: float | None) -> Number:
        return unavailable("noise") if v is None else Number(value=v, ci=(v, v))

    lines = tuple(BudgetLine(label, number(v), number(v)) for label, v in rows)
    budget = RegressionBudget("regression", number(1.0), lines)
    assert_fits(plots.budget_bars(budget, width, unicode), width, unicode)


def test_budget_shows_the_unexplained_rest() -> None:
    budget = RegressionBudget(
        "regression",
        Number(3.2, unit="ms"),
        (
            BudgetLine("kernel.wrong-orientation", Number(2.9), Number(0.9)),
            BudgetLine("unexplained", Number(0.3), Number(0.1)),
        ),
    )
    lines = plots.budget_bars(budget, 80)
    assert "gap 3.20 ms" in lines[0]
    assert lines[2].startswith("unexplained")
    assert lines[1].count("█") > lines[2].count("█")


def line(mechanism: str, share: float, why: str | None = None, ci: tuple[float, float] | None = None) -> BudgetLine:
    ms = Number(2 * share, unit="ms", quality="derived", reason=why)
    return BudgetLine(mechanism, ms, Number(share, ci=ci, quality="derived", reason=why))


def found(mechanism: str, share: float) -> Finding:
    closed = Number(share, ci=(share - 0.02, share + 0.02))
    return Finding(mechanism.split(".")[0], mechanism, "confirmed", True, "", "", share_of_regression=closed)


WHY = "closes 0.22 ms alone; stages before it already account for all but 0 ms of the gap"


def test_a_remainder_is_told_from_what_a_mechanism_closes_alone() -> None:
    lines = (line("lowering.extra", 0.97), line("kernel.fallback", 0.0, WHY, (-0.05, 0.05)), line("unexplained", 0.03))
    findings = (found("lowering.extra", 0.97), found("kernel.fallback", 0.11))
    drawn = plots.budget_bars(RegressionBudget("regression", Number(2.0, unit="ms"), lines), 80, True, findings)
    assert "97%" in drawn[1]
    assert "alone" not in drawn[1]
    assert "adds 0%, alone 11%  0 ms" in drawn[2]
    assert " ".join(drawn[4:]).startswith("adds: what is left for it after the stages before it; alone:")
    bare = plots.budget_bars(RegressionBudget("regression", Number(2.0, unit="ms"), lines), 80)
    assert len(bare) == 4, "without findings it is not known what a mechanism closes alone"


def test_the_memo_says_of_a_remainder_what_it_closes_alone() -> None:
    lines = (
        line("lowering.extra", 1.3, "closes more", (1.2, 1.4)),
        line("kernel.fallback", 0.0, WHY),
        line("unexplained", -0.3),
    )
    budget = RegressionBudget("regression", Number(2.0, unit="ms"), lines)
    state = SessionState(budget=budget, findings=(found("lowering.extra", 1.3), found("kernel.fallback", 0.11)))
    said = to_markdown(Document("memo", tuple(budget_section(facts_of(state)))))
    assert r"adds 0% derived; alone 11% \[9, 13\]" in said
    assert "lowering.extra gains more than the gap: the comparator pays elsewhere" in said
    assert "alone: what removing nothing else closes" in said


def test_a_recording_that_gives_no_interval_is_no_remainder() -> None:
    only = line("conversion", 0.4, "one recording of each: no interval can be given")
    budget = RegressionBudget("regression", Number(2.0, unit="ms"), (only,))
    assert not any("alone" in x for x in plots.budget_bars(budget, 80))


@pytest.mark.parametrize(
    ("question", "ci", "said"),
    [
        ("regression", (1.1, 1.3), "gains more than the gap: the comparator pays elsewhere"),
        ("missing-speedup", (1.1, 1.3), "gains more than the gap: it beats its ideal elsewhere"),
        ("regression", (0.9, 1.4), "gains more than the gap: within its interval, it closes all of it"),
    ],
)
def test_a_share_over_the_whole_is_explained(question: Any, ci: tuple[float, float], said: str) -> None:
    lines = (line("kernel.generic", 1.2, "closes more than the gap", ci), line("unexplained", -0.2))
    drawn = plots.budget_bars(RegressionBudget(question, Number(2.0, unit="ms"), lines), 100)
    assert drawn[-1] == f"kernel.generic {said}"
    whole = (line("kernel.generic", 0.9), line("unexplained", 1.1))
    assert len(plots.budget_bars(RegressionBudget(question, Number(2.0, unit="ms"), whole), 100)) == 3


@quick
@given(st.one_of(st.none(), FLOATS), st.one_of(st.none(), FLOATS), WIDTHS, st.booleans())
def test_reality_check_fits(sparsity: float | None, speedup: float | None, width: int, unicode: bool) -> None:
    metrics = {"nominal_sparsity": {"value": sparsity}, "real_speedup": {"value": speedup}, "fallback_rate": {}}
    assert_fits(plots.reality_check(metrics, width, unicode), width, unicode)


def test_reality_check_says_slower_and_unmeasured() -> None:
    lines = plots.reality_check({"nominal_sparsity": Number(0.9), "real_speedup": Number(0.19)}, 72)
    assert "90%" in lines[0]
    assert "◀" in lines[1]
    assert "0.19×" in lines[1]
    assert "unavailable" in lines[2]
    assert "█" not in lines[2]


POINTS = st.builds(RoofPoint, LABELS, FLOATS, FLOATS)


@quick
@given(st.lists(POINTS, max_size=6), FLOATS, FLOATS, WIDTHS, st.integers(0, 30), st.booleans())
def test_roofline_fits(points: list[RoofPoint], gb: float, gf: float, width: int, height: int, unicode: bool) -> None:
    assert_fits(plots.roofline(points, Roofs(gb, gf), width, height, unicode), width, unicode)


def test_roofline_places_each_point_and_names_it() -> None:
    lines = plots.roofline([RoofPoint("csr", 0.2, 1.9), RoofPoint("gemm", 30, 50)], Roofs(12, 80), 70, 12)
    assert any("a" in line for line in lines[:11])
    assert lines[-2].startswith("a csr")
    assert "79% of its roof" in lines[-2]


LENS = st.builds(LensPoint, LABELS, FLOATS, st.one_of(st.none(), FLOATS))
ZONES = st.builds(Zone, LABELS, FLOATS)


@quick
@given(st.lists(LENS, max_size=6), st.lists(ZONES, max_size=4), WIDTHS, st.integers(0, 30), st.booleans())
def test_lens_fits(points: list[LensPoint], zones: list[Zone], width: int, height: int, unicode: bool) -> None:
    assert_fits(plots.lens(points, zones, width, height, unicode), width, unicode)


def test_lens_puts_higher_pressure_higher() -> None:
    lines = plots.lens([LensPoint("a", 0.2), LensPoint("b", 0.9)], [Zone("saturation", 0.8)], 60, 12)
    rows = {line.index("o"): i for i, line in enumerate(lines[:11]) if "o" in line.split("saturation")[0]}
    low, high = (rows[c] for c in sorted(rows))
    assert high < low
    assert any("saturation" in line for line in lines)


@pytest.mark.parametrize("width", [0, -3])
def test_no_room_draws_nothing(width: int) -> None:
    assert plots.spark([1.0], width) == ""
    assert plots.bar(0.5, width) == ""
    assert plots.lens([LensPoint("a", 0.1)], [], width, 9) == []
    assert plots.bar(math.nan, 3) == "   "
