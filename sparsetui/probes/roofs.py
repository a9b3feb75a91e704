"""The roofs of this host at this thread count: stream bandwidth from memory and from cache, and the dense GEMM peak."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List

import torch

from .context import Context


def roofs(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """``stream_gbs`` (copy of a vector far beyond the last cache, bytes read + written), ``cache_gbs`` (one that fits), and
    ``gemm_gflops`` by dtype: best of several, since a roof is what can be reached. Units: GB/s, GFLOP/s."""
    share = float(args.get("seconds", 2.0)) / 4
    big, small = torch.zeros(64 << 20, dtype=torch.uint8), torch.zeros(512 << 10, dtype=torch.uint8)
    far = torch.zeros_like(big)  # made beforehand: page faults of a fresh target cost several times the copy itself
    out: Dict[str, Any] = {"threads": torch.get_num_threads()}
    out["stream_gbs"] = _rate(lambda: far.copy_(big), 2 * big.numel(), share)
    target = torch.empty_like(small)
    out["cache_gbs"] = _rate(lambda: target.copy_(small), 2 * small.numel(), share / 2)
    n = 768
    peak: Dict[str, float] = {}
    for dt in (torch.float32,):
        a, b = torch.randn(n, n, dtype=dt), torch.randn(n, n, dtype=dt)
        peak[str(dt).replace("torch.", "")] = _rate(lambda a=a, b=b: torch.mm(a, b), 2 * n**3, share)  # type: ignore[misc]
    out["gemm_gflops"] = peak
    out["summary"] = "stream %.3g GB/s, cache %.3g GB/s, GEMM %.4g GFLOP/s at %d threads" % (
        out["stream_gbs"], out["cache_gbs"], peak["float32"], out["threads"])  # fmt: skip
    return out


def _rate(f: Callable[[], Any], work: int, seconds: float) -> float:
    """Best work per nanosecond (so GB/s or GFLOP/s) over ``seconds``."""
    best: List[float] = []
    with torch.no_grad():
        f()
        end = time.perf_counter() + seconds
        while len(best) < 5 or time.perf_counter() < end:
            t0 = time.perf_counter_ns()
            f()
            best.append(work / (time.perf_counter_ns() - t0))
    return max(best)
