"""An investigation that can also be decided and closed: the runner that the command line and the app use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsetui.evidence.records import Gate
from sparsetui.release import closing
from sparsetui.release.lens import run_lens
from sparsetui.release.matrix import run_matrix
from sparsetui.release.replay import run_replay
from sparsetui.release.rollback import run_rehearsal
from sparsetui.runner.investigation import Investigation
from sparsetui.runner.lab import Lab
from sparsetui.worker.faults import WorkerFault

Section = dict[str, Any]


class ReleaseRunner(Investigation):
    """:class:`Investigation` with the release half.

    ``run_matrix``, ``run_replay``, ``run_rehearsal`` and ``run_lens`` block, spend about ``budget_s`` seconds (the runner's
    own budget by default), leave evidence and a section, evaluate the gates anew and return the section's body. Where a
    variant fails on the way, the fault is in the ledger and the section says why it is empty.
    """

    def run_matrix(self, budget_s: float | None = None) -> Section:
        """The trade-off matrix of formats. ``rows`` is empty where there was nothing to compare."""
        return self._section("matrix", {"rows": []}, run_matrix, budget_s)

    def run_replay(self, budget_s: float | None = None) -> Section:
        """Replay of the workload's request log. Raises :class:`sparsetui.release.requests.RequestLogError`."""
        return self._section("replay", {"passed": False}, run_replay, budget_s)

    def run_rehearsal(self, budget_s: float | None = None) -> Section:
        """Rehearsal of the way back, against criteria that follow from the session's own figures."""
        return self._section("rehearsal", {"passed": False, "criteria": []}, run_rehearsal, budget_s)

    def run_lens(self, budget_s: float | None = None) -> Section:
        """The bandwidth lens over all runs of the session so far."""
        return self._section("lens", {"points": [], "zones": []}, lambda lab, _: run_lens(lab), budget_s)

    def evaluate_gates(self) -> tuple[Gate, ...]:
        return closing.evaluate(self.journal)

    def _section(
        self, name: str, empty: Section, run: Callable[[Lab, float], Section], budget_s: float | None
    ) -> Section:
        lab = self.lab
        before, lab.budget_s = lab.budget_s, budget_s or lab.budget_s
        self.journal.live(budget_s=lab.budget_s)
        try:
            with lab.running():
                try:
                    body = run(lab, lab.budget_s)
                except WorkerFault as e:
                    self.journal.append("fault", {"what": f"{name}: {e.fault.label}", "why": e.fault.message})
                    why = f"Not measured: {e.fault.message}"
                    body = {**empty, "summary": why, "why": why}
                    self.journal.append("section", {"name": name, "body": body})
                self.evaluate_gates()
        finally:
            lab.budget_s = before
        return body
