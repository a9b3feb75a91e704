"""An investigation that can also be decided and closed: the runner that the command line and the app use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from sparsetui.evidence.records import Gate
from sparsetui.release import closing
from sparsetui.release.lens import run_lens
from sparsetui.release.matrix import run_matrix
from sparsetui.release.replay import log_of, run_replay
from sparsetui.release.rollback import run_rehearsal
from sparsetui.runner.equipment import VARIANTS
from sparsetui.runner.investigation import Investigation
from sparsetui.runner.lab import Lab
from sparsetui.worker.faults import WorkerFault
from sparsetui.workload.spec import Replay

Section = dict[str, Any]

_START_S = 120.0  # for interpreters to come up
_PATIENCE, _GRACE_S = 1.6, 20.0  # a call that is still out after that many budgets and seconds is given up


class ReleaseRunner(Investigation):
    """:class:`Investigation` with the release half.

    ``run_matrix``, ``run_replay``, ``run_rehearsal`` and ``run_lens`` block, spend about ``budget_s`` seconds (the runner's
    own budget by default), leave evidence and a section, evaluate the gates anew and return the section's body. Where a
    variant fails on the way, the fault is in the ledger and the section says why it is empty.
    """

    def run_matrix(self, budget_s: float | None = None) -> Section:
        """The trade-off matrix of formats. ``rows`` is empty where there was nothing to compare."""
        return self._section("matrix", {"rows": []}, run_matrix, budget_s)

    def run_replay(self, budget_s: float | None = None, given: Replay | None = None) -> Section:
        """Replay of the workload's request log, or of a ``given`` one. Raises
        :class:`sparsetui.release.requests.RequestLogError`."""
        log_of(self.workload, given)  # what cannot be read is said before anything is started
        return self._section("replay", {"passed": False}, lambda lab, s: run_replay(lab, s, given), budget_s)

    def run_rehearsal(self, budget_s: float | None = None) -> Section:
        """Rehearsal of the way back, against criteria that follow from the session's own figures."""
        return self._section("rehearsal", {"passed": False, "criteria": []}, run_rehearsal, budget_s)

    def run_lens(self, budget_s: float | None = None) -> Section:
        """The bandwidth lens over all runs of the session so far."""
        return self._section("lens", {"points": [], "zones": []}, lambda lab, _: run_lens(lab), budget_s)

    def evaluate_gates(self, by: str = "") -> tuple[Gate, ...]:
        """Evaluate and record the gates; where all hold, the session is closed ``by`` that person, else by the signers."""
        return closing.evaluate(self.journal, by)

    def _section(
        self, name: str, empty: Section, run: Callable[[Lab, float], Section], budget_s: float | None
    ) -> Section:
        lab, budget = self.lab, budget_s or self.lab.budget_s
        before = lab.budget_s
        try:
            lab.budget_s = max(_START_S, budget)
            with lab.running():  # starting interpreters is no measuring time
                self._start()
            lab.budget_s = _PATIENCE * budget + _GRACE_S
            with lab.running():
                self.journal.live(budget_s=budget)
                try:
                    body = run(lab, budget)
                except WorkerFault as e:
                    self.journal.append("fault", {"what": f"{name}: {e.fault.label}", "why": e.fault.message})
                    why = f"Not measured: {e.fault.message}"
                    body = {**empty, "summary": why, "why": why}
                    self.journal.append("section", {"name": name, "body": body})
                closing.walk_again(self.journal)
                self.evaluate_gates()
        finally:
            lab.budget_s = before
            self.journal.live(budget_s=before)
        return body

    def _start(self) -> None:
        """Both servers up; where one cannot be started, the run that needs it says so."""
        if len(self.lab.gear.servers) < len(VARIANTS):
            with self.journal.phase("release", "start", "start the workers"), contextlib.suppress(WorkerFault):
                self.lab.gear.start(self.lab.deadline())
