"""The bandwidth lens: working-set pressure over the runs of a session, with its measured zones."""

from __future__ import annotations

from sparsetui.report.document import Block
from sparsetui.report.facts import facts_of
from sparsetui.report.sections import lens_section
from sparsetui.tui.screens.sections import SectionSheet


class BandwidthLens(SectionSheet):
    TITLE_TEXT = "bandwidth lens"
    HEAD = "working-set pressure against the measured roof"

    def blocks(self) -> list[Block]:
        return lens_section(facts_of(self.desk.state))[1:]


SCREEN = BandwidthLens
