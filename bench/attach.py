"""Watching from outside: whether the right path leads within five seconds, and what the watching does to its target.

    python bench/attach.py paths  [CASE…] [--samplers perf,py-spy] [--seconds 5] [--json FILE]
    python bench/attach.py effect [--rounds 20] [--block 6] [--sampler auto] [--json FILE]

``paths`` starts a process for each case and watches it with each sampler. ``effect`` steps one target without end, which notes
when each step began; blocks with a watch and blocks without take turns, and the first three seconds of each watch, in which
symbols are read, are left out. Printed are the ratios on/off of the median step and of the throughput over pairs of adjacent
blocks, with a 95 % interval. ``python -m tests.torture.promises --paths FILE --effect FILE`` puts both into docs/promises.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HEAD = """
import os, sys, time, warnings
import torch, torch.nn.functional as F
warnings.filterwarnings("ignore")
torch.manual_seed(0); torch.set_num_threads(1)
w = torch.randn(1024, 1024); w[torch.rand(1024, 1024) < 0.9] = 0
x, few = torch.randn(64, 1024), torch.randn(2, 1024)
"""
# case: what leads (an exact kernel name that does not tell the layout takes the wider sparse-csr), and the step
CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "dense": (("dense",), "step = lambda: F.linear(x, w)"),
    "csr": (("sparse-csr",), "c, y = w.to_sparse_csr(), x.t().contiguous(); step = lambda: c @ y"),
    "csr-rhs": (("sparse-csr-rhs",), "c = w.to_sparse_csr(); step = lambda: F.linear(x, c)"),
    "csc": (("sparse-csc", "sparse-csr-rhs"), "c = w.t().to_sparse_csc(); step = lambda: x @ c"),
    "csc-left": (("conversion",), "c, y = w.to_sparse_csc(), x.t().contiguous(); step = lambda: c @ y"),  # torch flips it each time
    "coo": (("sparse-coo",), "c, y = w.to_sparse_coo().coalesce(), x.t().contiguous(); step = lambda: torch.sparse.mm(c, y)"),
    "bsr": (("sparse-bsr",), "c, y = w.to_sparse_bsr((16, 16)), x.t().contiguous(); step = lambda: c @ y"),
    "to_dense": (("conversion",), "c = w.to_sparse_csr(); step = lambda: F.linear(few, c.to_dense())"),
    "mask": (("elementwise",), "m = (w != 0).float(); step = lambda: F.linear(few, w * m)"),
    "python": (("python",), "t = [0.5] * 4000\ndef step():\n    s = 0.0\n    for v in t: s = s * 0.5 + v\n    return s"),
}  # fmt: skip
LOOP = """
with torch.no_grad():
    step()
    out = open(sys.argv[1], "wb", buffering=0)
    print("ready", flush=True)
    times, parent = [], os.getppid()
    while os.getppid() == parent:  # no target outlives its bench
        times.append(time.monotonic_ns())
        step()
        if times[-1] - times[0] > 50_000_000:
            out.write(b"".join(t.to_bytes(8, "little") for t in times)); times.clear()
"""


@contextlib.contextmanager
def target(case: str, steps: str = os.devnull) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the steps of ``case`` and writes the start of each (ns, 8 bytes) to ``steps``."""
    child = subprocess.Popen(
        [sys.executable, "-c", HEAD + CASES[case][1] + LOOP, steps], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the target of {case} did not start")
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout:
            child.stdout.close()


def lead(pid: int, sampler: str, seconds: float) -> tuple[str, str]:
    """The path that leads after ``seconds`` of ``sparsetui attach``, and a line on it."""
    argv = [sys.executable, "-m", "sparsetui", "attach", str(pid), "--headless", "--json", "-", "--sampler", sampler,
            "--seconds", str(seconds)]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 90)
    if done.returncode:
        return "", (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:110]
    rows = json.loads(done.stdout)["paths"]
    if not rows:
        return "", "no path"
    share = rows[0]["share"]
    told = f"{share['value']:.0%} [{share['ci'][0]:.0%}, {share['ci'][1]:.0%}]  {(rows[0]['symbols'] or [''])[0][:50]}"
    return rows[0]["path"], told


def paths(cases: list[str], samplers: list[str], seconds: float) -> list[dict[str, object]]:
    """One row for each case and sampler: what led, and whether that is right."""
    rows: list[dict[str, object]] = []
    for case in cases or list(CASES):
        with target(case) as child:
            for sampler in samplers:
                path, told = lead(child.pid, sampler, seconds)
                good = path in CASES[case][0]
                rows.append({"case": case, "sampler": sampler, "path": path, "right": good, "told": told})
                print(f"{case:<9} {sampler:<7} {path or '–':<15} {'right' if good else 'WRONG':<6} {told}", flush=True)
    return rows


def effect(case: str, rounds: int, block: float, skip: float, sampler: str) -> dict[str, object]:
    """Ratios on/off over pairs of adjacent blocks, ABBA, each with its interval."""
    with tempfile.TemporaryDirectory() as folder:
        steps = Path(folder) / "steps"
        spans: dict[str, list[tuple[int, int]]] = {"on": [], "off": []}
        with target(case, str(steps)) as child:
            time.sleep(2)
            for i in range(rounds):
                for side in ("off", "on") if i % 2 == 0 else ("on", "off"):
                    watch = None
                    if side == "on":
                        argv = [sys.executable, "-m", "sparsetui", "attach", str(child.pid), "--headless", "--json", "-",
                                "--sampler", sampler, "--seconds", str(skip + block + 2)]  # fmt: skip
                        watch = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                        assert watch.stderr is not None
                        for line in watch.stderr:  # its start-up is none of the target's business
                            if line.startswith("cost:"):
                                break
                        time.sleep(skip)
                    begin = time.monotonic_ns()
                    time.sleep(block)
                    spans[side].append((begin, time.monotonic_ns()))
                    if watch:
                        watch.send_signal(signal.SIGINT)
                        watch.communicate(timeout=60)
                    time.sleep(0.5)
        starts = np.frombuffer(steps.read_bytes()[: steps.stat().st_size // 8 * 8], "<i8")
    p50, rate = (np.array([_log_ratio(starts, on, off)[k] for on, off in zip(spans["on"], spans["off"], strict=True)])
                 for k in (0, 1))  # fmt: skip
    return {
        "case": case,
        "sampler": sampler,
        "rounds": rounds,
        "block_s": block,
        "p50": _interval(p50),
        "throughput": _interval(rate),
    }


def _log_ratio(starts: np.ndarray, on: tuple[int, int], off: tuple[int, int]) -> tuple[float, float]:
    lengths = []
    for begin, end in (on, off):
        mine = starts[(starts >= begin) & (starts < end)]
        lengths.append((float(np.median(np.diff(mine))), len(mine) / (end - begin)))
    return float(np.log(lengths[0][0] / lengths[1][0])), float(np.log(lengths[0][1] / lengths[1][1]))


def _interval(logs: np.ndarray) -> dict[str, float]:
    """The median over pairs as a ratio, with the order-statistic interval of at least 95 %."""
    from scipy.special import bdtr

    ordered, n = np.sort(logs), len(logs)
    k = max((j for j in range(n // 2) if 2 * bdtr(j, n, 0.5) <= 0.05), default=-1)
    low, high = (ordered[k + 1], ordered[n - k - 2]) if k >= 0 else (ordered[0], ordered[-1])
    return {
        "ratio": float(np.exp(np.median(ordered))),
        "low": float(np.exp(low)),
        "high": float(np.exp(high)),
        "pairs": n,
    }


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = ask.add_subparsers(dest="what", required=True)
    one = what.add_parser("paths")
    one.add_argument("cases", nargs="*", metavar="CASE", help=f"some of: {', '.join(CASES)}")
    one.add_argument("--samplers", default="perf,py-spy")
    one.add_argument("--seconds", type=float, default=5)
    one.add_argument("--json", metavar="FILE")
    two = what.add_parser("effect")
    two.add_argument("--case", default="csr-rhs", choices=CASES)
    two.add_argument("--rounds", type=int, default=20)
    two.add_argument("--block", type=float, default=6)
    two.add_argument("--skip", type=float, default=3, help="seconds of each watch that do not count (default 3)")
    two.add_argument("--sampler", default="auto")
    two.add_argument("--json", metavar="FILE")
    told = ask.parse_args()
    if told.what == "paths":
        if unknown := [c for c in told.cases if c not in CASES]:
            ask.error(f"no case is named {unknown[0]!r}; there are {', '.join(CASES)}")
        rows = paths(told.cases, told.samplers.split(","), told.seconds)
        if told.json:
            Path(told.json).write_text(json.dumps(rows, indent=2) + "\n")
        return 0 if all(r["right"] for r in rows) else 1
    result = effect(told.case, told.rounds, told.block, told.skip, told.sampler)
    for key, aim in (("p50", "within 2 %"), ("throughput", "within 4 %")):
        r = result[key]
        assert isinstance(r, dict)
        print(
            f"{key:<11} on/off {r['ratio']:.4f} [{r['low']:.4f}, {r['high']:.4f}] over {r['pairs']} pairs; aimed at: {aim}"
        )
    if told.json:
        Path(told.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
