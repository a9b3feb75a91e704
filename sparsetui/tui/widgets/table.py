"""A table of rows: cursor, marks, filter, sort; columns give way when it is narrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text
from textual.message import Message

from sparsetui.tui.look import CURSOR, DIM, HEAD, ink
from sparsetui.tui.widgets.block import Block
from sparsetui.tui.wrapping import wrap


@dataclass(frozen=True)
class Column:
    """``least`` and ``most`` cells wide; ``drop`` is the order in which columns are left out (0 never, 1 first)."""

    title: str
    least: int
    most: int = 0
    right: bool = False
    drop: int = 0
    short: str = ""  # the title where ``title`` does not fit


@dataclass(frozen=True)
class Row:
    """``cells`` are texts or styled texts, one a column; ``sort`` optionally replaces them as sort keys, and ``hidden``
    is text that a filter finds too.
    """

    key: str
    cells: tuple[str | Text, ...]
    sort: tuple[Any, ...] = field(default=(), compare=False)
    hidden: str = ""

    def plain(self) -> tuple[str, ...]:
        return tuple(c.plain if isinstance(c, Text) else c for c in self.cells)


class Table(Block):
    """Rows with a cursor. ``empty`` is what an empty table says."""

    can_focus = True
    COUNTED = "rows"

    class Picked(Message):
        """The cursor moved to another row."""

        def __init__(self, table: Table, key: str | None) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> Table:
            return self.table

    def __init__(self, columns: Sequence[Column], *args: Any, empty: str = "nothing here", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.columns = tuple(columns)
        self.empty = empty
        self.all_rows: list[Row] = []
        self.rows: list[Row] = []
        self.cursor = 0
        self.marked: set[str] = set()
        self.needle = ""
        self.sorted_by: int | None = None
        self._measured: tuple[int, list[int]] | None = None
        self._source: object = None
        self._given = False  # before anybody has said what the rows are, it is not known that there are none
        self.tail = False  # as long as nobody moves in it, show the newest rows
        self.always_cursor = False  # show the cursor although another widget has the keys

    # content

    def set_rows(self, rows: Sequence[Row]) -> None:
        """Show ``rows``; the cursor stays on its row as long as that exists."""
        key, self._given = self.key, True
        self.all_rows = list(rows)
        self.marked &= {r.key for r in rows}
        self._select(key)

    def set_rows_of(self, source: object, make: Callable[[], Sequence[Row]]) -> None:
        """Show the rows that ``make`` makes of ``source``; of an equal source they are there already."""
        if not self._given or source != self._source:
            self._source = source
            self.set_rows(make())

    def set_filter(self, needle: str) -> None:
        self.needle = needle.strip().lower()
        self._select(self.key)

    def cycle_sort(self) -> str:
        """Sort by the next column, and after the last one in the order given; returns what it is sorted by now."""
        nxt = 0 if self.sorted_by is None else self.sorted_by + 1
        self.sorted_by = nxt if nxt < len(self.columns) else None
        self._select(self.key)
        return "the order given" if self.sorted_by is None else self.columns[self.sorted_by].title

    def _select(self, key: str | None) -> None:
        words = self.needle.split()
        rows = [r for r in self.all_rows if all(w in " ".join((*r.plain(), r.hidden)).lower() for w in words)]
        if self.sorted_by is not None:
            rows.sort(key=lambda r: _sort_key(r, self.sorted_by or 0))
        self.rows = rows
        self._measured = None
        at = next((i for i, r in enumerate(rows) if r.key == key), None)
        if self.tail and not self._active:
            at = len(rows) - 1
        self.cursor = at if at is not None else max(0, min(self.cursor, len(rows) - 1))
        self._follow()
        self.repaint()

    @property
    def key(self) -> str | None:
        return self.rows[self.cursor].key if 0 <= self.cursor < len(self.rows) else None

    def go_to(self, key: str) -> None:
        at = next((i for i, r in enumerate(self.rows) if r.key == key), None)
        if at is not None:
            self._to(at)

    def toggle_mark(self) -> None:
        if self.key is not None:
            self.marked ^= {self.key}
            self.repaint()
            self.move("down")

    def text(self) -> str:
        """The marked rows, or the one under the cursor, as tab-separated text."""
        chosen = [r for r in self.rows if r.key in self.marked] or self.rows[self.cursor : self.cursor + 1]
        return "\n".join("\t".join(r.plain()) for r in chosen)

    # drawing

    @property
    def _active(self) -> bool:
        return self.has_focus or self.always_cursor

    def _widths(self) -> list[int]:
        if self._measured is None or self._measured[0] != self.content_size.width:
            self._measured = (self.content_size.width, self._measure())
        return self._measured[1]

    def _measure(self) -> list[int]:
        room = self.content_size.width - 2  # the cursor's own column
        shown = list(range(len(self.columns)))
        for c in sorted((c for c in self.columns if c.drop), key=lambda c: c.drop):
            if sum(self.columns[i].least + 1 for i in shown) - 1 <= room:
                break
            shown.remove(self.columns.index(c))
        widths = [0] * len(self.columns)
        for i in shown:
            widths[i] = self.columns[i].least
        spare = room - sum(widths) - max(0, len(shown) - 1)
        want = {
            i: min(
                self.columns[i].most,
                max([cell_len(self.columns[i].title), *(cell_len(r.plain()[i]) for r in self.rows[:200])]),
            )
            for i in shown
        }
        while spare > 0 and (hungry := [i for i in shown if widths[i] < want[i]]):
            for i in hungry[:spare]:  # a cell each in turn, so that no column starves another
                widths[i] += 1
                spare -= 1
        return widths

    def _cells(self, cells: Sequence[str | Text], widths: Sequence[int]) -> Text:
        out = ink()
        for column, cell, width in zip(self.columns, cells, widths, strict=True):
            if not width:
                continue
            if out:
                out.append(" ")
            text = cell.copy() if isinstance(cell, Text) else ink(cell)
            if cell_len(text.plain) > width and text.cell_len == len(text):
                text = text[: max(0, width - 1)]
                text.append("…")
            elif cell_len(text.plain) > width:  # characters of two cells: cut by cells, give up inner styles
                text = ink(set_cell_size(text.plain, width - 1), style=str(text.style))
                text.append("…")
            pad = " " * max(0, width - text.cell_len)
            out.append_text(ink(pad) + text if column.right else text + ink(pad))
        return out

    def _title(self, i: int, width: int) -> str:
        column = self.columns[i]
        title = column.title if len(column.title) <= width or not column.short else column.short
        return title + ("↓" if i == self.sorted_by and len(title) < width else "")

    def line_at(self, y: int) -> Text | None:
        widths = self._widths()
        if y == 0:
            head = ink("  ", style=HEAD)
            titles = [self._title(i, widths[i]) for i in range(len(self.columns))]
            return head + ink(self._cells(titles, widths).plain, style=HEAD)
        if not self.rows and not self._given:
            return None
        if not self.rows:
            why = "no row holds “" + self.needle + "”" if self.needle and self.all_rows else self.empty
            wrapped = wrap(why, max(10, self.content_size.width - 2))
            return ink("  " + wrapped[y - 1], style=DIM) if y - 1 < len(wrapped) else None
        i = self.top + y - 1
        if not 0 <= i < len(self.rows):
            return None
        row = self.rows[i]
        here = "►" if i == self.cursor and self._active else " "
        mark = "*" if row.key in self.marked else " "
        return ink(here + mark) + self._cells(row.cells, widths)

    def line_style(self, y: int) -> Style:
        if y and self._active and self.rows and self.top + y - 1 == self.cursor:
            return Style.parse(CURSOR)
        return Style()

    @property
    def count(self) -> int:
        return len(self.rows)

    # moving

    @property
    def page(self) -> int:
        return max(1, self.content_size.height - 1)

    def move(self, where: str) -> None:
        far = len(self.rows)
        delta = {"up": -1, "down": 1, "page_up": 1 - self.page, "page_down": self.page - 1, "top": -far, "bottom": far}
        self._to(self.cursor + delta[where])

    def at_end(self, where: str) -> bool:
        """Whether ``up`` or ``down`` has nowhere to go: the cursor is on the first, or the last, row."""
        return self.cursor <= 0 if where == "up" else self.cursor >= len(self.rows) - 1

    def _to(self, at: int) -> None:
        at = max(0, min(at, len(self.rows) - 1))
        if at != self.cursor:
            self.cursor = at
            self._follow()
            self.repaint()
            self.post_message(self.Picked(self, self.key))

    def _follow(self) -> None:
        page = self.page
        self.top = max(0, min(self.top, len(self.rows) - page))
        if self.cursor < self.top:
            self.top = self.cursor
        elif self.cursor >= self.top + page:
            self.top = self.cursor - page + 1

    def on_resize(self) -> None:
        super().on_resize()
        self._follow()
        self.repaint()


def _sort_key(row: Row, column: int) -> tuple[int, Any]:
    if row.sort and row.sort[column] is not None:
        value = row.sort[column]
        return (0, value) if isinstance(value, (int, float)) else (1, str(value))
    return 1, row.plain()[column].lower()
