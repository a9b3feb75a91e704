"""How the rest of the tool runs the user's code: a :class:`Server` a variant, and short-lived :class:`Replica` of it.

::

    with Server(Launch(folder=Path("/srv/ranker"), label="failing"), scratch) as server:
        replica = server.spawn({"entry": "serving.py:build", "folder": "/srv/ranker", "inputs": {"shape": [8, 512]}})
        built = replica.call("build", deadline_s=120)

A call answers with the verb's dict or raises :class:`~sparsetui.worker.faults.WorkerFault`. It never hangs: it has a
deadline, and the death of any process involved is noticed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sparsetui
from sparsetui.evidence.text import clean
from sparsetui.worker import scratch
from sparsetui.worker.faults import CallCancelled, Fault, WorkerFault, signal_name
from sparsetui.worker.link import Link
from sparsetui.worker.memory import default_ceiling
from sparsetui.worker.replica import Replica

__all__ = ["CallCancelled", "Fault", "Launch", "Replica", "Server", "WorkerFault"]

_BOOTSTRAP = Path(sparsetui.__file__).parent / "worker" / "child" / "bootstrap.py"
_HELLO_S = 30.0  # for a bare interpreter to start, its sitecustomize included
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

OnCommand = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Launch:
    """What a variant runs under.

    ``python`` is the service's interpreter (``None``: the tool's own); ``env`` is laid over the tool's environment;
    ``threads`` sets the thread variables and ``torch.set_num_threads``; ``folder`` is the working directory and what
    entries are relative to; ``memory_bytes`` bounds one replica with its descendants (``None``: 80 % of the memory
    that is available when the server starts).
    """

    folder: Path
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    memory_bytes: int | None = None
    label: str = ""

    def environment(self) -> dict[str, str]:
        """The server's whole environment."""
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if self.threads:
            env.update(dict.fromkeys(_THREAD_VARIABLES, str(self.threads)))
        env.update(self.env)
        return env


class Server:
    """A warm fork server in the variant's interpreter. A context manager; :meth:`close` leaves no process behind, and
    so does losing the last reference, the end of this process, and even its ``kill -9``.

    ``scratch`` is a folder for bulk data, one subfolder a replica; who made it removes it. ``on_command`` hears of each
    process as ``{argv, why, pid}``.
    """

    def __init__(self, launch: Launch, scratch: str | Path, on_command: OnCommand | None = None) -> None:
        self.launch = launch
        self.scratch = Path(scratch)
        self.memory_bytes = launch.memory_bytes or 0
        self.versions: dict[str, Any] = {}  # python, executable, torch, numpy: what ready told
        self._on_command = on_command
        self._unhold: Callable[[], Any] | None = None  # gives up the claim on the scratch folder, once
        self._link: Link | None = None
        self._finalizer: Callable[[], Any] | None = None
        self._replicas: weakref.WeakSet[Replica] = weakref.WeakSet()

    @property
    def pid(self) -> int | None:
        return self._link.process.pid if self._link else None

    def start(self, deadline_s: float = 180.0, cancel: threading.Event | None = None) -> Server:
        """Start the interpreter and import torch there; returns ``self``.

        Raises :class:`WorkerFault` of kind ``launch`` (one line that names the interpreter) or
        :class:`CallCancelled`.
        """
        began = time.monotonic()
        python = self._interpreter()
        self.memory_bytes = self.launch.memory_bytes or default_ceiling()
        argv = [python, str(_BOOTSTRAP)]
        self._claim(began)
        try:
            link = Link(argv, self.launch.environment(), str(self.launch.folder))
        except (OSError, ValueError) as why:
            text = why.strerror if isinstance(why, OSError) and why.strerror else str(why)
            raise self._fault(f"{python} cannot be started: {text}", began) from None
        self._link = link
        self._finalizer = weakref.finalize(self, link.shutdown)
        self._announce(argv, f"start the {self.launch.label or 'worker'} fork server", link.process.pid)
        try:
            self._await_ready(link, python, began, deadline_s, cancel)
        except BaseException:
            self.close(0.5)
            raise
        return self

    def _claim(self, began: float) -> None:
        """Hold the scratch folder, and remove those that killed owners left beside it."""
        if not self.scratch.name.startswith(scratch.PREFIX):
            return
        try:
            self._unhold = weakref.finalize(self, os.close, scratch.hold(self.scratch))
        except OSError as why:
            raise self._fault(f"the scratch folder {self.scratch} cannot be made: {why.strerror}", began) from None
        scratch.sweep(self.scratch.parent)

    def _interpreter(self) -> str:
        wanted = self.launch.python
        if wanted is None:
            return sys.executable
        if os.sep in wanted:
            path = str(self.launch.folder / Path(wanted).expanduser())
            if not os.path.isfile(path):
                raise self._fault(f"{path} does not exist or is no file", time.monotonic())
            if not os.access(path, os.X_OK):
                raise self._fault(f"{path} is not executable", time.monotonic())
            return path
        found = shutil.which(wanted)
        if found is None:
            raise self._fault(f"{wanted} is not on the PATH", time.monotonic())
        return found

    def _await_ready(
        self, link: Link, python: str, began: float, deadline_s: float, cancel: threading.Event | None
    ) -> None:
        while True:
            with link.changed:
                if link.ready is None and link.launch_error is None and not link.ended.is_set():
                    link.changed.wait(0.05)
            spent = time.monotonic() - began
            if link.launch_error is not None:
                raise self._fault(f"{python}: {link.launch_error}", began)
            if link.ready is not None:
                self.versions = {k: v for k, v in link.ready.items() if k != "event"}
                return
            if link.ended.is_set():
                raise self._fault(self._died_starting(link, python), began)
            if cancel is not None and cancel.is_set():
                raise CallCancelled("the start was cancelled")
            if link.hello is None and spent > min(_HELLO_S, deadline_s):
                raise self._fault(f"{python} did not start Python within {spent:.0f} s; is it an interpreter?", began)
            if spent > deadline_s:
                raise self._fault(f"{python} did not finish importing torch within {deadline_s:.0f} s", began)

    def _died_starting(self, link: Link, python: str) -> str:
        try:
            code = link.process.wait(2.0)
        except subprocess.TimeoutExpired:
            return f"{python} closed its control socket and runs on; a sitecustomize or .pth file may do that"
        how = f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
        link.settle()
        lines = [line for line in (link.err.tail() or link.out.tail()).splitlines() if line.strip()]
        said = f": {lines[-1].strip()}" if lines else ""
        if link.hello is not None:
            return f"{python} died while importing torch ({how}){said}"
        return f"{python} did not come up as a Python interpreter ({how}){said}"

    def _fault(self, text: str, began: float) -> WorkerFault:
        out = err = ""
        if self._link is not None:
            self._link.settle()
            out, err = self._link.out.tail(), self._link.err.tail()
        return WorkerFault(
            Fault(
                kind="launch",
                message=clean(text, 600),
                stdout_tail=out,
                stderr_tail=err,
                seconds=time.monotonic() - began,
                label=self.launch.label,
            )
        )

    def spawn(self, spec: Mapping[str, Any], deadline_s: float = 30.0) -> Replica:
        """Fork a replica.

        ``spec``: ``entry`` (``path.py:callable`` or ``package.module:callable``), ``folder`` (absolute), ``inputs``
        (``{"entry": …}`` or ``{"shape": [8, 512], "dtype": "float32", "seed": 0}``), ``role``, optionally ``derive``
        (``"dense"``) and ``verbs`` (``module:NAME`` of a table of verbs, for tests). ``threads`` and ``folder`` default
        to those of the launch. Raises :class:`WorkerFault`.
        """
        began = time.monotonic()
        link = self._link
        if link is None or link.ended.is_set():
            raise self._fault("the fork server is not running", began)
        full: dict[str, Any] = {"folder": self.launch.folder, "threads": self.launch.threads, **spec}
        full["folder"] = os.fspath(full["folder"])
        replica = Replica(link, self.memory_bytes, str(spec.get("role") or self.launch.label))
        own = self.scratch / f"replica-{link.process.pid}-{replica.token}"
        try:
            own.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as why:
            raise self._fault(f"the scratch folder {own} cannot be made: {why.strerror}", began) from None
        replica.open(full, str(own), deadline_s)
        self._replicas.add(replica)
        self._announce(["fork", str(full.get("entry", ""))], f"run {full.get('entry', '')} in a replica", replica.pid)
        return replica

    def warm(self, modules: list[str]) -> None:
        """Import parts of torch in the server once, which otherwise each replica imports for itself."""
        if self._link is not None and not self._link.ended.is_set():
            with contextlib.suppress(OSError):  # a server that just died is told of by its next replica
                self._link.warm(modules)

    def _announce(self, argv: list[str], why: str, pid: int) -> None:
        if self._on_command is not None:
            self._on_command({"argv": argv, "why": why, "pid": pid})

    def captured(self) -> tuple[str, str]:
        """What the interpreter itself wrote on stdout and stderr while it started."""
        if self._link is None:
            return "", ""
        self._link.settle()
        return self._link.out.text(), self._link.err.text()

    def close(self, seconds: float = 5.0) -> None:
        """End all replicas and the server, with all their descendants, within about ``seconds``. Idempotent."""
        for replica in list(self._replicas):
            replica.kill()
        if self._link is not None:
            self._link.shutdown(seconds)
        for replica in list(self._replicas):
            replica.captured()  # what it still had to say is read before its pipes are given up
            replica.close(0)
        if self._unhold is not None:
            self._unhold()

    def __enter__(self) -> Server:
        return self if self._link is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
