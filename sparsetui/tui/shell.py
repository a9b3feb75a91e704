"""The shell of the app: one desk, a stack of screens, jobs in threads, and a clean end whatever happens."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from textual.app import App
from textual.binding import Binding
from textual.reactive import Reactive

from sparsetui.tui import look, outlet, terminal
from sparsetui.tui.desk import Desk, Ended, RunnerFactory
from sparsetui.tui.look import BAD, OK, WARN
from sparsetui.tui.outlet import first_line
from sparsetui.tui.screens import screen
from sparsetui.tui.watches import Watches
from sparsetui.tui.watching import WatchFactory

if TYPE_CHECKING:
    from sparsetui.tui.engine.far import FarRunner
    from sparsetui.tui.screens.base import Sheet

REPAINT_EVERY = 0.25  # seconds; a burst of updates is painted once

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
        prepare: Callable[[Callable[[str], None]], object] | None = None,
        watch_factory: WatchFactory | None = None,
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
        self.desk = Desk(
            self, store, runner_factory, playbook=playbook, budget=budget, readonly=readonly, prepare=prepare
        )
        self.watches = Watches(self, watch_factory)
        self._start = start or {}
        self._run_began = 0.0
        self._painted_at = 0.0
        self._paint_due = False
        self._summaries: list[Any] | None = None
        self._drills: list[Any] | None = None
        self.ending = False
        self.on_ending: Callable[[], None] = lambda: None  # called once when the end begins
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
            self.open_session(self._start["session"])
        elif "workload" in self._start:
            workload = self._start["workload"]
            self._put_on_desk(workload, self._drill_of(workload))
        elif "watching" in self._start:
            self.watches.show(self._start["watching"])
        elif "drill" in self._start:
            self._put_on_desk(drill_workload(self._start["drill"]), self._start["drill"])
        else:
            self.push_screen(screen("home")())
        if "screen" in self._start:
            self.open(self._start["screen"])

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

    def _drill_of(self, workload: Any) -> Any:
        """The drill whose page a workload file is, or ``None``."""
        path = Path(workload.path).resolve()
        return next((d for d in self.drills() if d.workload and Path(d.workload).resolve() == path), None)

    def forget_lists(self) -> None:
        self._summaries = None

    def open_session(self, ref: str) -> None:
        def then() -> None:
            try:
                remark = self.desk.open_session(ref)
            except Exception as error:  # a damaged session is a message, not the end of the app
                if self.sheet is None:
                    self.push_screen(screen("home")())
                self.say(f"session {ref}: {first_line(error)}", BAD)
                return
            self.open("investigate")
            if remark:
                can = "" if self.desk.followed else "this session can be read but not run again: "
                self.say(f"{can}{remark}", WARN)

        self._leave_then(then)

    def open_drill(self, name: str) -> None:
        drill = next((d for d in self.drills() if d.name == name), None)
        if drill is not None:
            self._leave_then(
                lambda: self._put_on_desk(drill_workload(drill), drill, max(self.desk.budget, drill.budget_s))
            )

    def open_workload(self, path: Path) -> None:
        from sparsetui.workload.spec import WorkloadError, load

        try:
            workload = load(path)
        except WorkloadError as error:
            self.say(str(error), BAD)
            return
        self._leave_then(lambda: self._put_on_desk(workload))

    def _put_on_desk(self, workload: Any, drill: Any = None, budget: float | None = None) -> None:
        self.desk.open_workload(workload, drill=drill, budget=budget)
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
            self.go_home()

    def go_home(self) -> None:
        if self.desk.busy:
            self.say(f"{self.desk.busy} is running; x cancels it", WARN)
            return

        def then() -> None:
            self.desk.clear()
            self.forget_lists()
            while len(self.screen_stack) > 2:
                self.pop_screen()
            if type(self.screen) is not screen("home"):
                self.switch_screen(screen("home")())

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

    def start(self, job: str, work: Callable[[FarRunner], object]) -> None:
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

        self.push_screen(Ask("this runs code", outlet.files_to_run(self.desk.workload), "run it"), answered)

    def _launch(self, job: str, work: Callable[[FarRunner], object]) -> None:
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

    def close_case(self) -> None:
        """Ask for the name of who closes, and close."""
        from sparsetui.tui.screens.dialogs import Form
        from sparsetui.tui.screens.owners import need

        def done(values: dict[str, str] | None) -> None:
            if values:
                self.record("closure", "closed", {"by": values["by"]})

        self.push_screen(Form("close this investigation", [("by", "your name", "")], need("by")), done)

    def cancel_run(self) -> None:
        if self.desk.busy:
            self.say("cancelling; what was measured is kept")
            self.run_worker(self.desk.cancel, thread=True, group="cancel", exit_on_error=False)

    def on_seen(self) -> None:
        if self.sheet is not None:
            self.sheet.redraw()

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
        if self.sheet is None:
            return
        if self.desk.busy:
            self.sheet.draw_note()
        elif self.desk.follow():
            getattr(self.sheet, "heard", self.sheet.redraw)()

    def on_ended(self, message: Ended) -> None:
        self.desk.ended(message.job)
        if message.error:
            self.say(message.error, BAD)
        elif message.cancelled:
            self.say(f"{message.job} was cancelled; what was measured is in the session", WARN)
        elif message.job in ("verdict", "investigation") and self.desk.state.result is not None:
            verdict = self.desk.state.result.verdict
            self.say(f"verdict: {verdict.status.replace('_', ' ')}: {verdict.summary}")
        if self.sheet is not None:
            getattr(self.sheet, "ended", self.sheet.redraw)()

    # what leaves the app

    def memo_text(self) -> str:
        """The memo as it would be exported now."""
        from sparsetui.report.memo import render

        return render(self.desk.state)

    def export_memo(self) -> None:
        """The memo as a file in the session's folder; the path is shown."""
        if not self.desk.state.events:
            self.say("nothing has been recorded yet", WARN)
            return
        try:
            path = outlet.write_memo(self.desk, self.memo_text())
        except Exception as error:  # a full disk, a folder that is gone: said, and the app goes on
            self.say(f"the memo could not be written: {first_line(error)}", BAD)
            return
        self.desk.exported = path
        self.say(f"memo written to {path}", OK)
        if self.sheet is not None:
            self.sheet.redraw()

    def yank(self, text: str) -> None:
        """Copy ``text``: to tmux, to the terminal, and always to a file whose path is shown."""
        write = self._driver.write if self._driver is not None and not self.is_headless else None
        try:
            where = outlet.copy(text, write)
        except OSError as error:
            self.say(f"not copied: {first_line(error)}", BAD)
            return
        self.say(f"copied to {', '.join(where)}")

    def shoot(self) -> None:
        """The screen as SVG and as text; both paths are shown."""
        try:
            svg = outlet.write_private(Path.cwd(), "sparsetui", ".svg", self.export_screenshot(title="sparsetui"))
            txt = outlet.write_private(svg.parent, svg.stem, ".txt", self.screen_text())
        except OSError as error:
            self.say(f"the screen could not be saved: {first_line(error)}", BAD)
            return
        self.say(f"screen saved: {svg} and {txt.name}")

    def screen_text(self) -> str:
        """What is on the screen, as plain lines."""
        strips = self.screen._compositor.render_strips(self.size)
        return "\n".join(strip.text.rstrip() for strip in strips) + "\n"

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
        if self.ending:
            return
        self.ending = True
        self.on_ending()
        if self.desk.runner is None and not self.desk.busy and self.watches.now is None:
            self.exit(0)
            return

        def close() -> None:
            try:
                self.watches.close()
                self.desk.close()
            finally:
                self.call_from_thread(self.exit, 0)

        self.run_worker(close, thread=True, group="close", exit_on_error=False)


def drill_workload(drill: Any) -> Any:
    """The workload of a drill, read from its page; nothing of it is run."""
    from sparsetui.workload.spec import load

    return load(drill.workload)
