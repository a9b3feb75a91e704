"""Nothing let in: a walk over the package's own code, and hostile names through every surface of a real session."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sparsetui
from sparsetui.evidence.records import to_json
from sparsetui.report import html, jsonout, memo, short
from sparsetui.session.store import Store
from tests.cli.forked import command
from tests.torture.rig import Rig, running, workload

PACKAGE = Path(sparsetui.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN = {
    "eval", "exec", "compile", "os.system", "os.popen", "commands.getoutput", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads",
    "shelve.open", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "dill.loads", "cloudpickle.loads",
    "tarfile.TarFile.extractall", "shutil.unpack_archive", "tempfile.mktemp", "telnetlib", "urllib.request.urlopen",
    "requests.get", "os.execvp", "os.spawnl",
}  # fmt: skip
# YAML is composed, never constructed, with the safe loader's own subclass; the class below is what is passed.
SAFE_LOADERS = {"yaml.SafeLoader", "SafeLoader", "_Loader", "_Checked"}
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_the_walk_sees_the_package() -> None:
    assert len(FILES) > 120
    names = {name for f in FILES for name, _ in calls(f)}
    assert "subprocess.Popen" in names
    assert "torch.load" in names or any(n.endswith(".load") for n in names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_is_evaluated_unpickled_or_given_to_a_shell(path: Path) -> None:
    wrong = []
    for name, call in calls(path):
        keywords = {k.arg: k.value for k in call.keywords}
        where = f"{path.name}:{call.lineno}: {ast.unparse(call)[:120]}"
        if name in FORBIDDEN:
            loader = keywords.get("Loader") or (call.args[1] if len(call.args) > 1 else None)
            if not (name == "yaml.load" and loader is not None and ast.unparse(loader) in SAFE_LOADERS):
                wrong.append(where)
        if "shell" in keywords:
            wrong.append(where)
        if name.startswith("subprocess.") and call.args and isinstance(call.args[0], ast.Constant | ast.JoinedStr):
            wrong.append(where)
        if name in ("torch.load", "load") and name == "torch.load":
            safe = keywords.get("weights_only")
            if not (isinstance(safe, ast.Constant) and safe.value is True):
                wrong.append(where)
    assert not wrong, wrong


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, Any]:
    """A real investigation whose workload name, owners, module names, output and environment are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    more = (
        '[workload]\nname = "x\\u001b[31m\\u202e <script>alert(1)</script> | `b` ![i](http://e) [bold]"\n'
        '[owners]\n"ML performance engineer" = "<img src=x onerror=y>\\u0007 \\u2066@a | b"\n'
    )
    rig = Rig(folder)
    with running(rig):
        rig.start(
            workload(folder, "hostile_names", "hostile_names", more), 10, SECRET_TOKEN="hunter2-in-the-environment"
        )
        code = rig.wait(120)
        assert code in (0, 1, 3), rig.err[-500:]
    (summary,) = Store(rig.sessions).list()
    return rig, Store(rig.sessions).open(summary.id).state()


def test_no_surface_shows_raw_what_others_wrote(hostile: tuple[Rig, Any]) -> None:
    rig, state = hostile
    shown = command(["sessions", "show", state.id, "--sessions", str(rig.sessions)], cwd=rig.folder)
    listed = command(["sessions", "list", "--sessions", str(rig.sessions)], cwd=rig.folder)
    texts = {"stderr": rig.err, "stdout": (rig.folder / "out").read_text(), "show": shown.stdout + shown.stderr,
             "list": listed.stdout, "memo": memo.render(state), "chat": short.chat(state), "issue": short.issue(state),
             "html": html.render_html(state), "json": jsonout.session_json(state).decode(),
             "result": (rig.folder / "result.json").read_text()}  # fmt: skip
    for surface, text in texts.items():
        assert len(text) > 20, surface
        found = RAW.search(text) if surface not in ("json", "result") else re.search("[\x00-\x08\x0b-\x1f]", text)
        assert found is None, (surface, text[max(0, found.start() - 80) : found.end() + 80])
    assert "<script>alert" not in texts["html"]
    assert "onerror=y>" not in texts["html"]
    assert "![i](http" not in texts["memo"]
    assert "<script>alert" not in texts["memo"]
    assert "Content-Security-Policy" in texts["html"]


def test_what_an_environment_holds_stays_out_of_the_record(hostile: tuple[Rig, Any]) -> None:
    rig, state = hostile
    whole = b"".join(p.read_bytes() for p in (rig.sessions / state.id).glob("*") if p.is_file())
    reader = Store(rig.sessions).open(state.id)
    whole += b"".join(reader.artifact(e.sha256) for e in state.evidence if e.sha256)
    assert b"hunter2" not in whole
    assert b"hunter2" not in rig.err.encode()


def test_everything_that_was_started_is_a_list_in_the_ledger(hostile: tuple[Rig, Any]) -> None:
    rig, state = hostile
    started = [
        msgspec.json.decode(to_json(e.body)) for e in Store(rig.sessions).open(state.id).events() if e.kind == "command"
    ]
    assert len(started) >= 4
    assert all(isinstance(c["argv"], list) and all(isinstance(a, str) for a in c["argv"]) for c in started)
