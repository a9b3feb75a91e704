"""Every command and every parameter, found by walking the real command tree, with input that no command can use.

A new command or option is covered without a change here; only what may succeed with odd input is listed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.main import get_command

from sparsetui.cli.app import app
from tests.cli.forked import NOBODY, Done, command
from tests.cli.inputs import ESCAPES, NUMBERS, World, build, commands, parameters, unreadable

TREE = get_command(app)
COMMANDS = commands(TREE)
LEAVES = [path for path, c in COMMANDS.items() if not getattr(c, "commands", {})]
PARAMS = parameters(TREE)

# Free text that only filters, or a place where nothing is yet: any value is right.
ANY_TEXT = {("sessions", "list", "text"), ("close", "why"), ("close", "by")}
LONG = os.environ.get("SPARSETUI_TORTURE") == "long"
ALWAYS = {"empty word", "empty", "escapes", "directory", "fifo", "not a number"}
OUTPUTS = {"json", "memo", "output"}
# Nothing that is printed may hold these: C0 and C1 controls but newline and tab, bidi marks, lone surrogates.
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build(tmp_path_factory.mktemp("abuse"))


def good(world: World, path: tuple[str, ...], name: str) -> list[str]:
    """A right value for a required parameter."""
    values = {"workload": world.workload, "session": world.session, "pids": os.getpid(), "files": world.trace,
              "file": world.archive, "name": world.playbook}  # fmt: skip
    return [str(values[name])]


def line(world: World, path: tuple[str, ...], bad: str | None = None, value: str = "") -> list[str]:
    """A command line with all that is required, and one parameter set to ``value``."""
    flag, arguments = [], []
    for p in PARAMS:
        if p.command != path or not p.takes_value:
            continue
        if p.name == bad:
            if p.flag:
                flag += [f"{p.flag}={value}"] if value else [p.flag, ""]
            else:
                arguments.append(value)
        elif p.required:
            arguments += good(world, path, p.name)
    names = {p.name for p in PARAMS if p.command == path}
    if "sessions" in names and bad != "sessions":
        flag += ["--sessions", str(world.sessions)]
    if path == ("attach",):
        flag += ["--headless", *([] if bad == "seconds" else ["--seconds", "0.5"])]
        flag += [] if bad == "session" else ["--session", world.session]
    if path == ("drill",) and bad != "name":
        arguments.append("dense-storage")
    if path == ("close",) and bad == "workload":
        flag.append("--rehearse")
    if path == ("sessions", "delete") and bad:
        flag.append("--yes")
    return [*path, *flag, "--", *arguments] if arguments else [*path, *flag]


def harmless(done: Done) -> None:
    """What holds for every end of every command."""
    assert not done.hung, "it did not end"
    assert not done.left, "a process lived on"
    assert done.code in (0, 1, 2, 3), (done.code, done.stderr[-2000:])
    assert "Traceback" not in done.stderr
    assert "a bug in sparsetui" not in done.stderr, done.stderr
    for text in (done.stdout, done.stderr):
        found = RAW.search(text)
        assert found is None, (found, text[:500])


def refused(done: Done) -> None:
    """One line on stderr, nothing on stdout, exit code 2."""
    harmless(done)
    assert done.code == 2, (done.code, done.stdout[:300], done.stderr[:600])
    lines = done.stderr.splitlines()
    assert done.stdout == ""
    assert len(lines) == 1, done.stderr[:2000]
    assert lines[0].startswith("sparsetui: ")
    assert 15 < len(lines[0]) < 1500, lines[0][:300]


def test_every_command_is_found() -> None:
    assert {p[0] for p in LEAVES} >= {
        "investigate",
        "drill",
        "attach",
        "import",
        "sessions",
        "memo",
        "playbooks",
        "doctor",
    }
    assert len(LEAVES) >= 15
    assert len(PARAMS) >= 60


@pytest.mark.parametrize("path", list(COMMANDS), ids=lambda p: " ".join(p) or "(none)")
def test_help_is_help(path: tuple[str, ...], world: World) -> None:
    for flag in ("--help", "-h"):
        done = command([*path, flag], cwd=world.folder)
        harmless(done)
        assert done.code == 0
        assert "Usage" in done.stdout
        assert done.stderr == ""


@pytest.mark.parametrize("path", list(COMMANDS), ids=lambda p: " ".join(p) or "(none)")
def test_an_unknown_option_is_one_line(path: tuple[str, ...], world: World) -> None:
    for flag in ("--no-such-option", f"--{ESCAPES}", "-Z"):
        done = command([*path, flag], cwd=world.folder, stdin="closed")
        refused(done)
    assert "--help" in done.stderr


def test_a_mistyped_command_or_option_is_told_the_nearest(world: World) -> None:
    for argv, meant in ((["investgate"], "investigate"), (["sessions", "shw", "x"], "show"), (["playbooks", "chek"], "check"),
                        (["investigate", "x.toml", "--budgt", "5"], "--budget")):  # fmt: skip
        done = command(argv, cwd=world.folder)
        refused(done)
        assert meant in done.stderr


@pytest.mark.parametrize("path", [p for p in LEAVES if any(q.required for q in PARAMS if q.command == p)], ids=" ".join)
def test_what_is_required_and_missing_is_named(path: tuple[str, ...], world: World) -> None:
    done = command(list(path), cwd=world.folder)
    refused(done)
    assert "Missing argument" in done.stderr


@pytest.mark.parametrize("path", [p for p in LEAVES if not any(q.many for q in PARAMS if q.command == p)], ids=" ".join)
def test_one_argument_too_many(path: tuple[str, ...], world: World) -> None:
    refused(command([*path, *(str(world.workload) for _ in range(4))], cwd=world.folder))


@pytest.mark.parametrize("param", [p for p in PARAMS if p.takes_value], ids=lambda p: p.id)
def test_every_parameter_refuses_what_it_cannot_use(param: object, world: World) -> None:
    p = param
    assert hasattr(p, "command")
    if p.name.startswith("sessions") or p.name == "sessions_dir":
        values = world.bad_folders
    elif p.number:
        values = NUMBERS
    elif p.name in OUTPUTS:
        values = world.bad_targets
    else:
        values = world.bad
    failures = []
    for what, value in chosen(p.id, values).items():
        done = command(line(world, p.command, p.name, value), cwd=world.folder, stdin="closed", timeout=15)
        try:
            if (*p.command, p.name) in ANY_TEXT or (p.command == () and p.name == "sessions_dir"):
                harmless(done)
            elif p.command == ("playbooks", "check"):  # says each mistake as data, one a line
                harmless(done)
                assert done.code == 2
                assert done.stdout.count("\n") + done.stderr.count("\n") == 1
            elif may_be_right(p, what):
                harmless(done)
            else:
                refused(done)
        except AssertionError as e:
            failures.append(f"{p.id} {what}: {str(e)[:700]}")
    assert not failures, "\n".join(failures)


def chosen(id: str, values: dict[str, str]) -> dict[str, str]:
    """All of them in the long form; else those that hurt most and a third of the rest, another third for each parameter."""
    if LONG:
        return values
    turn = zlib.crc32(id.encode()) % 3
    return {k: v for i, (k, v) in enumerate(values.items()) if k in ALWAYS or i % 3 == turn}


def may_be_right(p: object, what: str) -> bool:
    """Odd input that a command rightly takes."""
    name, path = p.name, p.command  # type: ignore[attr-defined]
    return bool(
        (path == ("import",) and name in ("files", "against") and what in ("text", "broken gzip", "huge line", "empty"))
        or (name == "owners_file" and what in ("text", "empty"))
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("param", [p for p in PARAMS if p.takes_value and not p.number], ids=lambda p: p.id)
def test_what_may_not_be_read_is_one_line(param: object, tmp_path: Path, world: World) -> None:
    p = param
    assert hasattr(p, "command")
    if (*p.command, p.name) in ANY_TEXT or p.command == ():
        pytest.skip("takes any text")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    path = unreadable(tmp_path)
    targets = [closed / "x"] if p.name in OUTPUTS or p.name == "sessions" else [path, closed / "x"]
    for target in targets:
        argv = line(world, p.command, p.name, str(target))
        done = command(argv, cwd=tmp_path, uid=NOBODY, env={"HOME": "/nonexistent"})
        if p.command == ("playbooks", "check"):
            harmless(done)
            assert done.code == 2
        else:
            refused(done)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_the_app_is_not_started_without_a_terminal(path: tuple[str, ...], world: World) -> None:
    """…and nothing waits for an answer on a closed stdin."""
    if path not in {("investigate",), ("sessions", "open"), ("sessions", "delete")}:
        pytest.skip("opens no app and asks nothing")
    for stdin in ("null", "closed"):
        refused(command(line(world, path), cwd=world.folder, stdin=stdin))


def json_commands(world: World) -> list[list[str]]:
    s = ["--sessions", str(world.sessions)]
    return [
        ["sessions", "list", "--json", *s],
        ["sessions", "show", world.session, "--json", *s],
        ["sessions", "verify", world.session, "--json", *s],
        ["memo", world.session, "--format", "json", *s],
        ["import", str(world.trace), "--json", *s],
        ["attach", str(os.getpid()), "--headless", "--gentle", "--seconds", "0.5", "--json", "-"],
    ]


def test_json_stands_alone_on_stdout(world: World) -> None:
    for argv in json_commands(world):
        done = command(argv, cwd=world.folder, timeout=60)
        harmless(done)
        assert json.loads(done.stdout), argv


def test_a_reader_that_leaves_is_no_error(world: World) -> None:
    for argv in [
        *json_commands(world)[:5],
        ["playbooks", "list"],
        ["sessions", "list", "--sessions", str(world.sessions)],
        ["--help"],
    ]:
        read, write = os.pipe()
        os.close(read)
        done = command(argv, cwd=world.folder, stdout=write)
        os.close(write)
        assert done.code == 141, (argv, done)
        assert "rror" not in done.stderr
        assert "Traceback" not in done.stderr


def test_a_full_disk_behind_stdout_is_one_line(world: World) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    done = command(["playbooks", "list"], cwd=world.folder, stdout=fd)
    os.close(fd)
    assert done.code == 2
    assert done.stderr.splitlines() == ["sparsetui: the output cannot be written: No space left on device"]


def test_closed_streams_do_not_end_up_in_a_file(world: World, tmp_path: Path) -> None:
    """With 0, 1 and 2 closed, the ledger would get descriptor 1 and a print would land in it."""
    code = (
        "import os, sys\nfor n in (0, 1, 2): os.close(n)\nsys.stdout = sys.stderr = sys.stdin = None\n"
        "from sparsetui.__main__ import main\n"
        f"sys.argv = ['sparsetui', 'import', {str(world.trace)!r}, '--sessions', {str(tmp_path / 's')!r}]\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    (session,) = (tmp_path / "s").iterdir()
    report = command(["sessions", "verify", str(session)], cwd=tmp_path)
    assert report.code == 0, report.stdout


def test_a_stranger_encoding_is_no_error(world: World) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    for argv in (["playbooks", "list"], ["memo", world.session, "--sessions", str(world.sessions)], ["sessions", "nö"]):
        done = subprocess.run([sys.executable, "-m", "sparsetui", *argv], capture_output=True, env=env, timeout=60)
        assert done.returncode in (0, 2), done.stderr
        assert b"Traceback" not in done.stderr
        assert b"a bug" not in done.stderr


def test_an_interrupt_is_exit_130(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import sparsetui.cli.playbooks as playbooks

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(playbooks, "clean", interrupted)
    done = command(["playbooks", "list"], cwd=world.folder)
    assert done.code == 130
    assert "Traceback" not in done.stderr


def test_what_nobody_foresaw_is_still_one_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import sparsetui.cli.playbooks as playbooks

    def broken(*_: object) -> None:
        raise RuntimeError(f"boom\n{ESCAPES}")

    monkeypatch.setattr(playbooks, "clean", broken)
    done = command(["playbooks", "list"], cwd=world.folder)
    assert done.code == 3
    (only,) = done.stderr.splitlines()
    assert only.startswith("sparsetui: a bug in sparsetui: RuntimeError: boom")
    assert RAW.search(only) is None
    told = command(["playbooks", "list"], cwd=world.folder, env={"SPARSETUI_DEBUG": "1"})
    assert "Traceback" in told.stderr


_WORDS = st.sampled_from(
    sorted({w for path in COMMANDS for w in path} - {"drill", "attach", "doctor", "investigate", "matrix"})
    + sorted({p.flag for p in PARAMS if p.flag})
    + ["--", "-", "-o", "--json=-", "=", "zz", "1", "/dev/null", "\udcff", ESCAPES]
)


@settings(max_examples=400 if LONG else 40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    argv=st.lists(
        _WORDS | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12), max_size=7
    )
)
def test_random_command_lines(argv: list[str], world: World) -> None:
    away = world.folder / "away"
    away.mkdir(exist_ok=True)
    harmless(command(argv, cwd=away, env={"XDG_DATA_HOME": str(away)}))
