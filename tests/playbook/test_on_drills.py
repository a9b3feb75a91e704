"""Every shipped playbook walked on a drill: some live, the rest over what drills left behind on a busy virtual machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sparsetui.playbook import library
from sparsetui.playbook.facts import flatten
from sparsetui.playbook.runner import walk
from sparsetui.playbook.spec import load as load_playbook
from sparsetui.release.runner import ReleaseRunner
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.workload.drills import training
from sparsetui.workload.drills.catalogue import all_drills, get, prepare
from sparsetui.workload.spec import load

RECORDED = Path(__file__).parent / "recorded"
# enough of the digits classifier for what does not depend on times: a second of training instead of ten
SMALL = {**training.RECIPE, "layers": [64, 96, 96, 96, 96, 10], "epochs": 20, "fine_tune_epochs": 6, "learning_rate": 3e-3,
         "pruned": 0.91}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    patch = pytest.MonkeyPatch()
    patch.setenv("SPARSETUI_DRILLS", str(tmp_path_factory.mktemp("drills")))
    patch.setattr(training, "RECIPE", SMALL)
    patch.setattr(training, "MIN_ACCURACY", 0.5)
    patch.setattr(training, "_train_apart", training.train_into)
    try:
        prepare()
        yield
    finally:
        patch.undo()


LIVE = [
    ("memory-blow-up", "stored-zeros", "ingress.stored-zeros"),
    ("one-family-faster", "coverage-gap", "ingress.coverage-gap"),
]


@pytest.mark.parametrize(("name", "drill", "ends"), LIVE)
def test_a_playbook_is_followed_live(trained: None, tmp_path: Path, name: str, drill: str, ends: str) -> None:
    runner = ReleaseRunner(load(get(drill).workload), Store(tmp_path), budget_s=6, playbook=library.find(name))
    try:
        result = runner.run_all()
    finally:
        runner.close()
    assert result.playbook["id"] == name
    assert result.playbook["end"]["mechanism"] == ends, result.playbook
    assert result.playbook["end"]["owner"]


# playbook -> the drill that was run with it, the steps that it took, and the mechanism it ended in (or what it says instead)
WALKED = {
    "pruned-but-no-faster": ("dense-storage", "lock gap zeros path dense", "lowering.dense-storage"),
    "format-conversion-audit": ("format-conversion", "lock count who", "scheduling.format-conversion"),
    "quality-drift": ("quality-drift", "lock loaded zeros gate clean pruning", "validation.quality-drift"),
    "runtime-upgrade-lost-kernels": ("lock-mismatch", "changed", "ingress.lock-mismatch"),
    "dense-fallback-audit": ("densified", "lock count cost", "lowering.densified"),
    "latency-regression-after-pruning": ("wrong-orientation", "lock gap added kernel", "kernel.wrong-orientation"),
    "precision-policy": ("quality-drift", "lock gate sparsity", "validation.quality-drift"),
    "structured-or-unstructured": ("generic-kernel", "lock now matrix gap", "kernel.generic"),
    "live-triage": ("wrong-orientation", "attach", "kernel.wrong-orientation"),
    "trace-only-triage": ("wrong-orientation", "import", "kernel.wrong-orientation"),
    # no counter could be read there and no watts were named, and the pair's own cause was not found in the noise
    "energy-regression": ("mask-recompute", "lock meter proxy slower", "cannot_answer"),
    # the median regressed as well, which this playbook hands on
    "p99-only": ("wrong-orientation", "lock median", "cannot_answer"),
}


@pytest.mark.parametrize("name", WALKED)
def test_a_playbook_is_walked_over_what_its_drill_left(name: str) -> None:
    _, steps, ends = WALKED[name]
    state = msgspec.json.decode((RECORDED / f"{name}.json").read_bytes(), type=SessionState)
    trail = walk(load_playbook(library.shipped() / f"{name}.yaml"), flatten(state))
    assert [v.step for v in trail.trail] == steps.split()
    assert (trail.end.mechanism or trail.end.kind) == ends
    assert trail.end.owner
    assert bool(trail.end.settle) == (trail.end.kind == "cannot_answer")


def test_every_shipped_playbook_is_run_on_a_drill_here() -> None:
    assert {p.stem for p in library.shipped().glob("*.yaml")} == {*WALKED, *(name for name, *_ in LIVE)}
    drills = {drill for drill, *_ in WALKED.values()} | {drill for _, drill, _ in LIVE}
    assert drills <= {d.name for d in all_drills()}
    assert len(drills) >= 9
