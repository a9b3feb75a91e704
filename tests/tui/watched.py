"""A scripted watch for the tests of the app: frozen snapshots as the real one makes them, of processes that do not run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from sparsetui.evidence.records import Missing, Number, PathShare, Sampler, TimeTable, unavailable
from sparsetui.ingest.attach import Cost, NothingToSee, Snapshot, ThreadShare
from sparsetui.ingest.samplers.proc import Who
from sparsetui.tui.screens.processes import Process

PROCESSES = (
    Process(4242, "serving", 5025.0, 12, "/srv/venv/bin/python serve.py --model \x1b[31mranker[red]", True),
    Process(777, "root", 61.0, 3, "/usr/sbin/sshd -D", False),
)
KERNEL = "mkl_sparse_s_csr_ng_n_mm_f_ker_i4_def"
COST = Cost(0.02, unavailable("not measured yet"), "py-spy stops the process about 2 ms a sample: 2% at 10 samples/s")
MISSING = (Missing("layouts", "sampling shows what ran, not the tensors it ran on"),)


def share(value: float, lo: float, hi: float, n: int = 120) -> Number:
    return Number(value, (lo, hi), n)


def snapshot(at: float, ran: float = 0.72, done: bool = False) -> Snapshot:
    paths = (
        PathShare("sparse-csr-rhs", share(ran, 0.63, 0.79), (KERNEL,), ("serve.py:41 forward",), 2),
        PathShare("wait", share(0.2, 0.14, 0.28)),
        PathShare("barrier", share(0.08, 0.04, 0.14), ("gomp_barrier_wait_end",), (), 2),
    )  # fmt: skip
    threads = (
        ThreadShare(4242, 4242, "python", share(0.81, 0.74, 0.86), (("sparse-csr-rhs", 0.92), ("python", 0.08))),
        ThreadShare(4242, 4250, "python", share(0.64, 0.55, 0.72), (("barrier", 0.9), ("sparse-csr-rhs", 0.1))),
    )
    return Snapshot(
        elapsed_s=at,
        targets=(Who(4242, PROCESSES[0].command, 1000),),
        table=TimeTable(paths, (Sampler("py-spy", 10, 120, 0.02),), MISSING),
        threads=threads,
        callers=(("serve.py:41 forward", share(0.88, 0.81, 0.93)),),
        dense_share=share(0.0, 0.0, 0.03),
        conversion_share=unavailable("nothing was sampled"),
        cost=Cost(0.02, share(0.021, 0.018, 0.025, 2000), COST.text),
        done=done,
    )


class Watched:
    """``hold`` keeps it watching until it is interrupted; ``refuse`` lets no sampler look."""

    made: list[Watched] = []
    hold = False
    refuse = False

    def __init__(self, pids: list[int], *, on_command: Callable[..., Any] | None = None) -> None:
        self.targets = tuple(Who(pid, PROCESSES[0].command, 1000) for pid in pids)
        self._on_command = on_command
        self._halt = threading.Event()
        self.stopped = False
        Watched.made.append(self)

    def cost(self) -> Cost:
        return COST

    def start(self) -> None:
        if self.refuse:
            raise NothingToSee((Missing("native frames", "ptrace is not permitted (kernel.yama.ptrace_scope is 2)"),))
        if self._on_command is not None:
            self._on_command(["py-spy", "record", "--pid", "4242"], "sample", 99)

    def interrupt(self) -> None:
        self._halt.set()

    def stop(self) -> None:
        self.stopped = True

    def snapshots(self, seconds: float | None = None) -> Iterator[Snapshot]:
        try:
            yield snapshot(3.0)
            if self.hold:
                self._halt.wait(30)
        finally:
            self.stop()
        yield snapshot(12.0, 0.7, done=True)


class Held(Watched):
    hold = True


class Refused(Watched):
    refuse = True
