"""Two short forms of a memo: a few lines for a chat, and the body of an issue for a tracker."""

from __future__ import annotations

from sparsetui.evidence.text import clean, md
from sparsetui.report.document import Bars, Block, Document, Heading
from sparsetui.report.facts import Facts, deciding_figure, facts_of
from sparsetui.report.incident import STATUS
from sparsetui.report.markdown import to_markdown
from sparsetui.report.memo import document
from sparsetui.report.numbers import figure, metric
from sparsetui.report.redact import redacted
from sparsetui.session.state import SessionState

# what a tracker's reader needs; the rest stays in the memo
_TRACKED = (
    "Verdict",
    "First failing mechanism",
    "Regression budget",
    "Sparse reality check",
    "Owners",
    "Gates",
    "What could not be answered",
)


def chat(state: SessionState, *, redact: bool = False) -> str:
    """At most eight plain lines, without markup that a chat would interpret."""
    f = facts_of(redacted(state) if redact else state)
    lines = [f"{f.standing}: {f.state.title or f.state.id}"]
    v = f.verdict
    if v is None:
        lines.append("no verdict yet" + (f" (interrupted: {f.state.interrupted})" if f.state.interrupted else ""))
    else:
        lines.append(f"{STATUS.get(v.status, v.status)}: {v.summary}")
    if v is not None and v.status == "fault":
        closed = v.share_of_regression
        share = f", {figure(closed, percent=True)} of the gap" if closed and closed.value is not None else ""
        lines.append(f"{v.mechanism} ({v.confidence}{share}), proved by {f.proof(v)}")
        who = f.state.owners.get(v.owner or "", "")
        lines.append(f"owner: {v.owner}{f' {who}' if who else ''}; fix: {v.fix or 'none named'}")
        lines.append(f"way back: {v.rollback or 'none named'}")
    lines.extend(key_figures(f)[:1])
    if f.open_gates:
        lines.append("open gates: " + ", ".join(g.gate for g in f.open_gates))
    lines.append(f"session {f.state.id}")
    return "\n".join(clean(line, 300) for line in lines) + "\n"


def issue(state: SessionState, *, redact: bool = False) -> str:
    """Markdown for a tracker: the memo's decisive sections, with the rest one command away."""
    doc = document(state, redact=redact)
    kept: list[Block] = [doc.blocks[0]]
    keep = False
    for block in doc.blocks[1:]:
        if isinstance(block, Heading) and block.level == 2:
            keep = block.text in _TRACKED
        if keep and not (isinstance(block, Bars) and not block.rows):
            kept.append(block)
    body = to_markdown(Document(doc.title, tuple(kept)))
    return f"{body}\nThe whole memo: sparsetui memo {md(state.id)}\n"


def key_figures(f: Facts) -> list[str]:
    """The lines every summary shows: latency of both, ratio, speed-up, fallback, drift; only what was measured."""
    lines: list[str] = []
    sides = [metric(f.metrics, "latency_ms", side, "p50") for side in ("failing", "comparator")]
    if any(n.value is not None for n in sides):
        ratio = metric(f.metrics, "latency_ms", "ratio")
        if ratio.value is None:
            ratio = metric(f.metrics, "latency_ms", "ratio", "p50")
        said = f"p50 failing {figure(sides[0], unit='ms')}, comparator {figure(sides[1], unit='ms')}"
        lines.append(said + (f", ratio {figure(ratio, unit='×', count=False)}" if ratio.value is not None else ""))
    for words, name, percent, unit in (
        ("nominal sparsity", "nominal_sparsity", True, None),
        ("real speed-up", "real_speedup", False, "×"),
        ("dense-fallback rate", "fallback_rate", True, None),
        ("conversions per step", "conversion_rate", False, None),
        ("quality drift", "quality_drift", False, None),
    ):
        number = metric(f.metrics, name)
        if number.value is not None:
            lines.append(f"{words} {figure(number, percent=percent, unit=unit)}")
    lines.extend(f"{x.mechanism}: {deciding_figure(x)}" for x in f.material[1:4])
    return lines
