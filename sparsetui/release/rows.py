"""The matrix as it is shown: one row a format, with every figure's interval, and the verdicts that follow by stated rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sparsetui.diagnosis import energy
from sparsetui.diagnosis.stats import t_interval
from sparsetui.evidence.records import Number, unavailable
from sparsetui.release import queueing
from sparsetui.release.arms import REFERENCE, fastest

if TYPE_CHECKING:
    from sparsetui.release.matrix import MatrixRun

RISK_RULE = (
    "high: the quality gate is exceeded or the SLA broken; medium: no quality gate decides, a tail p99/p50 more than half again "
    "that of dense, products that fall back to dense, or conversions in the step; low: none of these"
)
_TAIL = 1.5
GRID_SAYS = "dense time / format time on that weight's own shape; above 1 the format is faster"


def section(run: MatrixRun) -> dict[str, Any]:
    made = [_row(run, a) for a in run.ready["arms"]]
    made += [_absent(run, f, why) for f, why in run.ready["refused"].items()]
    order = {name: i for i, name in enumerate(("dense", "unstructured", "structured", "mixed"))}
    made.sort(key=lambda r: (order.get(r["kind"], 9), r["name"]))
    p = run.plan
    assert p is not None
    floor = run.cycles.floor()
    best = fastest(run.cycles, [a for a in run.arms if not a.startswith("mixed")])
    body: dict[str, Any] = {
        "summary": _summary(run, made, best),
        "weights": f"those of the {p.source}, {p.source_zeros:.1%} zero before pruning",
        "sparsity": Number(value=p.sparsity, unit="zero fraction"),
        "pruned_to": p.how,
        "noise_floor": floor,
        "cost_of_the_harness": _harness(run),
        "best_single": best or "none was timed",
        "net_of_harness_means": "time against dense without the harness, whose cost is taken as the same in every arm",
        "risk_rule": RISK_RULE,
        "rows": made,
    }
    if p.source_zeros > 0.2:
        body["note"] = (
            "The workload holds no denser weights than these: what structured formats lose is on top of the pruning before."
        )
    body["quality"] = [_quality_row(run, a) for a in (*run.outputs,)]
    body["precision"] = [_precision_row(r) for r in run.precision]
    body["layers"] = _layers(run)
    body["crossover"] = [line for c in run.curves for line in _curve(c)]
    if body["crossover"]:
        body["crossover_means"] = GRID_SAYS
    if run.unfused:
        body["fused_layers"] = (
            "encoder layers run op by op here, the dense arm's too, since their fused form takes no sparse weight; "
            "what the fused form takes is in the latency of the investigation"
        )
    if run.ready.get("left_out"):
        body["left_out"] = f"{run.ready['left_out']} smaller products run as they are in every arm"
    return body


def _summary(run: MatrixRun, made: list[dict[str, Any]], best: str | None) -> str:
    if best is None:
        return f"{len(made)} formats, none timed often enough"
    r = run.cycles.ratio(best)
    text = f"{len(made)} formats; the fastest single one is {best}"
    if r.value is not None and best != REFERENCE:
        text += f", {1 / r.value:.2f}× as fast as dense"
    mix = run.mixes.get("mixed", {})
    if mix.get("same_as"):
        return f"{text}; the best of each layer comes to {mix['same_as']} everywhere"
    if (m := run.cycles.ratio("mixed")).value is not None:
        text += f"; the best format of each layer is {1 / m.value:.2f}× as fast as dense"
    return text


def _row(run: MatrixRun, arm: str) -> dict[str, Any]:
    account, sla = run.ready["arms"][arm], run.lab.workload.sla
    timed = (run.mixes.get(arm, {}).get("same_as")) or arm
    q = run.cycles.quantiles(timed) if timed in run.cycles.blocks else _untimed("it was not timed")
    b = account["bytes"]
    watts = run.lab.workload.energy.watts_per_core if run.lab.workload.energy else None
    times = run.cycles.times(timed)
    figure = drift(run, timed)
    fallback = _fallback(account)
    conversions = _conversions(run, timed)
    verdict = queueing.judge(q, sla)
    row: dict[str, Any] = {
        "name": arm, "kind": account["kind"], **q,
        "against_dense": Number(value=1.0, unit="×", quality="derived") if arm == REFERENCE else run.cycles.ratio(timed),
        "net_of_harness": Number(value=1.0, unit="×", quality="derived") if arm == REFERENCE
        else run.cycles.net(timed, "alone"),
        "throughput_at_SLA": queueing.throughput(times, sla) if times else unavailable("it was not timed"),
        "energy": energy.per_request(run.cycles.plain(timed), watts, run.energy.get("missing", ())),
        "weight_bytes": b["values"] + b["indices"], "value_bytes": b["values"], "index_bytes": b["indices"],
        "metadata_overhead": Number(value=b["indices"] / b["values"], unit="index bytes / value bytes")
        if b["values"] else unavailable("no values are stored"),
        "fallback_rate": fallback, "conversions": conversions, "quality_drift": figure, "SLA": verdict,
    }  # fmt: skip
    row["risk"] = _risk(run, q, figure, verdict, fallback, conversions)
    note = str(account["what"])
    if timed != arm:
        note += f"; {timed} everywhere" + (", since the mix measured slower" if run.mixes[arm].get("replaced") else "")
    if account["fell_back"]:
        note += f"; dense for {', '.join(account['fell_back'][:4])}"
    row["note"] = note
    return row


def _untimed(why: str) -> dict[str, Number]:
    return {q: unavailable(why, "ms") for q in ("p50", "p95", "p99")}


def _absent(run: MatrixRun, fmt: str, why: str) -> dict[str, Any]:
    """A format that cannot run here: its quality is measured all the same, on its own zeros."""
    none = unavailable(why)
    same = ("against_dense", "net_of_harness", "throughput_at_SLA", "energy", "weight_bytes", "value_bytes", "index_bytes",
            "metadata_overhead", "fallback_rate", "conversions")  # fmt: skip
    row: dict[str, Any] = {"name": fmt, "kind": _kind(fmt), **_untimed(why), **dict.fromkeys(same, none)}
    row.update(
        quality_drift=drift(run, f"masked:{fmt}"), SLA="not measured", risk="not known: it cannot run here", note=why
    )
    return row


def _kind(fmt: str) -> str:
    return "structured" if fmt.startswith(("bsr", "2:4", "channels")) else "unstructured"


def _fallback(account: dict[str, Any]) -> Number:
    if not account["calls"]:
        return unavailable("no product of this arm has a pruned weight")
    return Number(value=account["dense_calls"] / account["calls"], n=account["calls"], unit="of products a step")


def _conversions(run: MatrixRun, arm: str) -> Number:
    found = run.conversions.get(arm)
    if found is None:
        return unavailable("the arm was not profiled", "per step")
    more = found["index_copies_per_step"]
    why = f"and {more:g} copies of tensors inside products a step" if more else None
    return Number(value=found["per_step"], unit="per step", reason=why)


def drift(run: MatrixRun, arm: str) -> Number:
    """What the quality gate looks at: the change of the user's metric where there is one, else relative L2 of outputs."""
    metric = _metric(run, arm)
    if metric is not None:
        return metric
    found = run.outputs.get(arm)
    if found is None:
        return unavailable("its outputs were not compared")
    if "error" in found:
        return unavailable(f"its step raised: {found['error']}")
    return _mean([d["relative_l2"] for d in found["per_input"]], "relative L2 of outputs")


def _metric(run: MatrixRun, arm: str) -> Number | None:
    """The largest change of a metric against dense; formats of one family answer alike and share the evaluation."""
    base = run.metric.get(REFERENCE)
    if not base or "error" in base:
        return None
    own = run.metric.get(arm)
    account = run.ready["arms"].get(arm)
    if own is None and account is not None and account["family"] != "mixed":
        same = [a for a in run.metric if run.ready["arms"].get(a, {}).get("family") == account["family"]]
        own = run.metric[same[0]] if same else None
    if own is None or "error" in own:
        return None
    name = max(base, key=lambda k: abs(own.get(k, math.inf) - base[k]))
    change = abs(own.get(name, math.nan) - base[name])
    return Number(value=change, n=1, unit=f"change of {name}") if math.isfinite(change) else None


def _mean(values: Sequence[float], unit: str) -> Number:
    if not values:
        return unavailable("the step has no floating outputs", unit)
    ci = t_interval(values) if len(values) > 1 else None
    return Number(value=float(np.mean(values)), ci=ci, n=len(values), unit=unit)


def _bounded(n: Number) -> Number:
    """A share or a cosine: an interval that a few inputs stretch beyond 1 ends there."""
    if n.value is None or n.ci is None:
        return n
    return msgspec.structs.replace(n, value=min(1.0, n.value), ci=(n.ci[0], min(1.0, n.ci[1])))


def _risk(
    run: MatrixRun, q: dict[str, Number], lost: Number, verdict: str, fallback: Number, conversions: Number
) -> str:
    gate = run.lab.workload.quality.max_drift if run.lab.workload.quality else None
    why = []
    if verdict.startswith("broken"):
        why.append(f"SLA {verdict}")
    if gate is not None and lost.value is not None and lost.value > gate:
        why.append(f"drift {lost.value:.3g} exceeds {gate:g}")
    if why:
        return f"high: {'; '.join(why)}"
    if gate is None or lost.value is None:
        why.append("no quality gate decides")
    dense = run.cycles.quantiles(REFERENCE)
    tails = [t["p99"].value / t["p50"].value if t["p99"].value and t["p50"].value else None for t in (q, dense)]
    if tails[0] is not None and tails[1] is not None and tails[0] > _TAIL * tails[1]:
        why.append(f"p99 is {tails[0]:.1f} × p50")
    if fallback.value:
        why.append(f"{fallback.value:.0%} of products fall back to dense")
    if conversions.value:
        why.append(f"{conversions.value:g} conversions a step")
    return f"medium: {'; '.join(why)}" if why else "low"


def _harness(run: MatrixRun) -> Number:
    """What running under the rewrites costs, in every arm alike."""
    r = run.cycles.ratio(REFERENCE, "alone")
    if r.value is None:
        return r
    return Number(value=r.value, ci=r.ci, n=r.n, unit="× the step alone", reason="every arm carries it alike")


def _quality_row(run: MatrixRun, arm: str) -> dict[str, Any]:
    found = run.outputs[arm]
    name = arm.replace("masked:", "") + (" (zeros only)" if arm.startswith("masked:") else "")
    row: dict[str, Any] = {"format": name}
    if "error" in found:
        return {**row, "note": f"its step raised: {found['error']}"}
    for key, unit in (
        ("relative_l2", ""),
        ("max_error", ""),
        ("cosine", ""),
        ("top1", "of decisions agree"),
        ("kl", "nats"),
    ):
        values = [d[key] for d in found["per_input"] if key in d]
        if values:
            row[key] = _bounded(_mean(values, unit)) if key in ("cosine", "top1") else _mean(values, unit)
    if not found["finite"]:
        row["note"] = "NOT finite"
    for key, value in (run.metric.get(arm) or {}).items():
        row[f"metric {key}"] = value
    return row


def _precision_row(row: dict[str, Any]) -> dict[str, Any]:
    """Rounding alone, pruning alone, and both: what a dtype adds is told apart from what zeros do."""
    return {"weights_rounded_to": row["dtype"],
            "dense_weights": _mean([d["relative_l2"] for d in row["dense"]], "relative L2"),
            "the_same_weights_pruned": _mean([d["relative_l2"] for d in row["pruned"]], "relative L2")}  # fmt: skip


def _layers(run: MatrixRun) -> list[dict[str, Any]]:
    times = {x["name"]: x["ms"] for x in run.layer_times.get("layers", ())}
    chosen = {c["layer"]: c["format"] for c in run.mixes.get("mixed", {}).get("choice", ())}
    out = []
    for x in run.ready["layers"]:
        ms = times.get(x["name"], {})
        best = min(ms, key=lambda f: ms[f]) if ms else ""
        out.append({"layer": x["name"], "signature": x["signature"], "calls": x["calls"], "sparsity": x["target"],
                    "mixed": chosen.get(x["name"], ""), "dense_ms": ms.get("dense"), "fastest": best,
                    "fastest_ms": ms.get(best)})  # fmt: skip
    return out


def _curve(curve: dict[str, Any]) -> list[dict[str, Any]]:
    """One line a format: its speed-up at each sparsity, and from where on it beats dense."""
    formats = list(dict.fromkeys(f for p in curve["points"] for f in p["speedup"]))
    out = []
    for f in formats:
        points = [(p["sparsity"], float(np.median(p["speedup"][f]))) for p in curve["points"] if p["speedup"].get(f)]
        line: dict[str, Any] = {"signature": curve["signature"], "format": f, "beats_dense_from": crossover(points)}
        line.update({f"at {s:g}": v for s, v in points})
        out.append(line)
    return out


def crossover(points: Sequence[tuple[float, float]]) -> Number:
    """Sparsity from which on the speed-up stays above 1, between grid points by the line in (sparsity, log speed-up)."""
    if not points:
        return unavailable("it was not measured")
    lost = [i for i, (_, v) in enumerate(points) if v <= 1.0]
    if not lost:
        return Number(value=points[0][0], unit="or less", quality="measured", reason="faster on the whole grid")
    i = lost[-1]
    if i == len(points) - 1:
        return unavailable(f"slower than dense up to {points[-1][0]:g}")
    (s0, v0), (s1, v1) = points[i], points[i + 1]
    at = s0 + (s1 - s0) * (0 - math.log(v0)) / (math.log(v1) - math.log(v0))
    return Number(value=at, ci=(s0, s1), n=len(points), quality="derived", unit="")
