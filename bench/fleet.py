"""A fleet: what the verdict over many hosts costs, one, two and three nodes beside one host alone, and a matrix over three.

The reports of a thousand hosts are recorded ones in the sense that matters here: one report of a real investigation of this
machine's, at its full size, with the figures of each host drawn from a stated spread.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Figures = Iterator[tuple[str, str, str, str]]  # what, here, beside, aimed at

SERVING = """\
import torch

torch.manual_seed(3)
_DENSE = torch.randn(640, 512) * (torch.rand(640, 512) >= 0.9)
WEIGHT = _DENSE.to_sparse_csr()


def wrong_side():
    return lambda x: torch.nn.functional.linear(x, WEIGHT)


def right():
    return lambda x: (WEIGHT @ x.t()).t()
"""
WORKLOAD = """\
[failing]
entry = "serving.py:wrong_side"
threads = 1
[comparator]
entry = "serving.py:right"
threads = 1
[inputs]
shape = [48, 512]
"""
BUDGET = 10
MIB = 1 << 20


def workload(folder: Path) -> Path:
    (folder / "serving.py").write_text(SERVING)
    (folder / "w.toml").write_text(WORKLOAD)
    return folder / "w.toml"


def one_report(folder: Path) -> Any:
    """A report of a real investigation here."""
    from sparsetui.fleet.host import Job, investigate
    from sparsetui.workload.spec import load

    path = workload(folder)
    return investigate(Job("host", str(path), load(path).sha256, float(BUDGET)), lambda message: None)


def drawn(report: Any, n: int) -> list[Any]:
    """``n`` hosts like it: ratios and paces 4 % apart from host to host, and one in a hundred three times as slow."""
    import msgspec
    import numpy as np

    rng = np.random.default_rng(0)
    out = []
    for i in range(n):
        shift, pace = (0.04 * rng.standard_normal(2)).tolist()
        sick = math.log(3.0) if i % 100 == 7 else 0.0
        out.append(msgspec.structs.replace(
            report, host=f"h{i:05d}", log_ratio=(report.log_ratio or 0.0) + shift, level=(report.level or 0.0) + pace + sick,
            se=report.se or 0.05, level_se=report.level_se or 0.05,
        ))  # fmt: skip
    return out


def verdicts() -> Figures:
    """The pure part: reports as bytes in, a verdict out."""
    import msgspec

    from sparsetui.fleet.records import HostReport
    from sparsetui.fleet.verdict import decide

    with tempfile.TemporaryDirectory() as folder:
        report = one_report(Path(folder))
    if report.state != "done":
        yield (
            "a verdict over 1,000 hosts",
            "unavailable",
            f"the one host that is recorded here {report.state}: {report.why}",
            "",
        )
        return
    for n, aim in ((1000, "≤ 2 s"), (10_000, "")):
        raw = [msgspec.json.encode(r) for r in drawn(report, n)]
        began = time.perf_counter()
        reports = [msgspec.json.decode(b, type=HostReport) for b in raw]
        read = time.perf_counter() - began
        found = decide(reports)
        whole = time.perf_counter() - began
        size = sum(map(len, raw))
        said = f"{found.status}, {len(found.outliers)} of {n // 100} sick hosts named"
        yield (
            f"a verdict over {n:,} hosts",
            f"{whole:.2f} s, {read:.2f} s of it decoding",
            f"{said}; {size / n / 1e3:.1f} kB a host, {size / 1e6:.0f} MB in all",
            aim,
        )


def nodes() -> Figures:
    """The same workload on one host alone, then over one, two and three raylets of this machine, which take turns."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError as e:
        yield "a fleet of three nodes", "unavailable", f"Ray is not installed: {e}", ""
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory() as folder:
        path = workload(Path(folder))
        alone = _timed(["investigate", str(path), "--headless", "--budget", str(BUDGET), "--sessions", f"{folder}/s"])
        yield f"one host alone, a budget of {BUDGET} s", f"{alone:.1f} s", "", ""
        began = time.perf_counter()
        small = {"object_store_memory": 80 * MIB}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
        try:
            for name in "abc":
                cluster.add_node(num_cpus=1, node_name=name, wait=False, **small)
            cluster.wait_for_nodes()
            yield (
                "Ray itself: a head and three nodes are up",
                f"{time.perf_counter() - began:.1f} s",
                "not counted below",
                "",
            )
            for n in (1, 2, 3):
                argv = ["fleet", str(path), "--address", cluster.address, "--hosts", str(n), "--headless", "--budget", str(BUDGET),
                        "--sessions", f"{folder}/s"]  # fmt: skip
                took = _timed(argv)
                over = f"{took - n * alone:+.1f} s over {n} × one host alone; nodes of one machine take turns"
                yield f"a fleet of {n} node{'s' if n > 1 else ''}", f"{took:.1f} s", over, ""
            alone = _timed(["matrix", str(path), "--budget", str(BUDGET), "--sessions", f"{folder}/s"])
            spread = ["fleet", str(path), "--address", cluster.address, "--matrix", "--headless", "--budget", str(BUDGET),
                      "--sessions", f"{folder}/s"]  # fmt: skip
            beside = f"{alone:.1f} s on one host alone, whole steps only once"
            yield "a matrix over 3 nodes, one signature", f"{_timed(spread):.1f} s", beside, ""
        finally:
            cluster.shutdown()


def _timed(argv: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "sparsetui", *argv],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    if done.returncode not in (0, 1, 3):
        raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
    return time.perf_counter() - began
