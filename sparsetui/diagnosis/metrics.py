"""The headline metrics of a result, from the case. Each is a Number, with further Numbers beside it where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sparsetui.diagnosis.case import Case, Payload
from sparsetui.evidence.records import Number, unavailable


def metrics(case: Case, latency: Mapping[str, Mapping[str, Number]] | None = None) -> dict[str, Any]:
    """All of the contract's metrics. ``latency`` maps variant -> {p50, p95, p99} from the clock pass."""
    out: dict[str, Any] = {"latency_ms": _latency(case, latency or {})}
    out["fallback_rate"] = _both(case, fallback_rate)
    out["conversion_rate"] = _both(case, conversion_rate)
    out["metadata_overhead"] = _both(case, metadata_overhead)
    out["nominal_sparsity"] = _both(case, nominal_sparsity)
    out["real_speedup"] = real_speedup(case)
    out["quality_drift"] = _with(case.drift or unavailable("outputs were not compared"), metric=case.drift_metric)
    out["observer_effect"] = observer_effect(case)
    out["energy_j_per_request"] = {v: unavailable("energy was not measured: no RAPL or NVML reading was taken", "J")
                                   for v in ("failing", "comparator")}  # fmt: skip
    return out


def _with(number: Number, **extra: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(number), **{k: msgspec.to_builtins(v) for k, v in extra.items()}}


def _both(case: Case, figure: Any) -> dict[str, Any]:
    """The failing variant's figure, with the comparator's beside it."""
    out = dict(figure(case, "failing"))
    out["comparator"] = figure(case, "comparator")
    return out


def _latency(case: Case, latency: Mapping[str, Mapping[str, Number]]) -> dict[str, Any]:
    none = unavailable("latency was not measured", "ms")
    out: dict[str, Any] = {v: {q: msgspec.to_builtins(latency.get(v, {}).get(q, none)) for q in ("p50", "p95", "p99")}
                           for v in ("failing", "comparator")}  # fmt: skip
    c = case.comparison
    if c is None:
        out["ratio"] = _with(unavailable("latency was not measured", "×"))
        return out
    tails = case.tails.ratios if case.tails else {}
    out["ratio"] = _with(c.ratio, p50=c.ratio, **{q: tails[q] for q in ("p95", "p99") if q in tails})
    out["noise_floor"] = msgspec.to_builtins(c.floor)
    out["between_process_sd"] = msgspec.to_builtins(
        Number(value=c.between_sd, n=c.rounds, quality="derived") if c.between_sd is not None
        else unavailable("too few replicas"))  # fmt: skip
    return out


def _eligible(case: Case, variant: str) -> list[Payload]:
    return [r for r in case.products(variant) if r["weight"]["eligible"]]


def fallback_rate(case: Case, variant: str) -> dict[str, Any]:
    """Share of sparse-eligible product calls, and of their time, that took a dense path."""
    if variant not in case.census:
        return _with(unavailable("no census was taken"))
    rows = _eligible(case, variant)
    calls = sum(int(r["calls"]) for r in rows)
    if not calls:
        why = "no product has an operand that is sparse, or sparse enough that a sparse form could pay"
        return _with(unavailable(why), time=unavailable(why))
    dense = [r for r in rows if r["path"] in ("dense", "conv")]
    ns = sum(int(r["ns"]) for r in rows)
    by_calls = Number(value=sum(int(r["calls"]) for r in dense) / calls, n=calls)
    by_time = Number(value=sum(int(r["ns"]) for r in dense) / ns, n=calls) if ns else unavailable("no time was seen")
    return _with(by_calls, time=by_time)


def conversion_rate(case: Case, variant: str) -> dict[str, Any]:
    """Format conversions a step (in the code and hidden inside products), and their time."""
    if variant not in case.census:
        return _with(unavailable("no census was taken", "per step"))
    rows = [r for r in case.rows(variant) if r["family"] in ("conversion", "densify")]
    profile = case.profile.get(variant)
    hidden = list(profile.get("hidden", ())) if profile else []
    steps = max(1, int(profile.get("steps", 1))) if profile else 1
    calls = sum(case.calls(r, variant) for r in rows) + sum(int(h["calls"]) for h in hidden) / steps
    ms = sum(case.row_ms(r, variant) for r in rows) + sum(float(h["total_ms"]) for h in hidden) / steps
    reason = None if profile else "without the profile pass, conversions hidden inside products are not counted"
    n = case.steps(variant)
    return _with(
        Number(value=calls, n=n, unit="per step", reason=reason), time_ms=Number(value=ms, n=n, unit="ms per step")
    )


def metadata_overhead(case: Case, variant: str) -> dict[str, Any]:
    """Index bytes over value bytes of all sparse tensors; beside it, stored over dense bytes and the break-even density."""
    if variant not in case.inventory:
        return _with(unavailable("no inventory was taken"))
    sparse = [t for t in case.sparse_tensors(variant) if t.get("bytes") and t["bytes"]["values"]]
    if not sparse:
        why = "no tensor is in a sparse layout, so there are no indices"
        return _with(unavailable(why), vs_dense=unavailable(why), break_even_density=unavailable(why))
    values = sum(int(t["bytes"]["values"]) for t in sparse)
    index = sum(int(t["bytes"]["indices"]) for t in sparse)
    dense = sum(int(t["bytes"]["dense"]) for t in sparse)
    density = sum(int(t["stored"]) for t in sparse) / sum(int(t["numel"]) for t in sparse)
    n = len(sparse)
    return _with(
        Number(value=index / values, n=n, unit="index bytes / value bytes"),
        index_bytes=Number(value=index, n=n, unit="bytes"),
        value_bytes=Number(value=values, n=n, unit="bytes"),
        vs_dense=Number(value=(values + index) / dense, n=n, unit="stored bytes / dense bytes"),
        break_even_density=Number(value=density * dense / (values + index), n=n, quality="derived"),
        density=Number(value=density, n=n),
    )


def nominal_sparsity(case: Case, variant: str) -> dict[str, Any]:
    """Zero fraction of the weights that products use, weighted by entries."""
    if variant not in case.inventory:
        return _with(unavailable("no inventory was taken"))
    rows = list(case.weights(variant))
    total = sum(int(t["numel"]) for _, _, t in rows)
    if not total:
        return _with(unavailable("no weight of two or more dimensions was found"))
    zeros = sum(z * int(t["numel"]) for _, z, t in rows) / total
    return _with(Number(value=zeros, n=total, unit="zero fraction"))


def real_speedup(case: Case) -> dict[str, Any]:
    c = case.comparison
    if c is None or c.ratio.value is None or c.ratio.ci is None:
        return _with(unavailable("latency was not measured", "×"))
    speed = Number(
        value=1 / c.ratio.value, ci=(1 / c.ratio.ci[1], 1 / c.ratio.ci[0]), n=c.rounds, unit="×", quality="derived"
    )
    declared = case.declared.speedup
    return _with(speed, **({"declared": declared} if declared else {}))


def observer_effect(case: Case) -> dict[str, Any]:
    """How much slower the step was under each pass than alone, as a ratio; sampled passes state their pause share."""
    out: dict[str, Any] = {}
    for variant, payload in case.census.items():
        out[f"census.{variant}"] = _slowdown(payload.get("observer", {}), "traced_ms")
    for variant, payload in case.profile.items():
        seen = dict(payload.get("observer", {}), traced_ms=payload.get("wall_ms", 0.0))
        out[f"profile.{variant}"] = _slowdown(seen, "traced_ms")
    for variant, table in case.native.items():
        for s in table.samplers:
            share = Number(value=s.pause_share, n=s.samples, unit="share of time paused", quality="estimated",
                           reason="pauses per sample times the sampling rate") if s.pause_share is not None else \
                unavailable("the sampler does not stop the process")  # fmt: skip
            out[f"{s.name}.{variant}"] = msgspec.to_builtins(share)
    return out


def _slowdown(observer: Payload, key: str) -> dict[str, Any]:
    plain, seen = float(observer.get("plain_ms", 0.0)), float(observer.get(key, 0.0))
    if plain <= 0 or seen <= 0:
        return _with(unavailable("the pass did not time itself", "×"))
    return _with(Number(value=seen / plain, unit="×"))
