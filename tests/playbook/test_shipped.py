"""The playbooks that ship: every one is right, and walks to an owned finding whatever the facts are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.flow import OWNERS
from sparsetui.playbook import library
from sparsetui.playbook.check import check, targets
from sparsetui.playbook.facts import FACTS, MECHANISM_STATES, RATIO_STATES
from sparsetui.playbook.outline import outline
from sparsetui.playbook.runner import mentioned, next_step, walk
from sparsetui.playbook.spec import QUESTIONS, Playbook, load

# the mechanism ids are a contract; they are written out here so that neither side can drift
MECHANISMS = frozenset(
    f"{stage}.{name}"
    for stage, names in {
        "ingress": "lock-mismatch mask-dropped coverage-gap sparsity-decayed stored-zeros pattern-mismatch "
        "invalid-indices index-overhead",
        "lowering": "dense-storage mask-recompute compiler-skip densified unfused-mask unsupported-family",
        "kernel": "wrong-orientation unsupported generic below-crossover",
        "scheduling": "format-conversion backward-transpose row-imbalance thread-oversubscription parallel-overhead "
        "invariant-checks host-bound",
        "execution": "index-copy dense-gradient memory-growth bandwidth-bound throttled",
        "validation": "quality-drift precision wrong-result non-finite nondeterminism cold-start tail-only",
    }.items()
    for name in names.split()
)
FILES = sorted(library.shipped().glob("*.yaml"))


@cache
def book(path: Path) -> Playbook:
    return load(path)


def test_at_least_twelve_ship_with_an_id_like_their_file() -> None:
    assert len(FILES) >= 12
    assert {"pruned-but-no-faster", "latency-regression-after-pruning"} <= {p.stem for p in FILES}
    assert all(book(p).id == p.stem for p in FILES)
    assert {book(p).question for p in FILES} == set(QUESTIONS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_shipped_playbook_has_no_problem(path: Path) -> None:
    assert [str(p) for p in check(book(path), MECHANISMS)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_branches_on_measured_figures_and_can_end_each_way(path: Path) -> None:
    steps = book(path).steps
    facts = {f for s in steps for b in s.branches for f in mentioned(b.when)}
    assert len([f for f in facts if not f.startswith("mechanism.")]) >= 2
    assert len(steps) >= 4
    ends = {t.end.kind for s in steps for t in targets(s) if t.end}
    assert {"mechanism", "cannot_answer"} <= ends
    assert "no_fault" in ends or book(path).question == "live"  # from outside nothing can be cleared
    assert book(path).symptoms
    assert any(s.run for s in steps)
    assert outline(book(path))


def values(name: str) -> st.SearchStrategy[Any]:
    """Any value that a fact may have; often none."""
    if name.startswith("mechanism."):
        known: st.SearchStrategy[Any] = st.sampled_from(MECHANISM_STATES)
    elif name.endswith(".says"):
        known = st.sampled_from(RATIO_STATES)
    elif name.endswith((".match", "_kept", "_met", ".passed", ".grows", "within_gate", "split")) or "differs" in name:
        known = st.booleans()
    elif name == "matrix.best_kind":
        known = st.sampled_from(["dense", "structured", "unstructured", "mixed"])
    elif name == "verdict.status":
        known = st.sampled_from(["fault", "no_fault", "cannot_answer"])
    else:
        known = st.one_of(st.floats(0, 5), st.sampled_from([0, 1, 0.5, 100]))
    return st.one_of(st.none(), known, known)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_whatever_is_measured_it_ends_in_an_owned_finding(path: Path, data: st.DataObject) -> None:
    names = sorted({f for s in book(path).steps for b in s.branches for f in mentioned(b.when)})
    facts = data.draw(st.fixed_dictionaries({name: values(name) for name in names}))
    trail = walk(book(path), facts)
    assert trail.end.owner in OWNERS.values()
    assert trail.end.say
    assert bool(trail.end.settle) == (trail.end.kind == "cannot_answer")
    assert bool(trail.end.mechanism) == (trail.end.kind == "mechanism")
    assert len({v.step for v in trail.trail}) == len(trail.trail)
    assert all(v.found for v in trail.trail)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_with_nothing_measured_it_cannot_answer(path: Path) -> None:
    done: set[str] = set()
    for _ in range(50):
        pending = next_step(book(path), {}, done)
        if pending is None:
            break
        done |= set(pending.passes)
    trail = walk(book(path), {})
    if path.stem not in {"latency-regression-after-pruning"}:
        assert trail.end.kind == "cannot_answer", trail
    assert trail.end.owner


def end(name: str, known: dict[str, Any]) -> str:
    found = walk(load(library.shipped() / f"{name}.yaml"), {**dict.fromkeys(FACTS), **known}).end
    return found.mechanism or found.kind


@pytest.mark.parametrize(
    ("name", "known", "ends"),
    [
        ("pruned-but-no-faster", {"lock.match": False}, "ingress.lock-mismatch"),
        ("pruned-but-no-faster", {"lock.match": True, "speedup_kept": True}, "no_fault"),
        (
            "pruned-but-no-faster",
            {"speedup_kept": False, "fallback_rate": 1.0, "mechanism.lowering.dense-storage": "material"},
            "lowering.dense-storage",
        ),
        (
            "pruned-but-no-faster",
            {"speedup_kept": False, "fallback_rate": 0.0, "mechanism.kernel.wrong-orientation": "material"},
            "kernel.wrong-orientation",
        ),
        ("latency-regression-after-pruning", {"latency_ratio.p50.says": "cannot tell"}, "cannot_answer"),
        ("latency-regression-after-pruning", {"latency_ratio.p50.says": "same"}, "no_fault"),
        (
            "latency-regression-after-pruning",
            {
                "latency_ratio.p50.says": "slower",
                "conversions": 2.0,
                "mechanism.scheduling.format-conversion": "material",
            },
            "scheduling.format-conversion",
        ),
        (
            "p99-only",
            {"replay.p50_ratio": 1.0, "replay.p99_ratio": 4.0, "replay.passed": False},
            "validation.tail-only",
        ),
        ("p99-only", {"replay.passed": True}, "no_fault"),
        ("format-conversion-audit", {"conversions": 0.0}, "no_fault"),
        ("precision-policy", {"mechanism.validation.non-finite": "material"}, "validation.non-finite"),
        ("memory-blow-up", {"memory.grows": True}, "execution.memory-growth"),
        ("memory-blow-up", {"bytes_ratio": 1.4}, "ingress.index-overhead"),
        ("quality-drift", {"quality.within_gate": True}, "no_fault"),
        ("energy-regression", {"energy.ratio": 1.01}, "no_fault"),
        ("energy-regression", {}, "cannot_answer"),
        ("runtime-upgrade-lost-kernels", {"lock.differs.torch": False}, "cannot_answer"),
        ("structured-or-unstructured", {"matrix.best_kind": "structured"}, "no_fault"),
        ("structured-or-unstructured", {"quality.within_gate": False}, "validation.quality-drift"),
        ("live-triage", {"path.sparse-csr-rhs": 0.9, "native.unknown": 0.0}, "kernel.wrong-orientation"),
        ("live-triage", {"path.dense": 0.9, "native.unknown": 0.0}, "cannot_answer"),
        ("trace-only-triage", {"path.dense": 0.9}, "cannot_answer"),
        ("trace-only-triage", {"path.sparse-coo": 0.9}, "kernel.generic"),
        ("dense-fallback-audit", {"fallback_rate": 1.0, "mechanism.lowering.dense-storage": "ruled out"}, "no_fault"),
        (
            "one-family-faster",
            {"ops.families_split": True, "fallback_time": 0.6, "mechanism.lowering.unsupported-family": "material"},
            "lowering.unsupported-family",
        ),
    ],
)
def test_known_incidents_end_where_they_should(name: str, known: dict[str, Any], ends: str) -> None:
    assert end(name, known) == ends
