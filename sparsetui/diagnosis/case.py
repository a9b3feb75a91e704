"""The case: everything that the passes saw of one investigation, as the mechanisms read it.

Payloads of passes are the plain dictionaries that the probes returned; the accessors here are the only place that knows
their keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsetui.diagnosis.stats import Closure, Comparison, TailComparison
from sparsetui.diagnosis.stats.closures import Question
from sparsetui.evidence.records import Lock, Number, TimeTable

Payload = Mapping[str, Any]
SPARSE_LAYOUTS = frozenset({"coo", "csr", "csc", "bsr", "bsc"})


@dataclass(frozen=True)
class Declared:
    """What the release claims; ``None`` where it claims nothing."""

    sparsity: float | None = None
    layout: str | None = None
    pattern: tuple[int, int] | None = None
    targets: tuple[str, ...] = ()
    speedup: float | None = None
    asked_speedup: float | None = None  # nobody claims it, but the question is why it is not there
    max_drift: float | None = None
    p99_ms: float | None = None  # the latency objective that a single slow request breaks

    @property
    def wanted(self) -> float | None:
        """The speed-up that the failing variant is held against."""
        return self.speedup if self.speedup is not None else self.asked_speedup


@dataclass(frozen=True)
class Trial:
    """One intervention as it was tried: its closure, its check against the unmodified outputs, and on which variant."""

    intervention: str
    closure: Closure | None
    check: Payload = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    failed: str = ""  # why it could not be measured

    @property
    def valid(self) -> bool:
        """It touched something, and the outputs stayed equal within the dtype's tolerance."""
        return bool(self.check.get("applied")) and bool(self.check.get("equal")) and self.closure is not None


@dataclass(frozen=True)
class Case:
    """All evidence of an investigation. ``evidence_ids`` maps (probe, variant) to the evidence's id."""

    declared: Declared = Declared()
    change: frozenset[str] = frozenset()
    comparison: Comparison | None = None
    tails: TailComparison | None = None
    lock: Lock | None = None
    inventory: Mapping[str, Payload] = field(default_factory=dict)
    census: Mapping[str, Payload] = field(default_factory=dict)
    profile: Mapping[str, Payload] = field(default_factory=dict)
    native: Mapping[str, TimeTable] = field(default_factory=dict)
    build: Mapping[str, Payload] = field(default_factory=dict)
    settle: Mapping[str, Payload] = field(default_factory=dict)
    cold_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)  # the very first call of each process, by variant
    growth: Mapping[str, Payload] = field(default_factory=dict)
    extra: Mapping[tuple[str, str], Payload] = field(default_factory=dict)  # (probe, variant) of further probes
    died: Mapping[str, str] = field(default_factory=dict)  # variant -> how its step failed, where it did
    trials: Mapping[tuple[str, str], Trial] = field(default_factory=dict)  # (intervention, variant)
    drift: Number | None = None
    drift_metric: str = ""
    output_drift: Number | None = None  # of the outputs, where ``drift`` is of the user's metric
    outputs: Mapping[str, Payload] = field(default_factory=dict)
    quality: Mapping[str, Payload] = field(default_factory=dict)
    evidence_ids: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def question(self) -> Question:
        return "missing-speedup" if self.declared.wanted is not None else "regression"

    @property
    def ideal_ratio(self) -> float | None:
        """The ideal failing/comparator ratio: 1 / the speed-up that is declared or asked for."""
        return 1.0 / self.declared.wanted if self.declared.wanted else None

    def ids(self, *keys: tuple[str, str]) -> tuple[str, ...]:
        return tuple(self.evidence_ids[k] for k in keys if k in self.evidence_ids)

    # -- census ------------------------------------------------------------------------------------------------

    def rows(self, variant: str) -> list[Payload]:
        return list(self.census.get(variant, {}).get("rows", ()))

    def steps(self, variant: str) -> int:
        return max(1, int(self.census.get(variant, {}).get("steps", 1)))

    def row_ms(self, row: Payload, variant: str) -> float:
        """Milliseconds a step that the census saw in this row's op calls."""
        return float(row["ns"]) / self.steps(variant) / 1e6

    def calls(self, row: Payload, variant: str) -> float:
        return float(row["calls"]) / self.steps(variant)

    def op_ms(self, variant: str) -> float:
        """Milliseconds a step in all ops, as the census timed them."""
        return sum(self.row_ms(r, variant) for r in self.rows(variant))

    def products(self, variant: str) -> list[Payload]:
        """Rows of products, convolutions and recurrent cells that have a constant or sparse operand."""
        return [r for r in self.rows(variant) if r.get("weight")]

    def lookups(self, variant: str) -> list[Payload]:
        """The tables, in the form that they are looked up in: as ``weight`` of a product, of which they are none."""
        return [r["lookup"] for r in self.rows(variant) if r.get("lookup")]

    def share_of_step(self, ms: float, variant: str) -> float:
        """``ms`` against the step's own, unwatched time where known, else against the time in ops."""
        plain = float(self.census.get(variant, {}).get("observer", {}).get("plain_ms", 0.0))
        whole = max(plain, self.op_ms(variant))
        return ms / whole if whole > 0 else 0.0

    # -- inventory ---------------------------------------------------------------------------------------------

    def tensors(self, variant: str) -> list[Payload]:
        return list(self.inventory.get(variant, {}).get("tensors", ()))

    def sparse_tensors(self, variant: str) -> list[Payload]:
        return [t for t in self.tensors(variant) if t.get("layout") in SPARSE_LAYOUTS]

    def weights(self, variant: str) -> Iterator[tuple[str, float, Payload]]:
        """``(name, zero fraction, tensor)`` of each weight, as the products use it.

        A weight that is masked on the fly counts with the zeros of its masked form, which the census saw.
        """
        formed: dict[str, Payload] = {}  # by name, the form with the most zeros that a product takes
        used: set[str] = set()
        loose: dict[tuple[str, int], Payload] = {}  # held where no walk finds it: known by where it is used
        for r in self.products(variant):
            w = r["weight"]
            if w["name"]:
                used.add(w["name"])
                if w["name"] not in formed or w["zeros"] > formed[w["name"]]["zeros"]:
                    formed[w["name"]] = w
            elif w["const"] and not w["derived"]:
                loose.setdefault((str(r["place"]), int(w.get("number", 0))), w)
        for w in self.lookups(variant):  # often left as they are on purpose: only what masks them tells anything
            if w["name"] and w["derived"] and (w["name"] not in formed or w["zeros"] > formed[w["name"]]["zeros"]):
                formed[w["name"]] = w
        for (place, number), w in loose.items():
            yield f"{place} #{number}", float(w["zeros"]), {**w, "numel": math.prod(w["shape"])}
        for c in self.census.get(variant, {}).get(
            "constants", ()
        ):  # weights that the step itself trains are weights too
            if used and c.get("mutated") and len(c["shape"]) >= 2:
                used.add(str(c["name"]))
        for t in self.tensors(variant):
            name = str(t["name"])
            if loose and name.startswith("constant@"):
                continue  # one of those
            w = formed.get(name)
            if w is not None and w["derived"] and math.prod(w["shape"]) != int(t.get("numel", 0)):
                # packed: what it is unpacked to is the weight
                yield name, float(w["zeros"]), {**w, "numel": math.prod(w["shape"])}
                continue
            if len(t.get("shape", ())) < 2 or "zeros" not in t or t.get("dtype") == "bool":
                continue
            if used and name not in used:
                continue
            # a slice of it says nothing of the rest
            whole = w is not None and (w["derived"] or math.prod(w["shape"]) == int(t.get("numel", 0)))
            yield name, max(float(t["zeros"]), float(w["zeros"]) if w is not None and whole else 0.0), t
