"""A run over the nodes of a Ray cluster, in one session here: what an investigation and a matrix over a fleet have in common."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sparsetui
from sparsetui.evidence.text import clean
from sparsetui.fleet.bundle import BundleError, Manifest, manifest
from sparsetui.fleet.host import START_S
from sparsetui.fleet.link import Link, Order
from sparsetui.runner.api import Cancelled, Listener
from sparsetui.runner.journal import Journal
from sparsetui.runner.recorded import Recorded
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.session.writer import Writer
from sparsetui.workload.spec import Workload

PATIENCE_S = 600.0  # for a node's cores to become free
_OVER = ("waiting", "submitted", "running")


class FleetError(Exception):
    """The fleet cannot be used as asked; one line, and nothing was recorded."""


class FleetRun(Recorded, ABC):
    """The runner's half that talks to Ray's child, keeps a row a host, and writes the session.

    ``hosts`` is how many, which by name, or ``None`` for all that offer cores. ``session`` goes on with a saved one. The session
    is made once the cluster has answered, so that a wrong address leaves none.
    """

    section: str  # in the session: what the run came to, and which hosts were chosen
    stage: str
    title: str

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
        self.plan: list[str] = []
        self._nodes: dict[str, dict[str, Any]] = {}
        self._began: dict[str, float] = {}
        if session is not None:
            self._open(store.writer(session))
            body = self.state().sections.get(self.section)
            chosen = str(body.get("chosen", "")) if isinstance(body, Mapping) else ""
            self.plan = [h for h in chosen.split(", ") if h]
            self.reload()

    # -- what a face may call ------------------------------------------------------------------------------------------

    def state(self) -> SessionState:
        return self._writer.state() if self._writer is not None else SessionState()

    def run_all(self) -> Any:
        """All hosts, then :meth:`conclude`. Raises :class:`FleetError` before anything is recorded, :class:`Cancelled`."""
        files = self._manifest()
        with self._mutex:
            self._check_cancelled()
            self._link = link = Link(self._order(files))
        try:
            self._run(link, files)
        finally:
            link.close()
            if self._journal is not None:
                self._journal.stop_clock()
                self._journal.live(running=False, phase="", progress=None, eta_s=None)
        if self._cancel.is_set() and self._journal is not None:
            self.conclude()
            self._journal.append("interrupted", {"why": "cancelled"})
        self._check_cancelled()
        return self.conclude()

    def _check_cancelled(self) -> None:
        """A cancel ends one run; the app may start another."""
        if self._cancel.is_set():
            self._cancel.clear()
            raise Cancelled

    def run_stage(self, stage: str) -> None:
        raise FleetError("a fleet is run as a whole")

    def intervene(self, mechanism: str | None = None) -> None:
        raise FleetError("each host of a fleet runs its own interventions; the whole run takes them")

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

    # -- what a run of its own kind says -------------------------------------------------------------------------------

    @abstractmethod
    def conclude(self) -> Any:
        """What the run came to, on record; a result, or a section's body."""

    @abstractmethod
    def job(self, files: Manifest) -> dict[str, Any]:
        """What each host is asked, beside the workload."""

    def done(self) -> list[str]:
        """Hosts that need no second run."""
        return []

    @abstractmethod
    def reload(self) -> None:
        """What a saved session holds already."""

    @abstractmethod
    def heard(self, kind: str, host: str, event: Mapping[str, Any]) -> None:
        """An event that not every run has."""

    @abstractmethod
    def failed(self, host: str, kind: str, why: str) -> None:
        """A host gave no answer, or no more of them; ``kind`` is its state."""

    @abstractmethod
    def unanswered(self) -> list[str]:
        """Hosts that were chosen and have not answered."""

    def at_first(self, host: str) -> dict[str, Any]:
        """The row of a host as the run begins."""
        return {"state": "waiting"}

    # -- the run -------------------------------------------------------------------------------------------------------

    def _manifest(self) -> Manifest:
        try:
            return manifest(self.workload)
        except BundleError as e:
            raise FleetError(str(e)) from None

    def _order(self, files: Manifest) -> Order:
        hosts: int | list[str] | None = self.plan or None
        if self.hosts is not None:
            hosts = self.hosts if isinstance(self.hosts, int) else list(self.hosts)
        job = {
            "path": str(self.workload.path),
            "sha256": self.workload.sha256,
            "budget_s": self.budget_s,
            **self.job(files),
        }
        return Order(
            self.address,
            hosts,
            files.root,
            files.files,
            sparsetui.__version__,
            job,
            limit_s=1.25 * self.budget_s + 10 + START_S,
            patience_s=self.patience_s,
            known=self.plan,
            done=self.done(),
        )

    def _run(self, link: Link, files: Manifest) -> None:
        for event in link.events():
            kind, host = str(event["event"]), str(event.get("host", ""))
            if self._journal is None and kind in ("fatal", "cut"):
                if link.cancelled:
                    return
                raise FleetError(clean(event["why"], 500))
            if kind == "chosen":
                self._chosen(event["hosts"], link, files)
            elif kind in ("fatal", "cut"):
                self._cut(clean(event["why"], 500))
            elif self._journal is None:
                continue
            elif kind == "looked":
                facts = {k: v for k, v in event.items() if k not in ("event", "host")}
                self._nodes.setdefault(host, {}).update(facts)
            elif kind == "submitted":
                self.set(host, state="submitted")
            elif kind == "started":
                self._began[host] = time.monotonic()
                self.set(host, state="running")
                self._phase(host, "started", None, "")
            elif kind == "progress":
                self.set(host, **{k: v for k, v in event.items() if k not in ("event", "host")})
            elif kind == "failed":
                self.failed(host, str(event["kind"]), clean(event.get("why", ""), 400))
            else:
                self.heard(kind, host, event)

    def _chosen(self, nodes: Sequence[Mapping[str, Any]], link: Link, files: Manifest) -> None:
        if self._journal is None:
            self._open(self.store.create(self.workload.name, f"{self.workload.name} {self.title}"))
            self.journal.introduce(self.workload)
        journal = self.journal
        journal.start_clock()
        journal.command({"argv": link.argv, "why": f"talk to Ray at {self.address}", "pid": link.pid})
        self._nodes = {str(n["host"]): dict(n) for n in nodes}
        self.plan = list(dict.fromkeys([*self.plan, *self._nodes]))
        self._live = {h: self.at_first(h) for h in self.plan}
        about = {**self.about(), "code": f"{len(files.files)} files, {files.bytes:,} bytes"}
        summary = f"{len(self.plan)} hosts were chosen; the run has not ended."
        journal.append("section", {"name": self.section, "body": {"summary": summary, **about}})
        self._tell(force=True)

    def about(self) -> dict[str, Any]:
        return {"address": self.address, "chosen": ", ".join(self.plan), "seconds_a_host": self.budget_s}

    def provenance(self, host: str) -> dict[str, str]:
        kept = ("node_id", "address", "hostname", "machine", "python", "interpreter", "tool", "code", "cpus")
        node = self._nodes.get(host, {})
        return {k: str(node[k]) for k in kept if k in node}

    def over(self, host: str, state: str, why: str = "") -> None:
        """The host's part has come to its end, well or not."""
        if host in self._began:
            seconds = time.monotonic() - self._began.pop(host)
            self._phase(host, "done" if state == "done" else "failed", seconds, why)
        if host not in self.plan:
            self.plan.append(host)

    def _phase(self, host: str, state: str, seconds: float | None, note: str) -> None:
        self.journal.append(
            "phase", {"stage": self.stage, "name": f"host {host}", "state": state, "seconds": seconds, "note": note}
        )

    def _cut(self, why: str) -> None:
        """The connection is gone: what has no answer yet is lost for now, and the session can be gone on with."""
        self.journal.append("fault", {"what": "fleet", "why": why})
        for h in self.unanswered():
            self.failed(h, "lost", why)

    # -- telling -------------------------------------------------------------------------------------------------------

    def set(self, host: str, **changes: Any) -> None:
        """Change the host's row."""
        self._live[host] = {**self._live.get(host, {}), **changes}
        self._tell(force="state" in changes)

    def _tell(self, force: bool = False) -> None:
        over = sum(v["state"] not in _OVER for v in self._live.values())
        going = [h for h, v in self._live.items() if v["state"] == "running"]
        message = f"{over} of {len(self._live)} hosts" + (f"; {', '.join(going[:3])} measured now" if going else "")
        self.journal.live(running=True, stage=self.stage, phase=self.section, message=message,
                          progress=over / max(1, len(self._live)), hosts=dict(self._live))  # fmt: skip
        if force:
            self.journal.tell(force=True)

    # -- the record ----------------------------------------------------------------------------------------------------

    def _open(self, writer: Writer) -> None:
        self._writer = writer
        self._journal = Journal(writer, self._listener, self.budget_s)
