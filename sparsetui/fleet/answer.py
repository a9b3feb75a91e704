"""The verdict over hosts as a session keeps it: the result of the contract, and the section ``fleet`` that reports draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sparsetui.evidence.records import Confidence, Finding, Lock, Number, Verdict, unavailable
from sparsetui.fleet.records import FleetVerdict, HostReport
from sparsetui.fleet.verdict import DOMINATES
from sparsetui.runner.passes import compare_locks

STATUS = {
    "release": "fault",
    "host": "fault",
    "mixed": "fault",
    "no_fault": "no_fault",
    "cannot_answer": "cannot_answer",
}
_RANK: dict[Confidence, int] = {"confirmed": 2, "supported": 1, "suspected": 0}
_HOST_OWNER = "production reliability owner"
_NOT_ONE = "it differs from host to host: see the section fleet"


def section(verdict: FleetVerdict, reports: Sequence[HostReport], about: Mapping[str, Any]) -> dict[str, Any]:
    """The section's body. ``about`` is what is known of the run: address, hosts that were chosen, budget."""
    odd = {o.host: o for o in verdict.outliers}
    body: dict[str, Any] = {
        "summary": verdict.summary,
        "status": verdict.status,
        **about,
        "ratio": verdict.ratio,
        "between_hosts": verdict.between,
        "within_a_host": verdict.within,
        "between_share": verdict.i2,
        "rows": [row(r, odd.get(r.host) is not None) for r in sorted(reports, key=lambda r: r.host)],
        "apart": [
            {"host": o.host, "seen_in": o.seen_in, "factor": o.factor, "why": o.why, "lock": "; ".join(o.lock),
             "conditions": "; ".join(o.conditions)}
            for o in verdict.outliers
        ],
        "locks": [
            {"lock": g.lock, "hosts": len(g.hosts), "names": ", ".join(g.hosts[:8]), "ratio": g.ratio,
             "between": g.between, "differs": "; ".join(g.differs)}
            for g in verdict.groups
        ],
        "mechanisms": [
            {"mechanism": m, "hosts": len(h), "names": ", ".join(h[:8])} for m, h in verdict.mechanisms.items()
        ],
        "minority": [{"host": h, "mechanism": m} for h, m in verdict.minority],
        "missing": [{"host": h, "state": s, "why": w} for h, s, w in verdict.missing],
        "remarks": [{"remark": r} for r in verdict.remarks],
        "rule": "figures are pooled over hosts of one lock only; an effect counts as none beside another that is "
        f"{DOMINATES:g} times as large in logs",
    }  # fmt: skip
    return {k: v for k, v in body.items() if v not in ([], (), "")}


def row(r: HostReport, odd: bool = False) -> dict[str, Any]:
    """One host as a row of the section."""
    v = r.verdict
    return {
        "host": r.host,
        "state": r.state,
        "says": (v.status if v else "") if r.state == "done" else r.why,
        "apart": "yes" if odd else "",
        "mechanism": (v.mechanism or "") if v else "",
        "ratio": r.ratio,
        "failing_ms": r.failing_ms,
        "comparator_ms": r.comparator_ms,
        "lock": r.lock_id,
        "code": r.node.get("code", ""),
        "seconds": round(r.seconds, 1),
    }


def metrics(verdict: FleetVerdict, reports: Sequence[HostReport]) -> dict[str, Any]:
    """The headline metrics of the fleet: the pooled ratio; what is one host's own stays with the host."""
    one = {q: unavailable(_NOT_ONE, "ms") for q in ("p50", "p95", "p99")}
    known = [r.metrics["nominal_sparsity"] for r in reports if "nominal_sparsity" in r.metrics]
    out: dict[str, Any] = {"latency_ms": {"failing": one, "comparator": one, "ratio": verdict.ratio}}
    if known and all(k == known[0] for k in known):
        out["nominal_sparsity"] = known[0]
    return out


def lock_of(verdict: FleetVerdict, reports: Sequence[HostReport], change: Sequence[str]) -> Lock | None:
    """The lock of the pair on a host of the largest group."""
    first = verdict.groups[0].hosts[0] if verdict.groups else None
    r = next((r for r in reports if r.host == first and len(r.lock) == 2), None)
    return None if r is None else compare_locks(r.lock["failing"], r.lock["comparator"], change)


def findings(verdict: FleetVerdict, reports: Sequence[HostReport], proof: Mapping[str, str]) -> tuple[Finding, ...]:
    """Material findings of the hosts, one a mechanism, as the host has it that is surest; ``proof`` maps a host to the id of
    its evidence in this session.
    """
    by: dict[str, list[tuple[HostReport, Finding]]] = {}
    for r in reports:
        for f in r.findings:
            by.setdefault(f.mechanism, []).append((r, f))
    done = sum(r.state == "done" for r in reports)
    out = []
    for found in by.values():
        host, best = max(found, key=lambda hf: (_RANK[hf[1].confidence], -reports.index(hf[0])))
        ids = tuple(proof[r.host] for r, _ in found if r.host in proof)
        out.append(msgspec.structs.replace(
            best, summary=f"on {len(found)} of {done} hosts: {best.summary}", evidence=ids,
            intervention=proof.get(host.host) if best.intervention else None,
        ))  # fmt: skip
    return tuple(sorted(out, key=lambda f: f.mechanism))


def contract_verdict(
    verdict: FleetVerdict, reports: Sequence[HostReport], found: Sequence[Finding], proof: Mapping[str, str]
) -> Verdict:
    """The fleet's verdict in the words of a single host's result."""
    status: Any = STATUS[verdict.status]
    ids = tuple(proof[r.host] for r in reports if r.host in proof and r.state == "done")
    if verdict.status == "release" or (verdict.status == "mixed" and verdict.mechanisms):
        named = next(iter(verdict.mechanisms), None)
        best = next((f for f in found if f.mechanism == named), None)
        if best is not None:
            return Verdict(
                status, verdict.summary, best.stage, best.mechanism, best.confidence, best.where,
                best.share_of_regression, best.owner, best.evidence, best.intervention, best.fix, best.boundary, best.rollback,
            )  # fmt: skip
    if verdict.status == "host":
        odd = [o.host for o in verdict.outliers]
        locked, disturbed = any(o.lock for o in verdict.outliers), any(o.conditions for o in verdict.outliers)
        mechanism = "ingress.lock-mismatch" if locked else "execution.throttled"
        return Verdict(
            status, verdict.summary, mechanism.partition(".")[0], mechanism,
            "supported" if locked or disturbed else "suspected", owner=_HOST_OWNER,
            share_of_regression=unavailable("the hosts that stand apart are at fault, not a mechanism of the release"),
            evidence=tuple(proof[h] for h in odd if h in proof),
            fix=f"take {', '.join(odd[:5])} out of rotation, and put right what differs there",
            rollback="put them back once a run over the fleet no longer names them",
        )  # fmt: skip
    return Verdict(status, verdict.summary, evidence=ids)


def figures(r: HostReport) -> dict[str, Number]:
    """The figures that stand beside a host's evidence."""
    return {k: n for k, n in (("ratio", r.ratio), ("failing", r.failing_ms), ("comparator", r.comparator_ms))
            if n.value is not None}  # fmt: skip


def said(r: HostReport) -> str:
    """One line on one host."""
    if r.state != "done":
        return f"{r.host} {r.state}: {r.why}"
    v = r.verdict
    what = (
        f"{v.mechanism} {v.confidence}" if v is not None and v.mechanism else (v.status.replace("_", " ") if v else "")
    )
    ratio = f", failing / comparator {r.ratio.value:.2f}×" if r.ratio.value is not None else ""
    return f"{r.host}: {what}{ratio}, lock {r.lock_id or 'not taken'}"
