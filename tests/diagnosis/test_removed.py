"""What shows in results or memory is confirmed by switching it off and seeing it gone, without a slowdown."""

from __future__ import annotations

from typing import Any

import pytest

from sparsetui.diagnosis.case import Case, Declared
from sparsetui.diagnosis.verdict import Judgement, judge
from sparsetui.evidence.records import Difference, Lock, Number

VARIANTS = ("failing", "comparator")
LEVEL: dict[str, Any] = {"rss": [0] * 48, "heap": [0] * 48, "grad_nnz": [8] * 48}
RISING: dict[str, Any] = {**LEVEL, "grad_nnz": [24 * i for i in range(48)]}


def judged(pass_: str, payload: dict[str, Any]) -> Judgement:
    ids = {(p, v): f"E-{p}-{v}" for p in (pass_, "inventory", "outputs") for v in VARIANTS}
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


def narrowed(moved: float | None) -> Case:
    weight = {"name": "w", "layout": "strided", "zeros": 0.9, "numel": 4096, "shape": [64, 64], "dtype": "bfloat16"}
    lock = Lock(match=False, differs=(Difference("dtype.weights", "bfloat16", "float32", declared=True),), tags={})
    held = {"tensors": [weight], "constants": []}
    extra = {("rounding", "comparator"): {"moved": moved}} if moved is not None else {}
    return Case(
        declared=Declared(max_drift=0.1), lock=lock, inventory={"failing": held, "comparator": held}, extra=extra,
        drift=Number(value=0.2), drift_metric="error", output_drift=Number(value=0.4),
        evidence_ids={(p, v): f"E-{p}-{v}" for p in ("rounding", "inventory", "outputs", "quality") for v in VARIANTS},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("moved", "mechanism", "confidence"),
    [
        (0.36, "validation.precision", "confirmed"),  # the comparator in that dtype goes as far
        (0.15, "validation.precision", "supported"),  # rather less: it may have a part in it
        (None, "validation.precision", "supported"),
        (0.01, "validation.quality-drift", "supported"),  # the dtype by itself does next to nothing
    ],
)
def test_the_dtype_is_blamed_for_what_rounding_alone_does(moved: float | None, mechanism: str, confidence: str) -> None:
    v = judge(narrowed(moved)).verdict
    assert (v.mechanism, v.confidence) == (mechanism, confidence)
    assert (v.intervention == "E-rounding-comparator") is (confidence == "confirmed")
