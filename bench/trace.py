"""How fast a large trace is read, beside HolisticTraceAnalysis in the same run.

    python bench/trace.py [--mb 300] [--hta PYTHON] [--json FILE]

The trace is written by this script in the profiler's own layout: a training step of linear layers with shapes and
strides, runtime calls, kernels with occupancy and their flow arrows, repeated until the file has the
size that was asked for. HolisticTraceAnalysis runs with ``--hta PYTHON`` (an interpreter that can import it; default: this one)
or is said to be absent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "Bench Device", "totalGlobalMem": 85018279936,
      "computeMajor": 9, "computeMinor": 0
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "traceEvents": [
"""
OP = """  {
    "ph": "X", "cat": "cpu_op", "name": "%s", "pid": 4242, "tid": 4242,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d,"Record function id": 0, "Concrete Inputs": ["", "", ""],
      "Input type": ["float", "float", ""], "Input Strides": [[1024, 1], [1024, 1], [1]],
      "Input Dims": [[64, 1024], [1024, 1024], [1024]], "Ev Idx": %d
    }
  }"""
CALL = """  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4242, "tid": 4242,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d, "cbid": 211, "correlation": %d
    }
  }"""
KERNEL = """  {
    "ph": "X", "cat": "kernel", "name": "%s", "pid": 0, "tid": 7,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": %d,
      "registers per thread": 128, "shared memory": 49152, "blocks per SM": 1.939394, "warps per SM": 15.515152,
      "grid": [16, 16, 1], "block": [256, 1, 1], "est. achieved occupancy %%": 24
    }
  }"""
FLOW = """  {
    "ph": "%s", "id": %d, "pid": %d, "tid": %d, "ts": %.3f,
    "cat": "ac2g", "name": "ac2g"%s
  }"""
STEP = """  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 4242, "tid": 4242,
    "ts": %.3f, "dur": %.3f,
    "args": {
      "External id": %d, "Ev Idx": %d
    }
  }"""
KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int)",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda>>(int)",
)


def write(path: Path, size: int) -> int:
    """A trace of at least ``size`` bytes; returns its events."""
    events = number = 0
    at = 1_000_000.0
    with path.open("w") as file:
        file.write(HEAD)
        step = 0
        while file.tell() < size:
            begin, rows = at, []
            for _ in range(60):
                number += 1
                rows.append(OP % ("aten::linear", at, 40.0, number, number))
                rows.append(OP % ("aten::addmm", at + 4, 30.0, number, number))
                rows.append(OP % ("aten::relu", at + 42, 12.0, number, number))
                for k, offset in enumerate((10.0, 20.0, 46.0)):
                    call = 3 * number + k
                    rows.append(CALL % (at + offset, 4.0, number, call))
                    rows.append(FLOW % ("s", call, 4242, 4242, at + offset, ""))
                    rows.append(KERNEL % (KERNELS[k], at + offset + 9, 9.0, number, call))
                    rows.append(FLOW % ("f", call, 0, 7, at + offset + 9, ', "bp": "e"'))
                at += 60.0
            rows.append(STEP % (step, begin, at - begin, number, number))
            file.write((",\n" if step else "") + ",\n".join(rows))
            events += len(rows)
            step += 1
        file.write('\n  ],"traceName": "bench.json" }')
    return events


OURS = """
import resource, sys, time
from pathlib import Path
from sparsetui.ingest.traces import inspect
t = time.perf_counter(); p = inspect(Path(sys.argv[1])); t = time.perf_counter() - t
print(t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, p["events"])
"""
HTA = """
import logging, resource, sys, time
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
t = time.perf_counter()
a = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
a.get_gpu_kernel_breakdown(visualize=False)
a.get_idle_time_breakdown(visualize=False)
t = time.perf_counter() - t
print(t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 0)
"""


def timed(python: str, code: str, path: Path) -> tuple[float, int] | None:
    """Seconds and peak bytes of one run in its own process, or None if it cannot run."""
    done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, timeout=3600)
    if done.returncode:
        print(*done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    seconds, peak, _ = done.stdout.strip().splitlines()[-1].split()
    return float(seconds), int(peak)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--mb", type=int, default=300)
    ask.add_argument("--hta", default=sys.executable, metavar="PYTHON")
    ask.add_argument("--json", metavar="FILE")
    told = ask.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        events = write(path, told.mb << 20)
        size = os.path.getsize(path)
        result: dict[str, float | int | str] = {"bytes": size, "events": events}
        print(f"trace     {size / 2**20:.0f} MiB, {events} events")
        began = time.perf_counter()
        ours = timed(sys.executable, OURS, path)
        if ours is None:
            sys.exit("sparsetui could not read the trace")
        result |= {"seconds": ours[0], "peak_bytes": ours[1]}
        rate, peak = size / 2**20 / ours[0], ours[1] / 2**20
        print(f"sparsetui {ours[0]:.2f} s, {rate:.0f} MiB/s, peak {peak:.0f} MiB = {ours[1] / size:.2f} of the file")
        theirs = timed(told.hta, HTA, path)
        if theirs is None:
            print("HTA       could not read it with that interpreter; its last words are above")
            result["hta"] = "unavailable"
        else:
            result |= {"hta_seconds": theirs[0], "hta_peak_bytes": theirs[1]}
            times, peak = theirs[0] / ours[0], theirs[1] / 2**20
            print(f"HTA       {theirs[0]:.2f} s, peak {peak:.0f} MiB: sparsetui is {times:.1f} times as fast")
        result["wall_seconds"] = time.perf_counter() - began
    if told.json:
        Path(told.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
