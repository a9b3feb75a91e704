"""Static checks of a playbook: everything that would lead an on-call engineer astray, told by line."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import msgspec

from sparsetui.evidence.text import clean
from sparsetui.playbook.facts import FACTS, MECHANISM_STATES, PATHS, PATTERNS, QUANTILES, RATIO_STATES, is_fact
from sparsetui.playbook.spec import (
    PASSES,
    Condition,
    End,
    FactRef,
    Playbook,
    PlaybookError,
    Step,
    Target,
    load,
    nearest,
)
from sparsetui.session.closure import TITLES

GATE_STATES = ("passed", "failed", "waived", "not run")


class Problem(msgspec.Struct, frozen=True, order=True):
    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{clean(self.file)}:{self.line}: {clean(self.what, 300)}"


def check_file(path: Path) -> list[Problem]:
    """Every problem of one file; a file that cannot be read as a playbook has one."""
    try:
        return check(load(path))
    except PlaybookError as e:
        return [Problem(e.file, e.line, e.what)]


def check(playbook: Playbook, mechanisms: Collection[str] | None = None) -> list[Problem]:
    """The problems of a playbook that was read, by line. ``mechanisms``: the known ids, by default the catalogue's."""
    known = known_mechanisms() if mechanisms is None else mechanisms
    found = [*_ids(playbook), *_targets(playbook), *_conditions(playbook, known), *_ends(playbook, known)]
    found += [*_cycles(playbook), *_unreachable(playbook)]
    return sorted(Problem(playbook.file, line, what) for line, what in set(found))


@lru_cache(maxsize=1)
def known_mechanisms() -> frozenset[str]:
    """The ids of the catalogue, loaded only when a playbook is checked."""
    catalogue = import_module("sparsetui.diagnosis.catalogue")
    return frozenset(m.id for m in catalogue.all_mechanisms())


Found = tuple[int, str]


def _ids(playbook: Playbook) -> Iterator[Found]:
    seen: dict[str, int] = {}
    for step in playbook.steps:
        if step.id in seen:
            yield step.line, f"a step {step.id!r} was already given in line {seen[step.id]}"
        seen.setdefault(step.id, step.line)


def targets(step: Step) -> list[Target]:
    """Everywhere a step may lead, in the order in which it is tried."""
    last = [step.unknown] if step.unknown else []
    return [*(b.target for b in step.branches), *last, step.otherwise]


def _targets(playbook: Playbook) -> Iterator[Found]:
    ids = [s.id for s in playbook.steps]
    for step in playbook.steps:
        for target in targets(step):
            if target.go and target.go not in ids:
                yield target.line, f"there is no step {target.go!r}; {nearest(target.go, ids)}"


def _conditions(playbook: Playbook, known: Collection[str]) -> Iterator[Found]:
    for step in playbook.steps:
        for branch in step.branches:
            yield from _condition(branch.when, known)


def _condition(c: Condition, known: Collection[str]) -> Iterator[Found]:
    if c.combine:
        for part in c.parts:
            yield from _condition(part, known)
        return
    yield from _fact(c.fact, c.line, known)
    if isinstance(c.value, FactRef):
        yield from _fact(c.value.fact, c.line, known)
        return
    allowed = _allowed(c.fact)
    if allowed is None or c.value is None:
        return
    for value in c.value if isinstance(c.value, tuple) else (c.value,):
        if value not in allowed:
            yield c.line, f"{c.fact} is never {value!r}; {nearest(str(value), [str(a) for a in allowed])}"


def _allowed(fact: str) -> tuple[object, ...] | None:
    """The values of a fact that has only a few."""
    if fact.startswith("mechanism."):
        return MECHANISM_STATES
    if fact in {f"latency_ratio.{q}.says" for q in QUANTILES}:
        return RATIO_STATES
    if fact == "question":
        return ("regression", "missing-speedup")
    if fact == "verdict.status":
        return ("fault", "no_fault", "cannot_answer")
    return GATE_STATES if fact.startswith("gate.") else None


def _fact(name: str, line: int, known: Collection[str]) -> Iterator[Found]:
    if not is_fact(name):
        yield line, f"there is no fact {name!r}; {nearest(name, [*FACTS, *PATTERNS])}"
    for prefix, what, names in (
        ("mechanism.", "mechanism", known),
        ("path.", "path", PATHS),
        ("ran.", "pass", PASSES),
        ("gate.", "gate", tuple(TITLES)),
    ):
        rest = name.removeprefix(prefix)
        if rest != name and rest not in names:
            yield line, f"there is no {what} {rest!r}; {nearest(rest, names)}"


def _ends(playbook: Playbook, known: Collection[str]) -> Iterator[Found]:
    for step in playbook.steps:
        for target in targets(step):
            if target.end is not None:
                yield from _end(target.end, known)


def _end(end: End, known: Collection[str]) -> Iterator[Found]:
    if end.mechanism and end.mechanism not in known:
        yield end.line, f"there is no mechanism {end.mechanism!r}; {nearest(end.mechanism, known)}"


def _cycles(playbook: Playbook) -> Iterator[Found]:
    """Each step that lies on a way back to itself, told at the line that leads back."""
    by_id = {s.id: s for s in playbook.steps}
    on_path: set[str] = set()
    done: set[str] = set()
    for start in by_id:
        stack = [] if start in done else [(start, iter(targets(by_id[start])))]
        on_path.update(id_ for id_, _ in stack)
        while stack:
            here, ahead = stack[-1]
            target = next(ahead, None)
            if target is None:
                stack.pop()
                on_path.discard(here)
                done.add(here)
            elif target.go in on_path:
                yield target.line, f"leads back to the step {target.go!r}: a playbook has no cycles"
            elif target.go in by_id and target.go not in done:
                on_path.add(target.go)
                stack.append((target.go, iter(targets(by_id[target.go]))))


def _unreachable(playbook: Playbook) -> Iterator[Found]:
    by_id = {s.id: s for s in playbook.steps}
    reached: set[str] = set()
    todo = [playbook.steps[0].id]
    while todo:
        here = todo.pop()
        if here in by_id and here not in reached:
            reached.add(here)
            todo += [t.go for t in targets(by_id[here]) if t.go]
    for step in playbook.steps:
        if step.id not in reached:
            yield step.line, f"the step {step.id!r} is never reached"
