from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sparsetui.evidence.records import (
    Difference,
    Finding,
    Lock,
    Number,
    OpRow,
    PathShare,
    Result,
    TimeTable,
    Verdict,
    unavailable,
)
from sparsetui.playbook.facts import FACTS, flatten, is_fact
from sparsetui.session.state import Phase, SessionState


def n(value: float | None, **more: Any) -> Any:
    number = unavailable("no") if value is None else Number(value, **more)
    return msgspec.to_builtins(number)


def with_ratio(value: float, low: float, high: float, floor: float = 0.01) -> SessionState:
    ratio = n(value, ci=(low, high))
    return SessionState(metrics={"latency_ms": {"ratio": {**ratio, "p50": ratio}, "noise_floor": n(floor)}})


@pytest.mark.parametrize(
    ("value", "low", "high", "says"),
    [
        (5.3, 5.2, 5.4, "slower"),
        (1.005, 1.001, 1.009, "same"),
        (0.5, 0.4, 0.6, "faster"),
        (1.02, 0.9, 1.15, "cannot tell"),
        (1.3, 0.99, 1.7, "cannot tell"),
    ],
)
def test_the_ratio_is_read_against_the_floor(value: float, low: float, high: float, says: str) -> None:
    assert flatten(with_ratio(value, low, high))["latency_ratio.p50.says"] == says


def test_a_ratio_without_a_floor_says_nothing() -> None:
    state = SessionState(metrics={"latency_ms": {"ratio": n(5.0, ci=(4.9, 5.1))}})
    assert flatten(state)["latency_ratio.p50.says"] == "cannot tell"
    assert flatten(SessionState())["latency_ratio.p50.says"] is None


def test_what_was_not_measured_is_unknown_and_never_zero() -> None:
    facts = flatten(SessionState(metrics={"fallback_rate": n(None), "nominal_sparsity": {"value": float("nan")}}))
    outside = {"evidence.outside", "evidence.live"}
    assert {k for k in FACTS if facts[k] is not None} == outside
    assert facts["path.dense"] is None
    assert facts["mechanism.kernel.generic"] is None
    assert facts["lock.differs.torch"] is None


def test_the_metrics_of_an_investigation_become_facts() -> None:
    metrics = {
        "latency_ms": {"failing": {"p50": n(4.0), "p99": n(12.0)}, "comparator": {"p50": n(2.0), "p99": n(2.2)}},
        "fallback_rate": {**n(0.5), "time": n(0.25), "comparator": n(0.0)},
        "conversion_rate": {**n(2.0, unit="per step"), "time_ms": n(1.0)},
        "metadata_overhead": {**n(1.5), "vs_dense": n(0.3)},
        "nominal_sparsity": n(0.9),
        "real_speedup": n(0.5, ci=(0.4, 0.6)),
        "quality_drift": {"top1": n(-0.03), "loss": n(0.01)},
    }
    spec = {"declared": {"speedup": 1.5, "sparsity": 0.9}, "quality": {"max_drift": 0.02}, "sla": {"p99_ms": 5}}
    facts = flatten(SessionState(metrics=metrics, spec={"spec": spec}))
    assert facts["tail_ratio.failing"] == 3.0
    assert facts["fallback_time"] == 0.25
    assert facts["conversions"] == 2.0
    assert facts["conversion_time"] == 0.25
    assert facts["bytes_ratio"] == 0.3
    assert facts["speedup_kept"] is False
    assert facts["sparsity_kept"] is True
    assert facts["quality_drift"] == 0.03  # the worst of several
    assert facts["quality.within_gate"] is False
    assert facts["sla.p99_met"] is False
    assert facts["sla.p50_met"] is None


def test_a_conversion_share_of_a_trace_is_no_count() -> None:
    facts = flatten(SessionState(metrics={"conversion_rate": n(0.3)}))
    assert facts["conversions"] is None
    assert facts["conversion_time"] == 0.3


def finding(mechanism: str, material: bool) -> Finding:
    stage = mechanism.split(".")[0]
    return Finding(stage=stage, mechanism=mechanism, confidence="supported", material=material, summary="", owner="")


def test_mechanisms_are_material_ruled_out_suspected_absent_or_unknown() -> None:
    found = (finding("kernel.generic", True), finding("kernel.wrong-orientation", False))
    phases = (Phase(stage="kernel", name="profile", state="done"),)
    undecided = flatten(SessionState(findings=found, phases=phases))
    assert undecided["mechanism.kernel.generic"] == "material"
    assert undecided["mechanism.kernel.wrong-orientation"] == "suspected"
    assert undecided["mechanism.kernel.unsupported"] == "absent"
    assert undecided["mechanism.validation.precision"] is None
    decided = with_ratio(5.0, 4.9, 5.1)
    facts = flatten(msgspec.structs.replace(decided, findings=found, phases=phases))
    assert facts["mechanism.kernel.wrong-orientation"] == "ruled out"


def test_a_conclusion_clears_what_has_no_finding_unless_it_cannot_answer() -> None:
    def concluded(status: Any) -> object:
        result = Result(session="s", verdict=Verdict(status=status, summary=""))
        return flatten(SessionState(result=result))["mechanism.validation.precision"]

    assert concluded("no_fault") == "absent"
    assert concluded("cannot_answer") is None


def test_a_lock_that_was_never_taken_says_nothing() -> None:
    result = Result(session="s", verdict=Verdict(status="cannot_answer", summary=""), lock=Lock(match=False))
    assert flatten(SessionState(result=result))["lock.match"] is None


def test_lock_native_ops_and_sections() -> None:
    state = SessionState(
        lock=Lock(
            match=False, differs=(Difference("torch", "2.1", "2.13", False), Difference("dtype", "a", "b", True))
        ),
        native=TimeTable(paths=(PathShare("dense", Number(0.6)), PathShare("unknown", Number(0.1)))),
        ops=(
            OpRow("aten::mm", "a", "dense", 1, Number(1.0), eligible=True, fallback=True),
            OpRow("aten::mm", "b", "sparse-csr", 1, Number(1.0), eligible=True),
        ),
        sections={
            "replay": {
                "passed": False,
                "variants": {"failing": {"p50": n(4.0), "p99": n(40.0)}, "comparator": {"p50": n(4.0), "p99": n(8.0)}},
            },
            "matrix": {
                "rows": [{"name": "csr", "kind": "unstructured", "p50": n(2.0)}, {"name": "dense", "p50": n(3.0)}]
            },
        },
    )
    facts = flatten(state)
    assert facts["lock.undeclared"] == 1
    assert facts["lock.differs.torch"] is True
    assert facts["lock.differs.threads"] is False
    assert facts["path.dense"] == 0.6
    assert facts["path.conversion"] == 0.0  # sampled, and none was there
    assert facts["native.unknown"] == 0.1
    assert facts["ops.families_split"] is True
    assert facts["replay.p99_ratio"] == 5.0
    assert facts["replay.passed"] is False
    assert facts["matrix.best"] == "csr"
    assert facts["matrix.best_kind"] == "unstructured"
    assert facts["gate.lock"] == "failed"


def test_the_best_row_of_the_matrix_breaks_no_gate() -> None:
    rows = [
        {"name": "channels", "kind": "structured", "p50": {"value": 0.9}, "risk": "high: drift 0.7 exceeds 0.02"},
        {"name": "csr", "kind": "unstructured", "p50": {"value": 1.4}, "risk": "low"},
    ]
    assert flatten(SessionState(sections={"matrix": {"rows": rows}}))["matrix.best"] == "csr"


def test_every_fact_is_documented() -> None:
    facts = flatten(with_ratio(5.0, 4.9, 5.1))
    assert all(is_fact(name) for name in facts)
    with pytest.raises(KeyError):
        facts["latency"]
