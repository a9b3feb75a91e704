"""A matrix over the nodes of a cluster, Ray's end: nodes of one lock share its signatures.

A node is an actor pinned to it that holds all of its cores and keeps the model built; Ray restarts it where its process
dies. A node first says its lock and what there is to measure. Then it measures whole steps, and takes signatures of its
lock's list, one at a time, until none is left: a node that dies gives its signature back to the list, for another of the
same lock. Nodes of one machine take turns, since they would measure each other.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sparsetui.fleet import remote
from sparsetui.fleet.host import START_S

if TYPE_CHECKING:
    from sparsetui.fleet.dispatch import Campaign

_POLL_S = 0.5
_END_S = 15.0
_SHARE_WHOLE = 0.5  # of a node's seconds: whole steps; the rest is for signatures
_LEAST_S, _LEAST_WHOLE_S = 1.0, 5.0
WHOLE = ""


class Spread:
    """One matrix over the nodes that are ``ready``."""

    def __init__(self, campaign: Campaign, ready: list[dict[str, Any]]) -> None:
        self.campaign, self.ready = campaign, {str(n["host"]): n for n in ready}
        self.asked: dict[str, Any] = campaign.order["job"]["matrix"]
        self.workers: dict[str, Any] = {}
        self.running: dict[Any, tuple[str, str]] = {}  # reference -> host, signature
        self.since: dict[Any, float] = {}
        self.idle: list[str] = []  # who has waited longest comes first
        self.lock: dict[str, str] = {}  # host -> lock
        self.left: dict[str, list[str]] = {}  # lock -> signatures that nobody has taken
        self.whole: set[str] = set()  # hosts whose whole steps are still to be measured
        self.given_back: dict[tuple[str, str], str] = {}  # lock, signature -> host that died over it
        self.many: dict[str, int] = {}  # lock -> signatures that there were to measure

    def run(self) -> None:
        c = self.campaign
        board, bundle = c.board(), c.bundle(list(self.ready.values()))
        for host, n in self.ready.items():
            actor = c.ray.remote(remote.Worker).options(
                num_cpus=n["cpus"], max_restarts=1, max_task_retries=1, scheduling_strategy=c.pinned(n)
            )
            job = {k: v for k, v in c.order["job"].items() if k != "matrix"}
            worker = actor.remote({**job, "host": host}, bundle if n["code"] == "shipped" else None, board)
            self.workers[host] = worker
            c.emit("submitted", host=host)
            self._ask(host, "", {"do": "survey"})
        while self._assign() and not c.stop.is_set():
            for ref, host, signature in self._answers(board):
                answer = c.got(host, ref)
                if host in self.lock:
                    self._measured(host, signature, answer)
                else:
                    self._surveyed(host, answer)
        self._end()

    def _ask(self, host: str, signature: str, request: dict[str, Any]) -> None:
        ref = self.workers[host].ask.remote(request)
        self.running[ref], self.since[ref] = (host, signature), time.monotonic()

    def _answers(self, board: Any) -> list[tuple[Any, str, str]]:
        """Answers that have come, within half a second; who gives none in its time is told and left out."""
        c = self.campaign
        done, _ = c.ray.wait(list(self.running), timeout=_POLL_S)
        c.progress(board)
        out = [(ref, *self.running.pop(ref)) for ref in done]
        for ref, (host, signature) in list(self.running.items()):
            waited, limit = time.monotonic() - self.since[ref], float(c.order["limit_s"]) + START_S
            if host not in c.began and waited > c.order["patience_s"]:
                why = f"its cores were not free within {c.order['patience_s']:.0f} s"
            elif host in c.began and waited > limit + (0 if host in self.lock else c.order["patience_s"]):
                why = f"no answer within {waited:.0f} s"
            else:
                continue
            del self.running[ref]
            c.ray.kill(self.workers.pop(host))
            c.emit("failed", host=host, kind="slow", why=why)
            self._gone(host, signature)
        return out

    # -- what there is -------------------------------------------------------------------------------------------------

    def _surveyed(self, host: str, answer: dict[str, Any] | None) -> None:
        if answer is None:
            self.workers.pop(host, None)
        elif "failed" in answer:
            self.campaign.emit("failed", host=host, kind=answer["failed"], why=answer["why"])
        else:
            survey = answer["report"]
            self.campaign.emit("surveyed", host=host, survey=survey)
            if survey["state"] == "done":
                self._joins(host, survey["lock_id"], [s["name"] for s in survey["signatures"]])

    def _joins(self, host: str, lock: str, names: list[str]) -> None:
        """From now on the node measures; the first of a lock brings the list."""
        self.lock[host] = lock
        self.campaign.began.add(host)  # also where the news of it is late
        self.idle.append(host)
        if [lock, host] not in self.asked["whole"]:
            self.whole.add(host)
        if lock not in self.left:
            self.left[lock] = [n for n in names if [lock, n] not in self.asked["done"]]
            self.many[lock] = max(1, len(self.left[lock]))

    def _seconds(self, lock: str) -> float:
        """Of one signature: what its nodes have for all of them, shared."""
        half = (1 - _SHARE_WHOLE) * float(self.campaign.order["job"]["budget_s"])
        nodes = sum(found == lock for found in self.lock.values())
        return min(max(_LEAST_S, half * nodes / self.many[lock]), half)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _assign(self) -> bool:
        """Give each node that may measure now its next work; whether anything runs."""
        busy = {self.ready[h]["machine"] for h, _ in self.running.values() if h in self.campaign.began}
        for host in list(self.idle):
            lock, machine = self.lock[host], self.ready[host]["machine"]
            if machine in busy or not (host in self.whole or self.left[lock]):
                continue
            self.idle.remove(host)
            busy.add(machine)
            if host in self.whole:
                self.whole.discard(host)
                budget = float(self.campaign.order["job"]["budget_s"])
                name, request = WHOLE, {"do": "whole", "seconds": max(_LEAST_WHOLE_S, _SHARE_WHOLE * budget)}
            else:
                name = self.left[lock].pop(0)
                request = {"do": "signature", "name": name, "seconds": self._seconds(lock)}
            self.campaign.emit("taken", host=host, signature=name, instead_of=self.given_back.pop((lock, name), ""))
            self._ask(host, name, request)
        return bool(self.running)

    def _measured(self, host: str, signature: str, answer: dict[str, Any] | None) -> None:
        if answer is None:  # told already
            self.workers.pop(host, None)
            self._gone(host, signature)
        elif "failed" in answer:
            self.campaign.emit("failed", host=host, kind=answer["failed"], why=answer["why"])
            self._gone(host, signature)
        else:
            self.campaign.emit("part", host=host, part=answer["report"])
            self.idle.append(host)

    def _gone(self, host: str, signature: str) -> None:
        """The node is out; what it was measuring goes to another of its lock."""
        lock = self.lock.pop(host, None)
        if lock is not None and signature != WHOLE:
            self.left[lock].insert(0, signature)
            self.given_back[(lock, signature)] = host

    def _end(self) -> None:
        ends = [w.end.remote() for w in self.workers.values()] if not self.campaign.stop.is_set() else []
        if ends:
            self.campaign.ray.wait(ends, num_returns=len(ends), timeout=_END_S)
        for w in self.workers.values():
            self.campaign.ray.kill(w)
