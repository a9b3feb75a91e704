"""Which process to attach to: what runs on this host, Python first, the busiest first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui.actions import Action
from sparsetui.tui.look import DIM, ink
from sparsetui.tui.screens.base import Sheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table
from sparsetui.tui.wrapping import wrap

_HINT = "Enter says what watching costs before it starts; the process is not changed. / finds a name or a PID."


@dataclass(frozen=True)
class Process:
    """A process of the list. ``cpu_s`` is the processor time that it has used since it began."""

    pid: int
    user: str
    cpu_s: float
    threads: int
    command: str
    python: bool


def running() -> list[Process]:
    """The processes of this host that have a command line, except this one; those we may not read are left out."""
    import psutil

    found = []
    wanted = ["pid", "name", "username", "cpu_times", "num_threads", "cmdline"]
    for p in psutil.process_iter(wanted):
        i = p.info
        if i["pid"] == os.getpid() or not i["cmdline"]:
            continue
        cpu = i["cpu_times"]
        used = cpu.user + cpu.system if cpu is not None else 0.0
        command = " ".join(i["cmdline"])
        python = "python" in (i["name"] or "").lower() or "python" in os.path.basename(i["cmdline"][0]).lower()
        found.append(Process(i["pid"], str(i["username"] or "?"), used, i["num_threads"] or 0, command, python))
    return sorted(found, key=lambda p: (not p.python, -p.cpu_s, p.pid))


class Processes(Sheet):
    TITLE_TEXT = "attach to a process"
    FOOTER = ("enter", "filter", "sort", "reload", "back")

    def __init__(self) -> None:
        super().__init__()
        self._listed: Sequence[Process] | None = None

    def body(self) -> Iterable[Widget]:
        yield Table(
            [
                Column("pid", 6, 8, right=True),
                Column("user", 6, 12, drop=2),
                Column("cpu time", 8, 9, right=True),
                Column("threads", 3, 7, right=True, drop=1, short="thr"),
                Column("command", 24, 400),
            ],
            id="processes",
            classes="frame half",
            title="running processes, Python first, the busiest first",
            empty="no process can be read here",
        )
        yield Panel(id="story", classes="frame", title="process")

    def on_mount(self) -> None:
        self.query_one("#story").can_focus = False
        super().on_mount()

    def show(self) -> None:
        if self._listed is None:
            self._listed = self.app.watches.processes()
        self.query_one("#processes", Table).set_rows([_row(p) for p in self._listed])
        self._tell()

    def on_table_picked(self) -> None:
        self._tell()

    def _tell(self) -> None:
        """The whole command of the process under the cursor, which the list has to cut."""
        panel, key = self.query_one("#story", Panel), self.query_one("#processes", Table).key
        found = next((p for p in self._listed or () if str(p.pid) == key), None)
        panel.set_title("process" if found is None else f"process {found.pid}")
        width = max(20, panel.content_size.width)
        said = wrap(clean(found.command, 1000), width)[:2] if found is not None else []
        panel.set_lines([*said, *(ink(x, DIM) for x in wrap(_HINT, width))])

    def label(self, action: Action) -> str:
        return "watch" if action.id == "enter" else super().label(action)

    def why_not(self, id: str) -> str | None:
        if id == "enter" and self.desk.readonly:
            return "opened read-only: watching stops the process for moments"
        if id == "enter" and self.query_one("#processes", Table).key is None:
            return "no process is under the cursor"
        return super().why_not(id)

    def do_enter(self) -> None:
        key = self.query_one("#processes", Table).key
        if key is not None:
            self.app.watches.offer([int(key)])

    def do_reload(self) -> None:
        self._listed = None
        self.redraw()


def _short(command: str) -> str:
    """The command without the folder of its program: what tells two services apart comes after it."""
    program, space, rest = command.partition(" ")
    return os.path.basename(program) + space + rest


def _row(p: Process) -> Row:
    minutes, seconds = divmod(int(p.cpu_s), 60)
    style = "" if p.python else DIM
    cells = (
        str(p.pid),
        ink(clean(p.user, 20), style),
        f"{minutes}:{seconds:02d}",
        str(p.threads or "–"),
        ink(clean(_short(p.command), 400), style),
    )
    return Row(str(p.pid), cells, (p.pid, None, p.cpu_s, p.threads, None), hidden=clean(p.command, 1000))


SCREEN = Processes
