"""The app: one desk, a stack of screens, and a clean end whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from textual.app import App
from textual.binding import Binding
from textual.reactive import Reactive

from sparsetui.evidence.text import clean
from sparsetui.tui import look, terminal
from sparsetui.tui.desk import Desk, Ended, RunnerFactory
from sparsetui.tui.look import BAD, OK, WARN
from sparsetui.tui.screens import screen

if TYPE_CHECKING:
    from sparsetui.runner.api import Runner
    from sparsetui.tui.screens.base import Sheet

REPAINT_EVERY = 0.25  # seconds; a burst of updates is painted once
PATIENCE = 10.0  # seconds that a run gets to save itself before the process ends without it

_SYSTEMS = {"16": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "true": ColorSystem.TRUECOLOR}


class SparseApp(App[int]):
    """``start`` is what to open first: ``{"session": ref}``, ``{"workload": ...}``, ``{"drill": ...}``, or nothing."""

    CSS_PATH = "app.tcss"
    TITLE = "sparsetui"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [
        Binding("ctrl+c", "quit_now", "save and quit", priority=True, show=False),
        Binding("ctrl+q", "quit_now", "save and quit", priority=True, show=False),
        Binding("ctrl+z", "suspend_process", "suspend", priority=True, show=False),
    ]
    theme = Reactive(look.TERMINAL)
    TRANSITIONS = False

    def __init__(
        self,
        store: Any,
        *,
        start: dict[str, Any] | None = None,
        runner_factory: RunnerFactory | None = None,
        playbook: Any = None,
        budget: float = 60.0,
        readonly: bool = False,
        unicode: bool = True,
        depth: terminal.Depth = "16",
        light: bool = False,
    ) -> None:
        native = depth in ("none", "16")
        super().__init__(ansi_color=native)
        self.unicode = unicode
        self.depth = depth
        self.animation_level = "none"
        if depth in _SYSTEMS:
            self.console._color_system = _SYSTEMS[depth]
        self.register_theme(look.DARK)
        self.register_theme(look.LIGHT)
        self.theme = look.TERMINAL if native else look.LIGHT.name if light else look.DARK.name
        self.desk = Desk(self, store, runner_factory, playbook=playbook, budget=budget, readonly=readonly)
        self._start = start or {}
        self._run_began = 0.0
        self._painted_at = 0.0
        self._paint_due = False
        self._summaries: list[Any] | None = None
        self._drills: list[Any] | None = None
        self._ending = False
        self.ended_by: int | None = None  # the signal that ended the app
        self.interrupted = False

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"frame": "ansi_bright_black", "frame-on": "ansi_cyan"}

    # beginning

    async def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._on_signal, number)
            except (ValueError, RuntimeError):  # not the main thread: a test's event loop
                break
        self.set_interval(1.0, self._tick)
        if "session" in self._start:
            self.push_screen(screen("home")())
            self.open_session(self._start["session"])
        elif "workload" in self._start:
            self.push_screen(screen("home")())
            self._put_on_desk(self._start["workload"])
        elif "drill" in self._start:
            self.push_screen(screen("home")())
            self._put_on_desk(self._start["drill"].workload, self._start["drill"])
        else:
            self.push_screen(screen("home")())

    # what can be opened

    def summaries(self) -> list[Any]:
        """Saved sessions, newest first."""
        if self._summaries is None:
            store = self.desk.store
            found = list(store.list()) if store is not None else []
            self._summaries = sorted(found, key=lambda s: str(s.updated or s.created or ""), reverse=True)
        return self._summaries

    def drills(self) -> list[Any]:
        if self._drills is None:
            from sparsetui.workload.drills.catalogue import all_drills

            self._drills = list(all_drills())
        return self._drills

    def forget_lists(self) -> None:
        self._summaries = None

    def open_session(self, ref: str) -> None:
        def then() -> None:
            try:
                remark = self.desk.open_session(ref)
            except Exception as error:  # a damaged session is a message, not the end of the app
                self.say(f"session {ref}: {_first_line(error)}", BAD)
                return
            self.open("investigate")
            if remark:
                self.say(f"this session can be read but not run again: {remark}", WARN)

        self._leave_then(then)

    def open_drill(self, name: str) -> None:
        drill = next((d for d in self.drills() if d.name == name), None)
        if drill is not None:
            self._leave_then(lambda: self._put_on_desk(drill.workload, drill))

    def open_workload(self, path: Path) -> None:
        from sparsetui.workload.spec import WorkloadError, load

        try:
            workload = load(path)
        except WorkloadError as error:
            self.say(str(error), BAD)
            return
        self._leave_then(lambda: self._put_on_desk(workload))

    def _put_on_desk(self, workload: Any, drill: Any = None) -> None:
        self.desk.open_workload(workload, drill=drill)
        self.open("investigate")

    def _leave_then(self, then: Callable[[], object]) -> None:
        """Close the session on the desk, without making the screen wait, and go on."""
        if self.desk.runner is None:
            then()
            return
        desk = self.desk

        def close() -> None:
            desk.close()
            self.call_from_thread(then)

        self.run_worker(close, thread=True, group="close", exit_on_error=False)

    # screens

    @property
    def sheet(self) -> Sheet | None:
        """The screen of ours that is uppermost, below any dialog."""
        from sparsetui.tui.screens.base import Sheet

        return next((s for s in reversed(self.screen_stack) if isinstance(s, Sheet)), None)

    def open(self, name: str, **arguments: Any) -> None:
        """Go to screen ``name``: back to it if it is open already, else on top."""
        cls = screen(name)
        for i, open_screen in enumerate(self.screen_stack):
            if type(open_screen) is cls:
                while len(self.screen_stack) > i + 1:
                    self.pop_screen()
                if arguments:
                    open_screen.aim(**arguments)
                open_screen.redraw()
                return
        fresh: Any = cls()
        if arguments:
            fresh.aim(**arguments)
        self.push_screen(fresh)

    def back(self) -> None:
        if len(self.screen_stack) > 2:
            self.pop_screen()
        else:
            self.ask_quit()

    def go_home(self) -> None:
        if self.desk.busy:
            self.say(f"{self.desk.busy} is running; x cancels it", WARN)
            return

        def then() -> None:
            self.desk.clear()
            self.forget_lists()
            while len(self.screen_stack) > 2:
                self.pop_screen()

        self._leave_then(then)

    def say(self, text: str, style: str = "") -> None:
        """A line for the person, on whatever screen is uppermost."""
        self.call_after_refresh(self._say, text, style)

    def _say(self, text: str, style: str) -> None:
        if self.sheet is not None:
            self.sheet.note(text, style)

    def open_palette(self) -> None:
        below = self.sheet
        if below is None:
            return
        from sparsetui.tui.screens.dialogs import Palette

        extra = [] if self.no_color else [
            ("look-dark", "look: dark", "colours for a dark background"),
            ("look-light", "look: light", "colours for a light background"),
        ]  # fmt: skip
        if self.depth in ("none", "16"):
            extra = []  # the terminal's own colours are what there is

        def done(id: str | None) -> None:
            if id is None:
                return
            if id.startswith("+look-"):
                self.theme = f"sparsetui-{id.removeprefix('+look-')}"
                below.refresh(layout=True)
            else:
                below.action_act(id)

        self.push_screen(Palette(below, extra), done)

    # running

    @property
    def run_seconds(self) -> float:
        return time.monotonic() - self._run_began if self.desk.busy else 0.0

    def start(self, job: str, work: Callable[[Runner], object]) -> None:
        """Run a job, after telling which files it will run if this is the first time."""
        why = self.desk.why_not_run()
        if why is not None:
            self.say(f"{job}: {why}", WARN)
            return
        if self.desk.consented:
            self._launch(job, work)
            return
        from sparsetui.tui.screens.dialogs import Ask

        def answered(yes: bool | None) -> None:
            if yes:
                self.desk.consented = True
                self._launch(job, work)

        self.push_screen(Ask("this runs code", files_to_run(self.desk.workload), "run it"), answered)

    def _launch(self, job: str, work: Callable[[Runner], object]) -> None:
        self._run_began = time.monotonic()
        self.desk.start(job, work)
        if self.sheet is not None:
            self.sheet.redraw()

    def record(self, job: str, kind: str, body: dict[str, Any]) -> None:
        """Write a closure event: an owner, an artifact, a waiver, a sign-off, or that it is closed."""
        if self.desk.readonly or self.desk.busy:
            self.say(f"{job}: {'opened read-only' if self.desk.readonly else f'{self.desk.busy} is running'}", WARN)
            return
        self._run_began = time.monotonic()
        self.desk.start_record(job, kind, body)

    def cancel_run(self) -> None:
        if self.desk.busy:
            self.say("cancelling; what was measured is kept")
            self.run_worker(self.desk.cancel, thread=True, group="cancel", exit_on_error=False)

    def on_heard(self) -> None:
        """Paint now, or when the quarter second is over."""
        wait = self._painted_at + REPAINT_EVERY - time.monotonic()
        if wait <= 0:
            self._paint()
        elif not self._paint_due:
            self._paint_due = True
            self.set_timer(wait, self._paint)

    def _paint(self) -> None:
        self._paint_due = False
        self._painted_at = time.monotonic()
        self.desk.newest()
        if self.sheet is not None:
            getattr(self.sheet, "heard", self.sheet.redraw)()

    def _tick(self) -> None:
        if self.desk.busy and self.sheet is not None:
            self.sheet.draw_note()

    def on_ended(self, message: Ended) -> None:
        self.desk.ended()
        if message.error:
            self.say(message.error, BAD)
        elif message.cancelled:
            self.say(f"{message.job} was cancelled; what was measured is in the session", WARN)
        elif message.job in ("verdict", "investigation") and self.desk.state.result is not None:
            self.say(f"verdict: {self.desk.state.result.verdict.summary}")
        if self.sheet is not None:
            getattr(self.sheet, "ended", self.sheet.redraw)()

    # what leaves the app

    def memo_text(self) -> str:
        from sparsetui.report.memo import render

        return render(self.desk.state)

    def export_memo(self) -> None:
        """The memo as a file in the session's folder; the path is shown."""
        if not self.desk.state.events:
            self.say("nothing has been recorded yet", WARN)
            return
        try:
            path = self._write_memo()
        except OSError as error:
            self.say(f"the memo could not be written: {_first_line(error)}", BAD)
            return
        self.desk.exported = path
        self.say(f"memo written to {path}", OK)
        if self.sheet is not None:
            self.sheet.redraw()

    def _write_memo(self) -> Path:
        folder = self.desk.folder
        text = self.memo_text()
        if folder is None:
            return terminal.write_private(Path.cwd(), "memo", ".md", text)
        if self.desk.readonly or not os.access(folder, os.W_OK):
            return terminal.write_private(None, f"memo-{self.desk.state.id}", ".md", text)
        path = folder / "memo.md"
        scratch = folder / f".memo.{os.getpid()}.tmp"
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        return path

    def yank(self, text: str) -> None:
        """Copy ``text``: to tmux, to the terminal, and always to a file whose path is shown."""
        try:
            path = terminal.write_private(None, "sparsetui-yank", ".txt", text + "\n")
        except OSError as error:
            self.say(f"not copied: {_first_line(error)}", BAD)
            return
        where = []
        if terminal.tmux_copy(text):
            where.append("tmux buffer")
        sequence = terminal.osc52(text)
        if sequence is not None and self._driver is not None and not self.is_headless:
            self._driver.write(sequence)
            where.append("clipboard")
        self.say(f"copied to {', '.join([*where, str(path)])}")

    def shoot(self) -> None:
        """The screen as SVG and as text; both paths are shown."""
        try:
            svg = terminal.write_private(Path.cwd(), "sparsetui", ".svg", self.export_screenshot(title="sparsetui"))
            txt = terminal.write_private(svg.parent, svg.stem, ".txt", self.screen_text())
        except OSError as error:
            self.say(f"the screen could not be saved: {_first_line(error)}", BAD)
            return
        self.say(f"screen saved: {svg} and {txt.name}")

    def screen_text(self) -> str:
        """What is on the screen, as plain lines."""
        from textual.geometry import Region

        width, height = self.size
        update = self.screen._compositor.render_strips(Region(0, 0, width, height).size)
        return "\n".join(strip.text.rstrip() for strip in update) + "\n"

    # the end

    def ask_quit(self) -> None:
        """Quit; asks only when a run is live."""
        if not self.desk.busy:
            self._end()
            return
        from sparsetui.tui.screens.dialogs import Ask

        lines = [f"{self.desk.busy} is running.", "Quitting cancels it; what was measured is kept in the session."]
        self.push_screen(Ask("quit?", lines, "quit", "go on"), lambda yes: self.action_quit_now() if yes else None)

    def action_quit_now(self) -> None:
        self.interrupted = self.interrupted or bool(self.desk.busy)
        self._end()

    def _on_signal(self, number: int) -> None:
        self.ended_by = number
        self.interrupted = True
        self._end()

    def _end(self) -> None:
        """Close the runner off the event loop, then leave; a run that will not end is left behind after a while."""
        if self._ending:
            return
        self._ending = True
        self._watch_end()
        if self.desk.runner is None and not self.desk.busy:
            self.exit(0)
            return

        def close() -> None:
            try:
                self.desk.close()
            finally:
                self.call_from_thread(self.exit, 0)

        self.run_worker(close, thread=True, group="close", exit_on_error=False)

    def _watch_end(self) -> None:
        """A last resort: interpreter exit waits for threads, and a stuck run must not hold the terminal."""

        def last_resort() -> None:
            if not self.is_headless:
                try:
                    os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, terminal.RESTORE.encode())
                except OSError:
                    pass
            os._exit(130)

        timer = threading.Timer(PATIENCE, last_resort)
        timer.daemon = True
        timer.start()
        self._last_resort = timer

    def stand_down(self) -> None:
        """The end went well: no last resort."""
        timer = getattr(self, "_last_resort", None)
        if timer is not None:
            timer.cancel()


def files_to_run(workload: Any) -> list[str]:
    """What a run of ``workload`` executes, in lines for a person."""
    lines = ["An investigation runs this code on this host, with your rights:", ""]
    for key, entry in workload.entries().items():
        lines.append(f"  {key}  {entry.text}")
    lines += ["", "from these files:"]
    lines += [f"  {path}" for path in workload.files()]
    lines += [f"  module {name} (found by the worker's interpreter)" for name in workload.modules()]
    pythons = dict.fromkeys(p for p in (workload.failing.python, workload.comparator.python) if p)
    lines += [f"  under {python}" for python in pythons]
    return lines


def _first_line(error: BaseException) -> str:
    return clean((str(error) or type(error).__name__).splitlines()[0], 300)


def run(
    *,
    store: Any = None,
    session: str | None = None,
    workload: Any = None,
    drill: Any = None,
    playbook: Any = None,
    budget: float = 60.0,
    readonly: bool = False,
    mouse: bool = False,
    color: bool = True,
    unicode: bool = True,
    runner_factory: RunnerFactory | None = None,
) -> int:
    """Run the app and return the exit code of the contract: 0, 1, 2, 3 or 130.

    ``store`` is a session store, its folder, or ``None`` for the default one; ``workload`` a path or a loaded workload;
    ``drill`` a name or a drill. Without a terminal nothing is drawn: one line on stderr names the flag to use, and 2
    is returned.
    """
    why = terminal.why_no_terminal()
    if why is not None:
        print(f"sparsetui: {why}, so the app cannot run; use --headless", file=sys.stderr)
        return 2
    if not color:
        os.environ["NO_COLOR"] = "1"  # Textual reads it when the app is made, not later
    start: dict[str, Any] = {}
    try:
        if store is None:
            from sparsetui.session.store import Store, default_root

            store = Store(default_root())
        elif isinstance(store, (str, Path)):
            from sparsetui.session.store import Store

            store = Store(Path(store))
        if session is not None:
            store.open(session).state()
            start = {"session": session}
        elif workload is not None:
            start = {"workload": _as_workload(workload)}
        elif drill is not None:
            start = {"drill": _as_drill(drill)}
    except Exception as error:  # a bad file, an unknown or damaged session: one line, no traceback
        print(f"sparsetui: {_first_line(error)}", file=sys.stderr)
        return 2
    app = SparseApp(
        store,
        start=start,
        runner_factory=runner_factory,
        playbook=playbook,
        budget=budget,
        readonly=readonly,
        unicode=unicode,
        depth=terminal.colour_depth(),
        light=terminal.light_background(),
    )
    crashed = True
    try:
        app.run(mouse=mouse)
        crashed = app.return_code not in (0, None) and not app._ending
    finally:
        app.desk.close()  # also after a crash of our own: the session is saved and no worker outlives the app
        app.stand_down()
    where = f"; session {app.desk.state.id} is saved" if app.desk.state.id else ""
    if app.ended_by is not None:
        print(f"sparsetui: ended by {signal.Signals(app.ended_by).name}{where}", file=sys.stderr)
        return 130
    if crashed:
        print(f"sparsetui: the app stopped on a fault of its own{where}", file=sys.stderr)
        return 3
    if app.interrupted:
        print(f"sparsetui: the run was interrupted{where}", file=sys.stderr)
        return 130
    return app.desk.exit_code


def _as_workload(workload: Any) -> Any:
    if isinstance(workload, (str, Path)):
        from sparsetui.workload.spec import load

        return load(workload)
    return workload


def _as_drill(drill: Any) -> Any:
    if not isinstance(drill, str):
        return drill
    from sparsetui.workload.drills.catalogue import all_drills

    found = {d.name: d for d in all_drills()}
    if drill not in found:
        raise ValueError(f"no drill is named {drill!r}; there are: {', '.join(found)}")
    return found[drill]
