"""The trade-off matrix: what each format costs on this workload's own weights, a row a format, all of it below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text
from textual.widget import Widget

from sparsetui.evidence.records import Number
from sparsetui.evidence.text import clean
from sparsetui.report.document import Block as ReportBlock
from sparsetui.report.numbers import as_number, brief, figure
from sparsetui.report.sections import section_blocks
from sparsetui.tui.actions import Action
from sparsetui.tui.live_panel import arm_strips
from sparsetui.tui.look import BAD, DIM, OK, WARN, ink
from sparsetui.tui.pages import page
from sparsetui.tui.panels import labelled
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table

# what of a row stands in the table; the rest of it stands under the table
_COLUMNS = (
    ("name", Column("format", 14, 26)),
    ("against_dense", Column("time ×dense", 18, 20)),
    ("p50", Column("p50 ms", 6, 9, right=True)),
    ("p99", Column("p99 ms", 6, 9, right=True)),
    ("throughput_at_SLA", Column("at SLA", 6, 12, right=True, drop=3)),
    ("weight_bytes", Column("weights", 8, 10, right=True, drop=4)),
    ("quality_drift", Column("drift", 6, 10, right=True, drop=5)),
    ("energy", Column("energy", 7, 12, right=True, drop=1)),
    ("SLA", Column("SLA", 6, 14, drop=2)),
    ("risk", Column("risk", 6, 40, drop=6)),
)
JOB = "matrix"
_LABEL = 20  # cells of the labels under the table
_ASIDE = ("name", "kind", "note")


class Matrix(CaseSheet):
    TITLE_TEXT = "trade-off matrix"
    FOOTER = ("run", "cancel", "sort", "filter", "yank", "mark", "lens", "owners", "back")

    def body(self) -> Iterable[Widget]:
        yield Table(
            [column for _, column in _COLUMNS],
            id="formats",
            classes="frame half",
            title="trade-off matrix: what each format costs on this workload",
            empty="",
        )
        yield Panel(id="format", classes="frame half", title="format")

    @property
    def section(self) -> Mapping[str, Any]:
        found = self.desk.state.sections.get("matrix")
        return found if isinstance(found, Mapping) else {}

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        found = self.section.get("rows")
        return [r for r in found if isinstance(r, Mapping)] if isinstance(found, (list, tuple)) else []

    @property
    def measuring(self) -> bool:
        return self.desk.busy == JOB

    def show(self) -> None:
        table = self.query_one("#formats", Table)
        table.empty = self._empty()
        table.set_rows([_row(i, r) for i, r in enumerate(self.rows)])
        self._detail()

    def _empty(self) -> str:
        if self.measuring:
            return "Being measured; each format appears below as soon as it is timed, and here with all its figures at the end."
        if said := self.section.get("summary"):
            return clean(said, 300)
        why = self.desk.why_not_run()
        how = "r measures it: dense, unstructured, structured and mixed formats, as whole interleaved steps of your model."
        return f"Not measured yet. {how if why is None else 'It cannot be measured now: ' + why}"

    def on_table_picked(self) -> None:
        self._detail()

    def draw_live(self) -> None:
        if self.measuring:
            self._detail()

    def _detail(self) -> None:
        """The row under the cursor in full, then what the matrix says as a whole."""
        panel, key = self.query_one("#format", Panel), self.query_one("#formats", Table).key
        width = max(20, panel.content_size.width)
        if self.measuring and not self.rows:
            panel.set_title("being measured")
            panel.set_lines(arm_strips(self.desk.live, width, self.app.unicode))
            return
        lines: list[Text] = []
        if key is not None and int(key) < len(self.rows):
            row = self.rows[int(key)]
            panel.set_title(clean(row.get("name", "format"), 40))
            lines += labelled("what", f"{row.get('kind', '')}: {row.get('note', '')}", width, indent=_LABEL)
            for name, value in row.items():
                if name not in _ASIDE:
                    text, style = _whole(value)
                    lines += labelled(str(name).replace("_", " "), text, width, style, indent=_LABEL)
            lines.append(ink())
        rest: list[ReportBlock] = section_blocks({k: v for k, v in self.section.items() if k != "rows"})
        panel.set_lines([*lines, *page(rest, width, self.app.unicode)])

    def label(self, action: Action) -> str:
        if action.id == "run":
            return "measure again" if self.rows else "measure"
        return super().label(action)

    def why_not(self, id: str) -> str | None:
        return self.desk.why_not_run() if id == "run" else super().why_not(id)

    def do_run(self) -> None:
        self.app.start(JOB, lambda r: r.run_matrix())


def _row(i: int, row: Mapping[str, Any]) -> Row:
    cells = tuple(_cell(name, row.get(name)) for name, _ in _COLUMNS)
    return Row(str(i), cells, tuple(_sort(row.get(name)) for name, _ in _COLUMNS))


def _cell(name: str, value: Any) -> str | Text:
    if isinstance(value, Mapping):
        number = as_number(value)
        if number.value is None:
            return ink("–", DIM)
        if name == "against_dense":
            return ink(figure(number, unit="×", count=False, mark=False), _against(number))
        return _amount(name, number.value)
    if isinstance(value, (int, float)):
        return _amount(name, value)
    text = clean(value or "–", 80)
    bad = text.startswith(("high", "broken")) or "exceeded" in text
    return ink(text, BAD if bad else WARN if text.startswith("medium") else "")


def _amount(name: str, value: float) -> str:
    return f"{brief(value / 2**20)} MiB" if name == "weight_bytes" else brief(value)


def _against(number: Number) -> str:
    """A format counts as faster or slower only where its whole interval lies on one side of dense."""
    if number.ci is None:
        return ""
    return OK if number.ci[1] < 1 else BAD if number.ci[0] > 1 else ""


def _whole(value: Any) -> tuple[str, str]:
    if isinstance(value, Mapping):
        number = as_number(value)
        return figure(number), WARN if number.value is None else ""
    return (brief(value) if isinstance(value, (int, float)) else str(value or "")), ""


def _sort(value: Any) -> Any:
    if isinstance(value, Mapping):
        return as_number(value).value
    return value if isinstance(value, (int, float)) else None


SCREEN = Matrix
