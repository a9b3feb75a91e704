"""How long a product with a matrix takes in each format, measured in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsetui.evidence.text import clean
from sparsetui.ingest.samplers.base import OnCommand
from sparsetui.ingest.structure import Ints

MEASURE_S = 4.0


def measure_spmm(
    rows: int,
    cols: int,
    row: Ints,
    col: Ints,
    values: npt.NDArray[np.float64] | None = None,
    *,
    width: int = 64,
    seconds: float | None = None,
    python: str = sys.executable,
    on_command: OnCommand | None = None,
) -> dict[str, Any]:
    """Times of ``W @ X`` for W in each format and dense X of ``cols`` × ``width`` (float32, torch, its threads).

    Runs in a process of its own, the formats interleaved. Where torch is absent or the process dies:
    ``{"unavailable": reason}``. A pattern without values gets standard normal ones.
    """
    seconds = MEASURE_S if seconds is None else seconds
    if rows * cols > 1 << 27:
        return {"unavailable": f"{rows}×{cols} as dense would take {rows * cols * 4 >> 20} MiB; not measured"}
    order = np.lexsort((col, row))
    data = np.random.default_rng(0).standard_normal(len(row)) if values is None else values[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int64)
    with tempfile.TemporaryDirectory(prefix="sparsetui-") as folder:
        file = os.path.join(folder, "matrix.npz")
        np.savez(file, shape=[rows, cols], offsets=offsets, col=col[order], data=data.astype(np.float32))
        argv = [python, "-P", "-m", "sparsetui.probes.spmm", file, str(width), str(seconds)]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        if on_command:
            on_command(argv, "measure the product in each format", process.pid)
        try:
            out, err = process.communicate(timeout=seconds * 4 + 60)
        except subprocess.TimeoutExpired:
            return {"unavailable": f"the measurement took longer than {seconds * 4 + 60:.0f} s"}
        finally:
            _kill(process)
    if process.returncode:
        tail = err.decode("utf-8", "replace").strip().splitlines()
        why = tail[-1][:200] if tail else f"signal {-process.returncode}"
        return {"unavailable": f"the measuring process ended with {process.returncode}: {clean(why)}"}
    result: dict[str, Any] = json.loads(out)
    return result


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
