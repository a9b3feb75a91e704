"""Time ``W @ X`` in each format: ``python -m sparsetui.probes.spmm FILE.npz WIDTH SECONDS`` prints JSON.

The file holds ``shape`` (2), ``offsets`` (rows + 1), ``col`` (nnz), ``data`` (nnz, float32) of a CSR matrix. Formats take
turns within each round, so that a busy host slows all of them alike; each round counts once.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from functools import partial
from typing import Any, Callable, Dict, List

import numpy as np


def main(file: str, width: int, seconds: float) -> Dict[str, Any]:
    import torch as _torch

    torch: Any = _torch  # its stubs leave most sparse methods untyped

    warnings.filterwarnings("ignore")
    with np.load(file, allow_pickle=False) as z:
        rows, cols = (int(x) for x in z["shape"])
        offsets, col, data = torch.from_numpy(z["offsets"]), torch.from_numpy(z["col"]), torch.from_numpy(z["data"])
    torch.manual_seed(0)
    x = torch.randn(cols, width)
    csr = torch.sparse_csr_tensor(offsets, col, data, size=(rows, cols))
    dense = csr.to_dense()
    makers: Dict[str, Callable[[], Any]] = {
        "dense": lambda: dense,
        "csr-int64": lambda: csr,
        "csr-int32": lambda: torch.sparse_csr_tensor(offsets.int(), col.int(), data, size=(rows, cols)),
        "coo": lambda: csr.to_sparse_coo().coalesce(),
        "csc": lambda: csr.to_sparse_csc(),
    }
    for b in (4, 16, 32):
        if rows % b == 0 and cols % b == 0:
            makers["bsr-%d" % b] = partial(csr.to_sparse_bsr, (b, b))
    ready: Dict[str, Any] = {}
    refused: Dict[str, str] = {}
    want = dense @ x
    with torch.no_grad():
        for name, make in makers.items():
            try:
                weight = make()
                got = weight @ x
                if not torch.allclose(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max() + 1e-9), equal_nan=True):
                    refused[name] = "its result differs from the dense one"
                    continue
                ready[name] = weight
            except Exception as e:  # a format that this build does not have
                refused[name] = str(e).splitlines()[0][:160] if str(e) else type(e).__name__
        # so many products a timing that the clock's grain does not matter
        reps: Dict[str, int] = {}
        for name, weight in ready.items():
            begin = time.perf_counter()
            weight @ x
            once = time.perf_counter() - begin
            reps[name] = max(1, min(200, int(0.002 / max(once, 1e-6))))
        times: Dict[str, List[float]] = {name: [] for name in ready}
        order = list(ready)
        end = time.perf_counter() + seconds
        rounds = 0
        while rounds < 5 or (time.perf_counter() < end and rounds < 400):
            for name in order if rounds % 2 else order[::-1]:
                weight, n = ready[name], reps[name]
                begin = time.perf_counter()
                for _ in range(n):
                    weight @ x
                times[name].append((time.perf_counter() - begin) / n * 1e3)
            rounds += 1
    dense_ms = np.array(times["dense"])
    rng = np.random.default_rng(0)
    pick = rng.integers(0, rounds, (1000, rounds))
    formats = {}
    for name, values in times.items():
        v = np.array(values)
        # paired by round: a percentile bootstrap of the median ratio to dense
        ratio = dense_ms / v
        boot, level = np.median(ratio[pick], axis=1), np.median(v[pick], axis=1)
        formats[name] = {
            "ms": {"value": float(np.median(v)), "ci": _ci(level), "n": rounds, "unit": "ms", "quality": "measured"},
            "speedup": {
                "value": float(np.median(ratio)),
                "ci": _ci(boot),
                "n": rounds,
                "unit": "×",
                "quality": "measured",
            },
        }
    return {
        "width": width,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "formats": formats,
        "refused": refused,
    }


def _ci(boot: Any) -> List[float]:
    return [float(np.percentile(boot, 2.5)), float(np.percentile(boot, 97.5))]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
