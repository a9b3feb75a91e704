"""What the kernel and py-spy really refuse, each brought about on this host: one line with the way out, and exit code 3."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparsetui.ingest.samplers import Perf, PySpy
from sparsetui.ingest.samplers.base import in_container
from sparsetui.ingest.samplers.fold import catalogue
from tests.cli.forked import NOBODY, command

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user, or less than root, needs root")
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter below is written for x86_64")
IDLE = "print(1, flush=True)\nimport time\nwhile True: time.sleep(0.02)"
# runs sparsetui without these system calls, as under the default seccomp profile of a container
FILTER = """
import ctypes, struct, sys
from sparsetui.__main__ import main
import sparsetui.cli.attach, sparsetui.ingest.attach
refused = [int(n) for n in sys.argv.pop(1).split(",")]
code = struct.pack("HBBI", 0x20, 0, 0, 0)  # the number of the call
for i, n in enumerate(refused):
    code += struct.pack("HBBI", 0x15, len(refused) - i, 0, n)
code += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000) + struct.pack("HBBI", 0x06, 0, 0, 0x00050001)  # allow; EPERM
buffer = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0):
    sys.exit(77)
main()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    running: list[subprocess.Popen[bytes]] = []

    def go(*argv: str) -> int:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True)
        running.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child.pid

    yield go
    for child in reversed(running):  # a debugger before what it holds, whose end it would keep to itself
        child.kill()
        child.communicate()


def python(code: str = IDLE) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def attach(pid: int, *more: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, behind ``before``."""
    argv = [
        *(before or (sys.executable, "-m", "sparsetui")),
        "attach",
        str(pid),
        "--headless",
        "--seconds",
        "20",
        *more,
    ]
    return subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


def line_of(text: str, sampler: str) -> str:
    """The one line on a sampler."""
    (line,) = [x for x in text.splitlines() if f"{sampler}: " in x and "samples at" not in x]
    assert "Traceback" not in text
    return line


@ROOT
def test_a_process_of_another_user(start: Callable[..., int], tmp_path: Path) -> None:
    catalogue()  # its files are ours to read, not theirs
    done = command(["attach", str(start(*python())), "--headless", "--seconds", "1"], cwd=tmp_path, uid=NOBODY,
                   env={"HOME": "/nonexistent"})  # fmt: skip
    assert done.code == 3
    for sampler in ("py-spy", "perf"):
        assert f"belongs to user 0 and we are {NOBODY}" in line_of(done.stderr, sampler)


@ROOT
def test_a_process_that_lets_nobody_look(tmp_path: Path) -> None:
    """Our own user's, but undumpable: its files in /proc are root's, and so it must not be called root's process."""
    catalogue()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
            signal.pause()
        finally:
            os._exit(0)
    try:
        deadline = time.monotonic() + 20
        while (
            os.stat(f"/proc/{pid}/fd").st_uid != 0 or f"Uid:\t{NOBODY}" not in Path(f"/proc/{pid}/status").read_text()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        argv = ["attach", str(pid), "--headless", "--seconds", "1", "--sampler", "py-spy"]
        done = command(argv, cwd=tmp_path, uid=NOBODY, env={"HOME": "/nonexistent"})
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert done.code == 3
    assert "has made itself undumpable" in line_of(done.stderr, "py-spy")


@ROOT
def test_root_without_capabilities(start: Callable[..., int]) -> None:
    """As in a container that has dropped them, before a process that has them."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed")
    less = (setpriv, "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-m", "sparsetui")
    got = attach(start(*python()), before=less)
    assert got.returncode == 3, got.stderr
    words = "this container" if in_container() else "holds capabilities that we lack"
    for sampler in ("py-spy", "perf"):
        assert words in line_of(got.stderr, sampler)


@ROOT
@X86
def test_a_seccomp_profile_that_forbids_it(start: Callable[..., int]) -> None:
    if Perf(os.getpid()).available() or PySpy(os.getpid()).available():
        pytest.skip("this host refuses it anyway")
    got = attach(start(*python()), before=(sys.executable, "-c", FILTER, "298,101,310"))
    assert got.returncode == 3, got.stderr
    told = got.stdout + got.stderr
    assert "seccomp profile that we run under forbids perf_event_open" in line_of(told, "perf")
    assert "seccomp profile that we run under forbids ptrace" in line_of(told, "py-spy")
    whole = attach(start(*python()), "--sampler", "perf", before=(sys.executable, "-c", FILTER, "298"))
    assert (whole.returncode, whole.stdout) == (3, "")


def test_a_process_that_a_debugger_holds(start: Callable[..., int]) -> None:
    pid = start(*python())
    if why := PySpy(pid).available():
        pytest.skip(why.why)
    seize = (
        "import ctypes, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.ptrace(0x4206, {pid}, 0, 0), flush=True)\ntime.sleep(600)"
    )
    debugger = start(*python(seize))
    got = attach(pid, "--sampler", "py-spy")
    assert got.returncode == 3, got.stderr
    line = line_of(got.stdout, "py-spy")
    assert f"process {pid} is traced already, by process {debugger} (" in line
    assert "--gentle" in line


def test_a_process_that_ends_while_py_spy_looks(start: Callable[..., int]) -> None:
    code = "import time; print(1, flush=True); end = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    pid = start(*python(code))
    if why := PySpy(pid).available():
        pytest.skip(why.why)
    began = time.monotonic()
    got = attach(pid, "--sampler", "py-spy", "--seconds", "300")
    assert time.monotonic() - began < 100
    assert got.returncode in (0, 3), got.stderr  # 3 where it ended before the first sample
    assert f"{pid} ended after " in got.stdout
    assert "Traceback" not in got.stderr


def test_a_program_that_is_no_python(start: Callable[..., int]) -> None:
    pid = start("sh", "-c", "echo 1; exec sleep 600")
    if why := PySpy(pid).available():
        pytest.skip(why.why)
    got = attach(pid, "--sampler", "py-spy")
    assert got.returncode == 3
    assert f"no Python interpreter was found in process {pid} (" in line_of(got.stdout, "py-spy")


def compiled(folder: Path, name: str, source: str, *options: str) -> str:
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no C compiler")
    file, out = folder / "x.c", folder / name
    file.write_text(source)
    done = subprocess.run([gcc, "-O1", *options, str(file), "-o", str(out)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot be built here: {done.stderr[-200:]}")
    return str(out)


def test_an_interpreter_of_a_version_that_py_spy_does_not_know(start: Callable[..., int], tmp_path: Path) -> None:
    """A program that says of itself that it is Python 3.99, where interpreters say it."""
    source = (
        "#include <stdio.h>\n#include <unistd.h>\nconst unsigned long Py_Version = 0x03630000;\nchar _PyRuntime[65536];\n"
        'int main(void) { puts("1"); fflush(stdout); for (;;) usleep(20000); }\n'
    )
    pid = start(compiled(tmp_path, "python3.99", source, "-rdynamic"))
    if why := PySpy(pid).available():
        pytest.skip(why.why)
    got = attach(pid, "--sampler", "py-spy")
    assert got.returncode == 3
    line = line_of(got.stdout, "py-spy")
    assert "py-spy does not know Python 3.99" in line
    assert "--sampler perf" in line


def test_a_static_build_without_symbols(start: Callable[..., int], tmp_path: Path) -> None:
    """py-spy finds nothing in it; perf sees that it runs, and what runs is unknown."""
    source = (
        '#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts("1"); fflush(stdout);\n'
        "for (volatile unsigned long n = 0;; n++) if (n % 1000000 == 0) usleep(500); }\n"
    )
    pid = start(compiled(tmp_path, "bare", source, "-static", "-s"))
    if why := (PySpy(pid).available() or Perf(pid).available()):
        pytest.skip(why.why)
    got = attach(pid, "--seconds", "3")
    assert got.returncode == 0, got.stderr
    assert f"no Python interpreter was found in process {pid} (bare): not Python, or a static build" in got.stdout
    assert any(line.startswith("unknown") and "bare (no symbol)" in line for line in got.stdout.splitlines())
