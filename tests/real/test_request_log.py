"""The Azure LLM inference trace (conversations, November 2023) reads as a request log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsetui.release.requests import read_log

DATA = Path(os.environ.get("SPARSETUI_REAL_DATA", Path(__file__).parents[3] / "shared" / "data"))
LOG = DATA / "requests" / "azure_llm_conv_2023.csv"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not LOG.is_file(), reason=f"{LOG} is not there; set SPARSETUI_REAL_DATA"),
]


def test_times_of_seven_digits_and_prompt_sizes_are_read() -> None:
    log = read_log(LOG)
    lines = LOG.read_text().splitlines()
    assert len(log.arrivals) == len(lines) - 1
    assert log.arrivals[:2] == pytest.approx((0.0, 4.314579), abs=1e-5)
    assert log.span == pytest.approx(3501.72, abs=0.01)
    assert log.sizes is not None
    assert log.sizes[:3] == (374.0, 396.0, 879.0)
    assert sum(len(w.arrivals) for w in log.faster(60).first(10).windows(4)) == sum(a <= 600 for a in log.arrivals)
