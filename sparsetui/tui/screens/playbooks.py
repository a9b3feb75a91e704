"""Playbooks: what each asks, runs and concludes, and which one the next investigation follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui.actions import Action
from sparsetui.tui.look import BAD, DIM, HEAD, OK, WARN, ink
from sparsetui.tui.screens.base import Sheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table
from sparsetui.tui.wrapping import wrap

if TYPE_CHECKING:
    from sparsetui.playbook.library import Entry


class Playbooks(Sheet):
    TITLE_TEXT = "playbooks"
    FOOTER = ("enter", "filter", "yank", "back")

    def __init__(self) -> None:
        super().__init__()
        self._entries: Sequence[Entry] | None = None

    def body(self) -> Iterable[Widget]:
        with Container(classes="columns"):
            yield Table(
                [Column("", 1, 1), Column("playbook", 16, 40), Column("what for", 16, 90)],
                id="books",
                classes="frame half",
                title="playbooks: Enter chooses the one to follow",
                empty="no playbook is installed",
            )
            yield Panel(id="steps", classes="frame half", title="its steps")

    @property
    def entries(self) -> Sequence[Entry]:
        if self._entries is None:
            from sparsetui.playbook.library import entries

            self._entries = entries()
        return self._entries

    def show(self) -> None:
        chosen = getattr(self.desk.playbook, "id", None)
        self.query_one("#books", Table).set_rows([_row(i, e, chosen) for i, e in enumerate(self.entries)])
        self._detail()

    def on_table_picked(self) -> None:
        self.query_one("#steps", Panel).top = 0
        self._detail()

    def _here(self) -> Entry | None:
        key = self.query_one("#books", Table).key
        return self.entries[int(key)] if key is not None else None

    def _detail(self) -> None:
        from sparsetui.playbook.outline import outline

        panel, entry = self.query_one("#steps", Panel), self._here()
        width = max(20, panel.content_size.width)
        lines: list[Text] = []
        if entry is not None and entry.playbook is None:
            lines = [ink(x, WARN) for x in wrap(clean(entry.error), width)]
        elif entry is not None and entry.playbook is not None:
            for line in outline(entry.playbook):
                indent = " " * (len(line) - len(line.lstrip()) + 2)
                head = HEAD if "[" in line and not line.startswith(" ") else ""
                lines += [ink(x, head) for x in wrap(clean(line), width, subsequent_indent=indent)]
        panel.set_lines(lines)

    def label(self, action: Action) -> str:
        return "follow it" if action.id == "enter" else super().label(action)

    def why_not(self, id: str) -> str | None:
        if id == "enter":
            entry = self._here()
            if entry is None:
                return "no playbook is under the cursor"
            if self.desk.runner is not None:
                return "the open investigation has begun; a new one can follow another playbook"
            if entry.playbook is None:
                return "this playbook has a mistake, shown beside it"
        return super().why_not(id)

    def do_enter(self) -> None:
        entry = self._here()
        if entry is None or entry.playbook is None:
            return
        same = getattr(self.desk.playbook, "id", None) == entry.playbook.id
        self.desk.playbook = None if same else entry.playbook
        self.redraw()
        said = "no playbook is followed" if same else f"the next investigation follows {entry.playbook.id}"
        self.note(f"{said}; Esc goes back")

    def yank_text(self) -> str:
        return self.query_one("#steps", Panel).text()


def _row(i: int, e: Entry, chosen: str | None) -> Row:
    if e.playbook is None:
        return Row(str(i), (ink("✗", BAD), clean(e.path.name, 40), ink(clean(e.error, 200), WARN)))
    mark = ink("✓", OK) if e.playbook.id == chosen else ink("·", DIM)
    return Row(str(i), (mark, clean(e.playbook.id, 40), clean(e.playbook.title, 120)))


SCREEN = Playbooks
