"""The closure memo, as it would be exported now."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from sparsetui.report.document import Heading
from sparsetui.report.memo import document
from sparsetui.tui.actions import Action
from sparsetui.tui.pages import page
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel


class Memo(CaseSheet):
    TITLE_TEXT = "memo"
    FOOTER = ("enter", "export", "owners", "evidence", "yank", "back")

    def body(self) -> Iterable[Widget]:
        yield Panel(id="memo", classes="frame half")

    def show(self) -> None:
        panel = self.query_one("#memo", Panel)
        memo = document(self.desk.state)
        panel.set_lines(
            page([Heading(memo.title, 1), *memo.blocks], max(20, panel.content_size.width), self.app.unicode)
        )
        panel.set_title("memo preview", "exported" if self.desk.exported else "not exported yet")

    def label(self, action: Action) -> str:
        return "export" if action.id == "enter" else super().label(action)

    def do_enter(self) -> None:
        self.app.share.export_memo()
        self.app.back()

    def yank_text(self) -> str:
        return self.app.share.memo_text()


SCREEN = Memo
