"""The desk: the one session that is open, the runner that writes it, and the newest snapshot of both.

The runner works in a worker thread and calls :meth:`Desk.hear` with immutable updates. Bursts coalesce: at most one
message is under way, and the app repaints at most four times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from textual.message import Message

from sparsetui.runner.api import Cancelled, Live, Update
from sparsetui.session.state import SessionState
from sparsetui.tui.guide import verdict_of

if TYPE_CHECKING:
    from textual.app import App

    from sparsetui.evidence.records import Result
    from sparsetui.tui.engine.far import FarRunner

RunnerFactory = Callable[..., "FarRunner"]


class Heard(Message):
    """There is a newer snapshot on the desk. Replaces older messages of its kind."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Heard)


class Ended(Message):
    """A job came to its end: ``error`` is ``None``, or one line of what went wrong."""

    def __init__(self, job: str, error: str | None, cancelled: bool) -> None:
        super().__init__()
        self.job = job
        self.error = error
        self.cancelled = cancelled


def default_factory(workload: Any, store: Any, **options: Any) -> FarRunner:
    """The real runner, in a process of its own; imported only when something is to be run."""
    from sparsetui.tui.engine.far import FarRunner

    return FarRunner(workload, store, **options)


def train_drills(say: Callable[[str], None]) -> None:
    """Train the model that the drills run on, unless it is in the cache; takes seconds the first time."""
    from sparsetui.workload.drills.catalogue import prepare

    prepare(say)


class Desk:
    """``workload`` is what would be run (typed), ``state`` and ``live`` what is known. Used from the app's thread."""

    def __init__(
        self,
        app: App[Any],
        store: Any,
        factory: RunnerFactory | None = None,
        *,
        playbook: Any = None,
        budget: float = 60.0,
        readonly: bool = False,
        prepare: Callable[[Callable[[str], None]], object] | None = None,
    ) -> None:
        self.app = app
        self.prepare = prepare or train_drills
        self.store = store
        self.factory = factory or default_factory
        self.playbook = playbook
        self.budget = budget
        self.readonly = readonly
        self._lock = threading.Lock()
        self._posted = False
        self._runner_lock = threading.Lock()
        self._last: Path | None = None
        self.state = SessionState()
        self.ref: str | None = None
        self.clear()

    def clear(self) -> None:
        """Nothing on the desk. The runner, if any, must have been closed."""
        self._last = self.last
        self.workload: Any = None
        self.title = ""
        self.drill: Any = None
        self.ref = None
        self.state = SessionState()
        self.live = Live(budget_s=self.budget)
        self.runner: FarRunner | None = None
        self.busy: str | None = None
        self.cannot_run: str | None = "no workload is open"
        self.tried: set[str] = set()
        self.attempted: set[str] = set()
        self.extended = False
        self._spent_runner: FarRunner | None = None
        self.exported: Path | None = None
        self.consented = False
        self.log: list[str] = []
        self._closing = False
        self._unwanted = False  # cancelled while its runner was being made
        self._reader: Any = None
        self.last_job = ""
        self.followed = ""  # the other process that writes the open session

    # opening

    def open_workload(self, workload: Any, *, drill: Any = None, budget: float | None = None) -> None:
        """Put a workload (of a file or of a drill) on the desk; nothing of it is run yet."""
        self.clear()
        self.live = Live(budget_s=budget or self.budget)
        self.workload = workload
        self.drill = drill
        self.title = str(getattr(drill, "title", "") or getattr(workload, "name", "workload"))
        self.consented = drill is not None  # a drill is our own code
        self.cannot_run = None

    def open_session(self, ref: str) -> str | None:
        """Put a saved session on the desk; returns a remark when it can be read but not continued."""
        self.clear()
        self._reader = self.store.open(ref)
        self.state = state = self._reader.state()
        self.ref = str(self._reader.path)  # also right for a session outside the store's folder
        self.title = state.title or state.workload or state.id
        self.workload, self.cannot_run = self._workload_of(state)
        self._see_writer(self._reader.writing)
        return self.cannot_run

    def _see_writer(self, writer: str) -> None:
        """Another process writes the session: nothing is run here, and its phase is shown as it goes on."""
        self.followed = writer
        if writer:
            self.cannot_run = f"{writer} writes this session; it is followed here"
        last = self.state.phases[-1] if self.state.phases else None
        if writer and last is not None and last.state == "started":
            self.live = Live(True, last.stage, last.name, last.note, budget_s=self.budget)
        else:
            self.live = Live(budget_s=self.budget)

    def follow(self) -> bool:
        """Take what another process has written since; whether there was anything."""
        if self._reader is None or self.runner is not None or self.busy:
            return False
        try:
            fresh, writer = bool(self._reader.follow()), self._reader.writing
        except Exception as error:  # the folder may be gone or damaged by now; what is known stays on the screen
            self.cannot_run = f"the session can no longer be read: {error}"
            return False
        if not fresh and writer == self.followed:
            return False
        was, self.state = self.followed, self._reader.state()
        if was and not writer:
            self.workload, self.cannot_run = self._workload_of(self.state)
        self._see_writer(writer)
        return True

    def _workload_of(self, state: SessionState) -> tuple[Any, str | None]:
        """The workload a saved session ran, or why it cannot be run again here."""
        path = state.spec.get("path") or (state.spec.get("spec") or {}).get("path")
        if not path:
            return None, "this session names no workload file"
        from sparsetui.workload.spec import WorkloadError, load

        try:
            return load(str(path)), None
        except WorkloadError as error:
            return None, f"its workload cannot be read: {error}"

    def reload(self) -> None:
        """Read the session again from disk, unless we are the one who writes it."""
        if self.runner is None and self.ref is not None:
            self.open_session(self.ref)

    @property
    def is_open(self) -> bool:
        return self.workload is not None or self.ref is not None

    @property
    def folder(self) -> Path | None:
        """The folder of the session, where it has one."""
        where = self.ref or self.state.id
        return Path(self.store.open(where).path) if where and self.store is not None else None

    @property
    def last(self) -> Path | None:
        """The folder of the session that is open, or that was before; ``None`` where none has been."""
        where = self.ref or self.state.id
        if not where or self.store is None:
            return self._last
        try:
            return Path(self.store.find(where))
        except Exception:  # it was removed meanwhile
            return None

    @property
    def verdict(self) -> Result | None:
        """The result, once it is one: see :func:`sparsetui.tui.guide.verdict_of`."""
        return verdict_of(self.state, self.attempted)

    # running

    def why_not_run(self) -> str | None:
        """Why nothing can be run now, or ``None``."""
        if self.readonly:
            return "opened read-only"
        if self.busy:
            return f"{self.busy} is running; x cancels it"
        return self.cannot_run

    def extend(self) -> None:
        """The next job gets a fresh budget: a new runner goes on with the session of the one whose budget is spent."""
        self.extended = True
        self._spent_runner, self.runner = self.runner, None
        self.live = msgspec.structs.replace(self.live, budget_s=max(self.budget, self.live.budget_s), spent_s=0.0)

    def start(self, job: str, work: Callable[[FarRunner], object]) -> None:
        """Do ``work`` in a worker thread; its end is told by :class:`Ended`."""
        assert self.busy is None, "one job at a time"
        self.busy, self._unwanted = job, False
        self.live = msgspec.structs.replace(self.live, running=True, phase=job, message="", progress=None, eta_s=None)
        self.app.run_worker(lambda: self._do(job, work), thread=True, group="runner", exit_on_error=False)

    def start_record(self, job: str, kind: str, body: dict[str, Any]) -> None:
        """Write a closure event in a worker thread; its end is told by :class:`Ended`."""
        assert self.busy is None, "one job at a time"
        self.busy = job
        work = lambda: self._guard(job, lambda: self.record(kind, body))  # noqa: E731
        self.app.run_worker(work, thread=True, group="runner", exit_on_error=False)

    def _do(self, job: str, work: Callable[[FarRunner], object]) -> None:
        self._guard(job, lambda: work(self._runner()))

    def _guard(self, job: str, work: Callable[[], object]) -> None:
        """In the worker thread: do it, and tell how it ended."""
        error: str | None = None
        cancelled = False
        try:
            work()
        except Cancelled:
            cancelled = True
        except Exception as caught:  # a fault of a run must not take the app and its session with it
            first = (str(caught) or type(caught).__name__).splitlines()[0]
            error = f"{job}: {first}"
        self.app.post_message(Ended(job, error, cancelled))

    def record(self, kind: str, body: dict[str, Any]) -> None:
        """Have a runner write one closure event, in a worker thread: the one that holds the session, else one for this alone.

        ``kind`` is owner, artifact, waiver, signoff or closed. Closing ends the runner: nothing runs after it.
        """
        runner = self.runner
        if runner is None:
            with self._runner_lock:
                if self._closing:
                    raise Cancelled
                runner = default_factory(None, self.store, session=self.ref)
        try:
            if kind == "owner":
                runner.assign(body["role"], body["who"], body.get("source", "typed"))
            elif kind == "artifact":
                runner.attach(body["role"], body["evidence"], body.get("why", ""))
            elif kind == "waiver":
                runner.waive(body["gate"], body["why"], body["by"])
            elif kind == "signoff":
                runner.sign(body["role"], body["who"], body.get("note", ""))
            elif kind == "closed":
                runner.evaluate_gates(body["by"])
        finally:
            if runner is not self.runner or kind == "closed":
                runner.close()
                self.state, self.runner = runner.state(), None
                self._reader = self.store.open(self.ref)

    def _runner(self) -> FarRunner:
        with self._runner_lock:
            if self._spent_runner is not None:
                self._spent_runner.close()
                self._spent_runner = None
            if self.runner is not None and not getattr(self.runner, "alive", True):  # killed; the next one resumes
                self.runner.close()
                self.runner = None
            if self.runner is None:
                if self.drill is not None:
                    self.prepare(self._narrate)
                self._go_on()
                self.runner = self.factory(
                    self.workload,
                    self.store,
                    budget_s=self.live.budget_s,
                    playbook=self.playbook,
                    listener=self.hear,
                    session=self.ref,
                )
                self.ref = self.ref or self.runner.state().id
                if self._closing:  # who closed the desk meanwhile saw no runner to close
                    self.runner.close()
            self._go_on()
            return self.runner

    def _go_on(self) -> None:
        """Raises :class:`Cancelled` where the person has left, or does not want it any more, before anything ran."""
        if self._closing or self._unwanted:
            raise Cancelled

    def _narrate(self, text: str) -> None:
        """What goes on before there is a runner: the training of a drill's model."""
        with self._lock:
            self.live = msgspec.structs.replace(self.live, message=text)
        self.app.post_message(Heard())

    def hear(self, update: Update) -> None:
        """The runner's listener; called from its thread, often."""
        with self._lock:
            self.state, self.live = update.state, update.live
            if self._posted:
                return
            self._posted = True
        self.app.post_message(Heard())

    def newest(self) -> tuple[SessionState, Live]:
        """The newest snapshot; the next update posts a message again."""
        with self._lock:
            self._posted = False
            return self.state, self.live

    def ended(self, job: str) -> None:
        """After :class:`Ended`: take the runner's last word."""
        self.last_job = job
        self.busy = None
        if self.runner is not None:
            self.state = self.runner.state()
            self.ref = self.ref or self.state.id
        self.live = msgspec.structs.replace(self.live, running=False, phase="", message="", progress=None, eta_s=None)

    def cancel(self) -> None:
        """Stop what runs; also what is about to."""
        self._unwanted = True
        if self.runner is not None and self.busy:
            self.runner.cancel()

    def close(self) -> None:
        """End the run and the runner; safe to call twice and from any thread."""
        self._closing = True
        if self._spent_runner is not None:
            self._spent_runner.close()
        if self.runner is not None:
            if self.busy:
                self.runner.cancel()
            self.runner.close()

    @property
    def exit_code(self) -> int:
        """0 no fault, 1 fault, 3 cannot answer; 0 where nothing was asked."""
        result = self.state.result
        if result is None:
            return 0
        return {"fault": 1, "no_fault": 0, "cannot_answer": 3}[result.verdict.status]
