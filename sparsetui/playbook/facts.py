"""The measured facts a playbook may ask about: a flat, documented view of a session.

A fact that was not measured is ``None``, never 0: a comparison with it is unknown, and a step says where to go then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sparsetui.evidence.records import Number
from sparsetui.flow import STAGES
from sparsetui.session import closure
from sparsetui.session.state import SessionState

Fact = float | int | str | bool | None
QUANTILES = ("p50", "p95", "p99")
MECHANISM_STATES = ("material", "suspected", "ruled out", "absent")
RATIO_STATES = ("slower", "faster", "same", "cannot tell")

_LEAST = math.log1p(0.005)
_BAND = 0.02
_TO_90 = 0.84  # half-width of a 90 % interval against that of a 95 % one


def _described() -> dict[str, str]:
    named = {
        "question": "regression or missing-speedup: which gap the figures show",
        "verdict.status": "fault, no_fault or cannot_answer, once concluded",
        "verdict.mechanism": "the mechanism of the verdict",
        "noise_floor": "A/A floor: how far two identical variants differ here, as ratio - 1",
        "fallback_rate": "share of sparse-eligible op calls that took a dense path",
        "fallback_time": "share of the time of sparse-eligible ops that took a dense path",
        "conversions": "format conversions, sorts and coalesces per step",
        "conversion_time": "share of the step spent in them",
        "metadata_overhead": "index bytes against value bytes",
        "bytes_ratio": "values + indices against the dense bytes",
        "nominal_sparsity": "share of zeros in the weights",
        "real_speedup": "comparator time / failing time at p50",
        "real_speedup.low": "lower end of its 95 % interval",
        "real_speedup.high": "upper end of its 95 % interval",
        "declared.speedup": "the speed-up that the release claims",
        "declared.sparsity": "the sparsity that the release claims",
        "declared.layout": "the layout that the release claims",
        "declared.pattern": "the pattern that the release claims, such as 2:4",
        "speedup_kept": "true: the claimed speed-up lies within reach; false: the whole interval is below it",
        "sparsity_kept": "whether nominal sparsity reaches the claim",
        "quality_drift": "how far the quality metric, or the outputs, moved",
        "quality.max_drift": "the gate that the workload sets",
        "quality.within_gate": "whether the drift is within the gate",
        "lock.match": "whether both variants ran under one lock, but for what was declared",
        "lock.undeclared": "count of tags that differ and were not declared",
        "memory.slope": "growth of resident memory, bytes per step",
        "memory.grows": "whether the interval of that slope is above zero",
        "energy.failing": "energy per request of the failing variant, J",
        "energy.ratio": "energy failing / comparator",
        "replay.p50_ratio": "p50 under replay, failing / comparator",
        "replay.p99_ratio": "p99 under replay, failing / comparator",
        "replay.passed": "whether the replay met the SLA",
        "matrix.best": "the name of the fastest row of the trade-off matrix that breaks neither quality gate nor SLA",
        "matrix.best_kind": "dense, structured, unstructured or mixed: the kind of that row",
        "native.seen": "whether samples of native symbols exist",
        "native.unknown": "share of samples whose symbol no catalogue knows",
        "native.path": "the path with the largest share",
        "evidence.outside": "whether evidence from outside (attach, import) was collected",
        "evidence.live": "whether a pass was run on the workload itself",
        "ops.families_split": "whether some products of the model run sparse while others fall back",
    }
    for side in ("failing", "comparator"):
        for q in QUANTILES:
            named[f"latency_ms.{side}.{q}"] = f"{q} of a step of the {side} variant, ms"
        named[f"tail_ratio.{side}"] = f"p99 / p50 of the {side} variant"
    for q in QUANTILES:
        named[f"latency_ratio.{q}"] = f"failing / comparator at {q}"
        named[f"latency_ratio.{q}.low"] = "lower end of its 95 % interval"
        named[f"latency_ratio.{q}.high"] = "upper end of its 95 % interval"
        named[f"latency_ratio.{q}.says"] = "slower, faster, same or cannot tell, against the noise floor"
        named[f"sla.{q}_ms"] = f"the workload's limit for {q}, ms"
        named[f"sla.{q}_met"] = f"whether the failing variant's {q} is within it"
    return named


FACTS: dict[str, str] = _described()
PATTERNS: dict[str, str] = {
    "mechanism.": "mechanism.<id>: material, suspected, ruled out or absent; unknown until its stage was run",
    "path.": "path.<name>: share of sampled time in that path (dense, sparse-csr, sparse-csr-rhs, conversion …)",
    "lock.differs.": "lock.differs.<tag>: whether that tag differs between the two, declared or not",
    "ran.": "ran.<pass>: whether that pass was run to its end",
    "gate.": "gate.<name>: passed, failed, waived or not run",
}
PATHS = (
    "dense", "sparse-csr", "sparse-csr-rhs", "sparse-csc", "sparse-coo", "sparse-bsr", "sparse-nm", "conversion",
    "sort", "elementwise", "copy", "alloc", "attention", "conv", "collective", "python", "barrier", "wait", "other",
    "unknown",
)  # fmt: skip


def is_fact(name: str) -> bool:
    """Whether ``name`` is documented. The part behind a pattern's dot is not judged here."""
    return name in FACTS or any(name.startswith(p) and len(name) > len(p) for p in PATTERNS)


class Facts(Mapping[str, Fact]):
    """The facts of one session. A documented fact without a measurement is present and ``None``."""

    def __init__(
        self, values: Mapping[str, Fact], stages: frozenset[str] = frozenset(), all_absent: bool = False
    ) -> None:
        self._values = dict(values)
        self._stages = stages
        self._all_absent = all_absent

    def __getitem__(self, name: str) -> Fact:
        if name in self._values:
            return self._values[name]
        if name.startswith("mechanism."):
            stage = name.split(".")[1] if name.count(".") else ""
            return "absent" if self._all_absent or stage in self._stages else None
        if name.startswith("lock.differs."):
            return False if self._values.get("lock.match") is not None else None
        if name.startswith("ran."):
            return False
        if name.startswith("path."):
            return 0.0 if self._values.get("native.seen") and name[5:] in PATHS else None
        if is_fact(name):
            return None
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter({**dict.fromkeys(FACTS), **self._values})

    def __len__(self) -> int:
        return len({**dict.fromkeys(FACTS), **self._values})


def flatten(state: SessionState) -> Facts:
    """The facts of ``state``; pure. Names are those of :data:`FACTS` and :data:`PATTERNS`."""
    metrics = {**(state.result.metrics if state.result else {}), **state.metrics}
    spec = state.spec.get("spec", state.spec)
    out: dict[str, Fact] = {}
    _latency(out, metrics, spec)
    _sparsity(out, metrics, spec)
    _quality(out, metrics, spec)
    _lock(out, state)
    _memory_and_energy(out, metrics)
    _sections(out, state.sections)
    _native(out, state)
    _mechanisms(out, state)
    out["question"] = _question(out, state)
    passes = {p.name for p in state.phases if p.state == "done"}
    done = frozenset(s.id for s in STAGES if passes.intersection(s.passes))
    # after a conclusion, what has no finding was looked for and not there; but not where the evidence could not answer
    concluded = state.result is not None and state.result.verdict.status != "cannot_answer"
    return Facts({k: v for k, v in out.items() if v is not None}, done, concluded)


def _latency(out: dict[str, Fact], metrics: Mapping[str, Any], spec: Any) -> None:
    floor = _first(metrics, ("noise_floor",), ("latency_ms", "floor"), ("latency_ms", "noise_floor"))
    out["noise_floor"] = floor.value
    for side in ("failing", "comparator"):
        for q in QUANTILES:
            out[f"latency_ms.{side}.{q}"] = _number(metrics, "latency_ms", side, q).value
        p50, p99 = out[f"latency_ms.{side}.p50"], out[f"latency_ms.{side}.p99"]
        out[f"tail_ratio.{side}"] = _ratio(p99, p50)
    for q in QUANTILES:
        ratio = _number(metrics, "latency_ms", "ratio", q)
        if q == "p50" and ratio.value is None:
            ratio = _number(metrics, "latency_ms", "ratio")
        out[f"latency_ratio.{q}"] = ratio.value
        out[f"latency_ratio.{q}.low"], out[f"latency_ratio.{q}.high"] = ratio.ci or (None, None)
        out[f"latency_ratio.{q}.says"] = _says(ratio, floor.value)
        limit = _limit(spec, "sla", f"{q}_ms")
        out[f"sla.{q}_ms"] = limit
        seen = _number(metrics, "latency_ms", "failing", q)
        out[f"sla.{q}_met"] = _within(seen, limit)


def _sparsity(out: dict[str, Fact], metrics: Mapping[str, Any], spec: Any) -> None:
    out["fallback_rate"] = _number(metrics, "fallback_rate").value
    out["fallback_time"] = _number(metrics, "fallback_rate", "time").value
    rate = _number(metrics, "conversion_rate")
    if rate.unit == "per step":
        out["conversions"] = rate.value
        step = out["latency_ms.failing.p50"]
        out["conversion_time"] = _ratio(_number(metrics, "conversion_rate", "time_ms").value, step)
    else:  # from a trace or from stacks: a share of time
        out["conversion_time"] = rate.value
    out["metadata_overhead"] = _number(metrics, "metadata_overhead").value
    out["bytes_ratio"] = _number(metrics, "metadata_overhead", "vs_dense").value
    sparsity, speedup = _number(metrics, "nominal_sparsity"), _number(metrics, "real_speedup")
    out["nominal_sparsity"], out["real_speedup"] = sparsity.value, speedup.value
    out["real_speedup.low"], out["real_speedup.high"] = speedup.ci or (None, None)
    claim, zeros = _limit(spec, "declared", "speedup"), _limit(spec, "declared", "sparsity")
    out["declared.speedup"], out["declared.sparsity"] = claim, zeros
    for key in ("layout", "pattern"):
        word = _dig(spec, "declared", key)
        if isinstance(word, (list, tuple)):
            word = ":".join(str(x) for x in word)  # n:m as two numbers
        out[f"declared.{key}"] = word if isinstance(word, str) and word else None
    if claim is not None and speedup.value is not None:
        out["speedup_kept"] = (speedup.ci[1] if speedup.ci else speedup.value) >= claim
    if zeros is not None and sparsity.value is not None:
        out["sparsity_kept"] = sparsity.value >= zeros - 0.005


def _quality(out: dict[str, Fact], metrics: Mapping[str, Any], spec: Any) -> None:
    raw, gate = metrics.get("quality_drift"), _limit(spec, "quality", "max_drift")
    drifts = [_number(metrics, "quality_drift")]
    if isinstance(raw, Mapping) and "value" not in raw and "failing" not in raw:
        drifts = [_number(raw, str(k)) for k in raw]  # one figure for each metric: the worst decides
    sizes = [abs(d.value) for d in drifts if d.value is not None]
    out["quality_drift"], out["quality.max_drift"] = max(sizes, default=None), gate
    if sizes and gate is not None:
        out["quality.within_gate"] = max(sizes) <= gate


def _lock(out: dict[str, Fact], state: SessionState) -> None:
    lock = state.lock or (state.result.lock if state.result else None)
    if lock is None or not (lock.tags or lock.differs):  # never taken: neither match nor mismatch
        return
    out["lock.match"] = lock.match
    out["lock.undeclared"] = sum(1 for d in lock.differs if not d.declared)
    for d in lock.differs:
        out[f"lock.differs.{d.tag}"] = True


def _memory_and_energy(out: dict[str, Fact], metrics: Mapping[str, Any]) -> None:
    slope = _first(metrics, ("memory_slope",), ("memory", "slope"), ("rss_slope",))
    out["memory.slope"] = slope.value
    if slope.value is not None and slope.ci is not None:
        out["memory.grows"] = slope.ci[0] > 0
    failing = _number(metrics, "energy_j_per_request", "failing")
    out["energy.failing"] = failing.value
    out["energy.ratio"] = _number(metrics, "energy_j_per_request", "ratio").value
    if out["energy.ratio"] is None:
        out["energy.ratio"] = _ratio(failing.value, _number(metrics, "energy_j_per_request", "comparator").value)


def _sections(out: dict[str, Fact], sections: Mapping[str, Any]) -> None:
    replay = sections.get("replay")
    if isinstance(replay, Mapping):
        for q in ("p50", "p99"):
            failing, comparator = (_number(replay, "variants", side, q).value for side in ("failing", "comparator"))
            out[f"replay.{q}_ratio"] = _ratio(failing, comparator)
        passed = replay.get("passed")
        out["replay.passed"] = passed if isinstance(passed, bool) else None
    rows = _dig(sections.get("matrix"), "rows")
    if isinstance(rows, (list, tuple)):
        p50s = [(_first(r, ("p50",), ("p50_ms",)).value, r) for r in rows if isinstance(r, Mapping)]
        # a row that breaks the quality gate or the SLA is no candidate, however fast it is
        timed = [(v, r) for v, r in p50s if v is not None and not str(r.get("risk", "")).startswith("high")]
        if timed:
            best = min(timed, key=lambda pair: pair[0])[1]
            out["matrix.best"] = str(best.get("name", best.get("format", "")))
            out["matrix.best_kind"] = str(best["kind"]) if best.get("kind") else None


def _native(out: dict[str, Fact], state: SessionState) -> None:
    native = state.native or (state.result.native if state.result else None)
    out["evidence.outside"] = any(e.source for e in state.evidence) or native is not None
    out["evidence.live"] = any(not e.source for e in state.evidence)
    for p in state.phases:
        if p.state == "done":
            out["ran.interventions" if p.name.startswith("intervention ") else f"ran.{p.name}"] = True
    if native is not None and native.paths:
        out["native.seen"] = True
        out["native.path"] = native.paths[0].path
        for share in native.paths:
            out[f"path.{share.path}"] = share.share.value
        out["native.unknown"] = next((p.share.value for p in native.paths if p.path == "unknown"), 0.0)
    eligible = [row for row in state.ops if row.eligible and row.variant == "failing"]
    if eligible:
        out["ops.families_split"] = len({row.fallback for row in eligible}) > 1
    for gate in closure.gates(state):
        out[f"gate.{gate.gate}"] = gate.state


def _mechanisms(out: dict[str, Fact], state: SessionState) -> None:
    # while nobody knows whether there is a gap at all, a mechanism that was seen is neither blamed nor cleared
    decided = out.get("latency_ratio.p50.says") not in (None, "cannot tell") or state.result is not None
    findings = state.findings or ((*state.result.findings, *state.result.ruled_out) if state.result else ())
    for f in findings:
        out[f"mechanism.{f.mechanism}"] = "material" if f.material else "ruled out" if decided else "suspected"
    if state.result is not None:
        verdict = state.result.verdict
        out["verdict.status"], out["verdict.mechanism"] = verdict.status, verdict.mechanism


def _question(out: dict[str, Fact], state: SessionState) -> str | None:
    budget = state.budget or (state.result.budget if state.result else None)
    if budget is not None:
        return budget.question
    if out.get("latency_ratio.p50.says") == "slower":
        return "regression"
    return "missing-speedup" if out.get("speedup_kept") is False else None


def _says(ratio: Number, floor: float | None) -> str | None:
    """The comparison's own rule: beyond the floor with the interval beyond 0.5 %, or within a band around 1.

    See :func:`sparsetui.diagnosis.stats.compare`. Without an interval nothing is claimed beyond "cannot tell".
    """
    if ratio.value is None:
        return None
    if ratio.ci is None or floor is None or min(ratio.value, *ratio.ci) <= 0:
        return "cannot tell"
    value, low, high = (math.log(x) for x in (ratio.value, *ratio.ci))
    if value > math.log1p(floor) and low > _LEAST:
        return "slower"
    if value < -math.log1p(floor) and high < -_LEAST:
        return "faster"
    band = math.log1p(max(_BAND, min(floor, 2 * _BAND)))
    low, high = value - _TO_90 * (value - low), value + _TO_90 * (high - value)
    return "same" if -band < low and high < band else "cannot tell"


def _within(number: Number, limit: float | None) -> bool | None:
    return None if number.value is None or limit is None else number.value <= limit


def _ratio(a: Fact, b: Fact) -> float | None:
    return a / b if isinstance(a, (int, float)) and isinstance(b, (int, float)) and b else None


def _limit(spec: Any, *path: str) -> float | None:
    found = _dig(spec, *path)
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _first(raw: Mapping[str, Any], *paths: tuple[str, ...]) -> Number:
    for path in paths:
        found = _number(raw, *path)
        if found.value is not None:
            return found
    return _NONE


_NONE = Number(value=None, quality="unavailable", reason="it was not measured")


def _number(raw: Any, *path: str) -> Number:
    found = _dig(raw, *path)
    if isinstance(found, Mapping) and "value" not in found and "failing" in found:
        found = found["failing"]
    if isinstance(found, Number):
        number = found
    elif isinstance(found, (int, float)) and not isinstance(found, bool):
        number = Number(value=float(found))
    elif isinstance(found, Mapping) and "value" in found:
        try:
            number = msgspec.convert(found, Number)
        except msgspec.ValidationError:
            return _NONE
    else:
        return _NONE
    return number if number.value is not None and math.isfinite(number.value) else _NONE


def _dig(raw: Any, *path: str) -> Any:
    for key in path:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw
