"""The cases themselves: each file loads, builds and steps, and what its answer rests on is really there."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsetui.workload.spec import load

pytest.importorskip("torch")

FOLDER = Path(__file__).parent


def _table() -> Any:
    spec = importlib.util.spec_from_file_location("field_case_table", FOLDER / "cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TABLE = _table()

# One process steps every pair twice: it is a fresh interpreter, as a worker is, with the folder first on its path.
STEPPER = """
import importlib, json, os, sys, warnings
warnings.filterwarnings("ignore")
import torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)

def get(entry):
    path, _, name = entry.rpartition(":")
    return getattr(importlib.import_module(os.path.basename(path)[:-3]), name)

def flat(out):
    return out if isinstance(out, torch.Tensor) else torch.cat([part.flatten() for part in out])

def facts(tensor):
    zeros = int((tensor.to_dense() == 0).sum()) / tensor.numel() if tensor.numel() else 0.0
    return {"layout": str(tensor.layout), "zeros": zeros}

for line in sys.stdin:
    case = json.loads(line)
    out = {"name": case["name"]}
    torch.sparse.check_sparse_tensor_invariants.disable()
    for variant in ("comparator", "failing"):
        with torch.no_grad():
            model = get(case[variant])()
            inputs = get(case["inputs"])()
            try:
                results = [flat(model(*arguments)) for arguments in inputs[:2]]
                out[variant] = {"finite": all(bool(torch.isfinite(r).all()) for r in results), "inputs": len(inputs)}
            except Exception as why:
                out[variant] = {"error": type(why).__name__ + ": " + str(why)}
                continue
            if case["quality"]:
                out[variant]["quality"] = get(case["quality"])(model)
            if variant == "comparator":
                want = results
            else:
                out["diff"] = max(float((a - b).abs().max()) for a, b in zip(results, want))
            if isinstance(model, torch.nn.Module):
                tensors = [*model.named_parameters(), *model.named_buffers()]
                out[variant]["tensors"] = {n: facts(t.detach()) for n, t in tensors}
    print(json.dumps(out), flush=True)
"""


def _step(cases: list[Any]) -> dict[str, Any]:
    lines = []
    for case in cases:
        workload = load(case.workload)
        entries = workload.entries()
        quality = entries.get("quality.entry")
        lines.append(
            json.dumps(
                {
                    "name": case.name,
                    "failing": entries["failing.entry"].text,
                    "comparator": entries["comparator.entry"].text,
                    "inputs": entries["inputs.entry"].text,
                    "quality": quality.text if quality else None,
                }
            )
        )
    done = subprocess.run(
        [sys.executable, "-c", STEPPER, str(FOLDER)], input="\n".join(lines), capture_output=True, text=True, timeout=300
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in found}


@pytest.fixture(scope="module")
def stepped() -> dict[str, Any]:
    return _step([c for c in TABLE.CASES if not c.compiles])


@pytest.mark.parametrize("case", TABLE.CASES, ids=lambda c: c.name)
def test_the_file_is_a_workload(case: Any) -> None:
    workload = load(case.workload)
    assert workload.name == case.name.replace("_", "-")
    threads = {workload.failing.threads, workload.comparator.threads}
    assert threads == {1} or case.id in {"C01", "C02", "C04"}, "only a case about threads may have more than one"
    assert workload.derived is None


def test_the_folder_holds_no_workload_that_the_table_forgets() -> None:
    assert {c.workload for c in TABLE.CASES} == set(FOLDER.glob("*.toml"))
    assert len({c.name for c in TABLE.CASES}) == len(TABLE.CASES)


def test_every_field_case_has_two_surfaces() -> None:
    surfaces: dict[str, set[str]] = {}
    for case in TABLE.FIELD + TABLE.TRAPS + TABLE.CATALOGUE:
        surfaces.setdefault(case.id, set()).add(case.surface)
    assert all(found == {"module", "closure"} for found in surfaces.values()), surfaces


@pytest.mark.parametrize("case", [c for c in TABLE.CASES if not c.compiles], ids=lambda c: c.name)
def test_both_variants_step_with_finite_outputs(case: Any, stepped: dict[str, Any]) -> None:
    row = stepped[case.name]
    assert row["comparator"]["finite"]
    assert row["comparator"]["inputs"] >= 4
    if case.raises:
        assert "not implemented for" in row["failing"]["error"]
    else:
        assert row["failing"]["finite"] == (case.mechanism != "validation.non-finite")


@pytest.mark.parametrize("case", [c for c in TABLE.CASES if not c.compiles], ids=lambda c: c.name)
def test_outputs_agree_where_the_workload_says_so(case: Any, stepped: dict[str, Any]) -> None:
    quality = load(case.workload).quality
    row = stepped[case.name]
    if quality is None or quality.max_drift is None or case.raises:
        return
    broken = {case.mechanism, case.second} & {"validation.quality-drift", "validation.precision", "ingress.invalid-indices"}
    if quality.entry is None:
        drift = row["diff"]
    else:
        drift = max(abs(v - row["comparator"]["quality"][k]) for k, v in row["failing"]["quality"].items())
    assert (drift > quality.max_drift) == bool(broken)


@pytest.mark.parametrize("case", [c for c in TABLE.CASES if not c.compiles], ids=lambda c: c.name)
def test_declared_sparsity_is_missed_only_where_that_is_the_fault(case: Any, stepped: dict[str, Any]) -> None:
    declared = load(case.workload).declared
    tensors = stepped[case.name]["failing"].get("tensors")
    if not tensors or declared.sparsity is None or case.id == "C20":  # there it is the declared names that are wrong
        return
    if case.id == "R02":
        tensors = {n: t for n, t in tensors.items() if n.endswith("_mask")}  # the hooks keep the zeros in the mask
    kept = [t["zeros"] for n, t in tensors.items() if t["zeros"] >= declared.sparsity - 1e-3]
    lost = case.mechanism in {"ingress.mask-dropped", "ingress.sparsity-decayed", "ingress.coverage-gap"}
    assert (len(kept) < len(tensors)) == lost


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_pairs_step() -> None:
    cases = [c for c in TABLE.CASES if c.compiles]
    rows = _step(cases)
    assert {c.name for c in cases} == set(rows)
    assert all(row["failing"]["finite"] and row["diff"] < 1e-3 for row in rows.values())
