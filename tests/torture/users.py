"""Whole investigations of code that misbehaves: each must end in evidence, within the budget's bound, and leave nothing."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from sparsetui.session.store import Store
from tests.torture.rig import Rig, running, sound, workload

BUDGET_S = 6.0
START_S = 8.0  # two interpreters with torch, the session's end and the memo, on a quiet host


@dataclass(frozen=True)
class Behaviour:
    """``codes`` are the exit codes that are right; ``words`` one of which the recorded fault must hold (none: no fault)."""

    name: str
    codes: tuple[int, ...] = (0, 1, 3)
    words: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    data_bytes: int = 0


BEHAVIOURS = (
    Behaviour("segfaults", (1, 3), ("SIGSEGV",)),
    Behaviour("exits_at_once", (1, 3), ("exit code 7",)),
    Behaviour("exits_in_a_step", (1, 3), ("exit code 0",)),
    Behaviour("says_goodbye", (1, 3), ("sys.exit",)),
    Behaviour("threads_that_never_end"),
    Behaviour("forks"),
    Behaviour("forks_in_a_step"),
    Behaviour("forks_far_too_much", (1, 3), ("fork bomb guard", "no answer within")),  # on a slow host time ends first
    Behaviour("spins_in_c", (1, 3), ("no answer within",)),
    Behaviour("talks_without_end"),
    Behaviour("builds_slowly"),
    Behaviour("eats_memory", (1, 3), ("memory ceiling", "MemoryError"), data_bytes=3 << 29),
    Behaviour("closes_descriptors"),
    Behaviour("changes_folder"),
    Behaviour("takes_signals"),
    Behaviour("warns", (1, 3), ("UserWarning",)),
    Behaviour("prints_always", env={"PYTHONPATH": "sitecustomize"}),
    Behaviour("raises_hostile", (1, 3), ("ValueError",)),
)
SHORT = ("segfaults", "closes_descriptors")


def run(behaviour: Behaviour, folder: Path, slack: float = 1.0, budget: float = BUDGET_S) -> tuple[float, list[str]]:
    """Investigate it; returns the seconds of wall time and what was wrong. ``slack`` stretches the bound on a busy host."""
    env, calm = dict(behaviour.env), 1.25 * budget + 10
    if env.get("PYTHONPATH") == "sitecustomize":
        site = folder / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text("import sys\nprint('noise')\nprint('noise', file=sys.stderr)\n")
        env["PYTHONPATH"] = str(site)
    with running(Rig(folder)) as rig:
        began = time.monotonic()
        rig.start(workload(folder, behaviour.name), budget, data_bytes=behaviour.data_bytes, **env)
        try:
            code = rig.wait(slack * (calm + START_S) + 30)
        except subprocess.TimeoutExpired:
            return time.monotonic() - began, [f"{behaviour.name}: did not end"]
        wall = time.monotonic() - began
        problems = rig.gone() + sound(rig.sessions)
        problems += [f"left in TMPDIR: {rig.litter()}"] if rig.litter() else []
        if code not in behaviour.codes:
            problems.append(f"exit code {code}, not one of {behaviour.codes}: {rig.err[-400:]}")
        if "Traceback" in rig.err or "a bug in" in rig.err:
            problems.append(rig.err[-800:])
        if wall > slack * (calm + START_S):
            problems.append(f"took {wall:.1f} s, allowed are {slack * (calm + START_S):.1f} s")
        spent = rig.result().get("spent", {}).get("total") if code in (0, 1, 3) else None
        if spent is not None and spent > slack * calm:
            problems.append(f"spent {spent:.1f} s of a budget of {budget:g} s")
        problems += recorded(rig, behaviour)
        return wall, [f"{behaviour.name}: {p}" for p in problems]


def recorded(rig: Rig, behaviour: Behaviour) -> list[str]:
    """Whether the session's faults say what the code did."""
    if not behaviour.words:
        return []
    store = Store(rig.sessions)
    faults = [str(f.get("why", "")) for s in store.list() for f in store.open(s.id).state().faults]
    if any(word in why for why in faults for word in behaviour.words):
        return []
    return [f"no fault says {' or '.join(behaviour.words)}: {faults}"]
