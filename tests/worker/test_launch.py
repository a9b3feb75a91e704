"""Interpreters other than our own: good ones, broken ones, and things that are none."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import sparsetui
from sparsetui.worker.faults import Fault, WorkerFault
from sparsetui.worker.handle import Launch, Server

CASES = Path(__file__).parent / "cases"
PACKAGE = Path(sparsetui.__file__).parent


def script(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(body)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., Fault]:
    def start(python: str, **launch: object) -> Fault:
        server = Server(Launch(folder=CASES, python=python, **launch), tmp_path / "scratch")  # type: ignore[arg-type]
        with pytest.raises(WorkerFault) as raised:
            server.start(deadline_s=60)
        fault = raised.value.fault
        assert fault.kind == "launch"
        assert python in fault.message
        assert fault.message.isprintable()
        if server.pid is not None:
            with pytest.raises(ProcessLookupError):
                os.kill(server.pid, 0)
        return fault

    return start


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment: its own interpreter, no packages, ours not visible."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


def site_of(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3.*/site-packages")
    return found


def test_an_interpreter_without_torch_is_told_in_one_line(bare: Path, refused: Callable[..., Fault]) -> None:
    fault = refused(str(bare / "bin/python"))
    assert fault.message.endswith("no numpy is installed there") or fault.message.endswith(
        "no torch is installed there"
    )


def only(folder: Path, torch_code: str, numpy_code: str = "__version__ = '1.26.0'\n") -> dict[str, str]:
    """A PYTHONPATH on which torch is whatever the test needs it to be."""
    for name, code in (("numpy", numpy_code), ("torch", torch_code)):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("torch_code", "says"),
    [
        ("__version__ = '2.1.2+cu118'\n", "torch 2.1.2+cu118 is too old; a worker needs 2.2 or newer"),
        ("raise OSError('libcudart.so.12: cannot open')\n", "torch cannot be imported there: OSError: libcudart"),
        ("raise SystemExit(4)\n", "torch cannot be imported there: SystemExit: 4"),
        ("import warnings; warnings.warn('x')\n__version__ = '1.9'\n", "torch 1.9 is too old"),
        ("import absent_part\n", "torch cannot be imported there: ModuleNotFoundError: No module named 'absent_part'"),
        ("import os; os._exit(9)\n", "died while importing torch (exit code 9)"),
        ("import ctypes; ctypes.string_at(0)\n", "died while importing torch (killed by SIGSEGV)"),
    ],
)
def test_a_torch_that_cannot_serve_is_told(
    bare: Path, tmp_path: Path, refused: Callable[..., Fault], torch_code: str, says: str
) -> None:
    env = {"PYTHONWARNINGS": "error", **only(tmp_path, torch_code)}
    assert says in refused(str(bare / "bin/python"), env=env).message


def test_what_is_no_interpreter_is_told(tmp_path: Path, refused: Callable[..., Fault]) -> None:
    assert "does not exist" in refused(str(tmp_path / "absent/python")).message
    assert "no file" in refused(str(tmp_path)).message
    (tmp_path / "plain").write_text("x")
    assert "not executable" in refused(str(tmp_path / "plain")).message
    assert "did not come up as a Python interpreter (exit code" in refused("/bin/false").message
    assert "not on the PATH" in refused("no-such-python-q").message
    says = refused(script(tmp_path, "complains", "#!/bin/sh\necho 'libpython3.so: \033[1mmissing' >&2\nexit 127\n"))
    assert "(exit code 127): libpython3.so:" in says.message
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x00\x01\x02")
    binary.chmod(0o755)
    assert "cannot be started" in refused(str(binary)).message


def test_what_never_answers_is_given_up(
    tmp_path: Path, refused: Callable[..., Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsetui.worker.handle._HELLO_S", 0.5)
    assert "did not start Python within" in refused(script(tmp_path, "sleeps", "#!/bin/sh\nexec sleep 600\n")).message


def test_a_sitecustomize_that_ends_the_interpreter_is_told(tmp_path: Path, refused: Callable[..., Fault]) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.write(2, b'licence expired\\n')\nos._exit(5)\n")
    fault = refused(sys.executable, env={"PYTHONPATH": str(tmp_path)})
    assert fault.message.endswith("did not come up as a Python interpreter (exit code 5): licence expired")


def test_an_interpreter_that_is_too_old_says_so(tmp_path: Path, refused: Callable[..., Fault]) -> None:
    """Our bootstrap must at least speak there: run it with the version that it sees set back."""
    code = (
        "import sys, runpy; sys.version_info = (3, 8, 0); sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    old = script(tmp_path, "python3.8", f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    assert "it is Python 3.8; a worker needs 3.9 or newer" in refused(old).message


def test_a_foreign_interpreter_with_torch_but_without_us_serves(bare: Path, tmp_path: Path) -> None:
    """Its torch is ours by a .pth file; sparsetui itself is not importable there, and its sitecustomize prints."""
    import importlib.util

    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    site = tmp_path / "site"
    site.mkdir()
    packages = Path(found.origin).parents[1]
    for name in os.listdir(packages):  # all that torch may need, but no trace of this package
        if "sparsetui" not in name.lower() and not name.endswith(".pth"):
            (site / name).symlink_to(packages / name)
    custom = tmp_path / "custom"
    custom.mkdir()
    (custom / "sitecustomize.py").write_text("print('hello from sitecustomize')\n")
    pth = site_of(bare) / "service.pth"
    pth.write_text(f"{site}\n{custom}\n")
    python = str(bare / "bin/python")
    try:
        probe = subprocess.run([python, "-c", "import sparsetui"], capture_output=True, cwd="/", check=False)
        assert b"No module named 'sparsetui'" in probe.stderr
        env = {"PYTHONPATH": str(custom), "PYTHONWARNINGS": "error", "MARK": "kept"}
        with Server(Launch(folder=CASES, python=python, env=env, threads=1), tmp_path / "scratch") as server:
            assert server.versions["executable"] == python
            assert "hello from sitecustomize" in server.captured()[0]
            spec = {"entry": "good.py:linear", "inputs": {"entry": "good.py:tensors"}, "verbs": "table:VERBS"}
            with server.spawn(spec) as replica:
                built = replica.call("build", deadline_s=30)
                seen = replica.call("look", deadline_s=5)
                out = replica.captured()[0]
    finally:
        pth.unlink()
    assert built["inputs"] == 2
    assert out == "building\n"
    assert seen["env"] == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MARK": "kept"}
    assert seen["threads"] == 1


CHILD_SIDE = sorted([*PACKAGE.glob("worker/child/*.py"), PACKAGE / "probes/context.py", PACKAGE / "worker/__init__.py"])


@pytest.mark.parametrize("path", CHILD_SIDE, ids=lambda p: p.name)
def test_child_code_parses_as_python_3_9_and_imports_what_is_there(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or top in {"torch", "numpy", "sparsetui"}


def test_the_tools_own_side_loads_no_torch() -> None:
    code = "import sys, sparsetui.worker.handle; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
