"""The result as JSON: the contract's keys first and always present, whatever else is known after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sparsetui.evidence.records import Result, Verdict, to_json
from sparsetui.report.facts import facts_of
from sparsetui.report.redact import redacted
from sparsetui.session.state import SessionState

CONTRACT = (
    "schema",
    "tool",
    "session",
    "verdict",
    "findings",
    "ruled_out",
    "cannot_answer",
    "metrics",
    "lock",
    "gates",
    "evidence",
)
# metrics the contract names: where a pass did not run, the reason stands in its place
METRICS = (
    "energy_j_per_request",
    "fallback_rate",
    "conversion_rate",
    "metadata_overhead",
    "nominal_sparsity",
    "real_speedup",
    "quality_drift",
    "observer_effect",
)


def result_json(result: Result, *, indent: int = 2) -> bytes:
    """``result`` in the contract's order, UTF-8, ending in a newline."""
    return to_json(_ordered(msgspec.to_builtins(result, enc_hook=_number)), indent=indent) + b"\n"


def session_json(state: SessionState, *, redact: bool = False, indent: int = 2) -> bytes:
    """The result of a session with what was added since (owners, gates, sections); without a result, what is known."""
    f = facts_of(redacted(state) if redact else state)
    s = f.state
    base = f.result or Result(session=s.id, verdict=_unfinished(s), workload=s.workload)
    result = msgspec.structs.replace(
        base,
        session=base.session or s.id,
        tool=base.tool or s.tool,
        findings=f.material,
        ruled_out=f.ruled_out,
        cannot_answer=s.unanswered or base.cannot_answer,
        metrics=f.metrics,
        lock=f.lock or base.lock,
        gates=f.gates,
        evidence=tuple(f.evidence.values()),
        budget=s.budget or base.budget,
        ops=s.ops or base.ops,
        native=s.native or base.native,
        playbook=s.playbook or base.playbook,
    )
    raw = msgspec.to_builtins(result, enc_hook=_number)
    raw["owners"] = s.owners
    raw["sections"] = msgspec.to_builtins(s.sections, enc_hook=_number)
    raw["standing"] = f.standing
    return to_json(_ordered(raw), indent=indent) + b"\n"


def _unfinished(state: SessionState) -> Verdict:
    why = f"the investigation was interrupted: {state.interrupted}" if state.interrupted else "it was not concluded"
    return Verdict(status="cannot_answer", summary=f"No verdict: {why}.")


def _ordered(raw: dict[str, Any]) -> dict[str, Any]:
    metrics = raw.get("metrics")
    if isinstance(metrics, Mapping):
        missing = {"value": None, "unit": "", "quality": "unavailable", "reason": "it was not measured"}
        raw["metrics"] = {**metrics, **{k: missing for k in METRICS if k not in metrics}}
        if "energy_j_per_request" not in metrics:
            raw["metrics"]["energy_j_per_request"] = {"failing": missing, "comparator": missing}
    # the time table of the native pass is top level in the contract
    native = raw.get("native")
    if isinstance(native, Mapping):
        raw = {**raw, **{k: native[k] for k in ("paths", "samplers", "unavailable") if k in native}}
    out = {k: raw[k] for k in CONTRACT if k in raw}
    out.update((k, v) for k, v in raw.items() if k not in out and k != "native")
    return out


def _number(obj: Any) -> Any:
    item = getattr(obj, "item", None)  # numpy scalars
    if callable(item):
        return item()
    raise TypeError(f"cannot encode {type(obj).__name__}")
