"""One investigation over many hosts, in one session here: the runner that both faces drive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sparsetui.evidence.records import Lock, Result
from sparsetui.evidence.text import clean
from sparsetui.fleet import answer
from sparsetui.fleet.bundle import Manifest
from sparsetui.fleet.records import FleetVerdict, HostReport
from sparsetui.fleet.run import FleetRun
from sparsetui.fleet.verdict import decide
from sparsetui.runner.investigation import TOOL
from sparsetui.session import closure as closing
from sparsetui.session.state import SessionState

PROBE = "host"  # of the evidence that one host is
SECTION = "fleet"


class FleetInvestigation(FleetRun):
    """See :class:`sparsetui.runner.api.Runner`. The whole run is the only one there is: hosts are investigated as a whole.

    In a saved session only hosts without an answer are run.
    """

    section = SECTION
    stage = "execution"
    title = "over a fleet"

    def __init__(self, *args: Any, **options: Any) -> None:
        self.reports: dict[str, HostReport] = {}
        self.proof: dict[str, str] = {}  # host -> id of its evidence
        super().__init__(*args, **options)

    def run_all(self) -> Result:
        result: Result = super().run_all()
        return result

    # -- the run -------------------------------------------------------------------------------------------------------

    def job(self, files: Manifest) -> dict[str, Any]:
        return {"playbook": getattr(self.playbook, "id", None)}

    def done(self) -> list[str]:
        return [h for h, r in self.reports.items() if r.state == "done"]

    def unanswered(self) -> list[str]:
        return [h for h in self.plan if h not in self.done()]

    def at_first(self, host: str) -> dict[str, Any]:
        r = self.reports.get(host)
        return _shown(r) if r is not None and r.state == "done" else {"state": "waiting"}

    def heard(self, kind: str, host: str, event: Mapping[str, Any]) -> None:
        if kind == "report":
            self._land(self._read(host, event["report"]))

    def failed(self, host: str, kind: str, why: str) -> None:
        state: Any = kind
        self._land(HostReport(host, state, why, node=self.provenance(host)))

    def _read(self, host: str, raw: Any) -> HostReport:
        try:
            report = msgspec.convert(raw, HostReport)
        except msgspec.ValidationError as e:
            return HostReport(host, "broken", f"its report cannot be read: {clean(e, 200)}", node=self.provenance(host))
        return msgspec.structs.replace(report, host=host, node=self.provenance(host))

    def _land(self, r: HostReport) -> None:
        """One host's answer becomes evidence. An answer that was there is never replaced by a failure."""
        known = self.reports.get(r.host)
        if known is not None and known.state == "done" and r.state != "done":
            return
        done = r.state == "done"
        made = self.journal.evidence(
            self.stage, PROBE, msgspec.to_builtins(r), summary=answer.said(r), figures=answer.figures(r),
            quality="measured" if done else "unavailable", seconds=r.seconds or None,
            source={"host": r.host, "lock": r.lock_id, "workload": r.workload or self.workload.sha256, **r.node},
        )  # fmt: skip
        self.reports[r.host], self.proof[r.host] = r, made.id
        if not done:
            self.journal.append("fault", {"what": f"host {r.host}: {r.state}", "why": r.why})
        self.over(r.host, r.state, r.why)
        self.set(r.host, **_shown(r))

    # -- the record ----------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """The newest report of each host, back from the session; and which hosts were chosen."""
        for h, r, id_ in reports_of(self.state(), self.writer.read_artifact):
            self.reports[h], self.proof[h] = r, id_
        self.plan = list(dict.fromkeys([*self.plan, *self.reports]))

    def verdict(self) -> FleetVerdict:
        """The verdict over what is known now; hosts that were chosen and never answered are missing."""
        silent = [HostReport(h, "lost", "no answer came") for h in self.plan if h not in self.reports]
        return decide([*self.reports.values(), *silent])

    def conclude(self) -> Result:
        journal, found = self.journal, self.verdict()
        reports = list(self.reports.values())
        material = answer.findings(found, reports, self.proof)
        lock = answer.lock_of(found, reports, self.workload.change)
        if lock is not None:
            journal.append("lock", lock)
        numbers = answer.metrics(found, reports)
        journal.append("metrics", numbers)
        for f in material:
            journal.append("finding", f)
        for u in found.unanswered:
            journal.append("unanswered", u)
        journal.append("section", {"name": SECTION, "body": answer.section(found, reports, self.about())})
        state = self.state()
        result = Result(
            session=self.writer.id, verdict=answer.contract_verdict(found, reports, material, self.proof), tool=TOOL,
            workload=self.workload.name, findings=material, cannot_answer=found.unanswered, metrics=numbers,
            lock=lock or Lock(match=False), evidence=state.evidence, spent={"total": journal.spent},
        )  # fmt: skip
        journal.append("result", result)
        gates = closing.gates(self.state())
        for g in gates:
            journal.append("gate", g)
        result = msgspec.structs.replace(result, gates=gates)
        journal.append("result", result)
        return result


def _shown(r: HostReport) -> dict[str, Any]:
    """A host's answer as the faces show it while others still run."""
    v = r.verdict
    return {"state": r.state, "why": r.why, "ratio": r.ratio.value, "says": v.status if v is not None else "",
            "mechanism": (v.mechanism or "") if v is not None else "", "phase": ""}  # fmt: skip


def reports_of(state: SessionState, read: Any) -> list[tuple[str, HostReport, str]]:
    """The newest report of each host in a session, with the id of its evidence; ``read`` fetches an artifact by hash."""
    found: dict[str, tuple[str, HostReport, str]] = {}
    for e in state.evidence:
        if e.probe == PROBE and e.sha256:
            try:
                r = msgspec.json.decode(read(e.sha256), type=HostReport)
            except msgspec.DecodeError:  # of a newer tool
                continue
            found[r.host] = (r.host, r, e.id)
    return list(found.values())
