"""What other tools left in the session: replay, rollback rehearsal, imports, and whatever comes later, drawn as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from sparsetui.report.document import Block, Heading
from sparsetui.report.sections import section_blocks
from sparsetui.tui.pages import page
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel

ELSEWHERE = ("matrix", "lens")  # they have screens of their own


class SectionSheet(CaseSheet):
    """One page of report blocks. Subclasses say which."""

    FOOTER: ClassVar[tuple[str, ...]] = ("yank", "owners", "memo", "back")
    HEAD: ClassVar[str] = ""

    def body(self) -> Iterable[Widget]:
        yield Panel(id="page", classes="frame half", title=self.HEAD)

    def blocks(self) -> list[Block]:
        raise NotImplementedError

    def show(self) -> None:
        panel = self.query_one("#page", Panel)
        panel.set_lines(page(self.blocks(), max(20, panel.content_size.width), self.app.unicode))


class OtherSections(SectionSheet):
    TITLE_TEXT = "from other tools"
    HEAD = "what other tools left in this session"

    def blocks(self) -> list[Block]:
        found: list[Block] = []
        for name, body in sorted(self.desk.state.sections.items()):
            if name not in ELSEWHERE:
                found += [Heading(str(name).replace("_", " ")), *section_blocks(body)]
        return found


SCREEN = OtherSections
