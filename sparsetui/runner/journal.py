"""The journal of a run: everything worth keeping goes to the ledger, everything else to the listener."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from sparsetui.evidence.records import Evidence, Number
from sparsetui.runner.api import Listener, Live, Update
from sparsetui.session.state import SessionState
from sparsetui.session.writer import Writer
from sparsetui.workload.spec import Workload

_QUIET_S = 0.2  # updates that carry only progress are sent at most this often


class Journal:
    """Writes to one session and tells the listener. Safe to use from several threads."""

    def __init__(self, writer: Writer, listener: Listener | None, budget_s: float) -> None:
        self.writer = writer
        self._listener = listener
        self._live = Live(budget_s=budget_s)
        self._mutex = threading.RLock()
        self._sent = 0.0
        self._start: float | None = None
        self._spent = 0.0
        self._latency: dict[str, list[float]] = {}
        self.by_phase: dict[str, float] = {}

    # -- the budget ----------------------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """A run begins, with the whole budget before it."""
        self._start, self._spent = time.monotonic(), 0.0

    def stop_clock(self) -> None:
        self._spent, self._start = self.spent, None

    @property
    def spent(self) -> float:
        """Seconds of live profiling in this run, or in the last one."""
        return time.monotonic() - self._start if self._start is not None else self._spent

    # -- the ledger ----------------------------------------------------------------------------------------------

    def append(self, kind: str, body: Any) -> None:
        self.writer.append(kind, body)
        self.tell(force=True)

    def introduce(self, workload: Workload) -> None:
        """What the session is about, and who answers for it by the workload file."""
        w, files = workload, [str(f) for f in workload.files()]
        self.append("workload", {"path": str(w.path), "sha256": w.sha256, "spec": w.as_dict(), "files": files})
        for role, who in w.owners.items():
            self.append("owner", {"role": role, "who": who, "source": w.path.name})

    def evidence(self, stage: str, probe: str, payload: Any, **fields: Any) -> Evidence:
        made = self.writer.evidence(stage, probe, payload, **fields)
        self.tell(force=True)
        return made

    def command(self, body: dict[str, Any]) -> None:
        """A process was started (the ``on_command`` of workers and samplers)."""
        self.append("command", {"argv": [str(a) for a in body.get("argv", [])], "why": str(body.get("why", "")),
                                "pid": body.get("pid")})  # fmt: skip

    def state(self) -> SessionState:
        return self.writer.state()

    # -- the listener --------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, stage: str, name: str, message: str = "") -> Iterator[None]:
        """One pass, from its start to its end or failure, with its seconds."""
        began = time.monotonic()
        self.append("phase", {"stage": stage, "name": name, "state": "started", "seconds": None, "note": message})
        self.live(running=True, stage=stage, phase=name, message=message, progress=None, eta_s=None)
        state, faults = "failed", len(self.state().faults)
        try:
            yield
            state = "done"
        finally:
            new = self.state().faults[faults:]
            note = str(new[-1].get("why", "")) if new else ""
            seconds = time.monotonic() - began
            self.by_phase[name] = self.by_phase.get(name, 0.0) + seconds
            self.append(
                "phase",
                {"stage": stage, "name": name, "state": "failed" if note else state, "seconds": seconds, "note": note},
            )

    def live(self, **changes: Any) -> None:
        with self._mutex:
            self._live = msgspec.structs.replace(self._live, **changes)
        self.tell()

    def latency(self, name: str, median_ms: float) -> None:
        """A new block median of a variant or arm, for the live strips."""
        with self._mutex:
            strip = self._latency.setdefault(name, [])
            strip.append(median_ms)
            del strip[:-120]
            frozen = {k: tuple(v) for k, v in self._latency.items()}
            self._live = msgspec.structs.replace(self._live, latency_ms=frozen)
        self.tell()

    def counters(self, **figures: Number) -> None:
        with self._mutex:
            merged = {**self._live.counters, **{k.replace("_", " "): v for k, v in figures.items()}}
            self._live = msgspec.structs.replace(self._live, counters=merged)

    def tell(self, force: bool = False) -> None:
        if self._listener is None:
            return
        now = time.monotonic()
        with self._mutex:
            if not force and now - self._sent < _QUIET_S:
                return
            self._sent = now
            live = msgspec.structs.replace(self._live, spent_s=self.spent)
            self._live = live
        self._listener(Update(self.state(), live))
