"""The trade-off matrix, where it has been measured."""

from __future__ import annotations

from sparsetui.report.document import Block
from sparsetui.report.sections import section_blocks
from sparsetui.tui.screens.sections import SectionSheet


class Matrix(SectionSheet):
    TITLE_TEXT = "trade-off matrix"
    HEAD = "trade-off matrix: what each format costs on this workload"

    def blocks(self) -> list[Block]:
        return section_blocks(self.desk.state.sections.get("matrix", {}))


SCREEN = Matrix
