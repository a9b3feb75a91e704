"""The only process of ours that loads Ray: ``python -m sparsetui.fleet.dispatch``, a child of the tool.

Ray's driver starts dozens of threads, writes to the terminal when a node dies, and ends its whole process when the head
node is gone for a minute. Here that costs a child: the session and the screen live on, and the session can be gone on
with. An order comes in on stdin as one JSON line, events go out on stdout, one JSON object a line; when stdin closes, all
tasks are cancelled.

Scheduling, transport and retry are Ray's: each task is pinned to its node by ``NodeAffinitySchedulingStrategy`` and asks
for all of the node's cores, so nothing else that Ray starts runs beside it. Nodes of one machine get their turns one after
the other: logical cores of one machine are no hosts of their own, and would measure each other.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sparsetui.fleet import remote

_POLL_S = 0.5
_REACH_S = 5.0
LOCAL = "local"
_GONE = "the node died, or left the cluster"
Emit = Callable[..., None]


class Refused(Exception):
    """The order cannot be carried out; one line that says why."""


def main() -> int:
    """Carry out the order on stdin. Exit code 0 whatever the hosts came to; the events say what happened."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Ray prints, also from C++
    mutex = threading.Lock()

    def emit(event: str, **body: Any) -> None:
        with mutex:
            out.write(json.dumps({"event": event, **body}) + "\n")
            out.flush()

    order = json.loads(sys.stdin.buffer.readline())
    stop = threading.Event()
    threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    try:
        Campaign(order, emit, stop).run()
    except Refused as e:
        emit("fatal", why=str(e))
    except Exception as e:  # Ray has many exceptions of its own; all of them mean that the cluster cannot be used
        emit("fatal", why=f"{type(e).__name__}: {one_line(e)}")
    out.flush()
    os._exit(0)  # Ray's threads may wait for a head node that is gone


def _wait_for_end(stop: threading.Event) -> None:
    sys.stdin.buffer.read()
    stop.set()


def one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]


class Campaign:
    """One order: connect, look at the nodes, run the task on each, tell what came of it."""

    def __init__(self, order: dict[str, Any], emit: Emit, stop: threading.Event) -> None:
        self.order, self.emit, self.stop = order, emit, stop
        self.ray: Any = None
        self.nodes: dict[str, dict[str, Any]] = {}
        self.machines: dict[str, str] = {}
        self.running: dict[Any, str] = {}  # reference -> host
        self.submitted: dict[str, float] = {}
        self.began: set[str] = set()
        self.news: Any = None  # reference to what the board was asked for

    def run(self) -> None:
        self.connect()
        try:
            wanted = self.choose()
            self.emit("chosen", hosts=[_public(n) for n in wanted])
            ready = self.look([n for n in wanted if n["host"] not in self.order["done"]])
            if "watch" in self.order["job"]:
                self.watch(ready)
            elif "matrix" in self.order["job"]:
                from sparsetui.fleet.spreading import Spread

                Spread(self, ready).run()
            else:
                self.measure(ready)
            self.emit("end")
        finally:
            self.ray.shutdown()

    # -- the cluster ---------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a local Ray would ask, and report to its makers
        try:
            import ray
        except ImportError as e:
            raise Refused(f"Ray cannot be loaded ({e}); install the extra: pip install 'sparsetui[fleet]'") from None
        self.ray = ray
        address = self.order["address"]
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == LOCAL:
            ray.init(include_dashboard=False, object_store_memory=128 << 20, **quiet)
        else:
            _reach(address)
            try:
                ray.init(address=address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as e:
                raise Refused(f"--address {address}: {one_line(e)}") from None
        self.ray.cloudpickle.register_pickle_by_value(remote)

    def choose(self) -> list[dict[str, Any]]:
        """The nodes that ``hosts`` means: a number, names, or all that offer cores."""
        alive = [n for n in self.ray.nodes() if n["Alive"]]
        names = [str(n.get("NodeName") or n["NodeManagerAddress"]) for n in alive]
        for n, name in zip(alive, names, strict=True):
            host = name if names.count(name) == 1 else f"{name}#{n['NodeID'][:6]}"
            self.nodes[host] = {
                "host": host,
                "node_id": n["NodeID"],
                "address": n["NodeManagerAddress"],
                "hostname": n.get("NodeManagerHostname", ""),
                "cpus": int(n["Resources"].get("CPU", 0)),
            }
        offered = sorted(h for h, n in self.nodes.items() if n["cpus"] >= 1)
        asked = self.order["hosts"]
        if isinstance(asked, list):
            unknown = [h for h in asked if h not in self.nodes and h not in self.order["known"]]
            if unknown:
                raise Refused(f"--hosts: no live node is called {', '.join(unknown)}; there are: {', '.join(offered)}")
            for h in asked:  # of a session that is gone on with: its node is gone
                if h not in self.nodes:
                    self.emit("failed", host=h, kind="lost", why="no live node of this name is in the cluster")
            return [self.nodes[h] for h in asked if h in self.nodes]
        if not offered:
            raise Refused(f"--address {self.order['address']}: no live node of this cluster offers a core")
        if isinstance(asked, int) and asked > len(offered):
            raise Refused(f"--hosts {asked}: {len(offered)} live nodes offer cores: {', '.join(offered)}")
        return [self.nodes[h] for h in (offered[:asked] if isinstance(asked, int) else offered)]

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The nodes that can do their part; the others are told as refused."""
        task = self.ray.remote(remote.look)
        refs = {}
        for n in wanted:
            if n["cpus"] < 1:
                self.emit("failed", host=n["host"], kind="refused", why="it offers no cores to Ray")
                continue
            options = task.options(num_cpus=0, max_retries=1, scheduling_strategy=self.pinned(n))
            refs[options.remote(self.order["root"], self.order["files"], self.order["version"])] = n
        ready = []
        deadline = time.monotonic() + self.order["patience_s"]
        while refs and not self.stop.is_set():
            done, _ = self.ray.wait(list(refs), timeout=_POLL_S)
            for ref in done:
                n = refs.pop(ref)
                facts = self.got(n["host"], ref)
                if facts is None:
                    continue
                n.update(facts)
                self.emit("looked", host=n["host"], **facts)
                if "refuses" in facts:
                    self.emit("failed", host=n["host"], kind="refused", why=facts["refuses"])
                else:
                    ready.append(n)
            if time.monotonic() > deadline:
                for n in refs.values():
                    self.emit("failed", host=n["host"], kind="slow", why="it did not start a first task in time")
                break
        return sorted(ready, key=lambda n: str(n["host"]))

    # -- measuring -----------------------------------------------------------------------------------------------------

    def board(self) -> Any:
        """The actor that hosts tell their progress, on the node that we are connected to where it can be."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=True)
        return self.ray.remote(remote.Board).options(num_cpus=0, scheduling_strategy=here).remote()

    def bundle(self, ready: list[dict[str, Any]]) -> Any:
        """The workload's code in Ray's object store, where any node needs it."""
        return self.ray.put(_bundle(self.order)) if any(n["code"] == "shipped" for n in ready) else None

    def measure(self, ready: list[dict[str, Any]]) -> None:
        board, bundle = self.board(), self.bundle(ready)
        waiting = list(ready)
        while (waiting or self.running) and not self.stop.is_set():
            busy = {self.nodes[h]["machine"] for h in self.running.values()}
            for n in list(waiting):
                if n["machine"] not in busy:
                    waiting.remove(n)
                    busy.add(n["machine"])
                    self.submit(n, board, bundle)
            done, _ = self.ray.wait(list(self.running), timeout=_POLL_S)
            self.progress(board)
            for ref in done:
                self.finish(self.running.pop(ref), ref)
            self.overdue()
        for ref in self.running:
            self.ray.cancel(ref, force=True)

    def watch(self, ready: list[dict[str, Any]]) -> None:
        """All processes at the same time, each from its own node; looking takes no cores."""
        task, by_host, waiting = self.ray.remote(remote.watch), {n["host"]: n for n in ready}, {}
        for job in self.order["job"]["watch"]:
            n = by_host.get(job["host"])
            if n is not None:
                options = task.options(num_cpus=0, max_retries=0, scheduling_strategy=self.pinned(n))
                waiting[options.remote(job, self.order["limit_s"])] = job
        while waiting and not self.stop.is_set():
            done, _ = self.ray.wait(list(waiting), timeout=_POLL_S)
            for ref in done:
                job = waiting.pop(ref)
                answer = self.got(job["host"], ref, pid=job["pid"])
                if answer is not None and "failed" in answer:
                    self.emit("failed", host=job["host"], pid=job["pid"], kind=answer["failed"], why=answer["why"])
                elif answer is not None:
                    self.emit("report", host=job["host"], report=answer["report"])
        for ref in waiting:
            self.ray.cancel(ref, force=True)

    def submit(self, n: dict[str, Any], board: Any, bundle: Any) -> None:
        job = {**self.order["job"], "host": n["host"]}
        task = self.ray.remote(remote.investigate).options(
            num_cpus=n["cpus"], max_retries=1, scheduling_strategy=self.pinned(n)
        )
        ref = task.remote(job, bundle if n["code"] == "shipped" else None, board, self.order["limit_s"])
        self.running[ref] = n["host"]
        self.submitted[n["host"]] = time.monotonic()
        self.emit("submitted", host=n["host"])

    def pinned(self, n: dict[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(n["node_id"], soft=False)

    def progress(self, board: Any) -> None:
        """Tell what hosts have told. What the board gave is waited for: it gives each message once."""
        from ray.exceptions import RayError

        try:
            if self.news is None:
                self.news = board.take.remote()
            if not self.ray.wait([self.news], timeout=_POLL_S)[0]:
                return
            ref, self.news = self.news, None
            news = self.ray.get(ref)
        except (RayError, ConnectionError):  # the board is on a node that is gone: progress is no result
            self.news = None
            return
        for host, message in news.items():
            if message.pop("started", False):
                self.began.add(host)
                self.emit("started", host=host)
            if message:
                self.emit("progress", host=host, **message)

    def overdue(self) -> None:
        """A host whose cores others hold for too long is named; it does not hold up the rest."""
        for ref, host in list(self.running.items()):
            waited = time.monotonic() - self.submitted[host]
            if host not in self.began and waited > self.order["patience_s"]:
                del self.running[ref]
                self.ray.cancel(ref, force=True)
                why = f"its cores were not free within {self.order['patience_s']:.0f} s"
                self.emit("failed", host=host, kind="slow", why=why)
            elif host in self.began and waited > self.order["limit_s"] + self.order["patience_s"] + 60:
                del self.running[ref]
                self.ray.cancel(ref, force=True)
                self.emit("failed", host=host, kind="slow", why=f"no answer within {waited:.0f} s")

    def finish(self, host: str, ref: Any) -> None:
        answer = self.got(host, ref)
        if answer is None:
            return
        if "failed" in answer:
            self.emit("failed", host=host, kind=answer["failed"], why=answer["why"])
        else:
            self.emit("report", host=host, report=answer["report"])

    def got(self, host: str, ref: Any, **about: Any) -> dict[str, Any] | None:
        """What a task answered, or ``None`` with the host told as lost or broken."""
        from ray import exceptions

        try:
            answer: dict[str, Any] = self.ray.get(ref)
            return answer
        except (exceptions.NodeDiedError, exceptions.TaskUnschedulableError, exceptions.ActorUnschedulableError):
            kind, why = "lost", _GONE
        except exceptions.ObjectLostError as e:
            kind, why = "lost", one_line(e)
        except exceptions.WorkerCrashedError:
            kind, why = "lost", "Ray's worker process on it died"
        except exceptions.OutOfMemoryError:
            kind, why = "broken", "Ray ended the task: the node ran out of memory"
        except exceptions.RayActorError:  # of the worker or of its node: Ray may not know yet
            kind, why = "lost", "Ray's worker process on it died, or its node did" if self.alive(host) else _GONE
        except exceptions.RayError as e:
            kind, why = "broken", one_line(e)
        self.emit("failed", host=host, kind=kind, why=why, **about)
        return None

    def alive(self, host: str) -> bool:
        return any(n["Alive"] and n["NodeID"] == self.nodes[host]["node_id"] for n in self.ray.nodes())


def _public(node: dict[str, Any]) -> dict[str, Any]:
    return {k: node[k] for k in ("host", "node_id", "address", "hostname", "cpus")}


def _bundle(order: dict[str, Any]) -> bytes:
    from sparsetui.fleet.bundle import Manifest, pack

    return pack(Manifest(order["root"], order["files"], 0))


def _reach(address: str) -> None:
    """Say at once that nobody listens there: Ray tries for a minute."""
    where = address.removeprefix("ray://")
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        if address == "auto":
            return
        raise Refused(f"--address {address}: expected HOST:PORT, ray://HOST:PORT, auto or {LOCAL}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as e:
        raise Refused(f"--address {address}: nobody answers there ({getattr(e, 'strerror', None) or e})") from None


if __name__ == "__main__":
    raise SystemExit(main())
