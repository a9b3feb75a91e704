"""Where the app begins: the terminal is checked, the session opened, and an exit code comes back."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from sparsetui.evidence.text import clean
from sparsetui.tui import terminal
from sparsetui.tui.desk import RunnerFactory
from sparsetui.tui.driver import PromptDriver
from sparsetui.tui.outlet import first_line
from sparsetui.tui.shell import SparseApp
from sparsetui.tui.watching import Watching

__all__ = ["SparseApp", "run"]

PATIENCE = 10.0  # seconds that a run gets to save itself before the process ends without it


class LastResort:
    """The end of the interpreter waits for threads; a run that cannot be stopped must not keep the terminal for that."""

    def __init__(self) -> None:
        self._timer = threading.Timer(PATIENCE, self._leave)
        self._timer.daemon = True

    def start(self) -> None:
        self._timer.start()

    def stand_down(self) -> None:
        self._timer.cancel()

    @staticmethod
    def _leave() -> None:
        try:
            os.write(1, terminal.RESTORE.encode())
        except OSError:  # the terminal is gone
            pass
        os._exit(130)


def run(
    *,
    store: Any = None,
    session: str | None = None,
    workload: Any = None,
    drill: Any = None,
    watching: Watching | None = None,
    playbook: Any = None,
    budget: float = 60.0,
    readonly: bool = False,
    mouse: bool = False,
    color: bool = True,
    unicode: bool = True,
    runner_factory: RunnerFactory | None = None,
    screen: str | None = None,
) -> int:
    """Run the app and return the exit code of the contract: 0, 1, 2, 3 or 130.

    ``store`` is a session store, its folder, or ``None`` for the default one; ``workload`` a path or a loaded workload;
    ``drill`` a name or a drill, ``watching`` a watch to begin with: its last snapshot is the caller's to report; ``screen``
    the screen to open on top.
    Without a terminal nothing is drawn: one line on stderr names the flag to use, and 2
    is returned.
    """
    why = terminal.why_no_terminal()
    if why is not None:
        _say(f"{why}, so the app cannot run; use --headless")
        return 2
    if not color:
        os.environ["NO_COLOR"] = "1"  # Textual reads it when the app is made, not later
    start: dict[str, Any] = {}
    try:
        if store is None:
            from sparsetui.session.store import Store, default_root

            store = Store(default_root(), readonly)
        elif isinstance(store, (str, Path)):
            from sparsetui.session.store import Store

            store = Store(Path(store), readonly)
        if session is not None:
            store.open(session).state()
            start = {"session": session}
        elif watching is not None:
            start = {"watching": watching}
        elif workload is not None:
            start = {"workload": _as_workload(workload)}
        elif drill is not None:
            start = {"drill": _as_drill(drill)}
    except Exception as error:  # a bad file, an unknown or damaged session: one line, no traceback
        _say(first_line(error))
        return 2
    app = SparseApp(
        store,
        start={**start, "screen": screen} if screen else start,
        runner_factory=runner_factory,
        playbook=playbook,
        budget=budget,
        readonly=readonly,
        unicode=unicode,
        depth=terminal.colour_depth(),
        light=terminal.light_background(),
        driver=PromptDriver,
    )
    last_resort = LastResort()
    app.on_ending = last_resort.start
    crashed = True
    gc.freeze()  # what has been imported stays: each time the collector walked it, a key waited for some 30 ms
    try:
        app.run(mouse=mouse)
        crashed = app.return_code not in (0, None) and not app.ending
    finally:
        app.watches.close()
        app.desk.close()  # also after a crash of our own: the session is saved and no worker outlives the app
        last_resort.stand_down()
    where = reopened(app.desk.last)
    if app.ended_by is not None:
        _say("; ".join((f"ended by {signal.Signals(app.ended_by).name}", *where)))
        return 130
    if crashed:
        _say("; ".join(("the app stopped on a fault of its own", *where)))
        return 3
    if app.interrupted:
        _say("; ".join(("the run was interrupted", *where)))
        return 130
    if where:
        _say("; ".join(where))
    return app.desk.exit_code


def reopened(folder: Path | None) -> tuple[str, ...]:
    """What to say of the session that was last on the desk: that it is saved, and the command that opens it again."""
    if folder is None:
        return ()
    import shlex

    from sparsetui.session.store import default_root

    known = default_root().resolve() == folder.resolve().parent
    ref = shlex.quote(folder.name if known else str(folder))
    return f"session {clean(folder.name)} is saved", clean(f"sparsetui sessions open {ref} opens it again", 400)


def _say(text: str) -> None:
    try:
        print(f"sparsetui: {text}", file=sys.stderr, flush=True)
    except OSError:  # the terminal is gone, and nobody reads it
        pass


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
