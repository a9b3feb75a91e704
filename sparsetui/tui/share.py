"""What leaves the app, always also as a file whose path is shown: the memo, copied text, pictures of the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparsetui.tui import outlet
from sparsetui.tui.look import BAD, OK, WARN
from sparsetui.tui.outlet import first_line

if TYPE_CHECKING:
    from sparsetui.tui.shell import SparseApp


class Share:
    """Used from the app's thread."""

    def __init__(self, app: SparseApp) -> None:
        self.app = app

    def memo_text(self) -> str:
        """The memo as it would be exported now."""
        from sparsetui.report.memo import render

        return render(self.app.desk.state)

    def export_memo(self) -> None:
        """The memo as a file in the session's folder; the path is shown."""
        if not self.app.desk.state.events:
            self.app.say("nothing has been recorded yet", WARN)
            return
        try:
            path = outlet.write_memo(self.app.desk, self.memo_text())
        except Exception as error:  # a full disk, a folder that is gone: said, and the app goes on
            self.app.say(f"the memo could not be written: {first_line(error)}", BAD)
            return
        self.app.desk.exported = path
        self.app.say(f"memo written to {path}", OK)
        if self.app.sheet is not None:
            self.app.sheet.redraw()

    def yank(self, text: str) -> None:
        """Copy ``text``: to tmux, to the terminal, and always to a file whose path is shown."""
        write = self.app._driver.write if self.app._driver is not None and not self.app.is_headless else None
        try:
            where = outlet.copy(text, write)
        except OSError as error:
            self.app.say(f"not copied: {first_line(error)}", BAD)
            return
        self.app.say(f"copied to {', '.join(where)}")

    def shoot(self) -> None:
        """The screen as SVG and as text; both paths are shown."""
        stamp, picture = outlet.now(), self.app.export_screenshot(title="sparsetui")
        try:
            svg = outlet.write_private(Path.cwd(), "sparsetui", ".svg", picture, stamp)
            txt = outlet.write_private(svg.parent, "sparsetui", ".txt", self.app.screen_text(), stamp)
        except OSError as error:
            self.app.say(f"the screen could not be saved: {first_line(error)}", BAD)
            return
        self.app.say(f"saved {svg} and {'.txt' if txt.stem == svg.stem else txt.name}")
