from __future__ import annotations

import math

import pytest

from sparsetui.evidence.records import Number, unavailable
from sparsetui.report.numbers import as_number, brief, fallback_overhead, figure, metric


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(0.93, ci=(0.90, 0.95), n=2000), "0.93 [0.90, 0.95] (n=2000)"),
        (Number(3.1, ci=(3.0, 3.2), unit="ms"), "3.10 [3.00, 3.20] ms"),
        (Number(5.34, unit="×", n=3), "5.34× (n=3)"),
        (Number(1234567.0, unit="B"), "1,234,567 B"),
        (Number(0.5, quality="estimated", unit="J"), "0.50 J est."),
        (Number(0.5, quality="derived"), "0.50 derived"),
        (Number(2e-5), "2.00e-05"),
        (Number(math.nan), "nan"),
        (unavailable("RAPL is not readable"), "unavailable: RAPL is not readable"),
        (Number(None, quality="unavailable"), "unavailable: no reason was given"),
    ],
)
def test_one_form_for_every_figure(number: Number, text: str) -> None:
    assert figure(number) == text


def test_zero_is_zero_and_never_unavailable() -> None:
    assert figure(Number(0.0)) == "0"
    assert figure(Number(0.0), percent=True) == "0%"


def test_percent_scales_the_interval_too() -> None:
    assert figure(Number(0.93, ci=(0.90, 0.95)), percent=True) == "93% [90, 95]"
    assert figure(Number(0.07, ci=(0.05, 0.1)), percent=True) == "7.0% [5.0, 10.0]"


def test_brief_keeps_three_digits() -> None:
    assert [brief(v) for v in (0.0123, 0.5, 12.34, 123.4, None)] == ["0.012", "0.50", "12.3", "123", "–"]


def test_a_metric_is_read_as_record_dict_or_by_variant() -> None:
    metrics = {
        "a": Number(1.0),
        "b": {"value": 2.0, "ci": [1.0, 3.0]},
        "c": {"failing": {"value": 3.0}, "comparator": {"value": 9.0}},
        "d": {"value": "x"},
    }
    assert [metric(metrics, k).value for k in "abc"] == [1.0, 2.0, 3.0]
    assert metric(metrics, "d").quality == "unavailable"
    assert metric(metrics, "nothing").reason == "it was not measured"
    assert metric(metrics, "c", "comparator").value == 9.0


def test_a_bare_number_is_not_called_measured() -> None:
    assert as_number(3).quality == "derived"
    assert as_number(True).quality == "unavailable"


def test_fallback_overhead_prefers_time_over_calls() -> None:
    assert fallback_overhead({"fallback_rate": {"value": 0.5}, "fallback_overhead": {"value": 0.1}}).value == 0.1
    assert fallback_overhead({"fallback_rate": {"value": 0.5}}).value == 0.5
    assert fallback_overhead({}).value is None
