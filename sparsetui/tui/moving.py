"""Moving about and working with lists: the keys that mean the same on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.widgets import Input

from sparsetui.tui.look import WARN
from sparsetui.tui.widgets.block import Block
from sparsetui.tui.widgets.table import Table

if TYPE_CHECKING:
    from textual.screen import Screen
    from textual.widget import Widget

    from sparsetui.tui.shell import SparseApp

    Base = Screen[None]
else:
    Base = object


class Moving(Base):
    """Moves in whatever has the focus; filters, sorts, marks and copies the table that is meant."""

    RUNS_ON: ClassVar[bool] = False  # its lists stand one below the other: up and down go on from one into the next
    filter_box: Input | None = None  # while it is open

    if TYPE_CHECKING:
        app: SparseApp

        def note(self, text: str, style: str = "") -> None: ...

    @property
    def block(self) -> Block | None:
        return self.focused if isinstance(self.focused, Block) else None

    def _move(self, where: str) -> None:
        block = self.block
        if block is None:
            return
        if self.RUNS_ON and isinstance(block, Table) and where in ("up", "down") and block.at_end(where):
            self._run_on(block, 1 if where == "down" else -1)
        else:
            block.move(where)

    def _run_on(self, table: Table, by: int) -> None:
        """From the end of a list into the one after it, and from its beginning into the one before."""
        lists = [p for p in self.panels() if isinstance(p, Table)]
        at = lists.index(table) + by
        if 0 <= at < len(lists):
            lists[at].move("top" if by > 0 else "bottom")
            self.go_into(lists[at])

    def go_into(self, widget: Widget) -> None:
        """Give it the keys at once: a later key of a burst, typed ahead over a slow line, is meant for it already."""
        self.set_focus(widget, scroll_visible=False)

    def do_up(self) -> None:
        self._move("up")

    def do_down(self) -> None:
        self._move("down")

    def do_top(self) -> None:
        self._move("top")

    def do_bottom(self) -> None:
        self._move("bottom")

    def do_page_up(self) -> None:
        self._move("page_up")

    def do_page_down(self) -> None:
        self._move("page_down")

    def panels(self) -> list[Block]:
        """What Tab goes through, in order."""
        return [w for w in self.query(Block) if w.can_focus]

    def _step_panel(self, by: int) -> None:
        panels = self.panels()
        if not panels:
            return
        at = panels.index(self.block) if self.block in panels else -by
        self.go_into(panels[(at + by) % len(panels)])

    def do_panel(self) -> None:
        self._step_panel(1)

    def do_panel_back(self) -> None:
        self._step_panel(-1)

    def do_right(self) -> None:
        self._step_panel(1)

    def do_left(self) -> None:
        self._step_panel(-1)

    # lists

    @property
    def table(self) -> Table | None:
        """The table that filter, sort and mark mean: the focused one, else the first."""
        if isinstance(self.focused, Table):
            return self.focused
        return next(iter(self.query(Table)), None)

    def do_filter(self) -> None:
        if self.table is None:
            self.note("nothing here can be filtered", WARN)
            return
        self._filtering = self.table
        if self.filter_box is None:  # made when it is wanted: every screen would have to style it
            self.filter_box = Input(
                self.table.needle, classes="filter", placeholder="filter: Enter keeps it, Esc clears it", compact=True
            )
            self.mount(self.filter_box, before="#note")
        self.go_into(self.filter_box)

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self.filter_box:
            self._filtering.set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self.filter_box:
            self._close_filter()
            if self._filtering.needle:
                self.note(
                    f"{len(self._filtering.rows)} of {len(self._filtering.all_rows)} rows; / and Esc shows all again"
                )

    def _close_filter(self) -> None:
        box, self.filter_box = self.filter_box, None
        self.go_into(self._filtering)
        if box is not None:
            box.remove()

    def do_sort(self) -> None:
        if self.table is not None:
            self.note(f"sorted by {self.table.cycle_sort()}")

    def do_mark(self) -> None:
        if self.table is not None:
            self.table.toggle_mark()

    def yank_text(self) -> str:
        return self.block.text() if self.block is not None else ""

    def do_yank(self) -> None:
        text = self.yank_text()
        if not text.strip():
            self.note("nothing to copy here", WARN)
            return
        self.app.share.yank(text)
