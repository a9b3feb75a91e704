"""A matrix over nodes as a session keeps it: a table for each lock, and nothing pooled between locks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsetui.diagnosis.stats import hodges_lehmann, signed_rank_interval, t_interval
from sparsetui.evidence.records import Number, unavailable
from sparsetui.fleet.differences import lock_differences
from sparsetui.fleet.pooling import pool
from sparsetui.fleet.records import HostReport, Part, Survey
from sparsetui.release.arms import REFERENCE
from sparsetui.release.rows import crossover
from sparsetui.report.numbers import as_number

RULE = (
    "each signature was measured on one node, so that its ratios come from one machine; whole steps on every node; figures are "
    "pooled over nodes of one lock only, each lock has its own table; time is against dense, below 1 is faster"
)
_Z = 1.96


def section(
    surveys: Mapping[str, Survey],
    parts: Sequence[Part],
    missing: Mapping[str, tuple[str, str]],
    moved: Sequence[Mapping[str, str]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The section's body. ``missing`` maps a host to its state and why; ``moved`` are signatures that changed their node."""
    groups = by_lock(surveys, parts)
    reference = next(iter(groups), "")
    locks, tables, open_ = [], {}, []
    for lock, hosts in groups.items():
        differs = "" if lock == reference else "; ".join(_differences(surveys, hosts, groups[reference]))
        own = [p for p in parts if p.lock_id == lock]
        tables[f"lock {lock}"] = _table(surveys, own, hosts, differs, lock == reference)
        open_ += [{"lock": lock, "signature": s, "why": why} for s, why in left(surveys, own, hosts)]
        locks.append({"lock": lock, "nodes": len(hosts), "names": ", ".join(hosts[:8]), "differs": differs})
    body: dict[str, Any] = {
        "summary": _summary(groups, parts, open_, missing, moved),
        **about,
        "rows": [_row(h, surveys, parts, missing) for h in sorted({*surveys, *missing})],
        "locks": locks,
        "tables": tables,
        "unmeasured": open_,
        "moved": list(moved),
        "rule": RULE,
    }
    return {k: v for k, v in body.items() if v not in ([], {}, "")}


def by_lock(surveys: Mapping[str, Survey], parts: Iterable[Part]) -> dict[str, list[str]]:
    """Hosts by lock, most hosts first; hosts count that measured something or could."""
    found: dict[str, set[str]] = {}
    for p in parts:
        found.setdefault(p.lock_id, set()).add(p.host)
    for h, s in surveys.items():
        if s.state == "done":
            found.setdefault(s.lock_id, set()).add(h)
    found.pop("", None)  # of a node whose workers could not be started
    return {k: sorted(v) for k, v in sorted(found.items(), key=lambda kv: (-len(kv[1]), min(kv[1])))}


def _differences(surveys: Mapping[str, Survey], hosts: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    def reports(names: Sequence[str]) -> list[HostReport]:
        return [HostReport(h, lock=surveys[h].lock) for h in names if h in surveys]

    mine = reports(hosts)
    return lock_differences(mine[0], reports(others)) if mine else ()


def left(surveys: Mapping[str, Survey], parts: Sequence[Part], hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Signatures of one lock that have no figures, each with why."""
    done = {p.signature for p in parts if p.signature and not p.why}
    why = {p.signature: p.why for p in parts if p.signature and p.why}
    asked = dict.fromkeys(s.name for h in hosts if h in surveys for s in surveys[h].signatures)
    none = "no node of this lock is left to measure it"
    return [(s, why.get(s, none)) for s in asked if s not in done]


def _row(
    host: str, surveys: Mapping[str, Survey], parts: Sequence[Part], missing: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    survey, own = surveys.get(host), [p for p in parts if p.host == host and not p.why]
    said = did(own)
    if host in missing:
        said = "; ".join(x for x in (missing[host][1], f"before that {said}" if own else "") if x)
    return {"host": host, "state": missing[host][0] if host in missing else "done", "says": said,
            "lock": survey.lock_id if survey else "", "seconds": round(sum(p.seconds for p in own), 1)}  # fmt: skip


def did(parts: Sequence[Part]) -> str:
    """What a node has measured, in a few words."""
    n = sum(bool(p.signature) for p in parts)
    words = [f"{n} signature{'' if n == 1 else 's'}"] if n else []
    return ", ".join([*words, *["whole steps"] * any(not p.signature for p in parts)]) or "nothing"


def _table(
    surveys: Mapping[str, Survey], parts: Sequence[Part], hosts: Sequence[str], differs: str, first: bool
) -> dict[str, Any]:
    shapes = {s.name: s for h in hosts if h in surveys for s in surveys[h].signatures}
    order = list(shapes)
    measured = sorted(
        (p for p in parts if p.signature and not p.why), key=lambda p: (_place(order, p.signature), p.host)
    )
    whole = sorted((p for p in parts if not p.signature and p.body.get("rows")), key=lambda p: p.host)
    said = f"{len(hosts)} node{'' if len(hosts) == 1 else 's'}: {', '.join(hosts[:8])}"
    table = {
        "summary": said + ("" if first else f"; apart from the others: {differs or 'its lock is not known any more'}"),
        "signatures": [_signature(p, shapes.get(p.signature)) for p in measured],
        "formats_by_signature": [row for p in measured for row in _formats(p)],
        "whole_steps": _over_nodes(whole),
        "whole_steps_by_node": [_whole(p.host, r) for p in whole for r in p.body["rows"]],
    }
    return {k: v for k, v in table.items() if v}


def _place(order: list[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


# -- one signature ---------------------------------------------------------------------------------------------------


def against(speedups: Sequence[float]) -> Number:
    """Time over dense from ratios dense / format, one a round."""
    logs = [-math.log(x) for x in speedups if x > 0]
    if len(logs) < 2:
        return unavailable("far slower than dense: it was timed once", "×")
    low, high = signed_rank_interval(logs) or t_interval(logs)
    return Number(math.exp(hodges_lehmann(logs)), (_exp(low), _exp(high)), len(logs), "×")


def _exp(x: float) -> float:
    return math.exp(min(max(x, -700.0), 700.0))


def ratios(part: Part) -> dict[str, Number]:
    """Format -> time over dense at the signature's own sparsity."""
    own = part.body["sparsity"]
    at = [p["speedup"] for p in part.body["curve"]["points"] if p["sparsity"] == own]
    return {f: against(v) for found in at for f, v in found.items()}


def best(found: Mapping[str, Number]) -> tuple[str, Number]:
    """The fastest format where it is faster than dense beyond its interval; else what can be said."""
    known = {f: n for f, n in found.items() if n.value is not None and n.ci is not None}
    if not known:
        return "not measured", unavailable("no format was timed often enough", "×")
    name = min(known, key=lambda f: known[f].value or math.inf)
    n = known[name]
    if n.ci is not None and n.ci[1] < 1:
        return name, n
    slower = all(x.ci is not None and x.ci[0] > 1 for x in known.values())
    return (REFERENCE if slower else f"{name} and {REFERENCE} cannot be told apart"), n


def _signature(p: Part, shape: Any) -> dict[str, Any]:
    ms = [x["ms"].get(REFERENCE) for x in p.body["layers"]]
    calls = [x["calls"] for x in p.body["prepared"]]
    dense = sum(m * c for m, c in zip(ms, calls, strict=False) if m is not None)
    name, n = best(ratios(p))
    return {"signature": p.signature, "node": p.host, "layers": len(ms), "calls": sum(calls), "sparsity": p.body["sparsity"],
            "dense_ms_a_step": Number(dense, unit="ms", n=len(ms)), "fastest": name, "its_time_against_dense": n}  # fmt: skip


def _formats(p: Part) -> list[dict[str, Any]]:
    out = []
    for f, n in ratios(p).items():
        points = [
            (q["sparsity"], float(np.median(q["speedup"][f]))) for q in p.body["curve"]["points"] if q["speedup"].get(f)
        ]
        out.append({"signature": p.signature, "node": p.host, "format": f, "time_against_dense": n,
                    "beats_dense_from": crossover(points)})  # fmt: skip
    return out


# -- whole steps -----------------------------------------------------------------------------------------------------


def _whole(host: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "node": host,
        "format": row["name"],
        **{k: row.get(k) for k in ("p50", "against_dense", "quality_drift", "risk")},
    }


def _over_nodes(whole: Sequence[Part]) -> list[dict[str, Any]]:
    """One row a format: its time against dense over the nodes of one lock, by the random-effects estimate of the verdict."""
    by: dict[str, list[Number]] = {}
    for p in whole:
        for row in p.body["rows"]:
            n = as_number(row.get("against_dense"))
            if row["name"] != REFERENCE and n.value and n.ci and n.ci[0] > 0:
                by.setdefault(str(row["name"]), []).append(n)
    return [{"format": f, "nodes": len(found), **_pooled(found)} for f, found in by.items()]


def _pooled(found: Sequence[Number]) -> dict[str, Number]:
    if len(found) == 1:
        return {"against_dense": found[0]}
    y = [math.log(n.value or 1.0) for n in found]
    se = [(math.log(n.ci[1]) - math.log(n.ci[0])) / (2 * _Z) for n in found if n.ci]
    got = pool(y, se)
    ci = (_exp(got.ci[0]), _exp(got.ci[1]))
    return {"against_dense": Number(_exp(got.mean), ci, len(found), "×", "derived"),
            "from_node_to_node": Number(got.tau, n=len(found), unit="of the ratio", quality="derived")}  # fmt: skip


# -- words -----------------------------------------------------------------------------------------------------------


def _summary(
    groups: Mapping[str, Sequence[str]],
    parts: Sequence[Part],
    open_: Sequence[Mapping[str, str]],
    missing: Mapping[str, tuple[str, str]],
    moved: Sequence[Mapping[str, str]],
) -> str:
    done = [p for p in parts if p.signature and not p.why]
    nodes = len({p.host for p in parts if not p.why})
    said = f"{len(done)} signatures on {nodes} node{'' if nodes == 1 else 's'}"
    if len(groups) > 1:
        said += f" of {len(groups)} locks, each with its own table"
    tail = [f"{m['signature']} went from {m['from']} to {m['to']}" for m in moved[:3]]
    if len(moved) > 3:
        tail.append(f"{len(moved) - 3} more changed their node")
    if open_:
        tail.append(f"{len(open_)} not measured")
    if missing:
        tail.append(f"{len(missing)} node{'' if len(missing) == 1 else 's'} gave up: {', '.join(sorted(missing)[:5])}")
    return (
        "; ".join([said, *tail]) + "."
        if groups
        else "No node could measure anything"
        + (f": {'; '.join(f'{h} {s}: {w}' for h, (s, w) in sorted(missing.items())[:5])}." if missing else ".")
    )
