"""Investigations of steps that the host outweighs, and of those that only gain by larger calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsetui.evidence.records import Finding, Result
from sparsetui.runner.investigation import Investigation
from sparsetui.session.store import Store
from sparsetui.workload.spec import load

CODE = Path(__file__).with_name("calls.py")
ID, NAME = "scheduling.host-bound", "larger-calls"


def run(folder: Path, failing: str, comparator: str) -> tuple[Result, Investigation]:
    path = folder / f"{failing}.toml"
    path.write_text(
        '[workload]\nchange = ["weights", "code", "shapes"]\n'
        f'[failing]\nentry = "{CODE}:{failing}"\nthreads = 1\n[comparator]\nentry = "{CODE}:{comparator}"\nthreads = 1\n'
        f'[inputs]\nentry = "{CODE}:requests"\n'
    )
    investigation = Investigation(load(path), Store(folder / "sessions"), budget_s=15)
    try:
        return investigation.run_all(), investigation
    finally:
        investigation.close()


def found(result: Result) -> Finding | None:
    return next((f for f in (*result.findings, *result.ruled_out) if f.mechanism == ID), None)


@pytest.mark.slow
def test_many_small_calls_are_proved_by_joining_them(tmp_path: Path) -> None:
    result, investigation = run(tmp_path, "many_calls", "few_calls")
    v = result.verdict
    assert (v.status, v.mechanism, v.confidence) == ("fault", ID, "confirmed"), v.summary
    assert v.share_of_regression is not None
    assert v.share_of_regression.ci is not None
    assert v.share_of_regression.ci[0] > 0.0
    checks = [investigation.lab.trials[(NAME, variant)].check for variant in ("failing", "comparator")]
    assert all("inputs a call, joined in dimension 0" in c["notes"][0] for c in checks)
    assert all(c["equal"] and c["compared"] > 0 for c in checks)


@pytest.mark.slow
def test_a_row_times_a_large_weight_is_not_suspected_though_joining_would_help(tmp_path: Path) -> None:
    result, investigation = run(tmp_path, "wide_product", "narrow_product")
    assert found(result) is None
    assert (NAME, "failing") not in investigation.lab.trials
    assert result.verdict.mechanism != ID


@pytest.mark.slow
def test_a_gap_in_the_large_product_is_not_put_on_the_calls_that_both_make(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "many_calls_and_wide", "many_calls_and_narrow")
    f = found(result)
    assert f is None or not f.material, f.reason
    assert result.verdict.mechanism != ID
