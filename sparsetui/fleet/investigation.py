"""One investigation over many hosts, in one session here: the runner that both faces drive."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import sparsetui
from sparsetui.evidence.records import Lock, Result
from sparsetui.evidence.text import clean
from sparsetui.fleet import answer
from sparsetui.fleet.bundle import BundleError, Manifest, manifest
from sparsetui.fleet.host import START_S
from sparsetui.fleet.link import Link, Order
from sparsetui.fleet.records import FleetVerdict, HostReport
from sparsetui.fleet.verdict import decide
from sparsetui.runner.api import Cancelled, Listener
from sparsetui.runner.investigation import TOOL
from sparsetui.runner.journal import Journal
from sparsetui.runner.recorded import Recorded
from sparsetui.session import closure as closing
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.session.writer import Writer
from sparsetui.workload.spec import Workload

PROBE = "host"  # of the evidence that one host is
SECTION = "fleet"
STAGE = "execution"
PATIENCE_S = 600.0  # for a node's cores to become free


class FleetError(Exception):
    """The fleet cannot be used as asked; one line, and nothing was recorded."""


class FleetInvestigation(Recorded):
    """See :class:`sparsetui.runner.api.Runner`. The whole run is the only one there is: hosts are investigated as a whole.

    ``hosts`` is how many, which by name, or ``None`` for all that offer cores. ``session`` goes on with a saved one: only hosts
    without an answer are run. The session is made once the cluster has answered, so that a wrong address leaves none.
    """

    def __init__(
        self,
        workload: Workload,
        store: Store,
        *,
        address: str,
        hosts: int | Sequence[str] | None = None,
        budget_s: float = 60.0,
        playbook: Any = None,
        listener: Listener | None = None,
        session: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.workload, self.store, self.address, self.hosts = workload, store, address, hosts
        self.budget_s, self.playbook, self.patience_s = budget_s, playbook, patience_s
        self._listener = listener
        self._live: dict[str, dict[str, Any]] = {}
        self._mutex = threading.Lock()
        self._cancel = threading.Event()
        self._link: Link | None = None
        self._journal: Journal | None = None
        self._writer: Writer | None = None
        self.reports: dict[str, HostReport] = {}
        self.proof: dict[str, str] = {}  # host -> id of its evidence
        self.plan: list[str] = []
        self._nodes: dict[str, dict[str, Any]] = {}
        self._began: dict[str, float] = {}
        if session is not None:
            self._open(store.writer(session))
            self._reload()

    # -- what a face may call ------------------------------------------------------------------------------------------

    def state(self) -> SessionState:
        return self._writer.state() if self._writer is not None else SessionState()

    def run_all(self) -> Result:
        """All hosts, then the verdict. Raises :class:`FleetError` before anything is recorded, :class:`Cancelled`."""
        files = self._manifest()
        with self._mutex:
            if self._cancel.is_set():
                raise Cancelled
            self._link = link = Link(self._order(files))
        try:
            self._run(link, files)
        finally:
            link.close()
            if self._journal is not None:
                self._journal.stop_clock()
                self._journal.live(running=False, phase="", progress=None, eta_s=None)
        if self._cancel.is_set():
            if self._journal is not None:
                self._conclude()
                self._journal.append("interrupted", {"why": "cancelled"})
            raise Cancelled
        return self._conclude()

    def run_stage(self, stage: str) -> None:
        raise FleetError("a fleet is investigated as a whole")

    def intervene(self, mechanism: str | None = None) -> None:
        raise FleetError("each host of a fleet runs its own interventions; the whole run takes them")

    def conclude(self) -> Result:
        return self._conclude()

    def record(self, kind: str, body: Any) -> None:
        self.journal.append(kind, body)

    def save_memo(self, text: str) -> Path:
        return self.writer.write_memo(text)

    def cancel(self) -> None:
        self._cancel.set()
        link = self._link
        if link is not None:
            link.cancel()

    def close(self) -> None:
        self.cancel()
        if self._link is not None:
            self._link.close()
        if self._writer is not None:
            self._writer.close()

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            raise FleetError("nothing has been recorded yet")
        return self._journal

    @property
    def writer(self) -> Writer:
        if self._writer is None:
            raise FleetError("nothing has been recorded yet")
        return self._writer

    # -- the run -------------------------------------------------------------------------------------------------------

    def _manifest(self) -> Manifest:
        try:
            return manifest(self.workload)
        except BundleError as e:
            raise FleetError(str(e)) from None

    def _order(self, files: Manifest) -> Order:
        done = [h for h, r in self.reports.items() if r.state == "done"]
        hosts: int | list[str] | None = self.plan or None
        if self.hosts is not None:
            hosts = self.hosts if isinstance(self.hosts, int) else list(self.hosts)
        job = {"path": str(self.workload.path), "sha256": self.workload.sha256, "budget_s": self.budget_s,
               "playbook": getattr(self.playbook, "id", None)}  # fmt: skip
        return Order(self.address, hosts, files.root, files.files, sparsetui.__version__, job,
                     limit_s=1.25 * self.budget_s + 10 + START_S, patience_s=self.patience_s, known=list(self.reports) + self.plan,
                     done=done)  # fmt: skip

    def _run(self, link: Link, files: Manifest) -> None:
        for event in link.events():
            kind = str(event["event"])
            if self._journal is None and kind in ("fatal", "cut"):
                if link.cancelled:
                    return
                raise FleetError(clean(event["why"], 500))
            if kind == "chosen":
                self._chosen(event["hosts"], link, files)
            elif kind in ("fatal", "cut"):
                self._cut(clean(event["why"], 500))
            elif self._journal is not None:
                self._heard(kind, event)

    def _chosen(self, nodes: Sequence[Mapping[str, Any]], link: Link, files: Manifest) -> None:
        if self._journal is None:
            self._open(self.store.create(self.workload.name, f"{self.workload.name} over a fleet"))
            self._introduce()
        journal = self.journal
        journal.start_clock()
        journal.command({"argv": link.argv, "why": f"talk to Ray at {self.address}", "pid": link.pid})
        self._nodes = {str(n["host"]): dict(n) for n in nodes}
        self.plan = list(dict.fromkeys([*self.plan, *self._nodes]))
        for h in self.plan:
            r = self.reports.get(h)
            self._live[h] = _shown(r) if r is not None and r.state == "done" else {"state": "waiting"}
        about = {**self._about(), "code": f"{len(files.files)} files, {files.bytes:,} bytes"}
        summary = f"{len(self.plan)} hosts were chosen; the run has not ended."
        journal.append("section", {"name": SECTION, "body": {"summary": summary, **about}})
        self._tell(force=True)

    def _about(self) -> dict[str, Any]:
        return {"address": self.address, "chosen": ", ".join(self.plan), "seconds_a_host": self.budget_s}

    def _heard(self, kind: str, event: Mapping[str, Any]) -> None:
        host = str(event.get("host", ""))
        if kind == "looked":
            self._nodes.setdefault(host, {}).update({k: v for k, v in event.items() if k not in ("event", "host")})
        elif kind == "submitted":
            self._set(host, state="submitted")
        elif kind == "started":
            self._began[host] = time.monotonic()
            self._set(host, state="running")
            self._phase(host, "started", None, "")
        elif kind == "progress":
            self._set(host, **{k: v for k, v in event.items() if k not in ("event", "host")})
        elif kind == "report":
            self._land(self._read(host, event["report"]))
        elif kind == "failed":
            why = clean(event.get("why", ""), 400)
            self._land(HostReport(host, event["kind"], why, node=self._provenance(host)))

    def _read(self, host: str, raw: Any) -> HostReport:
        try:
            report = msgspec.convert(raw, HostReport)
        except msgspec.ValidationError as e:
            return HostReport(
                host, "broken", f"its report cannot be read: {clean(e, 200)}", node=self._provenance(host)
            )
        return msgspec.structs.replace(report, host=host, node=self._provenance(host))

    def _provenance(self, host: str) -> dict[str, str]:
        kept = ("node_id", "address", "hostname", "machine", "python", "interpreter", "tool", "code", "cpus")
        node = self._nodes.get(host, {})
        return {k: str(node[k]) for k in kept if k in node}

    def _land(self, r: HostReport) -> None:
        """One host's answer becomes evidence. An answer that was there is never replaced by a failure."""
        known = self.reports.get(r.host)
        if known is not None and known.state == "done" and r.state != "done":
            return
        done = r.state == "done"
        made = self.journal.evidence(
            STAGE, PROBE, msgspec.to_builtins(r), summary=answer.said(r), figures=answer.figures(r),
            quality="measured" if done else "unavailable", seconds=r.seconds or None,
            source={"host": r.host, "lock": r.lock_id, "workload": r.workload or self.workload.sha256, **r.node},
        )  # fmt: skip
        self.reports[r.host], self.proof[r.host] = r, made.id
        if not done:
            self.journal.append("fault", {"what": f"host {r.host}: {r.state}", "why": r.why})
        if r.host in self._began:
            seconds = time.monotonic() - self._began.pop(r.host)
            self._phase(r.host, "done" if done else "failed", seconds, r.why)
        if r.host not in self.plan:
            self.plan.append(r.host)
        self._set(r.host, **_shown(r))

    def _phase(self, host: str, state: str, seconds: float | None, note: str) -> None:
        self.journal.append(
            "phase", {"stage": STAGE, "name": f"host {host}", "state": state, "seconds": seconds, "note": note}
        )

    def _cut(self, why: str) -> None:
        """The connection is gone: what has no answer yet is lost for now, and the session can be gone on with."""
        self.journal.append("fault", {"what": "fleet", "why": why})
        for h in self.plan:
            if h not in self.reports or self.reports[h].state != "done":
                self._land(HostReport(h, "lost", why, node=self._provenance(h)))

    # -- telling -------------------------------------------------------------------------------------------------------

    def _set(self, host: str, **changes: Any) -> None:
        self._live[host] = {**self._live.get(host, {}), **changes}
        self._tell(force="state" in changes)

    def _tell(self, force: bool = False) -> None:
        over = sum(v["state"] not in ("waiting", "submitted", "running") for v in self._live.values())
        going = [h for h, v in self._live.items() if v["state"] == "running"]
        message = f"{over} of {len(self._live)} hosts" + (f"; {', '.join(going[:3])} measured now" if going else "")
        self.journal.live(running=True, stage=STAGE, phase=SECTION, message=message, progress=over / max(1, len(self._live)),
                          hosts=dict(self._live))  # fmt: skip
        if force:
            self.journal.tell(force=True)

    # -- the record ----------------------------------------------------------------------------------------------------

    def _open(self, writer: Writer) -> None:
        self._writer = writer
        self._journal = Journal(writer, self._listener, self.budget_s)

    def _introduce(self) -> None:
        w = self.workload
        self.journal.append("workload", {"path": str(w.path), "sha256": w.sha256, "spec": w.as_dict(),
                                         "files": [str(f) for f in w.files()]})  # fmt: skip
        for role, who in w.owners.items():
            self.journal.append("owner", {"role": role, "who": who, "source": w.path.name})

    def _reload(self) -> None:
        """The newest report of each host, back from the session; and which hosts were chosen."""
        for h, r, id_ in reports_of(self.state(), self.writer.read_artifact):
            self.reports[h], self.proof[h] = r, id_
        body = self.state().sections.get(SECTION)
        chosen = str(body.get("chosen", "")) if isinstance(body, Mapping) else ""
        self.plan = list(dict.fromkeys([*(h for h in chosen.split(", ") if h), *self.reports]))

    def verdict(self) -> FleetVerdict:
        """The verdict over what is known now; hosts that were chosen and never answered are missing."""
        silent = [HostReport(h, "lost", "no answer came") for h in self.plan if h not in self.reports]
        return decide([*self.reports.values(), *silent])

    def _conclude(self) -> Result:
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
        journal.append("section", {"name": SECTION, "body": answer.section(found, reports, self._about())})
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
