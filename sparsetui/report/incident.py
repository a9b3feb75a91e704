"""The memo's first half: the verdict, the incident's facts, the lock and the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsetui.evidence.records import Evidence, Number
from sparsetui.report.document import Block, Cell, Code, Heading, Inline, Para, Strong, Table
from sparsetui.report.facts import Facts, share_text
from sparsetui.report.numbers import as_number, figure, metric

STATUS = {
    "fault": "A fault was found",
    "no_fault": "No fault was found",
    "cannot_answer": "The evidence cannot answer",
}
CONFIDENCE = {
    "confirmed": "confirmed (an intervention closed it)",
    "supported": "supported (two independent passes agree)",
    "suspected": "suspected (one pass; not proved)",
}
SHARES = ("", "share", "zero fraction")  # units of figures that read well as a percentage
QUANTILES = ("p50", "p95", "p99")

# metrics of the contract beyond latency: key, words, shown as a percentage
METRICS: tuple[tuple[str, str, bool], ...] = (
    ("nominal_sparsity", "nominal sparsity", True),
    ("real_speedup", "real speed-up", False),
    ("fallback_rate", "dense-fallback rate", True),
    ("conversion_rate", "conversions", False),
    ("metadata_overhead", "metadata overhead", False),
    ("quality_drift", "quality drift", False),
    ("energy_j_per_request", "energy per request", False),
    ("observer_effect", "observer effect", False),
)


def verdict_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Verdict")]
    v = f.verdict
    if v is None:
        why = f"The investigation was interrupted: {f.state.interrupted}." if f.state.interrupted is not None else ""
        blocks.append(Para((Strong("No verdict yet."), f" {why}" if why else " The investigation was not concluded.")))
        return blocks
    blocks.append(Para((Strong(f"{STATUS.get(v.status, v.status)}."), f" {v.summary}")))
    if v.status != "fault":
        return blocks
    rows: list[tuple[Cell, ...]] = [
        ("first failing mechanism", Code(v.mechanism or "")),
        ("stage", v.stage or ""),
        ("confidence", CONFIDENCE.get(v.confidence or "", v.confidence or "")),
        ("where", "; ".join(" · ".join(p for p in (w.module, w.op) if p) for w in v.where)),
        ("share of the regression", share_text(v.share_of_regression)),
        ("proved by", Code(f.proof(v))),
        ("evidence", ", ".join(v.evidence)),
        ("owner", _owner(f, v.owner or "")),
        ("fix", v.fix or ""),
        ("boundary of the fix", v.boundary or ""),
        ("way back", v.rollback or ""),
    ]
    blocks.append(Table(("fact", "value"), tuple(r for r in rows if r[1] not in ("", Code("")))))
    return blocks


def _owner(f: Facts, role: str) -> str:
    who = f.state.owners.get(role, "")
    return f"{role} ({who})" if who else role


def incident_section(f: Facts) -> list[Block]:
    s, spec = f.state, f.state.spec
    inner = spec.get("spec", spec)
    rows: list[tuple[Cell, ...]] = [
        ("session", Code(s.id)),
        ("opened", s.created),
        ("last entry", s.updated),
        ("host", s.host),
        ("tool", s.tool),
        ("workload", s.workload),
        ("workload file", (str(spec.get("path", "")), *_hash(spec.get("sha256")))),
        ("meant to differ", _words(_dig(inner, "change"))),
        ("failing", _variant(inner, "failing")),
        ("comparator", _variant(inner, "comparator")),
        ("files run", _words(spec.get("files"))),
        ("declared", _pairs(_declared(inner))),
        ("SLA", _pairs(_dig(inner, "sla"))),
        ("quality gate", _pairs({"max_drift": _dig(inner, "quality", "max_drift")})),
    ]
    if s.interrupted is not None:
        rows.append(("interrupted", s.interrupted or "yes"))
    blocks: list[Block] = [Heading("Incident facts")]
    blocks.append(Table(("fact", "value"), tuple(r for r in rows if r[1] not in ("", Code(""), ("",)))))
    blocks.extend(_latency(f.metrics))
    blocks.append(Table(("metric", "figure"), tuple(_metric_rows(f.metrics))))
    return blocks


def _variant(spec: Any, which: str) -> str:
    """The entry that builds a variant, with what it runs under where that was given."""
    variant = _dig(spec, which)
    entry = _dig(variant, "entry", "text") or _dig(variant, "entry")
    if not isinstance(entry, str):
        return ""
    extra = {k: _dig(variant, k) for k in ("python", "threads")}
    env = _dig(variant, "env")
    if isinstance(env, Mapping) and env:
        extra["env"] = ", ".join(f"{k}={v}" for k, v in env.items())
    if _dig(variant, "derived"):
        entry = f"{entry} (derived: not given by the workload)"
    given = _pairs(extra)
    return f"{entry}; {given}" if given else entry


def _declared(spec: Any) -> dict[str, Any]:
    declared = dict(_dig(spec, "declared") or {})
    pattern = declared.get("pattern")
    if isinstance(pattern, (list, tuple)):
        declared["pattern"] = ":".join(str(x) for x in pattern)
    return declared


def _hash(sha: Any) -> tuple[Inline, ...]:
    return (" sha256 ", Code(str(sha))) if sha else ()


def _latency(metrics: Mapping[str, Any]) -> list[Block]:
    table = metrics.get("latency_ms")
    if not isinstance(table, Mapping) or not table:
        return []
    names = [n for n in ("failing", "comparator", "fixed") if n in table]
    names += [n for n in ("ratio",) if n in table]
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        side = table[name]
        unit = "×" if name == "ratio" else "ms"
        cells = [figure(as_number(side), unit=unit)]
        if isinstance(side, Mapping) and any(q in side for q in QUANTILES):
            cells = [figure(metric(table, name, q), unit=unit) if q in side else "not measured" for q in QUANTILES]
        rows.append(("ratio failing / comparator" if name == "ratio" else name, *cells))
    return [Table(("latency", *QUANTILES), tuple(rows))]


def _metric_rows(metrics: Mapping[str, Any]) -> list[tuple[Cell, ...]]:
    floor = metric(metrics, "latency_ms", "noise_floor")
    rows: list[tuple[Cell, ...]] = [] if floor.value is None else [("noise floor", figure(floor, percent=True))]
    known = {key for key, _, _ in METRICS} | {"latency_ms"}
    order = [(k, w, p) for k, w, p in METRICS if k in metrics]
    order += [(k, k.replace("_", " "), False) for k in sorted(metrics) if k not in known]
    for key, words, percent in order:
        rows.extend(_flat(words, metrics[key], percent))
    return rows


def _flat(words: str, raw: Any, percent: bool, depth: int = 0) -> list[tuple[Cell, ...]]:
    """A metric kept by variant, pass or part becomes one row each."""
    if isinstance(raw, Number) or (isinstance(raw, Mapping) and ("value" in raw or "quality" in raw)):
        number = as_number(raw)
        unitless = number.unit in SHARES
        text = figure(number, percent=percent and unitless, unit="×" if words == "real speed-up" else None)
        rows: list[tuple[Cell, ...]] = [(words, f"{text} — {number.reason}" if _remarked(number) else text)]
        if isinstance(raw, Mapping) and depth < 3:  # figures beside it: the comparator's, the same by time, …
            for key in raw:
                if isinstance(raw[key], Mapping):
                    rows += _flat(f"{words}, {str(key).replace('_', ' ')}", raw[key], percent, depth + 1)
        return rows
    if isinstance(raw, Mapping) and depth < 3:
        return [r for key in raw for r in _flat(f"{words}, {str(key).replace('_', ' ')}", raw[key], percent, depth + 1)]
    if isinstance(raw, bool) or raw is None or isinstance(raw, str):
        return [(words, "" if raw is None else str(raw))]
    if isinstance(raw, (int, float)):
        return [(words, figure(Number(value=float(raw)), percent=percent))]
    if isinstance(raw, (list, tuple)) and all(isinstance(x, (str, int, float)) for x in raw):
        return [(words, ", ".join(str(x) for x in raw[:12]) + (" …" if len(raw) > 12 else ""))]
    return []


def _remarked(number: Number) -> bool:
    """Whether a figure that was had carries a remark, such as what it does not count."""
    return number.value is not None and bool(number.reason)


def lock_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Lock")]
    lock = f.lock
    if lock is None:
        blocks.append(Para("Not recorded: under which tags the two variants ran is unknown."))
        return blocks
    undeclared = [d for d in lock.differs if not d.declared]
    if lock.match:
        said = "Both variants ran under the same tags" + (
            ", but for what was meant to differ." if lock.differs else "."
        )
        blocks.append(Para((Strong("Match."), f" {said}")))
    else:
        said = f" {len(undeclared)} tag(s) differ that were not declared as the change: figures of the pair are"
        blocks.append(Para((Strong("No match."), said + " not admissible until it is re-run under one lock.")))
    rows = tuple((Code(d.tag), d.failing, d.comparator, "yes" if d.declared else "no") for d in lock.differs)
    blocks.append(Table(("differs", "failing", "comparator", "meant to"), rows))
    blocks.append(Table(("tag", "value"), tuple((Code(k), lock.tags[k]) for k in sorted(lock.tags))))
    return blocks


def evidence_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Evidence")]
    rows = tuple(
        (Code(e.id), e.stage, e.probe, e.variant or "", _evidence_figure(e), e.quality, Code(e.sha256 or "none"))
        for e in f.evidence.values()
    )
    if not rows:
        blocks.append(Para("None was collected."))
    blocks.append(Table(("id", "stage", "probe", "variant", "figure", "quality", "sha256"), rows))
    outside = [e for e in f.evidence.values() if e.source]
    if outside:
        blocks.append(Para("Evidence from outside, with its origin:"))
        blocks.append(Table(("id", "origin"), tuple((Code(e.id), _pairs(e.source)) for e in outside)))
    blocks.extend(_native(f))
    return blocks


def _evidence_figure(e: Evidence) -> str:
    figures = [f"{name.replace('_', ' ')} {figure(n)}" for name, n in list(e.figures.items())[:3]]
    more = len(e.figures) - 3
    if more > 0:
        figures.append(f"and {more} more")
    return "; ".join(figures) or e.summary


def _native(f: Facts) -> list[Block]:
    native = f.state.native or (f.result.native if f.result else None)
    if native is None or not native.paths:
        return []
    rows = tuple(
        (
            p.path,
            figure(p.share, percent=True),
            ", ".join(s[:90] for s in p.symbols[:3]),
            ", ".join(p.callers[:2]),
            str(p.threads or ""),
        )
        for p in native.paths
    )
    blocks: list[Block] = [Para("Where time went, as sampled from outside:")]
    blocks.append(Table(("path", "share", "symbols", "callers", "threads"), rows))
    samplers = tuple(
        (
            s.name,
            f"{s.rate_hz:g} Hz",
            str(s.samples),
            "" if s.pause_share is None else f"{100 * s.pause_share:.1f}% of the target's time",
        )
        for s in native.samplers
    )
    blocks.append(Table(("sampler", "rate", "samples", "pauses"), samplers))
    return blocks


def _dig(raw: Any, *path: str) -> Any:
    for key in path:
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw


def _words(raw: Any) -> str:
    if raw is None:
        return ""
    return ", ".join(str(x) for x in raw) if isinstance(raw, (list, tuple)) else str(raw)


def _pairs(raw: Any) -> str:
    """A mapping as one line of ``key value`` pairs, empty ones left out."""
    if not isinstance(raw, Mapping):
        return _words(raw)
    return "; ".join(f"{k} {_words(v)}" for k, v in raw.items() if v not in (None, "", [], {}))
