"""The shell of the app: one desk, a stack of screens, jobs in threads, and a clean end whatever happens."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from textual._context import visible_screen_stack
from textual.app import App
from textual.binding import Binding
from textual.reactive import Reactive

from sparsetui.tui import look, outlet, terminal
from sparsetui.tui.desk import Desk, Ended, RunnerFactory
from sparsetui.tui.look import BAD, WARN
from sparsetui.tui.screens import screen
from sparsetui.tui.share import Share
from sparsetui.tui.shelf import Shelf, drill_workload
from sparsetui.tui.watches import Watches
from sparsetui.tui.watching import WatchFactory

if TYPE_CHECKING:
    from textual.driver import Driver

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
    ansi_theme_dark = Reactive(look.DARK_INK, init=False)
    ansi_theme_light = Reactive(look.LIGHT_INK, init=False)
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
        driver: type[Driver] | None = None,
    ) -> None:
        native = depth in ("none", "16")
        super().__init__(driver_class=driver, ansi_color=native)
        self.unicode = unicode
        self.depth = depth
        self.animation_level = "none"
        # what is told stands on the message line: no screen needs Textual's two own widgets, and each screen would style them
        self._disable_tooltips = self._disable_notifications = True
        if depth in _SYSTEMS:
            self.console._color_system = _SYSTEMS[depth]
        self.register_theme(look.DARK)
        self.register_theme(look.LIGHT)
        self.theme = look.TERMINAL if native else look.LIGHT.name if light else look.DARK.name
        self.desk = Desk(
            self, store, runner_factory, playbook=playbook, budget=budget, readonly=readonly, prepare=prepare
        )
        self.watches = Watches(self, watch_factory)
        self.shelf = Shelf(self)
        self.share = Share(self)
        self._start = start or {}
        self._run_began = 0.0
        self._painted_at = 0.0
        self._paint_due = False
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
            self.shelf.open_session(self._start["session"])
        elif "workload" in self._start:
            workload = self._start["workload"]
            self.shelf.put_on_desk(workload, self.shelf.drill_of(workload))
        elif "watching" in self._start:
            self.watches.show(self._start["watching"])
        elif "drill" in self._start:
            self.shelf.put_on_desk(drill_workload(self._start["drill"]), self._start["drill"])
        else:
            self.push_screen(screen("home")())
        if "screen" in self._start:
            self.open(self._start["screen"])

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
            self.shelf.forget()
            while len(self.screen_stack) > 2:
                self.pop_screen()
            if type(self.screen) is not screen("home"):
                self.switch_screen(screen("home")())

        self.shelf.leave_then(then)

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
            self.sheet.heard()

    def _tick(self) -> None:
        if self.sheet is None:
            return
        if self.desk.busy:
            self.sheet.draw_note()
        elif self.desk.follow():
            self.sheet.heard()

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

    # the screen as text

    def screen_text(self) -> str:
        """What is on the screen, as plain lines; behind a dialog the screen that it stands before."""
        visible_screen_stack.set(self._background_screens)
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
