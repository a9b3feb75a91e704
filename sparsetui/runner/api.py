"""What the faces of the tool (headless and the app) see of a running investigation.

The runner works in its own thread and calls ``listener`` with immutable :class:`Update` values; a face never touches a
worker, a probe or the ledger itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.evidence.records import Number, Result
from sparsetui.session.state import SessionState


class Live(msgspec.Struct, frozen=True):
    """The part of a run that is not worth a ledger line: progress, and the newest block medians."""

    running: bool = False
    stage: str = ""
    phase: str = ""
    message: str = ""
    progress: float | None = None  # 0..1 of the current phase; None when it cannot be known
    eta_s: float | None = None
    spent_s: float = 0.0
    budget_s: float = 60.0
    latency_ms: dict[str, tuple[float, ...]] = {}  # variant (or arm) -> newest block medians, oldest first, ≤ 120
    ratio: Number | None = None  # failing / comparator so far
    floor: Number | None = None  # the A/A noise floor so far, as a ratio - 1
    counters: dict[str, Number] = {}  # e.g. "dense fallback", "conversions/step", "metadata bytes"
    hosts: dict[str, dict[str, Any]] = {}  # of a fleet: host -> state, phase, spent_s, budget_s, ratio, why


class Update(msgspec.Struct, frozen=True):
    state: SessionState
    live: Live


Listener = Callable[[Update], None]


class Cancelled(Exception):
    """The run was cancelled; what had been measured is in the ledger."""


class Runner:
    """The interface of :class:`sparsetui.runner.investigation.Investigation`, for faces and for their tests.

    All methods block until the work is done, except :meth:`cancel`, which may be called from any thread and makes the
    blocking call raise :class:`Cancelled` after the session was saved.
    """

    listener: Listener

    def state(self) -> SessionState:
        raise NotImplementedError

    def run_all(self) -> Result:
        """The whole investigation; returns the result that was also written to the ledger."""
        raise NotImplementedError

    def run_stage(self, stage: str) -> None:
        """The passes of one stage, live; then the findings that the evidence so far allows."""
        raise NotImplementedError

    def intervene(self, mechanism: str | None = None) -> None:
        """Run the intervention of ``mechanism`` (or of the first suspected one) against its control arm."""
        raise NotImplementedError

    def assign(self, role: str, who: str, source: str = "typed") -> None:
        raise NotImplementedError

    def waive(self, gate: str, why: str, by: str) -> None:
        raise NotImplementedError

    def sign(self, role: str, who: str, note: str = "") -> None:
        raise NotImplementedError

    def attach(self, role: str, evidence: str, why: str = "") -> None:
        """Attach an evidence as a role's closure artifact."""
        raise NotImplementedError

    def conclude(self) -> Result:
        """Fold the evidence so far into a verdict, without new runs."""
        raise NotImplementedError

    def save_memo(self, text: str) -> Path:
        """Write ``memo.md`` into the session; returns its path."""
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End workers and release the session's write lock. Idempotent; safe from a signal path."""
        raise NotImplementedError
