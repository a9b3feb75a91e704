"""A watch of live processes as the app holds it: its own thread, the newest frozen snapshot, and a clean end.

The observer lives in :mod:`sparsetui.ingest.attach`; what is here only carries its snapshots to the screen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from textual.message import Message

if TYPE_CHECKING:
    from textual.app import App

    from sparsetui.ingest.attach import Cost, Snapshot
    from sparsetui.ingest.samplers.base import OnCommand
    from sparsetui.ingest.samplers.proc import Who


class Observer(Protocol):
    """What the app asks of a :class:`sparsetui.ingest.attach.Watch`."""

    @property
    def targets(self) -> tuple[Who, ...]: ...

    def cost(self) -> Cost: ...
    def start(self) -> None: ...
    def interrupt(self) -> None: ...
    def stop(self) -> None: ...
    def snapshots(self, seconds: float | None = None) -> Iterator[Snapshot]: ...


WatchFactory = Callable[..., Observer]


def default_watch(pids: list[int], **options: Any) -> Observer:
    """The real observer, imported only when something is to be watched."""
    from sparsetui.ingest.attach import Watch

    return Watch(pids, **options)


class Seen(Message):
    """There is a newer snapshot, or the watch is over. Replaces older messages of its kind."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Seen)


class Watching:
    """A watch that can be begun again. ``make`` builds an observer; it is given what to tell of started processes.

    ``last`` is the newest snapshot, ``refused`` why nothing could be seen, ``over`` that the watch has ended, and
    ``commands`` are the processes that the observers started, as the ledger's ``command`` events have them.
    """

    def __init__(
        self,
        make: Callable[[OnCommand], Observer],
        *,
        seconds: float | None = None,
        first: Observer | None = None,
        commands: list[dict[str, Any]] | None = None,
    ) -> None:
        """``first`` is an observer that was made and started already, with the ``commands`` that took."""
        self.make, self.seconds = make, seconds
        self.commands: list[dict[str, Any]] = [] if commands is None else commands
        self.last: Snapshot | None = None
        self.refused = ""
        self._started = first is not None
        self._begun = False
        self._over = threading.Event()
        self.watch = first if first is not None else make(self._told)

    def _told(self, argv: list[str], why: str, pid: int | None) -> None:
        self.commands.append({"argv": argv, "why": why, "pid": pid})

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def begin(self, app: App[Any]) -> None:
        """Watch in a thread; each snapshot is told by :class:`Seen`."""
        self._begun = True
        app.run_worker(lambda: self._run(app), thread=True, group="watch", exit_on_error=False)

    def again(self, app: App[Any]) -> None:
        """Watch the same processes anew. Raises what ``make`` raises, for instance where they have ended."""
        self.watch = self.make(self._told)
        self._started, self.last, self.refused = False, None, ""
        self._over.clear()
        self.begin(app)

    def _run(self, app: App[Any]) -> None:
        try:
            if not self._started:
                self.watch.start()
            for snapshot in self.watch.snapshots(self.seconds):
                self.last = snapshot
                app.post_message(Seen())
        except Exception as error:  # no permission, a sampler that broke: said on the screen, the app goes on
            self.refused = str(error) or type(error).__name__
        finally:
            self._over.set()
            app.post_message(Seen())

    def interrupt(self) -> None:
        """Ask for the end without waiting."""
        self.watch.interrupt()

    def close(self) -> None:
        """End the watch and wait until no observer touches the process any more. Safe to call twice."""
        self.watch.interrupt()
        if self._begun:
            self._over.wait(20)
        else:
            self.watch.stop()
