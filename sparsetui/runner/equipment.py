"""The equipment of a run: one warm fork server a variant, and the replicas forked from them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparsetui.evidence.text import clean
from sparsetui.runner.journal import Journal
from sparsetui.worker import scratch
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Launch, Replica, Server
from sparsetui.workload.spec import VariantSpec, Workload

VARIANTS = ("failing", "comparator")


class Equipment:
    """Servers and replicas of one workload. :meth:`close` ends every process and removes the scratch folder."""

    def __init__(self, workload: Workload, journal: Journal, cancel: threading.Event) -> None:
        self.workload, self.journal, self.cancel = workload, journal, cancel
        self.scratch = Path(tempfile.mkdtemp(prefix="sparsetui-"))
        self._unhold = weakref.finalize(
            self, os.close, scratch.hold(self.scratch)
        )  # a later run sweeps what nobody holds
        self.servers: dict[str, Server] = {}
        self._open: list[Replica] = []
        self._warmed: set[str] = set()
        self._mutex = threading.Lock()
        self._closed = False

    def launch(self, variant: str) -> Launch:
        v = self.workload.variant(variant)
        return Launch(folder=self.workload.folder, python=v.python, env=dict(v.env), threads=v.threads, label=variant)

    def start(self, deadline_s: float) -> None:
        """Start the server of each variant, side by side; raises the first :class:`WorkerFault`.

        Two variants that are launched alike share one server. That halves the start, and what forks inherit from their
        server (its address layout) is then the same on both sides instead of an offset between them.
        """
        if self._alike():
            self.servers["comparator"] = self.server("failing", deadline_s)
            return
        with ThreadPoolExecutor(max_workers=2) as pool:
            jobs = [pool.submit(self.server, v, deadline_s) for v in VARIANTS if v not in self.servers]
        for job in jobs:
            job.result()

    def _alike(self) -> bool:
        a, b = (dataclasses.replace(self.launch(v), label="") for v in VARIANTS)
        return a == b

    def server(self, name: str, deadline_s: float, launch: Launch | None = None) -> Server:
        """The server called ``name``, started if it is not running."""
        with self._mutex:
            found = self.servers.get(name)
        if found is not None:
            return found
        server = Server(launch or self.launch(name), self.scratch, on_command=self.journal.command)
        server.start(deadline_s, self.cancel)
        with self._mutex:
            self.servers[name] = server
            closed = self._closed
        if closed:
            server.close()
        return server

    def spec(self, variant: str, **extra: Any) -> dict[str, Any]:
        v: VariantSpec = self.workload.variant(variant)
        inputs = self.workload.inputs
        given: dict[str, Any] = (
            {"entry": inputs.entry.text} if inputs.entry is not None
            else {"shape": list(inputs.shape or ()), "dtype": inputs.dtype, "seed": inputs.seed})  # fmt: skip
        return {
            "entry": v.entry.text,
            "folder": str(self.workload.folder),
            "inputs": given,
            "threads": v.threads,
            "role": variant,
            **({"derive": "dense"} if v.derived else {}),
            **extra,
        }

    def replica(
        self, variant: str, deadline_s: float, *, server: str | None = None, **extra: Any
    ) -> tuple[Replica, dict[str, Any]]:
        """A fresh, built replica of ``variant`` and what its build answered. Raises :class:`WorkerFault`."""
        replica = self.server(server or variant, deadline_s).spawn(self.spec(variant, **extra))
        with self._mutex:
            self._open.append(replica)
        try:
            built = replica.call("build", deadline_s=deadline_s, cancel=self.cancel)
        except BaseException:
            self.end(replica)
            raise
        return replica, built

    def pair(self, deadline_s: float, **extra: Any) -> tuple[dict[str, Replica], dict[str, dict[str, Any]]]:
        """One fresh replica of each variant, built side by side (nothing is timed while they build)."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            jobs = {v: pool.submit(self.replica, v, deadline_s, **extra) for v in VARIANTS}
        replicas: dict[str, Replica] = {}
        built: dict[str, dict[str, Any]] = {}
        failure: WorkerFault | BaseException | None = None
        for v, job in jobs.items():
            try:
                replicas[v], built[v] = job.result()
            except BaseException as e:
                failure = failure or e
        if failure is not None:
            for r in replicas.values():
                self.end(r)
            raise failure
        return replicas, built

    def warm(self, first: Mapping[str, Replica], deadline_s: float) -> None:
        """Let each server import what its first replica turned out to need (the compiler takes seconds), once a run."""
        for variant, replica in first.items():
            if variant in self._warmed:
                continue
            self._warmed.add(variant)
            needed = replica.call("imported", deadline_s=deadline_s, cancel=self.cancel)["modules"]
            if needed:
                self.servers[variant].warm(needed)

    def end(self, replica: Replica) -> None:
        """Close a replica and keep what it printed."""
        label = f"{replica.label} {replica.pid}" if hasattr(replica, "label") else str(replica.pid)
        replica.close()
        out, err = replica.captured()
        with self._mutex:
            if replica in self._open:
                self._open.remove(replica)
        for source, text in (("stdout", out), ("stderr", _own(err))):
            if text.strip():
                self.journal.append("log", {"source": f"{label} {source}", "text": clean(text, limit=4000)})

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            replicas, servers = list(self._open), list(self.servers.values())
            self._open.clear()
            self.servers.clear()
        for r in replicas:
            r.kill()
        for s in servers:
            s.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._unhold()


def _own(stderr: str) -> str:
    """stderr without the lines that torch's profiler writes about itself."""
    return "\n".join(line for line in stderr.splitlines() if not line.startswith("USDT:"))
