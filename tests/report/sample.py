"""A whole session, as events of a ledger, for the renderers. Figures are arbitrary; only their form is tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sparsetui.flow import OWNERS
from sparsetui.session.state import Event, SessionState, fold

N: Callable[..., dict[str, Any]] = lambda value, **more: {"value": value, "quality": "measured", **more}  # noqa: E731
SHA = "0f" * 32


def same(text: str) -> str:
    return text


def events(t: Callable[[str], str] = same) -> list[Event]:
    """The session's events; ``t`` may spoil every text that comes from outside."""
    kernel, rt = OWNERS["KL"], OWNERS["RT"]
    finding = {
        "stage": "kernel", "mechanism": "kernel.wrong-orientation", "confidence": "confirmed", "material": True,
        "summary": t("the sparse weight is the right operand"), "owner": kernel,
        "where": [{"module": t("layers.0.linear1"), "op": t("aten::mm")}],
        "share_of_regression": N(0.93, ci=[0.90, 0.95], n=40), "evidence": ["E01", "E02"], "intervention": "E11",
        "question": t("which side?"), "fix": t("swap the operands"), "boundary": t("two call sites"),
        "rollback": t("unset the flag"), "closes": t("the pair is even again"), "reason": t("closes most of it"),
    }  # fmt: skip
    ruled = {
        "stage": "execution", "mechanism": "execution.index-copy", "confidence": "suspected", "material": False,
        "summary": t("indices are narrowed"), "owner": kernel, "figure": N(0.004, unit="ms"), "evidence": ["E02"],
        "reason": t("costs less than the floor"),
    }  # fmt: skip
    verdict = {k: v for k, v in finding.items() if k not in ("material", "question", "closes", "reason", "figure")}
    evidence = [
        {"id": "E01", "stage": "lowering", "probe": "census", "summary": t("12 ops"), "sha256": SHA},
        {"id": "E02", "stage": "kernel", "probe": t("native"), "quality": "estimated", "variant": "failing",
         "figures": {t("share in csr_f"): N(0.96, ci=[0.94, 0.97], n=480)}, "sha256": SHA,
         "source": {"host": "web-17.example.net", "file": t("/home/alice/trace.json")}},
        {"id": "E11", "stage": "execution", "probe": "intervention", "sha256": SHA,
         "figures": {"closed": N(0.93, ci=[0.90, 0.95], n=40)}},
    ]  # fmt: skip
    metrics = {
        "latency_ms": {
            "failing": {"p50": N(3.9, ci=[3.8, 4.0], n=2000, unit="ms"), "p99": N(4.8, unit="ms")},
            "comparator": {"p50": N(0.73, ci=[0.72, 0.74], n=2000, unit="ms")},
            "ratio": {**N(5.34, ci=[5.29, 5.40], n=40), "p50": N(5.34, ci=[5.29, 5.40], n=40)},
            "noise_floor": N(0.008, quality="derived"),
        },
        "energy_j_per_request": {
            "failing": {"value": None, "quality": "unavailable", "reason": t("RAPL is not readable")}
        },
        "nominal_sparsity": N(0.9),
        "real_speedup": N(0.19, ci=[0.18, 0.20], quality="derived"),
        "fallback_rate": {**N(0.02, n=400), "time": N(0.03), "comparator": N(0.0)},
        "conversion_rate": {**N(2.0, unit="per step", reason=t("hidden ones are not counted")), "time_ms": N(0.78)},
        "metadata_overhead": {**N(1.0), "vs_dense": N(0.2)},
        "quality_drift": N(0.0002),
    }
    bodies: list[tuple[str, Any]] = [
        ("session", {"title": t("ranker"), "workload": t("ranker"), "host": "web-17", "tool": "sparsetui 0"}),
        ("workload", {
            "path": t("/home/alice/ranker/workload.toml"), "sha256": SHA,
            "spec": {
                "name": t("ranker"), "change": ["weights"],
                "failing": {"entry": {"text": t("serving.py:build")}, "threads": 2, "env": {"A": t("1")}},
                "comparator": {"entry": {"text": "serving.py:release"}, "derived": True},
                "declared": {"sparsity": 0.9, "speedup": 1.5, "pattern": [2, 4]},
                "sla": {"p50_ms": 5, "p99_ms": 4}, "quality": {"max_drift": 0.01},
            },
        }),
        ("phase", {"stage": "kernel", "name": t("census"), "state": "done", "seconds": 1.2}),
        *[("evidence", e) for e in evidence],
        ("lock", {"match": True, "differs": [
            {"tag": t("env.X"), "failing": t("1"), "comparator": t("2"), "declared": True}],
            "tags": {"torch": t("2.13.0"), "hostname": "web-17"}}),
        ("metrics", metrics),
        ("finding", finding),
        ("finding", ruled),
        ("budget", {"question": "regression", "gap_ms": N(3.2, ci=[3.1, 3.3], unit="ms"), "lines": [
            {"mechanism": "kernel.wrong-orientation", "ms": N(2.9), "share": N(0.93, ci=[0.9, 0.95])},
            {"mechanism": "unexplained", "ms": N(0.3), "share": N(0.07)}]}),
        ("native", {"paths": [{"path": "sparse-csr-rhs", "share": N(0.96), "symbols": [t("mkl_f_ker")],
                               "callers": [t("serving.py:41 forward")], "threads": 2}],
                    "samplers": [{"name": "py-spy", "rate_hz": 10, "samples": 480, "pause_share": 0.02}],
                    "unavailable": [{"what": t("layouts"), "why": t("sampled from outside")}]}),
        ("playbook", {"id": "p", "title": t("Pruned"), "trail": [
            {"step": "a", "stage": "kernel", "ask": t("which?"), "found": t("that"), "next": "b"}],
            "end": {"kind": "cannot_answer", "say": t("no"), "owner": t("somebody"), "settle": t("look")}}),
        ("unanswered", {"question": t("p95?"), "why": t("too few"), "settle": t("run longer")}),
        ("owner", {"role": kernel, "who": t("@kernels"), "source": "workload"}),
        ("owner", {"role": rt, "who": t("bob"), "source": "typed"}),
        ("artifact", {"role": kernel, "evidence": "E02", "why": t("map")}),
        ("signoff", {"role": rt, "who": t("bob"), "note": t("fine at /srv/models/ranker")}),
        ("waiver", {"gate": "replay", "why": t("no log"), "by": t("carol")}),
        ("gate", {"gate": "replay", "state": "waived", "why": t("no log"), "by": t("carol")}),
        ("gate", {"gate": "lock matched", "state": "passed", "why": t("same tags"), "evidence": ["E01"]}),
        ("note", {"text": t("seen on web-17 at 10.1.2.3"), "by": t("bob")}),
        ("log", {"source": "failing", "text": t("noise")}),
        ("fault", {"what": t("worker"), "why": t("SIGKILL")}),
        ("section", {"name": "matrix", "body": {"summary": t("dense wins"), "rows": [
            {"format": t("csr"), "p50": N(1.2, unit="ms"), "sla": True}]}}),
        ("section", {"name": "lens", "body": {
            "points": [{"label": t("base"), "pressure": N(0.4), "tail": N(1.2)}],
            "zones": [{"name": "baseline", "low": 0.0}, {"name": t("saturation"), "low": 0.9}]}}),
        ("section", {"name": "replay", "body": {"log": t("requests.csv"), "p99_ms": N(9.0, unit="ms")}}),
        ("section", {"name": "import", "body": [{"file": t("t.json"), "sha256": SHA}]}),
        ("result", {"session": "s", "verdict": {"status": "fault", **verdict}, "tool": "sparsetui 0"}),
        ("closed", {"by": t("bob")}),
    ]  # fmt: skip
    return [
        Event(
            seq=i,
            time=f"2026-11-30T10:{i // 60:02d}:{i % 60:02d}Z",
            kind=k,
            body=msgspec.json.decode(msgspec.json.encode(b)),
            prev="",
        )
        for i, (k, b) in enumerate(bodies)
    ]


def state(t: Callable[[str], str] = same) -> SessionState:
    return fold(events(t), id="2026-11-30-ranker-7f3a")
