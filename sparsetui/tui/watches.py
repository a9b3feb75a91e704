"""Watching from the app: which processes there are, what a watch would cost, the one that goes on, and keeping it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparsetui.tui.look import BAD, OK, WARN
from sparsetui.tui.outlet import first_line
from sparsetui.tui.watching import WatchFactory, Watching, default_watch

if TYPE_CHECKING:
    from sparsetui.tui.screens.processes import Process
    from sparsetui.tui.shell import SparseApp


class Watches:
    """``now`` is the watch on the screen, going on or over. Used from the app's thread."""

    def __init__(self, app: SparseApp, factory: WatchFactory | None = None) -> None:
        self.app = app
        self.factory = factory or default_watch
        self.now: Watching | None = None

    def processes(self) -> Sequence[Process]:
        from sparsetui.tui.screens.processes import running

        return running()

    def offer(self, pids: list[int]) -> None:
        """Say what watching will cost; the person decides."""
        from sparsetui.tui.screens.dialogs import Ask

        try:
            watching = Watching(lambda told: self.factory(pids, on_command=told))
        except Exception as error:  # it has ended meanwhile, or a rule file is broken
            self.app.say(first_line(error), WARN)
            return
        lines = [f"{w.pid}  {w.cmdline}" for w in watching.watch.targets]
        lines += ["", "It is watched from outside: nothing in it is changed.", watching.watch.cost().text]

        def answered(yes: bool | None) -> None:
            if yes:
                self.show(watching)

        self.app.push_screen(Ask("watch a running process", lines, "watch it"), answered)

    def show(self, watching: Watching) -> None:
        """Begin a watch, on the screen."""
        self.now = watching
        watching.begin(self.app)
        self.app.open("watch")

    def again(self) -> None:
        if self.now is None:
            return
        try:
            self.now.again(self.app)
        except Exception as error:  # the process has ended
            self.app.say(first_line(error), WARN)
            return
        if self.app.sheet is not None:
            self.app.sheet.redraw()

    def leave(self) -> None:
        """Stop watching and go back; where the app was opened to watch, that is its end."""
        if len(self.app.screen_stack) <= 2:
            self.app.ask_quit()
            return
        if self.now is not None:
            self.app.run_worker(self.now.close, thread=True, group="close", exit_on_error=False)
            self.now = None
        self.app.pop_screen()

    def keep(self, ref: str) -> None:
        """Add what was seen to the session ``ref``, or to a new one."""
        from sparsetui.ingest.keep import keep

        if self.now is None or self.now.last is None:
            return
        try:
            kept, id = keep(self.app.desk.store, ref, self.now.last, self.now.commands)
        except Exception as error:  # no such session, another writer, a full disk
            self.app.say(f"not kept: {first_line(error)}", BAD)
            return
        self.app.shelf.forget()
        self.app.say(f"kept as {kept.id} in session {id}", OK)

    def close(self) -> None:
        """End the watch, if one goes on, and wait for that. Safe to call twice and from any thread."""
        if self.now is not None:
            self.now.close()
