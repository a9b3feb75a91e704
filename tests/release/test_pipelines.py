"""The pipeline examples: they parse, and the gate's command line runs and stops a pipeline by its exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "ci"
CASES = Path(__file__).parent / "cases"
EXIT = {"no_fault": 0, "fault": 1, "cannot_answer": 3}


def _github() -> tuple[str, dict[str, Any]]:
    job = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())["jobs"]["gate"]
    step = next(s for s in job["steps"] if s.get("name") == "Gate")
    return step["run"], job["env"]


def _gitlab() -> tuple[str, dict[str, Any]]:
    job = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())["release gate"]
    assert job["allow_failure"] == {"exit_codes": [EXIT["cannot_answer"]]}
    return "set -e\n" + "\n".join(job["script"]), job["variables"]


@pytest.mark.parametrize("example", [_github, _gitlab])
def test_the_gate_stops_a_pipeline_by_its_exit_code(example: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, variables = example()
    (tmp_path / "deploy").mkdir()
    for name in ("stalls.py", "even.csv"):
        shutil.copy(CASES / name, tmp_path / "deploy" / name)
    shutil.copy(CASES / "stalls_always.toml", tmp_path / "deploy" / "workload.toml")
    env = {**os.environ, **variables, "BUDGET": "8", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
           "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    assert (tmp_path / variables["WORKLOAD"]).is_file()
    got = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    result = json.loads((tmp_path / "result.json").read_text())
    assert got.returncode == EXIT[result["verdict"]["status"]], got.stderr
    assert got.returncode != 0  # the candidate takes many times as long
    assert (tmp_path / "memo.md").is_file()
    assert len(list((tmp_path / "sessions").iterdir())) == 1


@pytest.mark.parametrize("example", [_github, _gitlab])
def test_bad_input_stops_it_as_well(example: Any, tmp_path: Path) -> None:
    script, variables = example()
    env = {**os.environ, **variables, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
           "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    got = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert got.returncode == 2
