"""Reports as hosts send them, with figures drawn from a stated model instead of measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparsetui.evidence.records import Finding, Number, Verdict
from sparsetui.fleet.records import HostReport

TAGS = {
    "torch": "2.13.0+cpu", "python": "3.11.7", "threads": "8", "cpu": "EPYC 9654", "isa": "AVX512", "quota": "max 100000",
    "affinity": "0-7", "interpreter": "/usr/bin/python3", "env.OMP_NUM_THREADS": "8",
}  # fmt: skip
CALM = {"throttled": 0.0, "steal": 0.0, "others_busy": 0.05, "nivcsw": 3.0, "load_per_core": 0.4, "minflt": 1.0}


def report(
    host: str,
    ratio: float = 1.0,
    level_ms: float = 2.0,
    *,
    se: float = 0.02,
    says: str | None = None,
    mechanism: str | None = None,
    tags: dict[str, str] | None = None,
    **more: Any,
) -> HostReport:
    """A host whose pair has this ratio and whose comparator takes ``level_ms``; its answer follows from the ratio."""
    said = says or ("slower" if ratio > 1.05 else "same")
    status: Any = {"slower": "fault", "same": "no_fault", "faster": "no_fault"}.get(said, "cannot_answer")
    named = mechanism or ("kernel.wrong-orientation" if status == "fault" else None)
    lock = {**TAGS, **(tags or {}), "affinity": f"of {host}"}
    number = Number(ratio, (ratio * math.exp(-2 * se), ratio * math.exp(2 * se)), 8, "×")
    finding = (
        Finding(stage=named.partition(".")[0], mechanism=named, confidence="confirmed", material=True, summary=f"{named} it is",
                owner="sparse kernel library owner", intervention="E11", fix="mend it")
        if named
        else None
    )  # fmt: skip
    return HostReport(
        host=host,
        verdict=Verdict(status, "as it was found", mechanism=named, confidence="confirmed" if named else None),
        says=said,
        findings=(finding,) if finding else (),
        ratio=number,
        failing_ms=Number(level_ms * ratio, unit="ms"),
        comparator_ms=Number(level_ms, unit="ms"),
        log_ratio=math.log(ratio),
        se=se,
        df=7.0,
        level=math.log(level_ms),
        level_se=se,
        lock={"failing": lock, "comparator": lock},
        conditions=more.pop("conditions", CALM),
        **more,
    )


def fleet(n: int, ratio: float = 1.0, *, tau: float = 0.02, se: float = 0.02, seed: int = 0) -> list[HostReport]:
    """``n`` hosts whose ratios and paces vary by ``tau`` from host to host, and by ``se`` in the measuring."""
    rng = np.random.default_rng(seed)
    spread = math.hypot(tau, se)
    return [
        report(f"h{i:04d}", ratio * math.exp(spread * rng.standard_normal()), 2.0 * math.exp(spread * rng.standard_normal()), se=se,
               says="slower" if ratio > 1.15 else "same")
        for i in range(n)
    ]  # fmt: skip
