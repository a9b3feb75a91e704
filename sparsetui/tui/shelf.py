"""What can be opened: saved sessions, drills, workload files; and putting one on the desk in place of another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetui.tui.look import BAD, WARN
from sparsetui.tui.outlet import first_line
from sparsetui.tui.screens import screen

if TYPE_CHECKING:
    from sparsetui.tui.shell import SparseApp


class Shelf:
    """Lists are read once and kept until :meth:`forget`. Used from the app's thread."""

    def __init__(self, app: SparseApp) -> None:
        self.app = app
        self._summaries: list[Any] | None = None
        self._drills: list[Any] | None = None

    def summaries(self) -> list[Any]:
        """Saved sessions, newest first."""
        if self._summaries is None:
            store = self.app.desk.store
            found = list(store.list()) if store is not None else []
            self._summaries = sorted(found, key=lambda s: str(s.updated or s.created or ""), reverse=True)
        return self._summaries

    def drills(self) -> list[Any]:
        if self._drills is None:
            from sparsetui.workload.drills.catalogue import all_drills

            self._drills = list(all_drills())
        return self._drills

    def drill_of(self, workload: Any) -> Any:
        """The drill whose page a workload file is, or ``None``."""
        path = Path(workload.path).resolve()
        return next((d for d in self.drills() if d.workload and Path(d.workload).resolve() == path), None)

    def forget(self) -> None:
        self._summaries = None

    def open_session(self, ref: str) -> None:
        def then() -> None:
            try:
                remark = self.app.desk.open_session(ref)
            except Exception as error:  # a damaged session is a message, not the end of the app
                if self.app.sheet is None:
                    self.app.push_screen(screen("home")())
                self.app.say(f"session {ref}: {first_line(error)}", BAD)
                return
            self.app.open("investigate")
            if remark:
                can = "" if self.app.desk.followed else "this session can be read but not run again: "
                self.app.say(f"{can}{remark}", WARN)

        self.leave_then(then)

    def open_drill(self, name: str) -> None:
        drill = next((d for d in self.drills() if d.name == name), None)
        if drill is not None:
            self.leave_then(
                lambda: self.put_on_desk(drill_workload(drill), drill, max(self.app.desk.budget, drill.budget_s))
            )

    def open_workload(self, path: Path) -> None:
        from sparsetui.workload.spec import WorkloadError, load

        try:
            workload = load(path)
        except WorkloadError as error:
            self.app.say(str(error), BAD)
            return
        self.leave_then(lambda: self.put_on_desk(workload))

    def put_on_desk(self, workload: Any, drill: Any = None, budget: float | None = None) -> None:
        self.app.desk.open_workload(workload, drill=drill, budget=budget)
        self.app.open("investigate")

    def leave_then(self, then: Callable[[], object]) -> None:
        """Close the session on the desk, without making the screen wait, and go on."""
        if self.app.desk.runner is None:
            then()
            return
        desk = self.app.desk

        def close() -> None:
            desk.close()
            self.app.call_from_thread(then)

        self.app.run_worker(close, thread=True, group="close", exit_on_error=False)


def drill_workload(drill: Any) -> Any:
    """The workload of a drill, read from its page; nothing of it is run."""
    from sparsetui.workload.spec import load

    return load(drill.workload)
