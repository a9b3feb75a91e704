"""The memo's middle: what failed first and what proves it, the regression budget, the sparse reality check."""

from __future__ import annotations

from collections.abc import Sequence

from sparsetui.evidence.records import BudgetLine, Evidence, Finding
from sparsetui.report.document import Bars, Block, Bullets, Cell, Code, Heading, Para, Strong, Table
from sparsetui.report.facts import Facts, deciding_figure
from sparsetui.report.numbers import figure
from sparsetui.report.plots import alone_share, budget_notes, budget_rows, reality_rows


def mechanism_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("First failing mechanism")]
    first = next(iter(f.material), None)
    if first is None:
        blocks.append(Para("None is material." if f.verdict else "None has been named yet."))
    else:
        blocks.extend(_finding(f, first))
    others = f.material[1:]
    if others:
        blocks.append(Heading("Also material, later in the flow", 3))
        blocks.append(Table(("mechanism", "figure", "confidence", "owner", "proved by", "fix"), _rows(f, others)))
    blocks.append(Heading("Ruled out", 3))
    if not f.ruled_out:
        blocks.append(Para("Nothing was ruled out explicitly."))
    blocks.append(
        Table(
            ("mechanism", "figure", "why", "proved by"),
            tuple(
                (Code(r.mechanism), deciding_figure(r), r.reason or r.summary, Code(f.proof(r))) for r in f.ruled_out
            ),
        )
    )
    return blocks


def _rows(f: Facts, findings: tuple[Finding, ...]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (Code(x.mechanism), deciding_figure(x), x.confidence, x.owner, Code(f.proof(x)), x.fix) for x in findings
    )


def _finding(f: Facts, x: Finding) -> list[Block]:
    blocks: list[Block] = [Para((Code(x.mechanism), f" — {x.summary}"))]
    items: list[Cell] = []
    if x.question:
        items.append((Strong("Question:"), f" {x.question}"))
    items.extend((Strong("Where:"), f" {w.module}" + (f" · {w.op}" if w.op else "")) for w in x.where)
    said = deciding_figure(x)
    if said:
        items.append((Strong("Figure:"), f" {said}"))
    items.append((Strong("Confidence:"), f" {x.confidence}" + (f". {x.reason}" if x.reason else "")))
    items.append((Strong("Proved by:"), " ", Code(f.proof(x))))
    proof = f.evidence.get(x.intervention or "")
    items.append(_intervention(proof) if proof else (Strong("Intervention:"), " none was run"))
    for word, text in (
        ("Fix", x.fix),
        ("Boundary", x.boundary),
        ("Way back", x.rollback),
        ("Closed by", x.closes),
        ("Owner", x.owner),
    ):
        if text:
            items.append((Strong(f"{word}:"), f" {text}"))
    blocks.append(Bullets(tuple(items)))
    return blocks


def _intervention(e: Evidence) -> Cell:
    figures = "; ".join(f"{k.replace('_', ' ')} {figure(n)}" for k, n in e.figures.items())
    text = " — ".join(t for t in (e.summary, figures) if t)
    return (Strong("Intervention:"), " ", Code(e.id), f" {text}" if text else "")


def budget_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Regression budget")]
    budget = f.state.budget or (f.result.budget if f.result else None)
    if budget is None:
        blocks.append(Para("Not split: no intervention has been timed."))
        return blocks
    gap = "failing − comparator" if budget.question == "regression" else "failing − ideal at its nominal sparsity"
    blocks.append(Para((f"The gap, {gap}, is ", Strong(figure(budget.gap_ms, unit="ms")), " a step.")))
    findings = f.state.findings or (f.result.findings if f.result else ())
    blocks.append(Bars(tuple(budget_rows(budget, findings))))
    rows = tuple((Code(b.mechanism), figure(b.ms, unit="ms"), _share(b, findings)) for b in budget.lines)
    blocks.append(Table(("mechanism", "time a step", "share of the gap"), rows))
    if notes := budget_notes(budget, findings):
        blocks.append(Bullets(tuple((note,) for note in notes)))
    return blocks


def _share(line: BudgetLine, findings: Sequence[Finding]) -> str:
    alone = alone_share(line, findings)
    text = figure(line.share, percent=True)
    return text if alone is None else f"adds {text}; alone {figure(alone, percent=True)}"


def reality_section(f: Facts) -> list[Block]:
    blocks: list[Block] = [Heading("Sparse reality check")]
    caption = (
        "Nominal sparsity: share of the work that should be gone. Real speed-up: the bar is the share of time that "
        "went, ◀ where the pruned model is slower. Fallback overhead: share that ran dense though it could be sparse."
    )
    blocks.append(Bars(tuple(reality_rows(f.metrics)), caption))
    return blocks
