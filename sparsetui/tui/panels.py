"""What the panels of the investigate screen say: pure functions from a session's state to rows and lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from sparsetui.evidence.records import Evidence, Finding, OpRow
from sparsetui.evidence.text import clean
from sparsetui.flow import STAGES, Stage
from sparsetui.report.numbers import brief, figure
from sparsetui.report.plots import fit
from sparsetui.runner.api import Live
from sparsetui.session.state import SessionState
from sparsetui.tui.guide import closes, found_line, stage_state, to_run
from sparsetui.tui.look import ACCENT, BAD, DIM, FAILING, HEAD, KEY, MARK, MARK_STYLE, OK, WARN, ink
from sparsetui.tui.widgets.table import Column, Row
from sparsetui.tui.wrapping import wrap, wrap_text

OP_COLUMNS = (
    Column("op", 12, 30),
    Column("module", 8, 36),
    Column("path", 14, 16),
    Column("calls", 5, 8, right=True, drop=2),
    Column("self ms", 8, 10, right=True),
    Column("zeros", 5, 6, right=True, drop=1),
    Column("dense-fallback", 8, 14, short="fallback"),
    Column("ratio", 7, 14),
)
FINDING_COLUMNS = (
    Column("finding", 19, 38),
    Column("how sure", 9, 10, drop=3),
    Column("share", 6, 30, drop=2),
    Column("what", 12, 200, drop=1),
)
COLUMN_WIDTH = 20  # cells of text in the findings column of wide screens
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
        seconds = sum(p.seconds or 0.0 for p in state.phases if p.stage == stage.id)
        line = ink(MARK["now"] if stage.id == here else " ", style=ACCENT)
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
    line = ink()
    for stage in STAGES:
        mark = stage_state(state, live, stage.id)
        now = stage.id == here
        line.append(MARK["now"] if now else " ", style=ACCENT)
        line.append(MARK[mark], style=MARK_STYLE.get(mark, DIM))
        line.append(stage.short, style=("reverse" if focused else "bold underline") if now else "")
        line.append("  ")
    line.rstrip()
    return line


def guide(state: SessionState, stage: Stage, step: Text, width: int, *, rows: int, asks: str = "") -> list[Text]:
    """Question, what is to be run, what was found, next step, in ``rows`` lines."""
    mark, found = found_line(state, stage.id)
    says = _playbook_says(state, stage.id) or clean(asks, 300)
    question = ink(stage.question, style=HEAD)
    runs = ink("runs  ", style=DIM) + ink(to_run(stage))
    if says:
        runs = ink("plays ", style=DIM) + ink(says)
    result = ink("found ", style=DIM) + ink(MARK[mark] + " ", style=MARK_STYLE.get(mark, DIM)) + ink(clean(found))
    room = rows - 2
    said = _wrap(result, width, max(1, room - 1), 6)
    if not says and runs.cell_len > width + (width - 6) * (max(1, room - len(said)) - 1):
        runs = ink("runs  ", style=DIM) + ink(", ".join(stage.passes))  # a name is better than half an explanation
    lines = [question, *_wrap(runs, width, max(1, room - len(said)), 6), *said]
    while len(lines) < rows - 1:
        lines.append(ink())
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
    if text.cell_len <= width or most <= 1:
        return [text]
    parts = wrap_text(text, width - indent)
    out = [parts[0]] + [ink(" " * indent) + p for p in parts[1:]]
    if len(out) > most:
        out = out[:most]
        out[-1].append(" …")
    return out


def op_rows(ops: Sequence[OpRow], wide: bool = True) -> list[Row]:
    """The op table: the failing variant's lines, the costliest first. A narrow one gives ratios without words."""
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
                    ink(clean(op.path, 24), style=FAILING if op.fallback else ""),
                    brief(op.calls_per_step),
                    brief(op.self_ms_per_step.value),
                    "–" if op.weight_zeros is None else f"{100 * op.weight_zeros:.0f}%",
                    _fallback(op),
                    _ratio(ratio, wide),
                ),
                (None, None, None, op.calls_per_step, op.self_ms_per_step.value, op.weight_zeros, None, ratio),
            )
        )
    return rows


def _fallback(op: OpRow) -> Text:
    if op.fallback:
        return ink("▲ dense", style=BAD)
    return ink("✓ sparse", style=OK) if op.eligible else ink("–", style=DIM)


def _ratio(ratio: float | None, wide: bool) -> Text:
    if ratio is None or not math.isfinite(ratio):
        return ink("–", style=DIM)
    if not wide:
        slower = ratio >= 1.1
        return ink(f"{'▲' if slower else ' '} {brief(ratio)}×", BAD if slower else OK if ratio <= 0.9 else "")
    if ratio >= 1.1:
        return ink(f"▲ {ratio:.1f}× slower", style=BAD)
    if ratio <= 0.9:
        return ink(f"  {1 / ratio:.1f}× faster" if ratio > 0 else "–", style=OK)
    return ink(f"  {ratio:.2f}×")


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


def finding_rows(findings: Sequence[Finding], narrow_column: bool = False, *, undecided: bool = False) -> list[Row]:
    """Material findings first, then what was ruled out. In a narrow column each takes several rows of one key's kind:
    ``mechanism``, then ``mechanism#1`` and so on. While ``undecided``, nothing counts as ruled out.
    """
    not_material = "undecided" if undecided else "ruled out"
    order = {s.id: i for i, s in enumerate(STAGES)}
    rows = []
    for f in sorted(findings, key=lambda f: (not f.material, order.get(f.stage, 9))):
        mark = ink("▲ " if f.material else "– ", style=BAD if f.material else DIM)
        name = f.mechanism.split(".", 1)[-1] if narrow_column else f.mechanism
        rows.append(
            Row(
                f.mechanism,
                (
                    mark + ink(clean(name, 60), style="" if f.material else DIM),
                    ink(f.confidence if f.material else not_material, style="" if f.material else DIM),
                    closes(f) or "–",
                    clean(f.summary or f.reason, 300),
                ),
            )
        )
        if narrow_column:
            said = [f"{f.stage}, {f.confidence if f.material else not_material}", closes(f)]
            said += [p.module for p in f.where[:2]] if f.material else []
            said += [f.owner] if f.material else []
            said += [
                f"{label}: {text}" for label, text in (("fix", f.fix), ("way back", f.rollback)) if text and f.material
            ]
            lines = [line for text in said if text for line in wrap(clean(text), COLUMN_WIDTH)]
            rows += [
                Row(f"{f.mechanism}#{i}", (ink("  " + line, style=DIM), "", "", "")) for i, line in enumerate(lines, 1)
            ]
    return rows


def outcome(state: SessionState, width: int) -> list[Text]:
    """The verdict in full: what it is, what to do and how to go back; or what could not be answered, and what would."""
    if state.result is None:
        return []
    verdict = state.result.verdict
    lines = labelled("verdict", f"{verdict.status.replace('_', ' ')}: {verdict.summary}", width, HEAD)
    found = next((f for f in state.findings if f.mechanism == verdict.mechanism and f.material), None)
    if found is not None:
        lines += labelled("how sure", f"{found.confidence}; {closes(found)}".rstrip("; "), width)
        lines += labelled("where", ", ".join(f"{p.module or '–'} {p.op}".strip() for p in found.where[:4]), width)
        lines += labelled("owner", state.owners.get(found.owner, "") or f"{found.owner} (nobody is named)", width)
        lines += labelled("fix", found.fix, width)
        lines += labelled("touches", found.boundary, width)
        lines += labelled("way back", found.rollback, width)
    for more in (f for f in state.material if f is not found):
        lines += labelled("also", f"{more.mechanism}: {more.summary}", width)
    for u in state.unanswered:
        lines += labelled("unanswered", f"{u.question}: {u.why}", width, WARN)
        lines += labelled("settled by", u.settle, width)
    return lines


def labelled(label: str, value: object, width: int, style: str = "", *, indent: int = 12) -> list[Text]:
    """``label  value`` with the value wrapped under itself; ``indent`` cells are the label's. Nothing for no value."""
    if value in (None, "", ()):
        return []
    parts = wrap(clean(value), max(12, width - indent))
    first = ink(f"{label[: indent - 1]:<{indent}}", style=DIM) + ink(parts[0], style=style)
    return [first, *(ink(" " * indent) + ink(p, style=style) for p in parts[1:])]


def evidence_rows(evidence: Sequence[Evidence]) -> list[Row]:
    rows = []
    for e in evidence:
        quality = ink(e.quality, style=WARN if e.quality in ("estimated", "unavailable") else "")
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


def tabs(names: Sequence[tuple[str, str]], on: str) -> Text:
    """The tab line of narrow screens: ``names`` are (id, label)."""
    line = ink()
    for id, label in names:
        if line:
            line.append("  ", style=DIM)
        line.append(f"[{label}]" if id == on else f" {label} ", style=HEAD if id == on else DIM)
    line.append("   Tab", style=KEY)
    return line
