"""What travels between hosts and what the hosts come to together. Plain JSON through msgspec, like every other record."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

import msgspec

from sparsetui.evidence.records import Evidence, Finding, Number, Unanswered, Verdict, unavailable

# done: measured; refused: it could not run the pair (no torch, another Python, no cores free); slow: no answer in its time;
# lost: the node or the connection died; broken: the work on it failed in a way nobody foresaw
HostState = Literal["done", "refused", "slow", "lost", "broken"]
FleetStatus = Literal["release", "host", "mixed", "no_fault", "cannot_answer"]

# Tags that tell where a process ran and not under what: they differ on every host of a healthy fleet.
OF_THE_PLACE = ("affinity", "interpreter", "numa")
# Tags of the hardware: a level that differs with them is no fault, so levels are not compared across them.
OF_THE_HARDWARE = ("cpu", "gpu")
_NOT_MEASURED = unavailable("it was not measured")


class HostReport(msgspec.Struct, frozen=True):
    """What one host saw of the pair. A host that measured nothing has only ``host``, ``state`` and ``why``.

    ``rounds`` holds natural logs of ms, one (failing, comparator, log-ratio) a pair of processes; ``log_ratio``, ``se``
    and ``df`` are the host's own estimate of failing over comparator from them; ``level`` and ``level_se`` that of its
    comparator's typical step (log ms), ``pace`` and ``pace_se`` of its mean step: the host's own speed. ``conditions``
    are medians over the clock's blocks. ``node`` tells where it ran and where its code came from.
    """

    host: str
    state: HostState = "done"
    why: str = ""
    node: dict[str, str] = {}
    verdict: Verdict | None = None
    says: str = "undecided"  # of latency alone: slower, faster, same, undecided
    findings: tuple[Finding, ...] = ()  # the material ones
    ruled_out: tuple[str, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    ratio: Number = _NOT_MEASURED
    failing_ms: Number = _NOT_MEASURED
    comparator_ms: Number = _NOT_MEASURED
    log_ratio: float | None = None
    se: float | None = None
    df: float = 0.0
    level: float | None = None
    level_se: float | None = None
    pace: float | None = None
    pace_se: float | None = None
    rounds: tuple[tuple[float, float, float], ...] = ()
    lock: dict[str, dict[str, str]] = {}  # variant -> tag -> text
    conditions: dict[str, float] = {}
    evidence: tuple[Evidence, ...] = ()  # of the host's own session, by its own ids
    metrics: dict[str, Any] = {}
    workload: str = ""  # sha256 of the workload file that it ran
    tool: str = ""
    seconds: float = 0.0

    @property
    def lock_id(self) -> str:
        """Twelve hex digits of all tags that two hosts must share to be pooled; empty where no lock was taken."""
        return lock_id(self.lock)

    @property
    def shows(self) -> bool | None:
        """Whether the host shows a fault in the failing variant; ``None`` where its evidence does not decide."""
        status = self.verdict.status if self.verdict is not None else "cannot_answer"
        if status == "fault" or self.says == "slower":
            return True
        return False if status == "no_fault" or self.says in ("same", "faster") else None


def comparable(tags: dict[str, str]) -> dict[str, str]:
    """The tags of a lock without those that only tell the place."""
    return {k: v for k, v in tags.items() if not k.startswith(OF_THE_PLACE)}


def lock_id(lock: dict[str, dict[str, str]]) -> str:
    if not lock:
        return ""
    kept = {variant: comparable(tags) for variant, tags in sorted(lock.items())}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


class Signature(msgspec.Struct, frozen=True):
    """Products of one shape in a step: ``name`` is rows x columns of the weight and the width of what it meets; ``calls`` a
    step over ``layers`` weights, ``work`` in multiplications a step; ``sparsity`` are the zero fractions to prune to."""

    name: str
    layers: int
    calls: int
    work: float
    sparsity: tuple[float, ...]


class Survey(msgspec.Struct, frozen=True):
    """What a node says before a matrix: under which lock it would measure, and what there is to measure."""

    host: str
    state: HostState = "done"
    why: str = ""
    lock: dict[str, dict[str, str]] = {}
    lock_id: str = ""
    source: str = ""  # the variant whose weights are pruned
    how: str = ""
    signatures: tuple[Signature, ...] = ()  # most work first
    seconds: float = 0.0


class Part(msgspec.Struct, frozen=True):
    """What one node measured of a matrix: one ``signature``, or (where that is empty) whole steps of every format.

    ``body`` of a signature holds ``layers`` and ``curve`` as :mod:`sparsetui.probes.formats` answers them; that of whole steps
    is the section of :func:`sparsetui.release.matrix.run_matrix`. ``why`` says why there is none.
    """

    host: str
    lock_id: str
    signature: str = ""
    why: str = ""
    body: dict[str, Any] = {}
    code: str = ""  # digest of the workload's folder
    seconds: float = 0.0


class Outlier(msgspec.Struct, frozen=True):
    """A host that stands apart. ``factor`` is its figure over that of the others; ``seen_in`` says which figure:
    ``step`` or ``mean step`` of the comparator, ``ratio`` of the pair, or ``finding``.
    """

    host: str
    seen_in: str
    factor: Number
    why: str
    lock: tuple[str, ...] = ()  # what differs, as "tag: here, elsewhere"
    conditions: tuple[str, ...] = ()


class Pool(msgspec.Struct, frozen=True):
    """A random-effects estimate over hosts of one lock, in natural logs; ``tau`` is the sd between hosts beyond what
    their own uncertainty explains, ``within`` a typical standard error of one host.
    """

    hosts: int
    mean: float
    ci: tuple[float, float]
    tau: float
    tau_ci: tuple[float, float]
    within: float
    se: float
    df: float
    spread: float  # the moderated sd between hosts that predictions use

    @property
    def i2(self) -> float:
        """Share of the variance of a host's estimate that is between hosts (Higgins and Thompson 2002)."""
        total = self.tau**2 + self.within**2
        return self.tau**2 / total if total > 0 else 0.0


class LockGroup(msgspec.Struct, frozen=True):
    """Hosts that share a lock. Figures are pooled inside a group and never across groups."""

    lock: str
    hosts: tuple[str, ...]
    ratio: Number
    between: Number  # sd between hosts, as a share of the ratio
    within: Number
    i2: Number
    differs: tuple[str, ...] = ()  # from the largest group


class FleetVerdict(msgspec.Struct, frozen=True):
    """Is it the host or the release?"""

    status: FleetStatus
    summary: str
    ratio: Number  # failing over comparator, over the hosts of the largest lock group that do not stand apart
    between: Number
    within: Number
    i2: Number
    outliers: tuple[Outlier, ...] = ()
    groups: tuple[LockGroup, ...] = ()
    shown_by: tuple[str, ...] = ()
    not_shown_by: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    mechanisms: dict[str, tuple[str, ...]] = {}  # mechanism of the verdict -> hosts, most hosts first
    minority: tuple[tuple[str, str], ...] = ()  # host, mechanism: those that name another one than most
    missing: tuple[tuple[str, str, str], ...] = ()  # host, state, why
    remarks: tuple[str, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
