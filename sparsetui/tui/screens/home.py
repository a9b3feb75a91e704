"""Home: saved sessions, drills to practise on, and opening a workload file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui import topline
from sparsetui.tui.actions import Action
from sparsetui.tui.look import BAD, DIM, OK, WARN, ink
from sparsetui.tui.screens.base import Sheet
from sparsetui.tui.screens.dialogs import Form
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table
from sparsetui.tui.wrapping import wrap

_TITLES = 48  # cells of the longest title of a drill: titles are never cut, what happened stands below as well


class Home(Sheet):
    TITLE_TEXT = "find the first failing mechanism, prove it, close with a way back"
    FOOTER = ("enter", "panel", "attach", "open_file", "mark", "compare", "filter", "playbooks", "sort")
    RUNS_ON = True

    def body(self) -> Iterable[Widget]:
        with Container(id="home", classes="columns"):
            yield Table(
                [
                    Column("what", 14, 34),
                    Column("verdict", 14, 15, drop=3),
                    Column("mechanism", 12, 32, drop=2),
                    Column("updated", 11, 11, drop=1),
                    Column("", 6, 8, drop=4),
                ],
                id="sessions",
                classes="frame half",
                title="sessions",
                empty="no session has been saved yet; a drill below is a real regression to start with",
            )
            yield Table(
                [Column("drill", _TITLES, _TITLES), Column("what happened", 30, 200, drop=1)],
                id="drills",
                classes="frame half",
                title="drills: real regressions to practise on",
                empty="this installation has no drills",
            )
        yield Panel(id="story", classes="frame")

    def first_focus(self) -> Widget | None:
        return self.query_one("#sessions" if self.app.shelf.summaries() else "#drills", Table)

    def show(self) -> None:
        sessions = self.query_one("#sessions", Table)
        sessions.set_rows([_session_row(s) for s in self.app.shelf.summaries()])
        drills = self.query_one("#drills", Table)
        drills.set_rows([Row(d.name, (clean(d.title, 60), clean(d.story, 300))) for d in self.app.shelf.drills()])

        sessions.set_class(not sessions.all_rows, "-empty")
        self.query_one("#story").can_focus = False
        self._tell()

    def on_table_picked(self) -> None:
        self._tell()

    def on_descendant_focus(self) -> None:
        super().on_descendant_focus()
        self._tell()

    def _tell(self) -> None:
        """What the row under the cursor is about."""
        panel, table = self.query_one("#story", Panel), self.table
        lines: list[str] = []
        if table is not None and table.id == "drills":
            drill = next((d for d in self.app.shelf.drills() if d.name == table.key), None)
            if drill is not None:
                panel.set_title(f"drill {drill.name}")
                lines = [*_wrapped(drill.story, panel), "Enter starts it; Enter again and again goes through it."]
        elif table is not None:
            s = next((s for s in self.app.shelf.summaries() if s.id == table.key), None)
            if s is not None:
                panel.set_title(clean(s.id, 60))
                about = [("workload", s.workload), ("host", s.host), ("owner", s.owner), ("mechanism", s.mechanism)]
                about += [("being written by", s.writing), ("damaged", s.damage), ("closed by", s.closed)]
                lines = _wrapped("   ".join(f"{k} {v}" for k, v in about if v), panel)
        panel.set_lines([ink(clean(x)) for x in lines])

    def label(self, action: Action) -> str:
        if action.id == "enter":
            return "open" if self.focused is self.query_one("#sessions") else "start"
        if action.id == "panel":
            return "drills" if self.focused is self.query_one("#sessions") else "sessions"
        return super().label(action)

    def do_enter(self) -> None:
        table = self.table
        if table is None or table.key is None:
            return
        if table.id == "sessions":
            self.app.shelf.open_session(table.key)
        else:
            self.app.shelf.open_drill(table.key)

    def do_open_file(self) -> None:
        def opened(values: dict[str, str] | None) -> None:
            if values and values["path"]:
                self.app.shelf.open_workload(Path(values["path"]).expanduser())

        form = Form("open a workload file", [("path", "path of a workload file (TOML)", "")], _readable)
        self.app.push_screen(form, opened)

    def why_not(self, id: str) -> str | None:
        if id == "enter" and (self.table is None or self.table.key is None):
            return "nothing to open here: Tab goes to the other list, f opens a workload file"
        if id == "compare" and len(self.query_one("#sessions", Table).marked) != 2:
            return "mark two sessions with Space first"
        return super().why_not(id)

    def do_compare(self) -> None:
        table = self.query_one("#sessions", Table)
        a, b = sorted(
            table.marked, key=[s.id for s in self.app.shelf.summaries()].index, reverse=True
        )  # the older one first
        self.app.open("compare", a=a, b=b)

    def do_mark(self) -> None:
        super().do_mark()
        if len(self.query_one("#sessions", Table).marked) == 2:
            self.note("two sessions are marked: c compares them")

    def do_playbooks(self) -> None:
        self.app.open("playbooks")

    def do_attach(self) -> None:
        self.app.open("processes")

    def go_back(self) -> None:
        self.app.ask_quit()

    def do_reload(self) -> None:
        self.app.shelf.forget()
        self.redraw()


def _wrapped(text: str, panel: Panel) -> list[str]:
    return wrap(clean(text), max(20, panel.content_size.width))


def _readable(values: dict[str, str]) -> str | None:
    path = Path(values["path"]).expanduser()
    if not values["path"]:
        return "a path, please"
    if not path.is_file():
        return f"no file of this name: {clean(path, 50)}"
    from sparsetui.workload.spec import WorkloadError, load

    try:
        load(path)
    except WorkloadError as error:
        return clean(error)
    return None


def _session_row(s: Any) -> Row:
    if s.damage:
        return Row(s.id, (clean(s.id, 60), ink("✗ damaged", BAD), clean(s.damage, 60), "", ""))
    mark, style = topline.VERDICTS.get(s.status or "", ("· unfinished", DIM))
    closed = ink("closed", style=OK) if s.closed else ink("open", style=DIM)
    state = ink("» live", style=WARN) if s.writing else closed
    return Row(
        s.id,
        (
            clean(s.title or s.workload or s.id, 60),
            ink(mark, style=style),
            clean(s.mechanism or "", 60),
            ink(clean(str(s.updated or "")[5:16].replace("T", " ")), style=DIM),
            state,
        ),
        hidden=" ".join((s.id, s.workload, s.host, s.owner, s.status.replace("_", " "), s.created, s.writing)),
    )


SCREEN = Home
