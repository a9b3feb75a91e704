"""The records every other room speaks in: numbers, evidence, findings, verdicts, results.

All are immutable and JSON-able through msgspec. A number never travels bare: it carries its interval, its count,
its unit and how it was come by, so that nothing unmeasured can pass for a measurement.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Quality = Literal["measured", "derived", "estimated", "unavailable"]
Status = Literal["fault", "no_fault", "cannot_answer"]
Confidence = Literal["confirmed", "supported", "suspected"]
Variant = Literal["failing", "comparator"]

SCHEMA = 1


class Number(msgspec.Struct, frozen=True):
    """One figure with its provenance.

    ``value`` is ``None`` only when ``quality`` is ``"unavailable"``, and then ``reason`` says why.
    ``ci`` is a two-sided 95 % interval in the unit of ``value``; ``n`` counts the observations behind it.
    """

    value: float | None
    ci: tuple[float, float] | None = None
    n: int | None = None
    unit: str = ""
    quality: Quality = "measured"
    reason: str | None = None


def unavailable(reason: str, unit: str = "") -> Number:
    """A figure that could not be had, with the reason: the opposite of writing 0."""
    return Number(value=None, unit=unit, quality="unavailable", reason=reason)


class Place(msgspec.Struct, frozen=True):
    """Where in the model a finding sits: the owning module (or ``file.py:line function``) and the op."""

    module: str
    op: str = ""


class Evidence(msgspec.Struct, frozen=True):
    """One run of one probe. ``sha256`` names its artifact (the JSON of everything it saw)."""

    id: str
    stage: str
    probe: str
    summary: str = ""
    sha256: str | None = None
    quality: Quality = "measured"
    variant: str | None = None
    seconds: float | None = None
    figures: dict[str, Number] = {}
    source: dict[str, Any] = {}  # provenance of evidence from outside: file, sha256 of the file, host, pid


class Finding(msgspec.Struct, frozen=True):
    """What one mechanism came to. ``material`` is what separates a verdict from a footnote."""

    stage: str
    mechanism: str
    confidence: Confidence
    material: bool
    summary: str
    owner: str
    where: tuple[Place, ...] = ()
    share_of_regression: Number | None = None
    figure: Number | None = None  # the deciding figure when it is not a share (zero fraction, drift, bytes)
    evidence: tuple[str, ...] = ()
    intervention: str | None = None
    question: str = ""
    fix: str = ""
    boundary: str = ""
    rollback: str = ""
    closes: str = ""
    reason: str = ""  # why it is material, or why it was ruled out
    settled: bool = True  # False where neither could be said: then it is neither material nor ruled out


class Verdict(msgspec.Struct, frozen=True):
    """The answer. For ``fault`` the fields of the first material finding; otherwise only a summary."""

    status: Status
    summary: str
    stage: str | None = None
    mechanism: str | None = None
    confidence: Confidence | None = None
    where: tuple[Place, ...] = ()
    share_of_regression: Number | None = None
    owner: str | None = None
    evidence: tuple[str, ...] = ()
    intervention: str | None = None
    fix: str | None = None
    boundary: str | None = None
    rollback: str | None = None


class Unanswered(msgspec.Struct, frozen=True):
    """A question that the evidence could not settle, and the one thing that would settle it."""

    question: str
    why: str
    settle: str


class Difference(msgspec.Struct, frozen=True):
    """A lock tag that differs between the two variants."""

    tag: str
    failing: str
    comparator: str
    declared: bool  # named in the workload's ``change``


class Lock(msgspec.Struct, frozen=True):
    """Under what the two variants ran. ``match`` ignores declared differences."""

    match: bool
    differs: tuple[Difference, ...] = ()
    tags: dict[str, str] = {}


class Gate(msgspec.Struct, frozen=True):
    """One condition of closure."""

    gate: str
    state: Literal["passed", "failed", "waived", "not run"]
    why: str = ""
    by: str = ""  # who waived it
    evidence: tuple[str, ...] = ()


class BudgetLine(msgspec.Struct, frozen=True):
    """One bar of the regression budget: what a mechanism accounts for, in ms of the step."""

    mechanism: str  # a mechanism id, or "unexplained"
    ms: Number
    share: Number


class RegressionBudget(msgspec.Struct, frozen=True):
    """The gap between two step times split by mechanism; the unexplained rest is always a line.

    ``question`` tells which gap: ``regression`` is failing - comparator, ``missing-speedup`` is failing - ideal.
    """

    question: Literal["regression", "missing-speedup"]
    gap_ms: Number
    lines: tuple[BudgetLine, ...] = ()


class OpRow(msgspec.Struct, frozen=True):
    """One line of the op table: calls of one op in one place, with the path its operands imply."""

    op: str
    module: str
    path: str  # a path name of the contract: dense, sparse-csr, conversion, …
    calls_per_step: float
    self_ms_per_step: Number
    weight_zeros: float | None = None
    eligible: bool = False
    fallback: bool = False
    layouts: str = ""
    shapes: str = ""
    variant: str = "failing"
    ratio: Number | None = None  # against the comparator's time for the same place


class PathShare(msgspec.Struct, frozen=True):
    """One line of a time table seen by a sampler or a trace."""

    path: str
    share: Number
    symbols: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    threads: int = 0


class Sampler(msgspec.Struct, frozen=True):
    """What a sampler did, and what it cost its target."""

    name: str
    rate_hz: float
    samples: int
    pause_share: float | None = None


class Missing(msgspec.Struct, frozen=True):
    """Something that could not be seen, and why."""

    what: str
    why: str


class TimeTable(msgspec.Struct, frozen=True):
    """Where time went, largest share first (contract: attach, import and the native pass)."""

    paths: tuple[PathShare, ...] = ()
    samplers: tuple[Sampler, ...] = ()
    unavailable: tuple[Missing, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """The whole answer of one investigation, as ``--json`` writes it."""

    session: str
    verdict: Verdict
    tool: str = ""
    schema: int = SCHEMA
    workload: str = ""
    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[Finding, ...] = ()
    cannot_answer: tuple[Unanswered, ...] = ()
    metrics: dict[str, Any] = {}
    lock: Lock = Lock(match=True)
    gates: tuple[Gate, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    budget: RegressionBudget | None = None
    ops: tuple[OpRow, ...] = ()
    native: TimeTable | None = None
    playbook: dict[str, Any] = {}
    spent: dict[str, float] = {}  # seconds by phase


def to_json(obj: Any, *, indent: int = 0) -> bytes:
    """Encode any record as UTF-8 JSON; ``indent`` > 0 makes it readable. Lone surrogates, which undecodable output, file names
    and escapes in somebody's JSON leave in a text, become ``?``."""
    try:
        raw = msgspec.json.encode(obj, enc_hook=_plain)
    except UnicodeEncodeError:
        raw = msgspec.json.encode(_whole(msgspec.to_builtins(obj, enc_hook=_plain)), enc_hook=_plain)
    return msgspec.json.format(raw, indent=indent) if indent else raw


def _whole(value: Any) -> Any:
    """``value`` with every lone surrogate in its texts replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_whole(k): _whole(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(v) for v in value]
    return value


def _plain(obj: Any) -> Any:
    item = getattr(obj, "item", None)  # numpy scalars
    if callable(item):
        return item()
    raise TypeError(f"cannot encode {type(obj).__name__}")
