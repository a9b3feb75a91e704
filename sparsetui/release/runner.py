"""An investigation that can also be decided and closed: the runner that the command line and the app use."""

from __future__ import annotations

from typing import Any

from sparsetui.release.matrix import run_matrix
from sparsetui.runner.investigation import Investigation
from sparsetui.session import closure
from sparsetui.worker.faults import WorkerFault


class ReleaseRunner(Investigation):
    """:class:`Investigation` with the release half. Each method blocks, spends up to ``budget_s`` seconds (the runner's own
    budget by default), leaves evidence and a section, evaluates the gates anew and returns the section's body.

    A variant that fails on the way leaves a fault in the ledger; the section then says why it is empty.
    """

    def run_matrix(self, budget_s: float | None = None) -> dict[str, Any]:
        """Measure the trade-off matrix."""
        return self._section("matrix", {"rows": []}, run_matrix, budget_s)

    def _section(self, name: str, empty: dict[str, Any], run: Any, budget_s: float | None) -> dict[str, Any]:
        lab = self.lab
        before, lab.budget_s = lab.budget_s, budget_s or lab.budget_s
        self.journal.live(budget_s=lab.budget_s)
        try:
            with lab.running():
                try:
                    body: dict[str, Any] = run(lab, lab.budget_s)
                except WorkerFault as e:
                    lab.fault(e)
                    body = {**empty, "summary": f"Not measured: {e.fault.message}"}
                    self.journal.append("section", {"name": name, "body": body})
                self.evaluate_gates()
        finally:
            lab.budget_s = before
        return body

    def evaluate_gates(self) -> None:
        """Record every gate whose state or reason has changed."""
        state = self.state()
        known = {g.gate: g for g in state.gates}
        for gate in closure.gates(state):
            if known.get(gate.gate) != gate:
                self.journal.append("gate", gate)
