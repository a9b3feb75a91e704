"""Several ranks of one run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spread(payloads: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How several ranks of one run differ: who works longest, who waits in collectives. None for fewer than two."""
    if len(payloads) < 2:
        return None
    rows = []
    for p in payloads:
        idle = p["gaps"]["device_idle"].value
        step = p["steps"]["p50_ms"].value
        busy = p["busy_ms"] if p["busy_ms"] is not None else p["span_ms"]
        rows.append(
            {
                "file": p["file"],
                "rank": p["rank"],
                "span_ms": p["span_ms"],
                "busy_ms": busy,
                "compute_ms": (busy or 0.0) - p["collective_ms"],
                "collective_ms": p["collective_ms"],
                "idle_share": idle,
                "step_p50_ms": step,
            }
        )
    out: dict[str, Any] = {
        "ranks": rows,
        "doubts": doubts(payloads),
        "absent": absent(payloads),
        "world_size": world(payloads),
    }
    for key in ("span_ms", "compute_ms", "collective_ms", "step_p50_ms"):
        values = [r[key] for r in rows if r[key]]
        out[f"{key}_max_over_min"] = max(values) / min(values) if len(values) == len(rows) else None
    slowest = max(rows, key=lambda r: r["compute_ms"])
    waiting = max(rows, key=lambda r: r["collective_ms"])
    out["most_compute"] = slowest["rank"] if slowest["rank"] is not None else slowest["file"]
    out["most_collective"] = waiting["rank"] if waiting["rank"] is not None else waiting["file"]
    return out


def doubts(payloads: Sequence[dict[str, Any]]) -> list[str]:
    """Why these files may not be the ranks of one run: then who lags behind whom means nothing."""
    known = [p["rank"] for p in payloads if p["rank"] is not None]
    out = [f"{known.count(r)} files call themselves rank {r}" for r in sorted(set(known)) if known.count(r) > 1]
    sizes = sorted({p["world_size"] for p in payloads if p["world_size"]})
    if len(sizes) > 1:
        out.append(f"they tell of runs of {' and of '.join(map(str, sizes))} ranks")
    elif sizes and known and max(known) >= sizes[0]:
        out.append(f"rank {max(known)} is none of a run of {sizes[0]}")
    return out


def absent(payloads: Sequence[dict[str, Any]]) -> list[int]:
    """Ranks of the run that no file is of, as far as the files tell; at most 64."""
    size, known = world(payloads), {p["rank"] for p in payloads}
    if size is None or None in known:
        return []
    return [r for r in range(min(size, len(known) + 64)) if r not in known][:64]


def world(payloads: Sequence[dict[str, Any]]) -> int | None:
    """How many ranks the run had, where the files agree on it."""
    sizes = {p["world_size"] for p in payloads if p["world_size"]}
    return sizes.pop() if len(sizes) == 1 else None
