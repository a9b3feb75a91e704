"""The evidence browser: finding → its evidence → figures → the artifact, as it was stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text
from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.records import Evidence, Finding
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import figure
from sparsetui.tui import panels
from sparsetui.tui.actions import Action
from sparsetui.tui.guide import closes
from sparsetui.tui.look import BAD, DIM, HEAD, WARN, ink
from sparsetui.tui.panels import labelled
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table

MOST_LINES = 4000  # of an artifact on the screen; yank takes the whole of it


class EvidenceBrowser(CaseSheet):
    TITLE_TEXT = "evidence"
    FOOTER = ("enter", "filter", "yank", "mark", "sort", "back")

    def __init__(self) -> None:
        super().__init__()
        self.finding: str | None = None  # whose evidence is listed; None for the list of findings and of all evidence
        self.artifact: str | None = None  # evidence id whose artifact is open
        self._aimed: str | None = None

    def aim(self, **arguments: Any) -> None:
        """Open at a ``finding``, or at one piece of ``evidence``."""
        self.finding, self.artifact = arguments.get("finding"), None
        self._aimed = arguments.get("evidence")

    def body(self) -> Iterable[Widget]:
        with Container(classes="columns"):
            yield Table(
                [Column("", 4, 34), Column("stage", 6, 10, drop=2), Column("what it showed", 12, 120, drop=1)],
                id="list",
                classes="frame half",
                title="findings and evidence",
                empty="no evidence yet: each pass leaves one line here",
            )
            yield Panel(id="detail", classes="frame half", title="figures")

    def show(self) -> None:
        table = self.query_one("#list", Table)
        state = self.desk.state
        chosen = next((f for f in state.findings if f.mechanism == self.finding), None)
        if chosen is None:
            rows = [*(_finding_row(r, f) for r, f in _findings(state.findings)), *map(_evidence_row, state.evidence)]
            table.set_title("findings and evidence")
        else:
            mine = {*chosen.evidence, chosen.intervention}
            rows = [_evidence_row(e) for e in state.evidence if e.id in mine]
            table.empty = "this finding names no evidence"
            table.set_title(f"evidence of {clean(chosen.mechanism, 40)}")
        table.set_rows(rows)
        if self._aimed is not None:
            table.go_to(f"E:{self._aimed}")
            self._aimed = None
        self._detail()

    def on_table_picked(self) -> None:
        self.artifact = None
        self._detail()

    def _pick(self) -> Finding | Evidence | None:
        key = self.query_one("#list", Table).key or ""
        state = self.desk.state
        if key.startswith("F:"):
            return next((f for f in state.findings if f.mechanism == key[2:]), None)
        return next((e for e in state.evidence if e.id == key[2:]), None)

    def _detail(self) -> None:
        panel = self.query_one("#detail", Panel)
        width = max(20, panel.content_size.width)
        pick = self._pick()
        if self.artifact is not None and isinstance(pick, Evidence):
            panel.set_title(f"artifact of {pick.id}", "Esc closes it")
            panel.set_lines(self._artifact_lines(pick))
            return
        if isinstance(pick, Finding):
            panel.set_title("finding", "")
            panel.set_lines(finding_lines(pick, width))
        elif isinstance(pick, Evidence):
            panel.set_title("figures", "Enter opens the artifact" if pick.sha256 else "")
            panel.set_lines(evidence_lines(pick, width))
        else:
            panel.set_title("figures", "")
            panel.set_lines([])

    def _artifact_lines(self, evidence: Evidence) -> list[Text]:
        try:
            text = self._artifact_text(evidence)
        except Exception as error:  # damaged or missing: said in its place, the browser goes on
            return [ink(clean(error, 300), style=WARN)]
        lines = text.splitlines()
        shown = [ink(clean(x, 400).replace("\\t", "  ")) for x in lines[:MOST_LINES]]
        if len(lines) > MOST_LINES:
            shown.append(ink(f"… {len(lines) - MOST_LINES} more lines; y copies all of it", style=DIM))
        return shown

    def _artifact_text(self, evidence: Evidence) -> str:
        import msgspec

        if evidence.sha256 is None:
            return "this evidence keeps no artifact beside its figures"
        raw: bytes = self.desk.store.open(self.desk.ref or self.desk.state.id).artifact(evidence.sha256)
        return msgspec.json.format(raw, indent=2).decode("utf-8", "replace")

    def label(self, action: Action) -> str:
        if action.id == "enter":
            return "artifact" if isinstance(self._pick(), Evidence) else "open"
        return super().label(action)

    def do_enter(self) -> None:
        pick = self._pick()
        if isinstance(pick, Finding):
            self.finding = pick.mechanism
            self.query_one("#list", Table).cursor = 0
            self.redraw()
        elif isinstance(pick, Evidence):
            if pick.sha256 is None:
                self.note(f"{pick.id} keeps no artifact beside its figures", WARN)
                return
            self.artifact = pick.id
            panel = self.query_one("#detail", Panel)
            panel.top = 0
            self._detail()
            panel.focus()

    def go_back(self) -> None:
        table = self.query_one("#list", Table)
        if self.artifact is not None:
            self.artifact = None
            table.focus()
            self._detail()
        elif self.finding is not None:
            was, self.finding = self.finding, None
            self.redraw()
            table.go_to(f"F:{was}")
        else:
            super().go_back()

    def yank_text(self) -> str:
        pick = self._pick()
        if self.artifact is not None and isinstance(pick, Evidence):
            return self._artifact_text(pick)
        if self.query_one("#list", Table).marked:
            return self.query_one("#list", Table).text()
        if isinstance(pick, Finding):
            return "\n".join(x.plain for x in finding_lines(pick, 100))
        return "\n".join(x.plain for x in evidence_lines(pick, 100)) if isinstance(pick, Evidence) else ""


def _findings(findings: tuple[Finding, ...]) -> list[tuple[Row, Finding]]:
    by_name = {f.mechanism: f for f in findings}
    return [(row, by_name[row.key]) for row in panels.finding_rows(findings)]


def _finding_row(row: Row, finding: Finding) -> Row:
    return Row(f"F:{finding.mechanism}", (row.cells[0], clean(finding.stage, 12), row.cells[3]))


def _evidence_row(e: Evidence) -> Row:
    variant = f"{e.variant}: " if e.variant else ""
    return Row(f"E:{e.id}", (clean(f"{e.id} {e.probe}", 40), clean(e.stage, 12), clean(variant + e.summary, 300)))


def finding_lines(f: Finding, width: int) -> list[Text]:
    """All of a finding: what it says, what it rests on, what to do, and how to undo that."""
    state = "material" if f.material else "ruled out"
    lines = [
        ink(clean(f.mechanism, 60), style=BAD if f.material else HEAD) + ink(f"  {f.confidence}, {state}", style=DIM)
    ]
    lines += labelled("summary", f.summary, width)
    lines += labelled("question", f.question, width)
    lines += labelled("why", f.reason, width)
    if share := closes(f):
        lines += labelled("share", share, width, HEAD)
    for place in f.where[:8]:
        lines += labelled("where", f"{place.module or '–'} {place.op}".strip(), width)
    lines += labelled("owner", f.owner, width)
    lines += labelled("evidence", ", ".join(f.evidence), width)
    lines += labelled("proved by", f.intervention, width)
    if f.material:  # a fix is offered only for what has been classified
        lines += labelled("fix", f.fix, width)
        lines += labelled("touches", f.boundary, width)
        lines += labelled("way back", f.rollback, width)
        lines += labelled("closes when", f.closes, width)
    return lines


def evidence_lines(e: Evidence, width: int) -> list[Text]:
    """An evidence and its figures."""
    lines = [
        ink(f"{clean(e.id, 10)} {clean(e.probe, 40)}", style=HEAD)
        + ink(f"  {clean(e.stage, 12)}, {e.quality}", style=DIM)
    ]
    lines += labelled("summary", e.summary, width)
    lines += labelled("variant", e.variant, width)
    lines += labelled("took", None if e.seconds is None else f"{e.seconds:.2f} s", width)
    for name, number in e.figures.items():
        share = number.unit == "share"
        text = figure(number, percent=share) if share else figure(number)
        lines += labelled("figure", f"{clean(name, 40)}: {text}", width, WARN if number.value is None else "")
    for name, value in e.source.items():
        lines += labelled("from", f"{name}: {value}", width)
    lines += labelled("sha256", e.sha256 or "no artifact", width, DIM)
    return lines


SCREEN = EvidenceBrowser
