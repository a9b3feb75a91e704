"""The passes, one function each: ask a replica, keep the whole answer as an artifact, return the payload.

A pass that fails leaves a fault in the ledger and no payload; what can still be decided without it is decided.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sparsetui.evidence.records import Difference, Lock, Number, TimeTable, unavailable
from sparsetui.runner.journal import Journal
from sparsetui.worker.handle import Replica

# which lock tags a declared change covers
COVERS: dict[str, tuple[str, ...]] = {
    "torch": (
        "torch",
        "python",
        "interpreter",
        "build",
        "blas",
        "lapack",
        "mkl",
        "isa",
        "cuda",
        "env.",
        "interop_threads",
        "switch.",
    ),
    "threads": ("threads", "interop_threads", "env.OMP_NUM_THREADS", "env.MKL_NUM_THREADS", "env.OPENBLAS_NUM_THREADS"),
    "dtype": ("dtype.", "switch.default_dtype"),
    "env": ("env.",),
    "shapes": ("shapes.",),
    "code": ("deterministic", "matmul_precision", "switch."),
    "host": ("cpu", "affinity", "usable_cores", "quota", "governor", "max_freq", "numa", "gpu", "isa"),
    "build": ("build", "blas", "lapack", "mkl", "isa"),
}
# tags that are told but do not make two runs incomparable: a mechanism of its own reads them
_TOLD = ("invariant_checks", "shapes.outputs", "interpreter")


def compare_locks(failing: Mapping[str, str], comparator: Mapping[str, str], change: Sequence[str]) -> Lock:
    """Tag by tag; a tag that only one side could tell is not compared."""
    differs = []
    for tag in sorted(
        set(failing) & set(comparator) | {t for t in (set(failing) ^ set(comparator)) if t.startswith("env.")}
    ):
        a, b = failing.get(tag, "unset"), comparator.get(tag, "unset")
        if a != b and not tag.startswith(_TOLD):
            declared = any(tag.startswith(p) for c in change for p in COVERS.get(c, (c,)))
            differs.append(Difference(tag=tag, failing=a, comparator=b, declared=declared))
    return Lock(match=all(d.declared for d in differs), differs=tuple(differs), tags=dict(comparator))


def simple(
    journal: Journal, replica: Replica, variant: str, stage: str, probe: str, args: dict[str, Any], deadline_s: float,
    cancel: threading.Event, summary: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:  # fmt: skip
    """A pass that is one verb: its answer is the payload."""

    def progress(message: dict[str, Any]) -> None:
        of = message.get("of")
        done = next((v for k, v in message.items() if k != "of" and isinstance(v, (int, float))), None)
        journal.live(progress=done / of if of and done is not None else None)

    payload = replica.call(probe, args, deadline_s=deadline_s, on_message=progress, cancel=cancel)
    journal.evidence(stage, probe, payload, variant=variant, summary=summary(payload))
    return payload


def say_inventory(p: dict[str, Any]) -> str:
    rows = [t for t in p["tensors"] if len(t.get("shape", ())) >= 2]
    sparse = [t for t in rows if t.get("layout") not in ("strided", None)]
    zeros = sum(float(t.get("zeros", 0)) * t.get("numel", 0) for t in rows)
    total = sum(t.get("numel", 0) for t in rows if "zeros" in t)
    share = f"{100 * zeros / total:.3g} % zeros" if total else "zeros unknown"
    return f"{len(p['tensors'])} tensors, {len(sparse)} in a sparse layout, {share}"


def say_census(p: dict[str, Any]) -> str:
    products = [r for r in p["rows"] if r.get("weight")]
    sparse = [r for r in products if r["path"].startswith("sparse")]
    per = p["calls"] / max(1, p["steps"])
    return f"{per:.4g} ops a step, {len(products)} products with weights, {len(sparse)} of them sparse"


def say_profile(p: dict[str, Any]) -> str:
    hidden = sum(h["calls"] for h in p["hidden"]) / max(1, p["steps"])
    return f"{p['events'] / max(1, p['steps']):.4g} nested ops a step, {hidden:.3g} conversions hidden inside products"


def native(
    journal: Journal,
    replica: Replica,
    variant: str,
    seconds: float,
    scratch: Path,
    cancel: threading.Event,
    deadline_s: float,
) -> TimeTable:
    """Sample the replica from outside while it steps; the loop ends when the samplers have what they came for."""
    from sparsetui.ingest.samplers import sample_native

    stop = scratch / f"stop-{variant}"
    stop.unlink(missing_ok=True)
    loop = threading.Thread(
        target=_loop, args=(replica, {"seconds": deadline_s, "stop": str(stop)}, deadline_s + 5, cancel), daemon=True
    )
    replica.allow_ptrace()
    loop.start()
    try:
        table = sample_native(
            replica.pid,
            seconds,
            rate_hz=50,
            on_command=lambda argv, why, pid: journal.command({"argv": argv, "why": why, "pid": pid}),
        )
    finally:
        stop.touch()
        loop.join(10)
    top = table.paths[0] if table.paths else None
    n = sum(s.samples for s in table.samplers)
    said = f"{100 * (top.share.value or 0):.0f} % {top.path} of {n} samples" if top else "no samplers could look"
    journal.evidence("kernel", "native", msgspec.to_builtins(table), variant=variant, summary=said,
                     quality="measured" if top else "unavailable")  # fmt: skip
    return table


def _loop(replica: Replica, args: dict[str, Any], deadline_s: float, cancel: threading.Event) -> None:
    try:
        replica.call("loop", args, deadline_s=deadline_s, cancel=cancel)
    except Exception:  # its death is found by the next call on the replica, which says how
        return


def unheld(census: Mapping[str, Any]) -> bool:
    """Whether the step used matrices that no walk over what is held had found."""
    return any(not c["name"] and len(c["shape"]) >= 2 for c in census.get("constants", ()) if not c.get("mutated"))


def output_drift(failing: Mapping[str, Any], comparator: Mapping[str, Any]) -> tuple[Number, str]:
    """Relative L2 distance of the outputs, ‖failing − comparator‖ / ‖comparator‖, over inputs; with a range over inputs."""
    if failing["shapes"] != comparator["shapes"]:
        return unavailable("the two variants' outputs differ in shape"), "outputs"
    per = []
    for a, b in zip(failing["files"], comparator["files"], strict=True):
        x, y = np.load(a, allow_pickle=False), np.load(b, allow_pickle=False)
        keep = np.isfinite(x) & np.isfinite(y)
        norm = float(np.linalg.norm(y[keep]))
        if norm > 0:
            per.append(float(np.linalg.norm(x[keep] - y[keep])) / norm)
    if not per:
        return unavailable("the outputs are empty or all zero"), "outputs"
    mean = float(np.mean(per))
    half = 1.96 * float(np.std(per, ddof=1)) / len(per) ** 0.5 if len(per) > 1 else 0.0
    return Number(value=mean, ci=(mean - half, mean + half) if len(per) > 1 else None, n=len(per),
                  unit="relative L2 of outputs"), "outputs"  # fmt: skip


def quality_drift(failing: Mapping[str, float], comparator: Mapping[str, float]) -> tuple[Number, str]:
    """The largest absolute difference over the user's metrics."""
    both = sorted(set(failing) & set(comparator))
    if not both:
        return unavailable("the two variants report no metric in common"), "quality"
    name = max(both, key=lambda k: abs(failing[k] - comparator[k]))
    return Number(value=abs(failing[name] - comparator[name]), n=1, unit=f"change of {name}"), name
