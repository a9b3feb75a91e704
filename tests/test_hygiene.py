"""What importing and installing the package brings along."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FACES = [
    "sparsetui.cli.app",
    "sparsetui.tui.app",
    "sparsetui.runner.investigation",
    "sparsetui.report.memo",
    "sparsetui.ingest.sniff",
]


def loaded_by(statement: str) -> set[str]:
    """Names of the top packages that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(out.stdout.split())


@pytest.mark.parametrize("face", FACES)
def test_faces_load_no_torch(face: str) -> None:
    names = loaded_by(f"import {face}")
    assert "sparsetui" in names
    assert not names & {"torch", "sklearn", "pandas"}


def test_statistics_packages_are_not_loaded_at_import() -> None:
    code = "import sparsetui.cli.app, sparsetui.runner.investigation, sys; print('scipy.stats' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "False"


def test_the_version_answers_without_the_command_line_library() -> None:
    code = (
        "import sys; sys.argv = ['sparsetui', '--version']\n"
        "from sparsetui.__main__ import main\nmain()\nprint('typer' in sys.modules, 'textual' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    version, loaded = out.stdout.splitlines()
    assert version.startswith("sparsetui 0.")
    assert loaded == "False False"


def test_the_package_root_imports_nothing() -> None:
    """Foreign interpreters load it too, with none of our dependencies installed."""
    before = loaded_by("pass")
    assert loaded_by("import sparsetui") - before == {"sparsetui"}


def test_the_wheel_carries_playbooks_styles_drills_and_catalogues(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "sparsetui/_playbooks/pruned-but-no-faster.yaml" in names
    assert "sparsetui/_playbooks/latency-regression-after-pruning.yaml" in names
    for wanted in ("sparsetui/tui/app.tcss", "sparsetui/evidence/kernels.toml", "sparsetui/py.typed",
                   "sparsetui/workload/drills/pages/wrong_orientation.toml", "sparsetui/worker/child/bootstrap.py"):  # fmt: skip
        assert wanted in names
    assert not any(n.startswith(("tests/", "bench/", "sessions/")) for n in names)
