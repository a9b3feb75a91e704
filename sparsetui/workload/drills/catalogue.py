"""The drills by name, each with its page and the answer a right investigation gives.

A drill is an ordinary workload file under ``pages/``: it goes through exactly the path of any other workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparsetui.evidence.records import Status
from sparsetui.workload.drills.training import DrillError, prepare
from sparsetui.workload.errors import nearest, shown

__all__ = ["DRILLS", "Drill", "DrillError", "all_drills", "get", "prepare"]

PAGES = Path(__file__).parent / "pages"


@dataclass(frozen=True)
class Drill:
    """One regression to practise on. ``mechanism`` is ``None`` where nothing is wrong."""

    name: str
    title: str
    story: str  # two sentences, as the page that wakes the on-call engineer
    mechanism: str | None
    budget_s: float = 30.0  # live profiling time that settles it on two cores

    @property
    def workload(self) -> Path:
        """The workload file. Its code needs the trained weights: call :func:`prepare` first."""
        return PAGES / f"{self.name.replace('-', '_')}.toml"

    @property
    def status(self) -> Status:
        """The verdict's status that is right."""
        return "no_fault" if self.mechanism is None else "fault"

    @property
    def stage(self) -> str | None:
        return self.mechanism.partition(".")[0] if self.mechanism else None

    def right(self, status: str, mechanism: str | None) -> bool:
        """Whether a verdict is the right one."""
        return status == self.status and mechanism == self.mechanism


DRILLS: tuple[Drill, ...] = (
    Drill(
        "wrong-orientation",
        "Pruned to 92 %, and several times slower",
        "The sparse candidate of the digits classifier answers a request in several times the release's time. "
        "Same weights, same CSR, same host: only the layer's forward was rewritten last week.",
        "kernel.wrong-orientation",
    ),
    Drill(
        "dense-storage",
        "The promised speed-up never came",
        "Planning was told that pruning makes the classifier 1.5 times as fast, and the canary shows no change at all. "
        "The checkpoint is certainly sparse: nine weights in ten are zero.",
        "lowering.dense-storage",
    ),
    Drill(
        "mask-recompute",
        "Slower since the pruning job exports by itself",
        "p50 of the classifier rose by more than half with the first export from the new pruning pipeline. "
        "The weights are the same to the last bit.",
        "lowering.mask-recompute",
    ),
    Drill(
        "densified",
        "Memory saved, latency lost",
        "To fit more replicas on a host, the candidate keeps its weights compressed. "
        "Each replica is smaller now and each request takes far longer.",
        "lowering.densified",
    ),
    Drill(
        "generic-kernel",
        "One layer eats the whole request",
        "After an exporter upgrade one hidden layer dominates every profile of the classifier. "
        "It has as many non-zeros as its neighbours.",
        "kernel.generic",
    ),
    Drill(
        "below-crossover",
        "The cautious pruning run made it slower",
        "To be safe on quality only 55 % of the weights were pruned this time, and the runtime uses the sparse kernel. "
        "Batches of 64 take about twice as long as with the dense release.",
        "kernel.below-crossover",
    ),
    Drill(
        "format-conversion",
        "A product that does more than multiply",
        "The candidate is several times slower although every layer calls the good sparse product. "
        "One layer comes from an exporter that writes columns.",
        "scheduling.format-conversion",
    ),
    Drill(
        "index-copy",
        "A quarter slower after a rebuild of the weights",
        "The weights were converted again with stock torch, not the team's own script, and small batches got slower. "
        "Layout, non-zeros and kernel are the same as before.",
        "execution.index-copy",
    ),
    Drill(
        "stored-zeros",
        "Sparse by layout, full by content",
        "The candidate is CSR throughout and takes many times as long as the release, which is CSR as well. "
        "The export script was tidied up: two of its steps changed places.",
        "ingress.stored-zeros",
    ),
    Drill(
        "coverage-gap",
        "Half of the speed-up is missing",
        "The new release lost a good part of what pruning had won, with the accuracy unchanged. "
        "The pruning job's list of layers was rewritten as a pattern.",
        "ingress.coverage-gap",
    ),
    Drill(
        "lock-mismatch",
        "Same image, same weights, other latency",
        "The candidate's pods answer at another speed than the release's, and the weights are blamed. "
        "Both run the same code.",
        "ingress.lock-mismatch",
    ),
    Drill(
        "quality-drift",
        "Fast, and wrong more often",
        "Support reports misread digits since the candidate went live, while its latency is better than ever. "
        "It was pruned once more just before the release, without a fine-tune.",
        "validation.quality-drift",
    ),
    Drill(
        "clean-pair",
        "A page without a cause",
        "A dashboard flagged the new rollout as slower than the last one. It is the same release, rolled out twice.",
        None,
        budget_s=60.0,
    ),
    Drill(
        "dense-is-faster",
        "Half of the weights are zero and nobody uses it",
        "A reviewer asks why a checkpoint with half of its weights at zero runs on dense kernels. "
        "Nothing was promised, and latency is as it was.",
        None,
        budget_s=60.0,
    ),
)


def all_drills() -> tuple[Drill, ...]:
    """Every drill, in the order of ``--list``; the first is the default."""
    return DRILLS


def get(name: str | None = None) -> Drill:
    """The drill called ``name``, or the first. Raises :class:`DrillError` that names the nearest one."""
    if name is None:
        return DRILLS[0]
    for drill in DRILLS:
        if drill.name == name:
            return drill
    known = [d.name for d in DRILLS]
    near = nearest(name, known)
    hint = f"did you mean {near}? " if near else ""
    raise DrillError(f"no drill is called {shown(name)}; {hint}known: {', '.join(known)}")
