"""The bandwidth lens: working-set pressure over the runs of a session, with its measured zones."""

from __future__ import annotations

from sparsetui.report.document import Block, Para
from sparsetui.report.facts import facts_of
from sparsetui.report.sections import lens_section
from sparsetui.tui.actions import Action
from sparsetui.tui.screens.sections import SectionSheet


class BandwidthLens(SectionSheet):
    TITLE_TEXT = "bandwidth lens"
    HEAD = "working-set pressure against the measured roof"
    FOOTER = ("run", "cancel", "yank", "matrix", "charts", "back")

    def blocks(self) -> list[Block]:
        drawn = lens_section(facts_of(self.desk.state))[1:]
        if drawn:
            return drawn
        why = self.desk.why_not_run()
        how = "r measures the roofs of this host and places every run of this session under them."
        return [Para(f"Not measured yet. {how if why is None else 'It cannot be measured now: ' + why}")]

    def label(self, action: Action) -> str:
        return "measure" if action.id == "run" else super().label(action)

    def why_not(self, id: str) -> str | None:
        return self.desk.why_not_run() if id == "run" else super().why_not(id)

    def do_run(self) -> None:
        self.app.start("bandwidth lens", lambda r: r.run_lens())


SCREEN = BandwidthLens
