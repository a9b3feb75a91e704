"""The command log: every process that was started, with its argv, to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui.look import DIM, HEAD, ink
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table
from sparsetui.tui.wrapping import wrap_text


def command_line(command: dict[str, Any]) -> str:
    """The argv as a line that a shell would read back as the same argv."""
    return shlex.join(str(a) for a in command.get("argv", ()))


class Commands(CaseSheet):
    TITLE_TEXT = "command log"
    FOOTER = ("yank", "filter", "mark", "back")

    def body(self) -> Iterable[Widget]:
        yield Table(
            [Column("time", 8, 8), Column("pid", 5, 8, right=True), Column("why", 26, 44), Column("argv", 20, 400)],
            id="commands",
            classes="frame half",
            title="processes that were started",
            empty="no process has been started yet",
        )
        with Container(classes="detail"):
            yield Panel(id="argv", classes="frame", title="command line")

    def show(self) -> None:
        rows = []
        for i, c in enumerate(self.desk.state.commands):
            time = str(c.get("time", ""))[11:19]
            rows.append(
                Row(
                    str(i),
                    (time, clean(c.get("pid", "–")), clean(c.get("why", ""), 60), clean(command_line(c), 1000)),
                )
            )
        self.query_one("#commands", Table).set_rows(rows)
        self._detail()

    def on_table_picked(self) -> None:
        self._detail()

    def _detail(self) -> None:
        table, panel = self.query_one("#commands", Table), self.query_one("#argv", Panel)
        if table.key is None:
            panel.set_lines([])
            return
        command = self.desk.state.commands[int(table.key)]
        width = max(20, panel.content_size.width)
        text = ink(clean(command_line(command)))
        head = ink(clean(command.get("why", ""), 100), style=HEAD)
        panel.set_lines([head, *wrap_text(text, width), ink("y copies it", style=DIM)])

    def yank_text(self) -> str:
        table = self.query_one("#commands", Table)
        chosen = [r.key for r in table.rows if r.key in table.marked] or ([table.key] if table.key else [])
        return "\n".join(clean(command_line(self.desk.state.commands[int(k)])) for k in chosen)


SCREEN = Commands
