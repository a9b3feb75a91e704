"""The app in a real pseudo-terminal, as a process of its own: how it begins, how it ends, and what it writes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_pair import pair

HERE = Path(__file__).parent
COLOUR = re.compile(rb"\x1b\[[0-9;:]*?(?:^|;|\[)(3[0-7]|4[0-7]|9[0-7]|10[0-7]|[34]8)(?:;|m|:)")


class Terminal:
    """A child under a pty; everything it writes is kept in ``out``."""

    def __init__(self, argv: list[str], env: dict[str, str], size: tuple[int, int] = (80, 24)) -> None:
        self.out = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(argv[0], argv, env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.status: int | None = None

    def read(self, seconds: float) -> bytes:
        """What is written in the next ``seconds``."""
        was, end = len(self.out), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.fd], [], [], left)
            if not ready:
                break
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                break
            if not data:
                break
            self.out += data
        return self.out[was:]

    def until(self, true: Callable[[], Any], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.out[-2000:]
            self.read(0.1)

    @property
    def ended(self) -> bool:
        """Whether the child is gone, without taking its status."""
        return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def wait(self, seconds: float = 30) -> int:
        """The exit status, as ``os.waitstatus_to_exitcode`` gives it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read(0.2)
                self.status = os.waitstatus_to_exitcode(status)
                return self.status
        raise AssertionError("it did not end")

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


def environment(**more: str) -> dict[str, str]:
    kept = {k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}
    return {**kept, "TERM": "xterm", "LANG": "C.UTF-8", **more}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def begin(*, env: dict[str, str] | None = None, size: tuple[int, int] = (80, 24), **options: Any) -> Terminal:
        argv = [sys.executable, str(HERE / "app_in_pty.py"), str(tmp_path), json.dumps(options)]
        made.append(Terminal(argv, environment(**(env or {})), size))
        made[-1].until(lambda: b"quit" in made[-1].out)
        made[-1].read(0.5)
        return made[-1]

    yield begin
    for t in made:
        t.close()


def restored(out: bytes) -> bool:
    """The alternate screen was left and the cursor is shown, after they had been taken."""
    left, shown = out.rfind(b"\x1b[?1049l"), out.rfind(b"\x1b[?25h")
    return left > out.rfind(b"\x1b[?1049h") >= 0 and shown > out.rfind(b"\x1b[?25l")


def run_live(t: Terminal) -> None:
    """Start the first stage, whose inventory waits until it is cancelled."""
    t.press("\r")
    t.until(lambda: b"this runs code" in t.out)
    t.press("\r")
    t.until(lambda: b"inventory" in t.out[t.out.rfind(b"this runs code") :])
    t.read(0.5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda s: s.name)
def test_a_signal_in_mid_run_saves_closes_and_restores(
    start: Callable[..., Terminal], tmp_path: Path, number: signal.Signals
) -> None:
    t = start(runner={"hold": "inventory"})
    run_live(t)
    os.kill(t.pid, number)
    assert t.wait() == 130
    assert restored(t.out)
    assert (tmp_path / "closed").exists(), "the runner was closed"
    assert f"ended by {number.name}".encode() in t.out
    assert b"is saved" in t.out
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]


def test_ctrl_c_ends_at_once_and_saves(start: Callable[..., Terminal], tmp_path: Path) -> None:
    t = start(runner={"hold": "inventory"})
    run_live(t)
    t.press("\x03")
    assert t.wait() == 130
    assert restored(t.out)
    assert (tmp_path / "closed").exists()


def test_a_fault_of_our_own_restores_the_terminal_and_saves(start: Callable[..., Terminal], tmp_path: Path) -> None:
    t = start(runner={"pace": 0.0}, crash=True)
    t.press("\r")
    t.until(lambda: b"this runs code" in t.out)
    t.press("\r")
    t.until(lambda: b"run lowering" in t.out)
    t.press("p")
    assert t.wait() == 3
    assert restored(t.out)
    assert (tmp_path / "closed").exists()
    assert b"a handler broke" in t.out


def test_a_terminal_that_goes_away_takes_no_session_with_it(start: Callable[..., Terminal], tmp_path: Path) -> None:
    t = start(runner={"hold": "inventory"})
    run_live(t)
    os.close(t.fd)
    t.fd = os.open(os.devnull, os.O_RDONLY)
    end = time.monotonic() + 30
    while os.waitpid(t.pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < end, "it outlived its terminal"
        time.sleep(0.1)
    t.status = 0
    assert (tmp_path / "closed").exists()


def test_quit_gives_the_exit_code_of_the_verdict(start: Callable[..., Terminal], tmp_path: Path) -> None:
    t = start()
    t.press("R")
    t.until(lambda: b"this runs code" in t.out)
    t.press("\r")
    t.until(lambda: b"export the memo" in t.out)
    t.press("q")
    assert t.wait() == 1
    assert restored(t.out)
    (session,) = (tmp_path / "store").iterdir()
    last = t.out[t.out.rfind(b"\x1b[?1049l") :].decode()
    assert f"session {session.name} is saved; sparsetui sessions open {session} opens it again" in last


def test_no_color_writes_no_colour_and_sixteen_colours_no_more(start: Callable[..., Terminal]) -> None:
    none = start(env={"NO_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"})
    assert not COLOUR.search(none.out), COLOUR.search(none.out)
    assert b"\x1b[" in none.out
    sixteen = start(env={"TERM": "screen"})
    assert COLOUR.search(sixteen.out)
    assert b"38;5;" not in sixteen.out
    assert b"38;2;" not in sixteen.out
    true = start(env={"COLORTERM": "truecolor"})
    assert b"38;2;" in true.out


def test_escape_alone_goes_back_and_an_arrow_is_one_key(start: Callable[..., Terminal]) -> None:
    t = start()
    t.press("?")
    t.until(lambda: b"A key that cannot act" in t.out)
    was = len(t.out)
    t.press("\x1b")
    t.until(lambda: b"Is what was loaded" in t.out[was:])
    t.press("\x1b[B")
    t.until(lambda: b"Do the zeros reach" in t.out[was:])
    assert not t.ended


def test_the_mouse_stays_with_the_terminal(start: Callable[..., Terminal]) -> None:
    t = start()
    assert b"\x1b[?1000h" not in t.out
    assert b"\x1b[?1003h" not in t.out


def test_an_idle_screen_writes_nothing(start: Callable[..., Terminal]) -> None:
    t = start(size=(120, 36))
    t.read(1.0)
    assert len(t.read(2.5)) <= 500


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that is at work."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "while True: sum(range(1000))"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


def test_attach_on_a_terminal_is_live_and_leaves_its_table_behind(
    busy: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", "sparsetui", "attach", str(busy.pid), "--sessions", str(tmp_path)]
    t = Terminal(argv, environment())
    try:
        t.until(lambda: b"quit" in t.out or b"ptrace" in t.out or t.ended)
        if b"\x1b[?1049h" not in t.out:
            pytest.skip(f"nothing may be looked at here: {t.out[-200:]!r}")
        t.until(lambda: b"samples by" in t.out)
        t.read(1.0)
        t.press("q")
        assert t.wait() == 0
        assert restored(t.out)
        left = t.out[t.out.rfind(b"\x1b[?1049l") :]
        assert b"95 % interval" in left
        assert b"called from" in left
        assert busy.poll() is None, "the process goes on"
    finally:
        t.close()


@pytest.mark.parametrize("gone", ["stdin", "stdout"])
def test_without_a_terminal_the_app_says_which_flag_to_use(tmp_path: Path, gone: str) -> None:
    master, slave = pty.openpty()
    try:
        other: dict[str, Any] = {"stdin": slave, "stdout": slave}
        other[gone] = subprocess.DEVNULL
        done = subprocess.run(
            [sys.executable, str(HERE / "app_in_pty.py"), str(tmp_path)],
            **other, stderr=subprocess.PIPE, env=environment(), timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 2
    assert done.stderr.decode() == f"sparsetui: {gone} is not a terminal, so the app cannot run; use --headless\n"


def test_the_app_loads_neither_torch_nor_scipy_stats() -> None:
    code = "import sys, sparsetui.tui.app; print(sorted({'torch', 'scipy.stats', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("how", ["closed terminal", "SIGTERM"])
def test_a_real_run_leaves_no_engine_and_no_worker_behind(tmp_path: Path, how: str) -> None:
    where = str(tmp_path / "store")
    workload = str(pair(tmp_path, "slow"))
    argv = [sys.executable, "-m", "sparsetui", "investigate", workload, "--sessions", where]
    t = Terminal(argv, environment())
    try:
        t.until(lambda: b"quit" in t.out)
        t.read(0.5)
        run_live_all(t)
        app = psutil.Process(t.pid)
        t.until(lambda: len(app.children(recursive=True)) >= 3)  # the engine, a server, a replica that builds
        started = app.children(recursive=True)
        if how == "closed terminal":
            os.close(t.fd)
            t.fd = os.open(os.devnull, os.O_RDONLY)
        else:
            os.kill(t.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(started, timeout=25)
        assert not alive
        ledger = next((tmp_path / "store").glob("*/ledger.jsonl")).read_text()
        assert '"kind":"interrupted"' in ledger, "the session says how it ended"
    finally:
        t.close() if how != "closed terminal" else reap(t)


def run_live_all(t: Terminal) -> None:
    t.press("R")
    t.until(lambda: b"this runs code" in t.out)
    t.press("\r")


def reap(t: Terminal) -> None:
    end = time.monotonic() + 20
    while os.waitpid(t.pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < end, "it outlived its terminal"
        time.sleep(0.1)
    t.status = 0
    t.close()
