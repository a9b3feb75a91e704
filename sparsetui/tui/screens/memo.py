"""The closure memo, as it would be exported now."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui.actions import Action
from sparsetui.tui.look import ACCENT, BAD, DIM, HEAD, ink
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel


class Memo(CaseSheet):
    TITLE_TEXT = "memo"
    FOOTER = ("enter", "export", "owners", "evidence", "yank", "back")

    def body(self) -> Iterable[Widget]:
        yield Panel(id="memo", classes="frame half", title="memo preview")

    def show(self) -> None:
        panel = self.query_one("#memo", Panel)
        width = max(20, panel.content_size.width)
        lines: list[Text] = []
        for raw in self.app.memo_text().splitlines():
            lines.extend(_dress(clean(raw), width))
        panel.set_lines(lines)
        state = "exported" if self.desk.exported else "not exported yet"
        panel.set_title("memo preview", state)

    def label(self, action: Action) -> str:
        return "export" if action.id == "enter" else super().label(action)

    def do_enter(self) -> None:
        self.app.export_memo()
        self.app.back()

    def yank_text(self) -> str:
        return self.app.memo_text()


def _dress(raw: str, width: int) -> list[Text]:
    """Markdown as it is written, wrapped, with headings and tables made easier to read."""
    if raw.startswith("#"):
        return [ink(raw.lstrip("# "), style=BAD if "NOT CLOSED" in raw else HEAD)]
    if raw.startswith("|"):
        return [ink(raw, style="" if set(raw) - set("|-: ") else DIM)]
    from rich.console import Console

    text = ink(raw, style=ACCENT if raw.startswith(">") else "")
    return list(text.wrap(Console(width=width), width)) or [ink()]


SCREEN = Memo
