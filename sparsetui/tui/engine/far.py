"""The app's side of the engine: a runner whose work is done in another process.

The engine writes the session; the app follows its ledger as any second reader does, and hears progress through a socket
pair. So statistics, folding and disk of a run cost the app nothing, and there is one writer.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from sparsetui.evidence.records import Gate, Result
from sparsetui.evidence.text import clean
from sparsetui.runner.api import Cancelled, Listener, Live, Runner, Update
from sparsetui.session.errors import SessionError
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store

CHILD = Path(__file__).with_name("child.py")
PATIENCE = 9.0  # seconds that the engine gets to end itself before it is killed
TAIL = 4096  # bytes of its last words that are read

Section = dict[str, Any]


class EngineError(RuntimeError):
    """What the engine could not do, in one line."""


class FarRunner(Runner):
    """:class:`sparsetui.release.runner.ReleaseRunner` in a process of its own; the same methods, with the same meaning.

    Without a ``workload`` it only records closure in ``session``. Raises :class:`EngineError` where the process cannot be
    started, or refuses: a session that somebody else writes, a folder that cannot be written.
    """

    def __init__(
        self,
        workload: Any,
        store: Store,
        *,
        budget_s: float = 60.0,
        playbook: Any = None,
        listener: Listener | None = None,
        session: str | None = None,
    ) -> None:
        self._listener = listener
        self._live = Live(budget_s=budget_s)
        self._closed = threading.Event()
        self._sending, self._reading, self._calling = threading.Lock(), threading.Lock(), threading.Lock()
        self._answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        self._conn, self.process = self._begin()
        try:
            self._conn.send(
                {"workload": workload, "root": store.root, "readonly": store.readonly, "budget_s": budget_s,
                 "playbook": playbook, "session": session}
            )  # fmt: skip
            kind, said = self._first()
            if kind == "refused":
                raise EngineError(said)
            self._reader = store.open(said)
            self._state = self._reader.state()
        except BaseException:
            self._end()
            raise
        self._thread = threading.Thread(target=self._listen, name="engine-follow", daemon=True)
        self._thread.start()

    def _begin(self) -> tuple[Connection, subprocess.Popen[bytes]]:
        ours, theirs = Pipe()
        try:
            # a session of its own: what the terminal sends to its foreground, or its end, is the app's to pass on
            process = subprocess.Popen(
                [sys.executable, "-P", str(CHILD), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise EngineError(f"a process for the run cannot be started: {error.strerror}") from None
        finally:
            theirs.close()
        return ours, process

    def _first(self) -> tuple[str, str]:
        """``ready`` with the session's folder, or ``refused`` with the reason. Progress that comes before is dropped."""
        try:
            while True:
                kind, *said = self._conn.recv()
                if kind != "live":
                    return str(kind), str(said[0])
        except (EOFError, OSError):
            raise EngineError(self._death()) from None

    def _death(self) -> str:
        """How the process ended, with the last line that it wrote."""
        if self._words.closed:
            return "the process that ran the investigation has been ended"
        try:
            code: int | None = self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            code = None
        how = "does not answer" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        size = self._words.seek(0, 2)
        self._words.seek(max(0, size - TAIL))
        lines = self._words.read().decode("utf-8", "replace").split("\n")
        said = next((clean(x, 200) for x in reversed(lines) if x.strip()), "")
        return f"the process that runs the investigation {how}" + (f": {said}" if said else "")

    # hearing

    def _listen(self) -> None:
        try:
            while True:
                kind, *said = self._conn.recv()
                if kind == "live":
                    self._live = said[0]
                    if said[1] > self._state.events:
                        self._follow()
                    self._tell()
                else:
                    self._follow()
                    self._answers.put((said[0], said[1]))
        except (EOFError, OSError):
            if not self._closed.is_set():
                self._follow()
                self._answers.put(("failed", self._death()))

    def _follow(self) -> None:
        """Read what the engine has written since."""
        with self._reading:
            try:
                self._reader.follow()
                self._state = self._reader.state()
            except SessionError:  # the folder is gone; the engine says so when it next writes
                pass

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener(Update(self._state, self._live))

    # asking

    def _send(self, *message: Any) -> None:
        try:
            with self._sending:
                self._conn.send(message)
        except OSError:
            raise EngineError(self._death()) from None

    def _call(self, name: str, *arguments: Any) -> SessionState:
        """Do it there and wait. Raises :class:`Cancelled`, or :class:`EngineError` with what went wrong."""
        with self._calling:
            self._send("call", name, arguments)
            outcome, why = self._answers.get()
        if outcome == "cancelled":
            raise Cancelled
        if outcome == "failed":
            raise EngineError(why)
        return self._state

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def state(self) -> SessionState:
        return self._state

    def run_all(self) -> Result:
        return self._result(self._call("run_all"))

    def conclude(self) -> Result:
        return self._result(self._call("conclude"))

    @staticmethod
    def _result(state: SessionState) -> Result:
        if state.result is None:
            raise EngineError("the run ended without a result")
        return state.result

    def run_stage(self, stage: str) -> None:
        self._call("run_stage", stage)

    def intervene(self, mechanism: str | None = None) -> None:
        self._call("intervene", mechanism)

    def run_matrix(self, budget_s: float | None = None) -> Section:
        return self._section("matrix", "run_matrix", budget_s)

    def run_replay(self, budget_s: float | None = None) -> Section:
        return self._section("replay", "run_replay", budget_s)

    def run_rehearsal(self, budget_s: float | None = None) -> Section:
        return self._section("rehearsal", "run_rehearsal", budget_s)

    def run_lens(self, budget_s: float | None = None) -> Section:
        return self._section("lens", "run_lens", budget_s)

    def _section(self, name: str, call: str, budget_s: float | None) -> Section:
        body: Section = self._call(call, budget_s).sections.get(name, {})
        return body

    def assign(self, role: str, who: str, source: str = "typed") -> None:
        self._call("assign", role, who, source)

    def waive(self, gate: str, why: str, by: str) -> None:
        self._call("waive", gate, why, by)

    def sign(self, role: str, who: str, note: str = "") -> None:
        self._call("sign", role, who, note)

    def attach(self, role: str, evidence: str, why: str = "") -> None:
        self._call("attach", role, evidence, why)

    def evaluate_gates(self, by: str = "") -> tuple[Gate, ...]:
        return self._call("evaluate_gates", by).gates

    def save_memo(self, text: str) -> Path:
        self._call("save_memo", text)
        return self._reader.path / "memo.md"

    # ending

    def cancel(self) -> None:
        try:
            self._send("cancel")
        except (
            EngineError
        ):  # it has ended: a terminal that closes takes both of us along, and there is nothing left to cancel
            pass

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._end()
        self._thread.join(1.0)
        self._follow()
        self._answers.put(("cancelled", ""))  # whoever still waits for an answer gets one

    def _end(self) -> None:
        """Ask it to leave, and insist. Its workers end with it: their servers hold a socket to it."""
        try:
            with self._sending:
                self._conn.send(("close",))
        except OSError:
            pass
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._conn.close()
        self._words.close()
