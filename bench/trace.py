"""How fast a large trace is read, beside HolisticTraceAnalysis in the same run.

    python bench/trace.py [--mb 300] [--hta PYTHON] [--large-mb 2048] [--json FILE]

The trace is recorded here, by torch's profiler: a small training step with shapes, as often as the size asks for. Each reader
gets the same file in a process of its own; imports are not counted. HolisticTraceAnalysis runs with ``--hta PYTHON``, an
interpreter that can import it (default: the one that SPARSETUI_HTA names, else this one), or is said to be absent.
With ``--large-mb`` a file of that size is made of the recorded events, each copy of them on threads of its own, and read
with its progress.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

RECORD = """
import os, sys, torch
from torch.profiler import ProfilerActivity, profile
torch.manual_seed(0); torch.set_num_threads(1)
layers = [torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8, 16)
def record(steps, path):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
                 schedule=torch.profiler.schedule(wait=0, warmup=1, active=steps)) as p:
        for _ in range(steps):
            p.step()
            for _ in range(200):  # few marks: other readers take time in proportion to them
                optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    p.export_chrome_trace(path)
    return os.path.getsize(path)
path, size = sys.argv[1], int(sys.argv[2])
a_step = record(2, path) / 2
print(record(max(2, round(size / a_step)), path))
"""
OURS = """
import resource, sys, time
from pathlib import Path
from sparsetui.ingest.events import team
from sparsetui.ingest.traces import inspect
told, helpers = [], []
start = team.Helper.__init__
team.Helper.__init__ = lambda self, number: (helpers.append(number), start(self, number))[1]
t = time.perf_counter()
p = inspect(Path(sys.argv[1]), progress=lambda done, eta: told.append((done, eta)))
t = time.perf_counter() - t
use = resource.getrusage(resource.RUSAGE_SELF)
peak = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024  # ru_maxrss counts the parent's
below = resource.getrusage(resource.RUSAGE_CHILDREN)
peak += len(helpers) * below.ru_maxrss * 1024
print(t, peak, p["events"], len(told), use.ru_utime + use.ru_stime + below.ru_utime + below.ru_stime)
"""
HTA = """
import logging, resource, sys, time
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
t = time.perf_counter()
a = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
t = time.perf_counter() - t
use = resource.getrusage(resource.RUSAGE_SELF)
peak = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024
print(t, peak, len(a.t.get_trace(0)), 0, use.ru_utime + use.ru_stime)
"""


class Run(NamedTuple):
    seconds: float  # without imports
    peak: int  # bytes, with those of helpers
    events: int
    told: int  # calls of progress
    cpu: float  # seconds of the whole process: on a busy host the fairer figure


def record(path: Path, size: int) -> None:
    """A trace of about ``size`` bytes. Raises SystemExit with the last words of a recorder that failed."""
    told = subprocess.run([sys.executable, "-c", RECORD, str(path), str(size)], capture_output=True, text=True)
    if told.returncode:
        sys.exit((told.stderr.strip().splitlines() or ["the recorder failed"])[-1])


def enlarge(source: Path, target: Path, size: int) -> None:
    """A file of at least ``size`` bytes out of copies of the events of ``source``, with other thread numbers in each."""
    text = source.read_bytes()
    begin = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    end = text.rindex(b"]")
    events = text[begin:end].strip().strip(b",")
    threads = sorted(set(re.findall(rb'"tid": (\d+)', events[: 4 << 20])))
    with target.open("wb") as file:
        file.write(text[:begin])
        copy = 0
        while file.tell() < size:
            mine = events
            for thread in threads:
                mine = mine.replace(b'"tid": ' + thread + b",", b'"tid": %d,' % (int(thread) + 100_000 * copy))
            file.write((b",\n" if copy else b"\n") + mine)
            copy += 1
        file.write(b"\n  " + text[end:])


def timed(python: str, code: str, path: Path) -> Run | None:
    """One run in its own process; None if it cannot run."""
    done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, timeout=3600)
    if done.returncode:
        print(*done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    seconds, peak, events, told, cpu = done.stdout.strip().splitlines()[-1].split()
    return Run(float(seconds), int(peak), int(events), int(told), float(cpu))


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--mb", type=int, default=300)
    ask.add_argument("--repeats", type=int, default=3, help="runs of sparsetui; the median counts")
    ask.add_argument("--hta", default=os.environ.get("SPARSETUI_HTA") or sys.executable, metavar="PYTHON")
    ask.add_argument("--large-mb", type=int, default=0, metavar="MB")
    ask.add_argument("--json", metavar="FILE")
    told = ask.parse_args()
    began = time.perf_counter()
    result: dict[str, float | int | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        record(path, told.mb << 20)
        runs = [run for _ in range(max(1, told.repeats)) if (run := timed(sys.executable, OURS, path))]
        if not runs:
            sys.exit("sparsetui could not read the trace")
        size, seconds, peak = os.path.getsize(path), median(r.seconds for r in runs), max(r.peak for r in runs)
        cpu = median(r.cpu for r in runs)
        print(f"trace     {size / 2**20:.0f} MiB, {runs[0].events} events")
        rate = size / 2**20 / seconds
        print(
            f"sparsetui {seconds:.2f} s, {rate:.0f} MiB/s, peak {peak / 2**20:.0f} MiB = {peak / size:.2f} of the file"
        )
        result |= {"bytes": size, "events": runs[0].events, "seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak}
        theirs = timed(told.hta, HTA, path)
        if theirs is None:
            print("HTA       could not read it with that interpreter; its last words are above")
            result["hta"] = "unavailable"
        else:
            result |= {"hta_seconds": theirs.seconds, "hta_cpu_seconds": theirs.cpu, "hta_peak_bytes": theirs.peak}
            times, by_cpu = theirs.seconds / seconds, theirs.cpu / cpu
            print(f"HTA       {theirs.seconds:.2f} s ({theirs.cpu:.2f} s of CPU), peak {theirs.peak / 2**20:.0f} MiB: "
                  f"sparsetui is {times:.1f} times as fast, {by_cpu:.1f} by CPU")  # fmt: skip
        if told.large_mb:
            large = Path(folder) / "large.json"
            enlarge(path, large, told.large_mb << 20)
            run = timed(sys.executable, OURS, large)
            if run is None:
                sys.exit("sparsetui could not read the large trace")
            size = os.path.getsize(large)
            rate = size / 2**20 / run.seconds
            print(f"large     {size / 2**20:.0f} MiB, {run.events} events: {run.seconds:.1f} s, {rate:.0f} MiB/s, "
                  f"peak {run.peak / 2**20:.0f} MiB, progress told {run.told} times")  # fmt: skip
            result |= {"large_bytes": size, "large_seconds": run.seconds, "large_peak_bytes": run.peak}
    result["wall_seconds"] = time.perf_counter() - began
    if told.json:
        Path(told.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
