"""What a mechanism is: the question it answers, what would make it a suspect, and who owns its fix.

A mechanism is one :class:`Mechanism` in a module under ``mechanisms/``; the catalogue finds it there. Adding one is adding
an entry to its stage's file, or a new file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparsetui.diagnosis.case import Case
from sparsetui.evidence.records import Number, Place
from sparsetui.flow import OWNERS


@dataclass(frozen=True)
class Suspicion:
    """A mechanism is present, and this is what shows it.

    ``figure`` is the deciding observable. ``broken`` names a claim or an invariant that is violated: that is material with no
    slowdown at all. ``passes`` are the (probe, variant) that agree. ``ms`` is what is at stake in a step of the variant.
    ``proved`` is for what shows in results or memory and not in time: what was switched off (or on, in the comparator)
    live, and what the first of ``passes`` then saw. That confirms it as an intervention on latency would.
    ``saves`` was timed apart from the step, on its shapes, and may be of a form that no rewrite can make of these weights.
    """

    summary: str
    where: tuple[Place, ...] = ()
    figure: Number | None = None
    passes: tuple[tuple[str, str], ...] = ()
    broken: str = ""
    ms: float = 0.0
    share: float = 0.0  # ms over the step
    intervention: str | None = None  # overrides the mechanism's own
    proved: str = ""
    untried: str = ""  # why no intervention can remove it here, where one could elsewhere
    saves: Number | None = None  # share of the step that the best form of its twin saves; only of mechanisms that have a twin


@dataclass(frozen=True)
class Mechanism:
    """One entry of the catalogue. ``suspect(case, variant)`` returns a :class:`Suspicion` or None if it is not present.

    ``intervention`` names what removes it live (``probes/interventions``). ``rivals`` are interventions that must not do
    better: a mechanism that says "nothing earlier is wrong" is void where one of them closes as much.
    """

    id: str
    owner: str
    question: str
    fix: str
    boundary: str
    rollback: str
    closes: str
    suspect: Callable[[Case, str], Suspicion | None]
    intervention: str | None = None
    rivals: tuple[str, ...] = field(default=())
    needs: tuple[str, ...] = field(default=())  # extra probes (verbs) it wants before it can decide
    arguments: Callable[[Case], dict[str, Any]] | None = None  # what those probes are asked
    late: bool | Callable[[Case], bool] = False  # those probes can wait until latency and interventions are measured
    yields: bool = False  # what it breaks matters for what it costs: a trial that shows how little that is outweighs it
    net: bool = False  # its intervention is tried on the comparator as well, suspect there or not
    bounded: bool = False  # its intervention helps other work too: it is credited with no more than what is at stake
    fallback: bool = False  # where its intervention does not apply, two passes may blame it as if it had none
    wants: Callable[[Case], bool] | None = None  # whether those are worth their time in this case

    def waits(self, case: Case) -> bool:
        """Whether its probes can wait in this case."""
        return self.late(case) if callable(self.late) else self.late

    @property
    def stage(self) -> str:
        return self.id.partition(".")[0]

    @property
    def role(self) -> str:
        return OWNERS[self.owner]
