"""Each gate, failing for its own reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sparsetui.evidence.records import Difference, Evidence, Finding, Gate, Lock, Number, Result, Verdict
from sparsetui.flow import CLOSURE_ARTIFACTS, OWNERS
from sparsetui.session.closure import TITLES, closed, gates, waiver
from sparsetui.session.state import SessionState


def _ms(value: float) -> dict[str, Any]:
    return {"value": value, "ci": [value * 0.98, value * 1.02], "n": 2000, "unit": "ms", "quality": "measured"}


FAULT = Verdict(
    status="fault",
    summary="the sparse weight is the right-hand operand",
    mechanism="kernel.wrong-orientation",
    confidence="confirmed",
    share_of_regression=Number(0.93, (0.90, 0.95)),
    evidence=("E04",),
    intervention="E11",
)
METRICS = {
    "latency_ms": {
        "failing": {"p50": _ms(3.9), "p95": _ms(4.2), "p99": _ms(4.8)},
        "comparator": {"p50": _ms(0.73), "p95": _ms(0.8), "p99": _ms(0.9)},
        "ratio": {"value": 5.34, "ci": [5.29, 5.4], "unit": "x"},
        "noise_floor": {"value": 0.008, "unit": ""},
    },
    "quality_drift": {"value": 0.002, "ci": [0.001, 0.003]},
}
REPLAY = {
    "sla": {"p50_ms": 5, "p99_ms": 12},
    "variants": {"fixed": {"p50": _ms(0.8), "p99": _ms(2.0)}, "failing": {"p50": _ms(4), "p99": _ms(40)}},
    "passed": True,
    "why": "fixed meets the SLA",
}
REHEARSAL = {
    "passed": True,
    "why": "the comparator still meets SLA and quality",
    "criteria": [{"metric": "p99", "threshold": "12 ms", "window": "5 min", "who": "@sre"}],
}
WHOLE = SessionState(
    spec={"path": "w.toml", "spec": {"quality": {"max_drift": 0.01}}},
    evidence=tuple(
        Evidence(f"E{i:02d}", "kernel", probe, sha256="ab" * 32)
        for i, probe in enumerate(["lock", "clock", "outputs", "census", "matrix", "replay", "rehearsal"], 1)
    ),
    lock=Lock(True, (Difference("weights", "a", "b", declared=True),), {"torch": "2.13.0", "threads": "2"}),
    metrics=METRICS,
    result=Result(session="s", verdict=FAULT),
    sections={"matrix": {"rows": [{"format": "csr"}, {"format": "dense"}]}, "replay": REPLAY, "rehearsal": REHEARSAL},
    owners=dict.fromkeys(OWNERS.values(), "@team"),
    artifacts=tuple({"role": role, "evidence": "E04"} for role in CLOSURE_ARTIFACTS),
)


def _with(**changes: Any) -> SessionState:
    return msgspec.structs.replace(WHOLE, **changes)


def _gate(state: SessionState, name: str) -> Gate:
    return next(g for g in gates(state) if g.gate == name)


def _metrics(**changes: Any) -> dict[str, Any]:
    return {**METRICS, **changes}


def _latency(**changes: Any) -> dict[str, Any]:
    return _metrics(latency_ms={**METRICS["latency_ms"], **changes})


def test_with_all_evidence_every_gate_passes_and_says_its_figures() -> None:
    found = {g.gate: g for g in gates(WHOLE)}
    assert list(found) == list(TITLES)
    assert {g.state for g in found.values()} == {"passed"}
    assert closed(WHOLE)
    assert "weights" in found["lock"].why
    assert "5.34 [5.29, 5.4]" in found["reproduced"].why
    assert "0.8%" in found["stable"].why
    assert "0.93 [0.9, 0.95]" in found["mechanism"].why
    assert found["mechanism"].evidence == ("E11", "E04")
    assert "p99 of failing 4.8" in found["tails"].why
    assert "2 formats" in found["matrix"].why
    assert "at most 0.01" in found["quality"].why
    assert "p99 of fixed 2" in found["replay"].why
    assert "SLA 12 ms" in found["replay"].why
    assert found["lock"].evidence == ("E01",)
    assert found["owners"].evidence == ("E04",)


def test_an_empty_session_has_run_no_gate() -> None:
    assert {g.state for g in gates(SessionState())} == {"not run"}
    assert all(g.why for g in gates(SessionState()))
    assert not closed(SessionState())


def _verdict(**changes: Any) -> Result:
    return Result(session="s", verdict=msgspec.structs.replace(FAULT, **changes))


WRONG_RESULT = Finding("validation", "validation.wrong-result", "confirmed", True, "wrong", "KL")

FAILING = {
    "lock": (
        {"lock": Lock(False, (Difference("threads", "2", "8", declared=False),), {"threads": "2"})},
        "threads 2 against 8",
    ),
    "reproduced": (
        {"metrics": _latency(ratio={"value": 1.01, "ci": [0.99, 1.03]})},
        "1.01 [0.99, 1.03] is not beyond the noise floor of 0.8%",
    ),
    "stable": ({"metrics": _latency(noise_floor={"value": 0.08}, ratio={"value": 1.1})}, "noise floor 8.0%"),
    "mechanism": ({"result": _verdict(confidence="suspected")}, "only suspected"),
    "tails": (
        {
            "metrics": _latency(
                comparator={"p50": _ms(0.7), "p99": {"value": None, "quality": "unavailable", "reason": "n=80"}}
            )
        },
        "p99 of comparator: n=80",
    ),
    "matrix": ({"sections": {**WHOLE.sections, "matrix": {"rows": []}}}, "no rows"),
    "quality": ({"metrics": _metrics(quality_drift={"value": 0.02})}, "exceeds 0.01"),
    "replay": (
        {"sections": {**WHOLE.sections, "replay": {**REPLAY, "passed": False, "why": "p99 misses"}}},
        "p99 misses",
    ),
    "owners": (
        {"owners": {**WHOLE.owners, "production reliability owner": ""}},
        "production reliability owner: no owner",
    ),
    "rollback": (
        {"sections": {**WHOLE.sections, "rehearsal": {**REHEARSAL, "passed": False, "why": "SLA missed"}}},
        "SLA missed",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_gate_fails_alone_and_for_its_own_reason(name: str) -> None:
    changes, why = FAILING[name]
    state = _with(**changes)
    assert [g.gate for g in gates(state) if g.state != "passed"] == [name]
    gate = _gate(state, name)
    assert gate.state == "failed"
    assert why in gate.why
    assert not closed(state)


@pytest.mark.parametrize("name", FAILING)
def test_a_waiver_closes_it_with_its_reason_and_name(name: str) -> None:
    changes, why = FAILING[name]
    state = _with(**changes, waivers=({**waiver(name, "accepted for the weekend", "Ada"), "time": "t"},))
    gate = _gate(state, name)
    assert (gate.state, gate.by) == ("waived", "Ada")
    assert gate.why.startswith("accepted for the weekend (waived while failed: ")
    assert why in gate.why
    assert closed(state)


def test_a_tail_that_the_clock_had_too_few_steps_for_is_taken_from_the_replay() -> None:
    few = {"p50": _ms(3.9), "p99": {"value": None, "quality": "unavailable", "reason": "n=80"}}
    gate = _gate(_with(metrics=_latency(failing=few)), "tails")
    assert gate.state == "passed"
    assert (
        gate.why == "p99 of failing 40 [39.2, 40.8] ms under the replayed load, p99 of comparator 0.9 [0.882, 0.918] ms"
    )
    assert gate.evidence == ("E06", "E02")
    unserved = {**WHOLE.sections, "replay": {**REPLAY, "variants": {}}}
    assert "n=80" in _gate(_with(metrics=_latency(failing=few), sections=unserved), "tails").why


def test_a_gate_that_holds_is_not_shown_as_waived() -> None:
    state = _with(waivers=(waiver("lock", "in case", "Ada"),))
    assert _gate(state, "lock").state == "passed"


@pytest.mark.parametrize(
    ("gate", "why", "by", "message"),
    [
        ("lock", " ", "Ada", "without a reason"),
        ("lock", "because", "\t", "without the name"),
        ("door", "because", "Ada", "no gate is called 'door'; the gates are lock, reproduced"),
    ],
)
def test_a_waiver_needs_a_gate_a_reason_and_a_name(gate: str, why: str, by: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        waiver(gate, why, by)


def test_a_nameless_waiver_in_a_ledger_waives_nothing() -> None:
    changes, _ = FAILING["replay"]
    for body in ({"gate": "replay", "why": "x", "by": ""}, {"gate": "replay", "why": None, "by": "Ada"}, {}):
        assert _gate(_with(**changes, waivers=(body,)), "replay").state == "failed"


def test_a_waiver_may_name_the_gate_by_its_title() -> None:
    assert waiver("Rollback rehearsed", "no traffic yet", "Ada")["gate"] == "rollback"


@pytest.mark.parametrize(
    ("changes", "state", "why"),
    [
        ({"quality_drift": {"value": 0.009, "ci": [0.001, 0.02]}}, "failed", "0.009 [0.001, 0.02] exceeds 0.01"),
        ({"quality_drift": {"accuracy": {"value": 0.001}, "auc": {"value": -0.3}}}, "failed", "auc -0.3 exceeds"),
        ({"quality_drift": {"value": None, "quality": "unavailable", "reason": "no outputs"}}, "not run", "no outputs"),
        ({"quality_drift": None}, "not run", "not measured"),
    ],
)
def test_quality_is_judged_by_all_of_its_interval_and_by_its_worst_metric(
    changes: dict[str, Any], state: str, why: str
) -> None:
    gate = _gate(_with(metrics=_metrics(**changes)), "quality")
    assert gate.state == state
    assert why in gate.why


def test_quality_without_a_limit_is_not_run_and_a_wrong_result_fails_it_anyway() -> None:
    assert _gate(_with(spec={}), "quality").state == "not run"
    gate = _gate(_with(spec={}, findings=(WRONG_RESULT,)), "quality")
    assert (gate.state, gate.why) == ("failed", "found: validation.wrong-result")


def test_what_counts_as_reproduced() -> None:
    calm = _latency(ratio={"value": 0.9, "ci": [0.88, 0.92]})
    claimed = {"spec": {"declared": {"speedup": 1.5}}}
    missed = {**calm, "real_speedup": {"value": 1.11, "ci": [1.09, 1.13]}}
    assert _gate(_with(metrics=missed, spec=claimed), "reproduced").why == (
        "declared speed-up 1.5, real speed-up 1.11 [1.09, 1.13]"
    )
    kept = {**calm, "real_speedup": {"value": 1.6, "ci": [1.4, 1.8]}}
    assert _gate(_with(metrics=kept, spec=claimed), "reproduced").state == "failed"
    broken = _verdict(share_of_regression=None, mechanism="ingress.mask-dropped")
    assert _gate(_with(metrics=calm, result=broken), "reproduced").state == "passed"
    for status in ("no_fault", "cannot_answer"):
        state = _with(result=_verdict(status=status, mechanism=None))
        assert [g.gate for g in gates(state) if g.state == "failed"] == ["reproduced", "mechanism"]


def test_a_large_regression_stands_on_a_rougher_floor() -> None:
    rough = {"value": 0.2}
    assert _gate(_with(metrics=_latency(noise_floor=rough)), "stable").state == "passed"
    assert _gate(_with(metrics=_latency(noise_floor=rough, ratio={"value": 1.3})), "stable").state == "failed"


def test_a_missing_speed_up_is_the_effect_that_the_floor_is_held_against() -> None:
    metrics = {**_latency(noise_floor={"value": 0.1}, ratio={"value": 0.98}), "real_speedup": {"value": 1.02}}
    assert _gate(_with(metrics=metrics), "stable").state == "failed"
    assert _gate(_with(metrics=metrics, spec={"declared": {"speedup": 1.5}}), "stable").state == "passed"


def test_an_artifact_counts_only_when_the_session_holds_it() -> None:
    lost = tuple({**a, "evidence": "E99"} for a in WHOLE.artifacts)
    gate = _gate(_with(artifacts=lost), "owners")
    assert gate.state == "failed"
    assert "E99 has no artifact in this session" in gate.why
    bare = _with(evidence=tuple(msgspec.structs.replace(e, sha256=None) for e in WHOLE.evidence))
    assert _gate(bare, "owners").state == "failed"


def test_a_rehearsal_without_criteria_is_no_way_back() -> None:
    state = _with(sections={**WHOLE.sections, "rehearsal": {"passed": True, "why": "ok", "criteria": []}})
    assert _gate(state, "rollback").state == "failed"


@pytest.mark.parametrize("junk", [None, 3, "x", [], {"passed": "yes"}, {"rows": None, "passed": None, "variants": 3}])
def test_odd_sections_and_metrics_never_pass_and_never_raise(junk: Any) -> None:
    state = _with(
        sections=dict.fromkeys(("matrix", "replay", "rehearsal"), junk),
        metrics={"latency_ms": junk, "quality_drift": junk},
        spec={"spec": {"quality": junk}},
    )
    for gate in gates(state):
        if gate.gate in ("tails", "matrix", "quality", "replay", "rollback", "stable"):
            assert gate.state in ("failed", "not run")


def test_gates_read_the_same_from_a_ledger() -> None:
    raw = msgspec.json.decode(msgspec.json.encode(WHOLE))
    assert gates(msgspec.convert(raw, SessionState)) == gates(WHOLE)
