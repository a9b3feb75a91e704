"""A host's own part, without Ray: what it looks at, what it refuses, and how code reaches it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import sparsetui
from sparsetui.fleet import bundle, remote
from sparsetui.fleet.bundle import BundleError, manifest, pack
from sparsetui.fleet.host import Job, investigate
from sparsetui.workload.spec import load


@pytest.fixture
def workload(tmp_path: Path) -> Callable[..., Any]:
    """A workload in a folder of its own; it runs under ``python``."""

    def make(python: str | None = None) -> Any:
        folder = tmp_path / "pair"
        (folder / "weights").mkdir(parents=True)
        (folder / "serving.py").write_text("def build(): return lambda x: x\n")
        (folder / "weights" / "w.bin").write_bytes(bytes(range(256)))
        line = f'python = "{python}"\n' if python else ""
        (folder / "w.toml").write_text(
            f'[failing]\nentry = "serving.py:build"\n{line}[comparator]\nentry = "serving.py:build"\n{line}[inputs]\nshape = [2]\n'
        )
        return load(folder / "w.toml")

    return make


def bare_python(folder: Path) -> Path:
    """An interpreter that has the standard library and nothing else."""
    script = folder / "bare-python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    script.chmod(0o755)
    return script


class Board:
    """Where a task tells its progress."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.tell = self

    def remote(self, host: str, message: dict[str, Any]) -> None:
        self.told.append((host, message))


def test_a_node_that_has_every_file_uses_its_own(workload: Any) -> None:
    found = manifest(workload())
    facts = remote.look(found.root, found.files, sparsetui.__version__)
    assert facts["code"] == "path"
    assert "refuses" not in facts
    assert facts["machine"]
    assert facts["cores"] >= 1


def test_one_byte_that_differs_has_the_code_shipped(workload: Any) -> None:
    found = manifest(workload())
    (Path(found.root) / "weights" / "w.bin").write_bytes(bytes(range(255)))
    assert remote.look(found.root, found.files, sparsetui.__version__)["code"] == "shipped"


def test_a_node_with_another_version_of_the_tool_refuses(workload: Any) -> None:
    found = manifest(workload())
    facts = remote.look(found.root, found.files, "9.9.9")
    assert "9.9.9" in facts["refuses"]
    assert sparsetui.__version__ in facts["refuses"]


def test_a_node_without_the_tool_refuses(workload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.sys, "executable", str(bare_python(tmp_path)))
    facts = remote.look("/", {}, sparsetui.__version__)
    assert "No module named 'sparsetui'" in facts["refuses"]


def test_a_node_with_an_old_python_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LEAST_PYTHON", (99, 0))
    assert "needs 99.0" in remote.look("/", {}, sparsetui.__version__)["refuses"]


def test_the_bundle_is_the_folder_without_what_is_nobodys_code(workload: Any) -> None:
    w = workload()
    for waste in (".git/HEAD", "__pycache__/x.pyc", "env/pyvenv.cfg", "env/lib.py", ".hidden"):
        (w.folder / waste).parent.mkdir(exist_ok=True)
        (w.folder / waste).write_text("x")
    (w.folder / "out").symlink_to("/etc/passwd")
    found = manifest(w)
    assert sorted(found.files) == ["serving.py", "w.toml", "weights/w.bin"]
    with tarfile.open(fileobj=BytesIO(pack(found))) as packed:
        assert sorted(packed.getnames()) == sorted(found.files)
    assert pack(found) == pack(found)


def test_a_folder_that_is_too_large_says_what_to_do(workload: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGEST", 300)
    with pytest.raises(BundleError, match="a path that every node has"):
        manifest(workload())


def test_shipped_code_runs_where_its_folder_is_not(workload: Any, tmp_path: Path) -> None:
    w = workload(str(bare_python(tmp_path)))
    found = manifest(w)
    packed = pack(found)
    board = Board()
    job = {"host": "n", "path": "/nowhere/at/all/w.toml", "sha256": w.sha256, "budget_s": 5.0}
    answer = remote.investigate(job, packed, board, 60.0)
    report = answer["report"]
    assert (report["host"], report["state"]) == ("n", "refused")
    assert "torch" in report["why"] or "numpy" in report["why"], report["why"]
    assert ("n", {"started": True}) in board.told


def test_another_file_of_the_same_name_is_refused(workload: Any) -> None:
    w = workload()
    report = investigate(Job("n", str(w.path), "0" * 64, 5.0), lambda message: None)
    assert report.state == "refused"
    assert "another file here" in report.why


def test_an_interpreter_that_is_not_there_is_refused(workload: Any, tmp_path: Path) -> None:
    python = bare_python(tmp_path)
    w = workload(str(python))
    python.unlink()
    report = investigate(Job("n", str(w.path), w.sha256, 5.0), lambda message: None)
    assert report.state == "refused"
    assert "bare-python" in report.why


def test_no_answer_in_its_time_is_too_slow(workload: Any) -> None:
    w = workload()
    answer = remote.investigate(
        {"host": "n", "path": str(w.path), "sha256": w.sha256, "budget_s": 600.0}, None, Board(), 0.2
    )
    assert answer["failed"] == "slow"


def test_a_process_that_dies_is_told_with_how(workload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "dies"
    script.write_text("#!/bin/sh\necho out of luck >&2\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(remote.sys, "executable", str(script))
    answer = remote.investigate({"host": "n", "path": "/w.toml", "sha256": "", "budget_s": 5.0}, None, Board(), 30.0)
    assert answer["failed"] == "broken"
    assert "signal 9" in answer["why"]
    assert "out of luck" in answer["why"]


def test_rays_own_thread_setting_does_not_reach_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("RAY_RAYLET_PID", str(os.getppid()))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    own = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    kept = "OMP_NUM_THREADS" in remote.environment()
    assert kept == (b"OMP_NUM_THREADS=" in own)


def test_nothing_but_the_child_loads_ray() -> None:
    ours = (
        "cli.fleet",
        "fleet.investigation",
        "fleet.attaching",
        "fleet.host",
        "fleet.matrix",
        "fleet.part",
        "tui.screens.fleet",
    )
    faces = ", ".join(f"sparsetui.{name}" for name in ours)
    code = f"import {faces}, sys; print('ray' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"], done.stderr
