"""Figures of a trace out of its sums: rates, gaps, occupancy, matrix units, step times."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsetui.evidence.kernels import PATHS, SPARSE
from sparsetui.evidence.records import Number, unavailable
from sparsetui.ingest.traces.paths import NUMBER
from sparsetui.ingest.traces.sums import Sums

_TENSOR_CORE = re.compile(
    r"(?i)tensorop|xmma|(?:^|_)[hifsb]\d{0,2}_?(?:884|1688|16816|16832|161616|8816)|wmma|gmma|warpgroup|hmma|imma|"
    r"_MI\d+x\d+x\d|mfma|s\d{4,6}gemm|884gemm|nvjet|tensor16x8"
)
_NOT_TENSOR_CORE = re.compile(
    r"(?i)simt|(?:volta|ampere|turing|maxwell|pascal|kepler)_(?:s|d|c|z|gc)?gemm|gemv|splitK|largek_lds|gemmk1|scal_"
)


def rates(sums: Sums) -> dict[str, Number]:
    """Shares of product time and of all time. ``fallback_rate`` only where the trace shows sparse work at all."""
    side = sums.device if sums.on_device else sums.host
    spent = side.by_path()
    total = sum(own for _, own in spent.values())
    some = bool(spent)

    def ms(*paths: str) -> float:
        return sum(spent.get(NUMBER[p], (0, 0.0))[1] for p in paths)

    def count(*paths: str) -> int:
        if sums.on_device:
            return sum(spent.get(NUMBER[p], (0, 0.0))[0] for p in paths)
        return sum(sums.innermost[NUMBER[p]] for p in paths)

    def of_all(path: str, n: int) -> Number:
        return Number(ms(path) / total, n=n) if total > 0 else unavailable("no time in the trace")

    products, n = ms(*SPARSE, "dense"), count(*SPARSE, "dense")
    none = "the trace holds no matrix product"
    out = {
        "sparse_rate": Number(ms(*SPARSE) / products, n=n) if products > 0
        else Number(0.0, n=0, reason=none) if some else unavailable(none),
        "dense_share": of_all("dense", count("dense")),
        "conversion_rate": of_all("conversion", spent.get(NUMBER["conversion"], (0, 0.0))[0]),
        "sort_rate": of_all("sort", spent.get(NUMBER["sort"], (0, 0.0))[0]),
    }  # fmt: skip
    if not any(NUMBER[p] in spent for p in (*SPARSE, "conversion")):
        out["fallback_rate"] = unavailable(
            "nothing in the trace is weight-sparse, and which dense products should have been is not recorded"
        )
    elif products > 0:
        why = "an upper bound: which dense products were meant to be sparse is not in a trace"
        out["fallback_rate"] = Number(ms("dense") / products, n=n, quality="derived", reason=why)
    else:
        out["fallback_rate"] = unavailable(none)
    return out


def gaps(sums: Sums) -> dict[str, Number]:
    """Idle shares: of each device between its first and last work, and of the host's busiest thread."""
    out: dict[str, Number] = {}
    busy, span = sum(d.busy for d in sums.devices.values()), sum(d.span for d in sums.devices.values())
    if not sums.on_device:
        out["device_idle"] = unavailable("the trace holds no device work")
    elif span > 0:
        out["device_idle"] = Number(1 - busy / span, n=sum(d.n for d in sums.devices.values()))
    else:
        out["device_idle"] = unavailable("all device work happened at one instant")
    threads = sums.threads if sums.python or not sums.tops else sums.tops
    if not threads:
        out["host_gap"] = unavailable("the trace holds no host ops")
        return out
    main = max(threads.values(), key=lambda t: t.total)
    out["host_gap"] = (
        Number(1 - main.busy / main.span, n=main.n)
        if main.span > 0
        else unavailable("all host ops happened at one instant")
    )
    return out


def occupancy(sums: Sums) -> Number:
    """Mean achieved occupancy in percent as the profiler estimated it, weighted by kernel time."""
    if not sums.on_device:
        return unavailable("the trace holds no device work", "%")
    rows = [r for r in sums.device.rows.values() if r.seen]
    if not rows:
        return unavailable("the trace holds no occupancy figures", "%")
    mean = sum(r.occupancy for r in rows) / sum(r.weight for r in rows)
    return Number(
        mean, n=sum(r.seen for r in rows), unit="%", quality="estimated", reason="the profiler's own estimate"
    )


def tensor_cores(sums: Sums) -> Number:
    """Share of matrix and convolution kernel time in kernels whose names say that they use matrix units."""
    wide = {NUMBER[p] for p in (*SPARSE, "dense", "conv", "attention")}
    spent: dict[bool | None, float] = {True: 0.0, False: 0.0, None: 0.0}
    n = 0
    for (name, path), row in sums.device.rows.items():
        if path in wide:
            n += row.calls
            spent[tensor_core(sums.names[name], PATHS[path])] += row.total
    yes, no, unsure = spent[True], spent[False], spent[None]
    if yes + no <= 0:
        return unavailable("no kernel's name says which units it uses" if n else "the trace holds no matrix kernels")
    low, high = yes / (yes + no + unsure), (yes + unsure) / (yes + no + unsure)
    return Number(
        yes / (yes + no),
        ci=(low, high) if unsure else None,
        n=n,
        quality="derived",
        reason="by kernel names; the interval counts kernels whose name does not say" if unsure else "by kernel names",
    )


def steps(sums: Sums) -> dict[str, Any]:
    """Step times between the profiler's own step marks."""
    times = np.array([sums.steps[k] for k in sorted(sums.steps)]) / 1e3
    why = "the trace holds no step marks (ProfilerStep#N)"
    out: dict[str, Any] = {"n": len(times), "numbers": sorted(sums.steps)[:1000]}
    for q in (0.5, 0.95, 0.99):
        out[f"p{round(q * 100)}_ms"] = percentile(times, q, why)
    return out


def percentile(times: npt.NDArray[np.float64], q: float, why: str) -> Number:
    """A percentile of step times in ms, with an order-statistic interval; only where enough steps support it."""
    n = len(times)
    if n == 0:
        return unavailable(why, "ms")
    if n * (1 - q) < 10 and q > 0.5:
        return unavailable(f"{n} steps do not support it; {round(10 / (1 - q))} do", "ms")
    ordered = np.sort(times)
    value = float(np.quantile(ordered, q))
    half = 1.96 * float(np.sqrt(n * q * (1 - q)))
    low, high = int(np.floor(n * q - half)), int(np.ceil(n * q + half))
    ci = (float(ordered[low]), float(ordered[high])) if low >= 0 and high < n else None
    return Number(value, ci=ci, n=n, unit="ms")


def tensor_core(name: str, path: str) -> bool | None:
    """Whether a kernel's name says that it ran on matrix units (True), on others (False) or nothing (None)."""
    if path not in SPARSE and path not in ("dense", "conv", "attention"):
        return None
    if _TENSOR_CORE.search(name[:400]) and not re.search(r"_MI1x1x", name[:400]):
        return True
    return False if _NOT_TENSOR_CORE.search(name[:400]) else None
