"""A workload file, typed: which code to run, on what, and what its release claims.

:func:`load` reads the TOML and gives a :class:`Workload` or raises :class:`WorkloadError` with one line. It runs
none of the workload's code.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.workload.entry import Entry
from sparsetui.workload.errors import WorkloadError

__all__ = [
    "CHANGE_TAGS",
    "DEFAULT_CHANGE",
    "DTYPES",
    "LAYOUTS",
    "Declared",
    "Energy",
    "Entry",
    "Inputs",
    "QualityGate",
    "Replay",
    "Sla",
    "VariantSpec",
    "Workload",
    "WorkloadError",
    "load",
]

LAYOUTS = ("strided", "coo", "csr", "csc", "bsr", "2:4")
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "complex64",
    "int8", "uint8", "int16", "int32", "int64", "bool",
)  # fmt: skip

# What may be declared as meant to differ. weights and code are the release itself; the rest are tags of the lock.
CHANGE_TAGS = (
    "weights", "code", "dtype", "shapes", "torch", "python", "numpy", "build", "blas", "threads", "env", "isa", "cpu",
    "affinity", "quota", "governor", "clocks", "device", "driver", "host",
)  # fmt: skip
DEFAULT_CHANGE = ("weights", "code")

# Environment variables whose values may stand in a record; the values of all others are withheld.
ENV_KEPT = ("OMP_", "MKL_", "KMP_", "OPENBLAS_", "GOMP_", "ATEN_", "TORCH_")
ENV_KEPT_EXACTLY = ("CUDA_VISIBLE_DEVICES",)


class VariantSpec(msgspec.Struct, frozen=True):
    """One of the two things that are compared.

    ``python`` is an absolute path, or ``None`` for the tool's own interpreter. ``derived`` says that the file gave only
    the other variant: this one is the same code with its weights made dense.
    """

    entry: Entry
    python: str | None = None
    threads: int | None = None
    env: dict[str, str] = {}
    derived: bool = False


class Inputs(msgspec.Struct, frozen=True):
    """Either ``entry`` (returns a list of argument tuples) or one random tensor of ``shape`` and ``dtype``."""

    entry: Entry | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"
    seed: int = 0


class Declared(msgspec.Struct, frozen=True):
    """What the release claims. ``sparsity`` is a zero fraction; ``speedup`` is comparator time / failing time."""

    sparsity: float | None = None
    layout: str | None = None
    pattern: tuple[int, int] | None = None  # n of m
    targets: tuple[str, ...] = ()
    speedup: float | None = None


class QualityGate(msgspec.Struct, frozen=True):
    """``entry`` takes the built callable and returns ``{metric: float}``; without it outputs are compared
    on the inputs.

    ``max_drift`` is the largest absolute change of a metric (or of an output) that may pass, ``None`` for no gate.
    """

    entry: Entry | None = None
    max_drift: float | None = None


class Sla(msgspec.Struct, frozen=True):
    """Latency objectives of one step, in ms."""

    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class Replay(msgspec.Struct, frozen=True):
    """A request log (CSV or JSONL, absolute path) and how much faster than real time it is played."""

    log: str
    speed: float = 1.0


class Energy(msgspec.Struct, frozen=True):
    """An estimate to fall back on where no counter is readable."""

    watts_per_core: float


class Workload(msgspec.Struct, frozen=True):
    """A whole workload file. ``path`` and ``folder`` are absolute; ``sha256`` is that of the file's bytes."""

    path: Path
    name: str
    sha256: str
    failing: VariantSpec
    comparator: VariantSpec
    inputs: Inputs
    change: tuple[str, ...] = DEFAULT_CHANGE
    declared: Declared = Declared()
    quality: QualityGate | None = None
    sla: Sla | None = None
    replay: Replay | None = None
    owners: dict[str, str] = {}
    energy: Energy | None = None

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def derived(self) -> str | None:
        """The variant that the file did not give, or ``None``."""
        return "failing" if self.failing.derived else "comparator" if self.comparator.derived else None

    def variant(self, which: str) -> VariantSpec:
        return {"failing": self.failing, "comparator": self.comparator}[which]

    def entries(self) -> dict[str, Entry]:
        """Every callable of the workload by its key path, in the order they are run."""
        found = {"failing.entry": self.failing.entry, "comparator.entry": self.comparator.entry}
        if self.derived:
            del found[f"{self.derived}.entry"]
        if self.inputs.entry is not None:
            found["inputs.entry"] = self.inputs.entry
        if self.quality is not None and self.quality.entry is not None:
            found["quality.entry"] = self.quality.entry
        return found

    def files(self) -> tuple[Path, ...]:
        """The Python files that an investigation will run, each once; the others are in :meth:`modules`."""
        sources = (entry.source(self.folder) for entry in self.entries().values())
        return tuple(dict.fromkeys(s for s in sources if s is not None))

    def modules(self) -> tuple[str, ...]:
        """Modules that are run but whose file only the worker's interpreter can tell."""
        return tuple(dict.fromkeys(e.module for e in self.entries().values() if e.module and not e.source(self.folder)))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON for the ledger; values of environment variables outside the allow-list are withheld."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        for which in ("failing", "comparator"):
            env = self.variant(which).env
            plain[which]["env"] = {k: v if _kept(k) else "withheld" for k, v in env.items()}
        return plain


def _kept(name: str) -> bool:
    return name.startswith(ENV_KEPT) or name in ENV_KEPT_EXACTLY


def load(path: str | Path) -> Workload:
    """Read and check the workload file at ``path``.

    Raises :class:`WorkloadError`: the file cannot be read, is no TOML, or breaks the contract.
    """
    from sparsetui.workload import reading

    text, raw, where = reading.read_text(path)
    return reading.build(reading.Document(path, where, text), hashlib.sha256(raw).hexdigest())
