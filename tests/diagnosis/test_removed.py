"""What shows in results or memory is confirmed by switching it off and seeing it gone, without a slowdown."""

from __future__ import annotations

from typing import Any

import pytest

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.verdict import Judgement, judge

LEVEL: dict[str, Any] = {"rss": [0] * 48, "heap": [0] * 48, "grad_nnz": [8] * 48}
RISING: dict[str, Any] = {**LEVEL, "grad_nnz": [24 * i for i in range(48)]}


def judged(pass_: str, payload: dict[str, Any]) -> Judgement:
    ids = {(p, v): f"E-{p}-{v}" for p in (pass_, "inventory", "outputs") for v in ("failing", "comparator")}
    steady = {"repeats": True, "finite": True}
    outputs = {"failing": payload if pass_ == "outputs" else steady, "comparator": steady}
    return judge(Case(extra={(pass_, "failing"): payload}, outputs=outputs, evidence_ids=ids))


def wrong(mended: float | None) -> dict[str, Any]:
    op = {"op": "aten::sqrt", "layouts": ["coo"], "error": 0.4, "tolerance": 1e-3, "module": "m", "place": ""}
    return {"wrong": [{**op, "mended": mended}]}


@pytest.mark.parametrize(
    ("pass_", "removed", "stays", "mechanism", "by"),
    [
        ("truth", wrong(1e-7), wrong(0.4), "validation.wrong-result", "sorted and coalesced"),
        ("truth", wrong(1e-7), wrong(None), "validation.wrong-result", "sorted and coalesced"),
        ("growth", {**RISING, "dropped": LEVEL}, {**RISING, "dropped": RISING}, "execution.memory-growth", "dropped"),
        ("growth", {**RISING, "dropped": LEVEL}, {**RISING, "dropped": {k: v[:9] for k, v in LEVEL.items()}},
         "execution.memory-growth", "dropped"),
        ("outputs", {"repeats": False, "repeat_error": 1e-7, "steadied_by": "one thread"},
         {"repeats": False, "repeat_error": 1e-7, "steadied_by": ""}, "validation.nondeterminism", "one thread"),
        ("outputs", {"repeats": True, "drawn_error": 0.3, "steadied_by": "eval()"},
         {"repeats": True, "drawn_error": 0.3, "steadied_by": ""}, "validation.nondeterminism", "eval()"),
    ],
)  # fmt: skip
def test_what_is_gone_once_switched_off_is_confirmed_by_that_pass(
    pass_: str, removed: dict[str, Any], stays: dict[str, Any], mechanism: str, by: str
) -> None:
    proved, open_ = judged(pass_, removed).verdict, judged(pass_, stays).verdict
    assert (proved.status, proved.mechanism, proved.confidence) == ("fault", mechanism, "confirmed")
    assert proved.intervention == f"E-{pass_}-failing"
    assert by in proved.summary.partition("gone with")[2]
    assert (open_.status, open_.mechanism, open_.confidence) == ("fault", mechanism, "supported")
    assert open_.intervention is None
    assert "gone with" not in open_.summary
