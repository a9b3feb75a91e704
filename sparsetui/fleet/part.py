"""One node's part of a matrix: ``python -m sparsetui.fleet.part`` answers requests, one a line, until its stdin ends.

The first line is the job. Then come ``{"do": "survey"}``, once, ``{"do": "signature", "name": …, "seconds": …}`` and
``{"do": "whole", "seconds": …}``. The model is built once and stays. Messages are those of :mod:`sparsetui.fleet.host`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.evidence.records import to_json
from sparsetui.evidence.text import clean
from sparsetui.fleet.host import CANNOT_START, START_S, Narrator, Tell
from sparsetui.fleet.records import Part, Signature, Survey, lock_id
from sparsetui.release.matrix import SIZES
from sparsetui.release.runner import ReleaseRunner
from sparsetui.release.targets import Plan, plan
from sparsetui.runner.equipment import VARIANTS
from sparsetui.session.store import Store
from sparsetui.worker import scratch
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Replica
from sparsetui.workload.errors import WorkloadError
from sparsetui.workload.spec import Workload, load

MOST = 1024  # weights of a model that are looked at, largest work first
GRID = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_SHARE_LAYERS = 0.3  # of a signature's seconds: each layer's own product; the rest is its curve
_PATIENCE, _GRACE_S = 1.6, 20.0  # a call that is still out after that many times its seconds, and these, is given up
_TEXT = 400


class Job(msgspec.Struct, frozen=True):
    """What a node is to work on. ``path`` is the workload file on that node, ``code`` the digest of its folder."""

    host: str
    path: str
    sha256: str
    code: str = ""
    budget_s: float = 60.0


def main() -> int:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not write between the messages

    def tell(message: dict[str, Any]) -> None:
        out.write(to_json(message).decode() + "\n")
        out.flush()

    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    place = Path(tempfile.mkdtemp(prefix=scratch.PREFIX))
    held = scratch.hold(place)  # killed with its node's task, it is swept by the next one
    try:
        with Node(job, place, tell) as node:
            for line in sys.stdin.buffer:
                tell({"report": node.answer(msgspec.json.decode(line))})
    finally:
        os.close(held)
        shutil.rmtree(place, ignore_errors=True)
    return 0


class Node:
    """The workload as this node has it; its workers stay up from the survey on."""

    def __init__(self, job: Job, place: Path, tell: Tell) -> None:
        self.job, self.place, self.tell = job, place, tell
        self.runner: ReleaseRunner | None = None
        self.replica: Replica | None = None  # of the variant whose weights are pruned
        self.plan: Plan | None = None
        self.lock: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        if self.runner is not None:
            self.runner.close()

    def answer(self, request: dict[str, Any]) -> Survey | Part:
        """What a request comes to. A variant that fails is an answer with its reason."""
        began = time.monotonic()
        name, seconds = str(request.get("name", "")), float(request.get("seconds", 0.0))
        if request["do"] == "survey":
            return msgspec.structs.replace(self.survey(), seconds=time.monotonic() - began)
        if self.plan is None and (surveyed := self.survey()).state != "done":  # of a process that was started anew
            return Part(self.job.host, "", name, surveyed.why)
        try:
            body = self.signature(name, seconds) if request["do"] == "signature" else self.whole(seconds)
        except WorkerFault as e:
            body = {"why": clean(e.fault.message, _TEXT)}
        why = str(body.get("why", ""))
        if not why and not name and not body.get("rows"):
            why = str(body.get("summary", ""))
        return Part(self.job.host, lock_id(self.lock), name, why, body, self.job.code, time.monotonic() - began)

    # -- what there is -------------------------------------------------------------------------------------------------

    def survey(self) -> Survey:
        host = self.job.host
        try:
            workload = load(self.job.path)
        except WorkloadError as e:
            return Survey(host, "refused", clean(e, _TEXT))
        if workload.sha256 != self.job.sha256:
            return Survey(host, "refused", f"{self.job.path} is another file here than where the fleet was started")
        try:
            return self._survey(workload)
        except WorkerFault as e:
            state: Any = "refused" if e.fault.kind in CANNOT_START else "broken"
            return Survey(host, state, clean(e.fault.message, _TEXT))

    def _survey(self, workload: Workload) -> Survey:
        if self.runner is None:
            store = Store(self.place / "sessions")
            self.runner = ReleaseRunner(workload, store, budget_s=self.job.budget_s, listener=Narrator(self.tell))
        self.tell({"progress": {"phase": "start"}})
        lab, seen = self.runner.lab, {}
        with self._within(START_S) as deadline:
            lab.gear.start(deadline())
            replicas = lab.gear.pair(deadline())[0]
            for v in VARIANTS:
                self.lock[v] = dict(replicas[v].call("lock", deadline_s=deadline())["tags"])
                seen[v] = replicas[v].call("formats", {"do": "scout", "most": MOST}, deadline_s=deadline())["layers"]
        found = plan(seen, workload.declared.sparsity)
        if isinstance(found, str):
            return Survey(self.job.host, "refused", f"no matrix: {found}", self.lock, lock_id(self.lock))
        self.plan = found
        for v, r in replicas.items():
            if v == found.source:
                self.replica = r
            else:
                lab.gear.end(r)
        return Survey(self.job.host, "done", "", self.lock, lock_id(self.lock), found.source, found.how,
                      signatures(seen[found.source], found.targets))  # fmt: skip

    # -- measuring -----------------------------------------------------------------------------------------------------

    def signature(self, name: str, seconds: float) -> dict[str, Any]:
        """Every format of the layers of one signature, on their own values; and the first one's speed over sparsity."""
        assert self.runner is not None
        assert self.plan is not None
        lab, targets = self.runner.lab, self.plan.targets
        with self._within(seconds) as deadline:
            if self.replica is None or not self.replica.alive:
                self.replica = lab.gear.replica(self.plan.source, deadline())[0]
                self.replica.call("formats", {"do": "scout", "most": MOST}, deadline_s=deadline())
            replica = self.replica

            def ask(do: str, **args: Any) -> dict[str, Any]:
                return replica.call("formats", {"do": do, **args}, deadline_s=deadline())

            ready = ask("prepare", targets=targets, blocks=list(SIZES), only=name)
            own = sorted({round(x["target"], 3) for x in ready["layers"] if x["target"] > 0})
            grid = sorted({*GRID, *own})
            first = next((i for i, x in enumerate(ready["layers"]) if x["target"] > 0), 0)
            return {
                "layers": ask("layers", seconds=_SHARE_LAYERS * seconds)["layers"],
                "curve": ask("curve", layer=first, seconds=(1 - _SHARE_LAYERS) * seconds, grid=grid),
                "prepared": ready["layers"],
                "sparsity": round(ready["layers"][first]["target"], 3),
            }

    def whole(self, seconds: float) -> dict[str, Any]:
        """Whole steps in every format, as ``sparsetui matrix`` measures them on one host."""
        assert self.runner is not None
        return self.runner.run_matrix(seconds)

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[Callable[[], float]]:
        """A stretch of the lab's time of about ``seconds``; gives what is left of it."""
        assert self.runner is not None
        lab = self.runner.lab
        before, lab.budget_s = lab.budget_s, _PATIENCE * seconds + _GRACE_S
        try:
            with lab.running():
                yield lab.deadline
        finally:
            lab.budget_s = before


def signatures(layers: Sequence[Mapping[str, Any]], targets: Mapping[str, float]) -> tuple[Signature, ...]:
    """The pruned products of a step by shape, most work first. ``layers`` is what a scout saw."""
    by: dict[str, list[Mapping[str, Any]]] = {}
    for x in layers:
        if targets.get(str(x["name"]), 0.0) > 0:
            by.setdefault(str(x["signature"]), []).append(x)
    made = [
        Signature(
            name, len(found), sum(int(x["calls"]) for x in found), float(sum(x["work"] for x in found)),
            tuple(sorted({round(targets[str(x["name"])], 3) for x in found})),
        )
        for name, found in by.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda s: (-s.work, s.name)))


if __name__ == "__main__":
    raise SystemExit(main())
