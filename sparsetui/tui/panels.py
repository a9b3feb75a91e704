"""What the panels of the investigate screen say: pure functions from a session's state to rows and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from sparsetui.evidence.records import Evidence, Finding, Number, OpRow
from sparsetui.evidence.text import clean
from sparsetui.flow import STAGES, Stage
from sparsetui.report.numbers import as_number, brief, figure, metric
from sparsetui.report.plots import budget_bars, distribution, fit, reality_check, spark
from sparsetui.runner.api import Live
from sparsetui.session.state import SessionState
from sparsetui.tui.guide import closes, found_line, stage_state, to_run
from sparsetui.tui.look import ACCENT, BAD, COMPARATOR, DIM, FAILING, HEAD, KEY, MARK, MARK_STYLE, OK, WARN
from sparsetui.tui.widgets.table import Column, Row

OP_COLUMNS = (
    Column("op", 12, 30),
    Column("module", 12, 36),
    Column("path", 8, 16),
    Column("calls", 5, 8, right=True, drop=2),
    Column("self ms", 8, 10, right=True),
    Column("zeros", 5, 6, right=True, drop=1),
    Column("dense-fallback", 8, 14),
    Column("ratio", 6, 16, right=True),
)
FINDING_COLUMNS = (
    Column("finding", 19, 38),
    Column("how sure", 9, 10, drop=3),
    Column("share", 6, 30, drop=2),
    Column("what", 12, 200, drop=1),
)
EVIDENCE_COLUMNS = (
    Column("id", 3, 5),
    Column("stage", 10, 10, drop=2),
    Column("probe", 8, 16),
    Column("what it showed", 20, 200),
    Column("quality", 8, 11, drop=1),
    Column("s", 4, 6, right=True, drop=3),
)


def flow_rail(state: SessionState, live: Live, here: str, focused: bool) -> list[Text]:
    """The rail: a line a stage, its mark, its name, the seconds it took."""
    lines = []
    for stage in STAGES:
        mark = stage_state(state, live, stage.id)
        seconds = sum(p.seconds or 0.0 for p in state.phases if p.stage == stage.id and p.state != "started")
        line = Text(MARK["now"] if stage.id == here else " ", style=ACCENT)
        line.append(MARK[mark] + " ", style=MARK_STYLE.get(mark, DIM))
        line.append(fit(stage.id, 11), style=HEAD if stage.id == here else "")
        if seconds >= 0.05:
            line.append(f"{seconds:5.1f} s", style=DIM)
        if stage.id == here and focused:
            line.stylize("reverse", 1)
        lines.append(line)
    return lines


def flow_line(state: SessionState, live: Live, here: str, focused: bool) -> Text:
    """The same in one line, for narrow screens."""
    line = Text()
    for stage in STAGES:
        mark = stage_state(state, live, stage.id)
        now = stage.id == here
        line.append(MARK["now"] if now else " ", style=ACCENT)
        line.append(MARK[mark], style=MARK_STYLE.get(mark, DIM))
        line.append(stage.short, style=("reverse" if focused else "bold underline") if now else "")
        line.append("  ")
    line.rstrip()
    return line


def guide(state: SessionState, stage: Stage, step: Text, width: int, *, rows: int) -> list[Text]:
    """Question, what is to be run, what was found, next step, in ``rows`` lines."""
    mark, found = found_line(state, stage.id)
    says = _playbook_says(state, stage.id)
    question = Text(stage.question, style=HEAD)
    runs = Text("runs  ", style=DIM) + Text(to_run(stage))
    if says:
        runs = Text("plays ", style=DIM) + Text(says)
    result = Text("found ", style=DIM) + Text(MARK[mark] + " ", style=MARK_STYLE.get(mark, DIM)) + Text(clean(found))
    spare = rows - 4
    lines = [question]
    taken = _wrap(runs, width, 1 + (1 if spare > 1 else 0), 6)
    lines += taken
    lines += _wrap(result, width, rows - len(lines) - 1, 6)
    while len(lines) < rows - 1:
        lines.append(Text())
    lines.append(step)
    return lines


def _playbook_says(state: SessionState, stage: str) -> str:
    for entry in reversed(state.playbook.get("trail", [])):
        if isinstance(entry, Mapping) and entry.get("stage") == stage:
            found = f" → {entry['found']}" if entry.get("found") else ""
            return clean(f"{entry.get('ask', '')}{found}", 300)
    return ""


def _wrap(text: Text, width: int, most: int, indent: int) -> list[Text]:
    """``text`` in at most ``most`` lines; the last one is cut with a mark."""
    from rich.console import Console

    if text.cell_len <= width or most <= 1:
        return [text]
    parts = list(text.wrap(Console(width=width), width - indent))
    out = [parts[0]] + [Text(" " * indent) + p for p in parts[1:]]
    if len(out) > most:
        out = out[:most]
        out[-1].append(" …")
    for line in out:
        line.rstrip()
    return out


def op_rows(ops: Sequence[OpRow]) -> list[Row]:
    """The op table: the failing variant's lines, the costliest first."""
    rows = []
    for i, op in enumerate(sorted(ops, key=lambda o: -(o.self_ms_per_step.value or 0.0))):
        if op.variant != "failing":
            continue
        ratio = op.ratio.value if op.ratio is not None else None
        rows.append(
            Row(
                f"{op.op}|{op.module}|{op.path}|{op.shapes}|{i}",
                (
                    clean(op.op, 60),
                    clean(op.module or "–", 80),
                    Text(clean(op.path, 24), style=FAILING if op.fallback else ""),
                    brief(op.calls_per_step),
                    brief(op.self_ms_per_step.value),
                    "–" if op.weight_zeros is None else f"{100 * op.weight_zeros:.0f}%",
                    Text("▲ dense", style=BAD)
                    if op.fallback
                    else Text("– eligible" if op.eligible else "–", style=DIM),
                    _ratio(ratio),
                ),
                (
                    None,
                    None,
                    None,
                    op.calls_per_step,
                    op.self_ms_per_step.value,
                    op.weight_zeros,
                    not op.fallback,
                    ratio,
                ),
            )
        )
    return rows


def _fallback(op: OpRow) -> Text:
    if op.fallback:
        return Text("▲ dense", style=BAD)
    return Text("– eligible" if op.eligible else "–", style=DIM)


def _ratio(ratio: float | None) -> Text:
    if ratio is None or not math.isfinite(ratio):
        return Text("–", style=DIM)
    if ratio >= 1.1:
        return Text(f"{ratio:.1f}× slower ▲", style=BAD)
    if ratio <= 0.9:
        return Text(f"{1 / ratio:.1f}× faster" if ratio > 0 else "–", style=OK)
    return Text(f"{ratio:.2f}×")


def op_details(op: OpRow) -> list[str]:
    """Everything known of one line of the op table."""
    lines = [f"module   {op.module or '–'}", f"path     {op.path}", f"layouts  {op.layouts or '–'}"]
    lines += [f"shapes   {op.shapes or '–'}", f"calls    {brief(op.calls_per_step)} a step"]
    lines.append(f"self     {figure(op.self_ms_per_step)} a step")
    if op.weight_zeros is not None:
        lines.append(f"zeros    {100 * op.weight_zeros:.1f} % of the weight")
    if op.eligible:
        lines.append("a sparse path exists for it" + (", and it took a dense one" if op.fallback else ""))
    if op.ratio is not None:
        lines.append(f"ratio    {figure(op.ratio)} against the comparator")
    return lines


def finding_rows(findings: Sequence[Finding], narrow_column: bool = False) -> list[Row]:
    """Material findings first, then what was ruled out."""
    order = {s.id: i for i, s in enumerate(STAGES)}
    rows = []
    for f in sorted(findings, key=lambda f: (not f.material, order.get(f.stage, 9))):
        mark = Text("▲ " if f.material else "– ", style=BAD if f.material else DIM)
        name = f.mechanism.split(".", 1)[-1] if narrow_column else f.mechanism
        rows.append(
            Row(
                f.mechanism,
                (
                    mark + Text(clean(name, 60), style="" if f.material else DIM),
                    Text(f.confidence if f.material else "ruled out", style="" if f.material else DIM),
                    closes(f) or "–",
                    clean(f.summary or f.reason, 300),
                ),
            )
        )
    return rows


def evidence_rows(evidence: Sequence[Evidence]) -> list[Row]:
    rows = []
    for e in evidence:
        quality = Text(e.quality, style=WARN if e.quality in ("estimated", "unavailable") else "")
        variant = f"{e.variant}: " if e.variant else ""
        seconds = "–" if e.seconds is None else f"{e.seconds:.1f}"
        rows.append(
            Row(
                e.id,
                (
                    clean(e.id, 8),
                    clean(e.stage, 12),
                    clean(e.probe, 20),
                    clean(variant + e.summary, 300),
                    quality,
                    seconds,
                ),
                (None, None, None, None, None, e.seconds),
            )
        )
    return rows


def live_lines(state: SessionState, live: Live, width: int, height: int, unicode: bool) -> list[Text]:
    """Latency strips, ratio and floor, the sparse reality check, counters; more charts where there is height."""
    left = strips(state, live, width if width < 86 else width - 38, unicode)
    reality = (
        [Text(x) for x in reality_check(state.metrics, 36 if width >= 86 else width, unicode)] if state.metrics else []
    )
    if width >= 86:
        lines = []
        right = _tint(reality)
        for i in range(max(len(left), len(right))):
            a = left[i] if i < len(left) else Text()
            lines.append(a + Text(" " * max(2, width - 36 - a.cell_len)) + right[i] if i < len(right) else a)
    else:
        lines = left + ([Text(), *_tint(reality)] if reality else [])
    lines += counters(state, live, width)
    if state.budget is not None:
        lines.append(Text())
        lines += [
            Text(x, style=HEAD if i == 0 else "") for i, x in enumerate(budget_bars(state.budget, width, unicode))
        ]
    if len(lines) + 9 <= height and len(live.latency_ms) >= 2:
        names = list(live.latency_ms)[:2]
        chart = distribution(
            live.latency_ms[names[0]], live.latency_ms[names[1]], width, 8, unicode, names=(names[0], names[1])
        )
        lines += [Text(), *(Text(x) for x in chart)]
    return lines


def _tint(bars: Sequence[Text]) -> list[Text]:
    for line, style in zip(bars, (ACCENT, OK, FAILING), strict=False):
        at = next((i for i, c in enumerate(line.plain) if c in "█▏▎▍▌▋▊▉#◀<"), None)
        if at is not None:
            end = next((i for i in range(at, len(line.plain)) if line.plain[i] == " "), len(line.plain))
            line.stylize(style, at, end)
    return list(bars)


def strips(state: SessionState, live: Live, width: int, unicode: bool) -> list[Text]:
    """A line a variant: strip of block medians on one scale, then its percentiles; under them ratio and noise floor."""
    arms = list(live.latency_ms) or [v for v in ("failing", "comparator") if v in state.metrics.get("latency_ms", {})]
    if not arms:
        return [Text("no latency has been measured yet; the execution stage runs the clock", style=DIM)]
    top = max((v for a in arms for v in live.latency_ms.get(a, ()) if math.isfinite(v)), default=None)
    name_width = max(len(a) for a in arms)
    texts = {a: _percentiles(state, live, a) for a in arms}
    room = max(0, min(40, width - name_width - 3 - max(len(t) for t in texts.values())))
    lines = []
    for arm in arms[:4]:
        style = COMPARATOR if arm == "comparator" else FAILING
        line = Text(fit(clean(arm), name_width) + " ", style=HEAD)
        if room >= 6:
            line.append(spark(live.latency_ms.get(arm, ()), room, unicode, low=0.0, high=top), style=style)
            line.append("  ")
        line.append(texts[arm])
        lines.append(line)
    lines.append(_ratio_line(state, live))
    return lines


def _percentiles(state: SessionState, live: Live, arm: str) -> str:
    of_arm = state.metrics.get("latency_ms", {}).get(arm)
    if isinstance(of_arm, Mapping) and of_arm:
        shown = [(q, as_number(of_arm[q])) for q in ("p50", "p95", "p99") if q in of_arm]
        parts = [f"{q} {brief(n.value)}" for q, n in shown if n.value is not None]
        if parts:
            return "  ".join(parts) + " ms"
    values = [v for v in live.latency_ms.get(arm, ()) if math.isfinite(v)]
    return f"block median {brief(values[-1])} ms" if values else "not measured yet"


def _ratio_line(state: SessionState, live: Live) -> Text:
    ratio = live.ratio or metric(state.metrics, "latency_ms", "ratio")
    line = Text()
    if ratio.value is not None:
        line.append("ratio ", style=DIM)
        line.append(figure(ratio, unit="×", count=False, mark=False), style=HEAD)
        line.append("   ")
    floor = live.floor or metric(state.metrics, "latency_ms", "floor")
    if floor.value is not None:
        line.append(f"noise floor ±{100 * abs(floor.value):.1f} %", style=DIM)
    return line


def counters(state: SessionState, live: Live, width: int) -> list[Text]:
    """The live counters, as many to a line as fit; after the run, the metrics they became."""
    shown: list[tuple[str, Number]] = list(live.counters.items()) or [
        (label, number)
        for label, number in (
            ("dense fallback", metric(state.metrics, "fallback_rate", "calls")),
            ("conversions/step", metric(state.metrics, "conversion_rate")),
            ("metadata overhead", metric(state.metrics, "metadata_overhead")),
        )
        if number.value is not None
    ]
    lines: list[Text] = []
    line = Text()
    for label, number in shown:
        item = Text(clean(label, 30) + " ", style=DIM) + Text(_counter(label, number))
        if line and line.cell_len + 3 + item.cell_len > width:
            lines.append(line)
            line = Text()
        if line:
            line.append("   ")
        line.append_text(item)
    return [*lines, line] if line else lines


def _counter(label: str, number: Number) -> str:
    if number.value is None:
        return clean(f"unavailable ({number.reason})", 40)
    share = "fallback" in label or number.unit in ("share", "%")
    return figure(number, percent=share and number.value <= 1.0, count=False, interval=False)


def tabs(names: Sequence[tuple[str, str]], on: str) -> Text:
    """The tab line of narrow screens: ``names`` are (id, label)."""
    line = Text()
    for id, label in names:
        if line:
            line.append("  ", style=DIM)
        line.append(f"[{label}]" if id == on else f" {label} ", style=HEAD if id == on else DIM)
    line.append("   Tab", style=KEY)
    return line
