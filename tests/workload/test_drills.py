"""The drills: what the catalogue promises, and that training, cache and pages really are what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsetui.flow import BY_ID
from sparsetui.workload.drills import training
from sparsetui.workload.drills.catalogue import DrillError, all_drills, get, prepare
from sparsetui.workload.spec import load

EXPECTED = {
    "lowering.dense-storage", "lowering.mask-recompute", "lowering.densified", "kernel.wrong-orientation",
    "kernel.generic", "kernel.below-crossover", "scheduling.format-conversion", "execution.index-copy",
    "ingress.stored-zeros", "ingress.coverage-gap", "ingress.lock-mismatch", "validation.quality-drift", None,
}  # fmt: skip


def test_the_catalogue_covers_each_first_mechanism_and_the_pair_with_nothing_wrong() -> None:
    drills = all_drills()
    assert {d.mechanism for d in drills} == EXPECTED
    assert len({d.name for d in drills}) == len(drills)
    assert drills[0].mechanism == "kernel.wrong-orientation"
    assert get() is drills[0]
    for drill in drills:
        assert drill.stage is None or drill.stage in BY_ID
        assert 2 <= drill.story.count(". ") + drill.story.count(": ") + 1 <= 4
        assert drill.right(drill.status, drill.mechanism)
        assert not drill.right("cannot_answer", None)
    assert {load(d.workload).name for d in drills} == {f"drill-{d.name}" for d in drills}


def test_every_page_and_workload_belongs_to_a_drill() -> None:
    pages = get().workload.parent
    assert {d.workload for d in all_drills()} == set(pages.glob("*.toml"))


def test_only_the_lock_drill_differs_in_more_than_was_declared() -> None:
    for drill in all_drills():
        workload = load(drill.workload)
        same = (workload.failing.threads, workload.failing.env) == (
            workload.comparator.threads,
            workload.comparator.env,
        )
        assert same == (drill.mechanism != "ingress.lock-mismatch")


def test_an_unknown_drill_names_the_nearest() -> None:
    with pytest.raises(DrillError, match="did you mean index-copy"):
        get("index-cpoy")


SMALL = {
    **training.RECIPE, "layers": [64, 96, 96, 96, 96, 10], "epochs": 20, "fine_tune_epochs": 6, "pruned": 0.6,
    "learning_rate": 3e-3,
}  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of its own and a recipe of seconds, carried out in this process."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    monkeypatch.setattr(training, "RECIPE", SMALL)
    monkeypatch.setattr(training, "_train_apart", training.train_into)
    monkeypatch.setenv("SPARSETUI_DRILLS", str(tmp_path / "drills"))
    return tmp_path / "drills"


def test_training_is_cached_and_a_damaged_cache_is_trained_again(small: Path) -> None:
    said: list[str] = []
    folder = prepare(said.append)
    assert len(said) == 2
    assert folder.parent == small
    assert (small / "latest").read_text() == folder.name
    facts = training.manifest(folder)
    assert facts["accuracy"]["pruned"] >= training.MIN_ACCURACY
    assert facts["zero_fraction"]["hidden.1"] == pytest.approx(0.6, abs=0.01)
    assert facts["zero_fraction"]["head"] < 0.01

    said.clear()
    assert prepare(said.append) == folder
    assert said == []

    victim = folder / "pruned.hidden.1.weight.npy"
    body = bytearray(victim.read_bytes())
    body[-1] ^= 0x40
    victim.write_bytes(body)
    (small / ".new-left").mkdir()
    assert not training.is_whole(folder)
    prepare(said.append)
    assert "damaged" in said[0]
    assert training.is_whole(folder)
    assert victim.read_bytes() != bytes(body)
    assert not list(small.glob(".new-*"))


def test_another_recipe_or_torch_is_another_cache_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    before = training.recipe_key()
    monkeypatch.setattr(training, "RECIPE", {**training.RECIPE, "seed": 21})
    assert training.recipe_key() != before


def test_without_scikit_learn_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError('not here')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "SPARSETUI_DRILLS": str(tmp_path / "drills")}
    code = "from sparsetui.workload.drills.training import *\ntry: prepare()\nexcept DrillError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "the drills need scikit-learn: pip install 'sparsetui[drills]'\n"
    assert not list((tmp_path / "drills").glob("digits-*"))


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSETUI_DRILLS", str(tmp_path / "file" / "drills"))
    with pytest.raises(DrillError, match="SPARSETUI_DRILLS"):
        prepare()


# A fresh interpreter with the pages first on its path, as a worker has them.
STEPPER = """
import importlib, json, sys
import torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
import classifier
for line in sys.stdin:
    name, failing, comparator = json.loads(line)
    page = importlib.import_module(name)
    models = [getattr(page, failing)(), getattr(page, comparator)()]
    with torch.no_grad():
        outputs = [m(*page.requests()[0]) for m in models]
    print(json.dumps({
        "name": name,
        "finite": all(bool(torch.isfinite(o).all()) for o in outputs),
        "same": bool(torch.allclose(*outputs, rtol=1e-3, atol=1e-3)),
        "accuracy": [classifier.accuracy(m)["accuracy"] for m in models],
        "layouts": [str(getattr(layer, "weight").layout) for layer in models[0].hidden],
        "zeros": [float((layer.weight.to_dense() == 0).float().mean()) for layer in models[0].hidden],
    }), flush=True)
"""


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every drill on weights that the real recipe trained, once for this file."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    patch = pytest.MonkeyPatch()
    patch.setenv("SPARSETUI_DRILLS", str(tmp_path_factory.mktemp("drills")))
    try:
        folder = prepare()
        assert training.manifest(folder)["accuracy"]["dense"] >= 0.95
        lines = []
        for drill in all_drills():
            entries = load(drill.workload)
            lines.append(
                json.dumps([drill.workload.stem, entries.failing.entry.attribute, entries.comparator.entry.attribute])
            )
        argv = [sys.executable, "-c", STEPPER, str(get().workload.parent)]
        done = subprocess.run(argv, input="\n".join(lines), capture_output=True, text=True, timeout=300)
    finally:
        patch.undo()
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"].replace("_", "-"): row for row in rows}


@pytest.mark.parametrize("drill", all_drills(), ids=lambda d: d.name)
def test_a_drill_runs_and_only_the_quality_drill_breaks_its_gate(drill: Any, stepped: dict[str, Any]) -> None:
    row = stepped[drill.name]
    quality = load(drill.workload).quality
    assert row["finite"]
    assert quality is not None
    assert quality.max_drift is not None
    drift = abs(row["accuracy"][0] - row["accuracy"][1])
    assert (drift > quality.max_drift) == (drill.mechanism == "validation.quality-drift")
    new_weights = {
        "lowering.dense-storage",
        "kernel.below-crossover",
        "ingress.coverage-gap",
        "validation.quality-drift",
    }
    assert row["same"] == (drill.mechanism not in new_weights and drill.name != "dense-is-faster")


def test_the_candidates_hold_what_their_stories_say(stepped: dict[str, Any]) -> None:
    layouts = {name: row["layouts"] for name, row in stepped.items()}
    assert set(layouts["wrong-orientation"]) == {"torch.sparse_csr"}
    assert set(layouts["dense-storage"]) == {"torch.strided"}
    assert layouts["generic-kernel"][1] == "torch.sparse_coo"
    assert layouts["format-conversion"][1] == "torch.sparse_csc"
    assert layouts["coverage-gap"] == ["torch.sparse_csr", "torch.strided", "torch.sparse_csr"]
    assert stepped["coverage-gap"]["zeros"][1] < 0.01
    for name, row in stepped.items():
        declared = load(get(name).workload).declared
        if name != "coverage-gap":
            assert all(zeros >= declared.sparsity for zeros in row["zeros"]), name
