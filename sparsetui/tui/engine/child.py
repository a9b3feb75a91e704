"""The engine's own process: it runs what the app asks for, writes the session, and tells how far it is.

``child.py FD``: ``FD`` is one end of a socket pair whose other end the app holds. The order comes first; then ``call``,
``cancel`` and ``close``. Out go ``ready`` or ``refused``, ``live`` (progress, and how many events the ledger has), and one
``ended`` a call. Whatever ends the app closes its end, and that cancels the run, saves the session and ends the workers.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # started as a file, so that no folder of the user's is searched for modules
    _ROOT = str(Path(__file__).parents[3])
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from sparsetui.runner.api import Update

PATIENCE = 8.0  # seconds for a run to save itself once the app is gone; less than the app's own last resort
Message = tuple[Any, ...]


class Mouth:
    """Says things to the app from a thread of its own: a stopped app must not stop a clock. Of ``live`` only the newest waits."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._lock = threading.Condition()
        self._live: Message | None = None
        self._waiting: list[Message] = []
        self._busy = False
        threading.Thread(target=self._run, name="engine-mouth", daemon=True).start()

    def hear(self, update: Update) -> None:
        """The runner's listener."""
        with self._lock:
            self._live = ("live", update.live, update.state.events)
            self._lock.notify()

    def say(self, *message: Any) -> None:
        with self._lock:
            self._waiting.append(message)
            self._lock.notify()

    def flush(self, seconds: float) -> None:
        """Wait until all that was to be said has been sent, or nobody takes it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._lock:
                if not (self._waiting or self._live or self._busy):
                    return
            time.sleep(0.01)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                while self._live is None and not self._waiting:
                    self._lock.wait()
                # progress goes first: what is told after the end of a call would be of the next one
                if self._live is not None:
                    message, self._live = self._live, None
                else:
                    message = self._waiting.pop(0)
                self._busy = True
            try:
                self._conn.send(message)
            except OSError:  # the app is gone; its silence ends the engine
                return


class Clerk:
    """Records closure in a session whose workload is not needed for it: the closing half of a runner, without a lab."""

    def __init__(self, store: Any, session: str) -> None:
        self.writer = store.writer(session)

    def assign(self, role: str, who: str, source: str = "typed") -> None:
        self.writer.append("owner", {"role": role, "who": who, "source": source})

    def waive(self, gate: str, why: str, by: str) -> None:
        from sparsetui.release import closing

        closing.waive(self.writer, gate, why, by)

    def sign(self, role: str, who: str, note: str = "") -> None:
        self.writer.append("signoff", {"role": role, "who": who, "note": note})

    def attach(self, role: str, evidence: str, why: str = "") -> None:
        self.writer.append("artifact", {"role": role, "evidence": evidence, "why": why})

    def evaluate_gates(self, by: str = "") -> None:
        from sparsetui.release import closing

        closing.evaluate(self.writer, by)

    def cancel(self) -> None:
        """Nothing of a clerk's takes long."""

    def close(self) -> None:
        self.writer.close()


def make(order: dict[str, Any], mouth: Mouth) -> Any:
    """The runner that was ordered, or a clerk where no workload came with the order."""
    from sparsetui.session.store import Store

    store = Store(order["root"], order["readonly"])
    if order["workload"] is None:
        return Clerk(store, order["session"])
    from sparsetui.release.runner import ReleaseRunner

    options = {k: order[k] for k in ("budget_s", "playbook", "session")}
    runner = ReleaseRunner(order["workload"], store, listener=mouth.hear, **options)
    runner.journal.command({"argv": sys.orig_argv, "why": "run the investigation beside the app", "pid": os.getpid()})
    return runner


class Engine:
    """One runner and its calls, in the main thread; what interrupts them is heard in another."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.mouth = Mouth(conn)
        self.calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self.leaving = threading.Event()
        self.runner: Any = None

    def serve(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self.leave())
        order = self.conn.recv()
        try:
            self.runner = make(order, self.mouth)
        except Exception as error:  # a session that is locked, a full disk: one line for the app
            self.mouth.say("refused", _line(error))
            self.mouth.flush(2.0)
            return
        self.mouth.say("ready", str(self.runner.writer.path))
        threading.Thread(target=self._listen, name="engine-ears", daemon=True).start()
        try:
            while (call := self.calls.get()) is not None and not self.leaving.is_set():
                self.mouth.say("ended", *self._do(*call))
        finally:
            self.runner.close()
            self.mouth.flush(1.0)

    def _do(self, name: str, arguments: tuple[Any, ...]) -> tuple[str, str]:
        from sparsetui.runner.api import Cancelled

        try:
            getattr(self.runner, name)(*arguments)
        except Cancelled:
            return "cancelled", ""
        except Exception as error:  # a fault of one run; the session and the engine go on
            return "failed", _line(error)
        return "done", ""

    def _listen(self) -> None:
        try:
            while (message := self.conn.recv())[0] != "close":
                if message[0] == "cancel":
                    self.runner.cancel()
                else:
                    self.calls.put((message[1], message[2]))
        except (EOFError, OSError):  # the app is gone, in whatever way
            pass
        self.leave()

    def leave(self) -> None:
        """Cancel whatever runs, again and again since a run that is just beginning forgets it, and end."""
        if self.leaving.is_set():
            return
        self.leaving.set()
        self.calls.put(None)
        threading.Thread(target=self._insist, name="engine-end", daemon=True).start()

    def _insist(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.runner is not None:
                self.runner.cancel()
            time.sleep(0.1)
        os._exit(130)


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def main() -> None:
    from multiprocessing.connection import Connection

    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)  # no worker may keep the app from seeing the engine's end
    Engine(Connection(fd)).serve()


if __name__ == "__main__":
    main()
