"""Start the tool under a mark that all it starts inherits, so that what is left of it can be found wherever it went."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import resource
import secrets
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sparsetui.session.errors import SessionError
from sparsetui.session.store import Store
from sparsetui.session.writer import Writer

MARK = "SPARSETUI_TORTURE_MARK"
CODE = Path(__file__).with_name("hostile.py")


def workload(folder: Path, failing: str, comparator: str = "fine", more: str = "", inputs: str = "requests") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failing}.toml"
    given = f'entry = "{CODE}:{inputs}"'
    path.write_text(
        f'[failing]\nentry = "{CODE}:{failing}"\nthreads = 1\n[comparator]\nentry = "{CODE}:{comparator}"\nthreads = 1\n'
        f"[inputs]\n{given}\n{more}"
    )
    return path


@dataclass
class Rig:
    """One run of ``sparsetui investigate --headless`` in a folder of its own, its TMPDIR included."""

    folder: Path
    tmp: Path | None = None
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sessions = self.folder / "sessions"
        self.place = self.tmp or self.folder / "tmp"
        self.place.mkdir(exist_ok=True)
        self.found = self.litter()

    def environment(self) -> dict[str, str]:
        return {**os.environ, MARK: self.mark, "TMPDIR": str(self.place), "OMP_NUM_THREADS": "1"}

    def start(
        self, path: Path, budget: float = 5, *more: str, data_bytes: int = 0, **env: str
    ) -> subprocess.Popen[bytes]:
        """``data_bytes`` bounds the private memory of each process, so that a hoarder need not fill this host."""
        argv = [sys.executable, "-m", "sparsetui", "investigate", str(path), "--headless", "--budget", str(budget),
                "--sessions", str(self.sessions), "--json", str(self.folder / "result.json"), *more]  # fmt: skip
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "out").open("wb"),
            stderr=(self.folder / "err").open("wb"),
            env={**self.environment(), **env},
            start_new_session=True,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_DATA, (data_bytes,) * 2)) if data_bytes else None,
        )
        return self.process

    def start_app(self, path: Path, budget: float = 5) -> Screen:
        """The app on a terminal of its own, with the workload open."""
        argv = [sys.executable, "-m", "sparsetui", "investigate", str(path), "--budget", str(budget),
                "--sessions", str(self.sessions)]  # fmt: skip
        master, slave = pty.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        try:
            self.process = subprocess.Popen(
                argv, stdin=slave, stdout=slave, stderr=slave, env={**self.environment(), "TERM": "xterm", "LANG": "C.UTF-8"},
                start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )  # fmt: skip
        finally:
            os.close(slave)
        return Screen(master)

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text("utf-8", "replace")

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "result.json").read_bytes()))

    def alive(self) -> list[psutil.Process]:
        """Every process that carries our mark, zombies apart: also one that left the group, the session or its parent."""
        found = []
        for p in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if p.status() != psutil.STATUS_ZOMBIE and p.environ().get(MARK) == self.mark:
                    found.append(p)
        return found

    def others(self) -> list[psutil.Process]:
        tool = self.process.pid if self.process else -1
        return [p for p in self.alive() if p.pid != tool]

    def servers(self) -> list[psutil.Process]:
        return [p for p in self.others() if _is(p, "bootstrap.py") and self.process and _parent(p) == self.process.pid]

    def replicas(self) -> list[psutil.Process]:
        servers = {p.pid for p in self.servers()}
        return [p for p in self.others() if _parent(p) in servers]

    def py_spies(self) -> list[psutil.Process]:
        return [p for p in self.others() if _is(p, "py-spy")]

    def kill(self, number: signal.Signals) -> None:
        """Send it to the tool itself."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def gone(self, seconds: float = 20.0) -> list[str]:
        """What still runs after that long, each as one line (and ended now, so that the next run starts clean)."""
        end = time.monotonic() + seconds
        while left := self.alive():
            if time.monotonic() > end:
                lines = [f"{p.pid} {' '.join(p.cmdline())[:120]}" for p in left]
                for p in left:
                    with suppress(psutil.Error):
                        p.kill()
                return lines
            time.sleep(0.05)
        return []

    def litter(self) -> list[str]:
        """What the run left in its TMPDIR. torch's own cache folder, empty, is not ours."""
        return sorted(p.name for p in self.place.iterdir() if not p.name.startswith("torchinductor"))

    def new_litter(self) -> list[str]:
        """What this run left itself; what lay there before is judged after the last run."""
        return sorted(set(self.litter()) - set(self.found))

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGCONT)
                self.process.kill()
            self.process.wait()
        self.gone()


class Screen:
    """The far end of a terminal: a thread keeps all that is written to it, until the other end or we close it."""

    def __init__(self, fd: int) -> None:
        self.fd, self.out = fd, b""
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while not self._closed.is_set():
            if not select.select([self.fd], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                return
            self.out += data

    def shows(self, word: bytes, seconds: float, since: int = 0) -> bool:
        """Whether ``word`` comes within ``seconds``."""
        end = time.monotonic() + seconds
        while word not in self.out[since:] and time.monotonic() < end:
            time.sleep(0.02)
        return word in self.out[since:]

    def press(self, keys: str) -> None:
        with suppress(OSError):
            os.write(self.fd, keys.encode())

    def close(self) -> None:
        """As a closed window or a dropped connection. Safe to call twice."""
        if not self._closed.is_set():
            self._closed.set()
            self._reader.join(5)
            os.close(self.fd)

    @property
    def restored(self) -> bool:
        """The alternate screen was left and the cursor is shown, after they had been taken."""
        left, shown = self.out.rfind(b"\x1b[?1049l"), self.out.rfind(b"\x1b[?25h")
        return left > self.out.rfind(b"\x1b[?1049h") >= 0 and shown > self.out.rfind(b"\x1b[?25l")


def _is(p: psutil.Process, word: str) -> bool:
    with suppress(psutil.Error):
        return any(word in a for a in p.cmdline()[:2])
    return False


def _parent(p: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(p.ppid())
    return -1


@contextmanager
def running(rig: Rig) -> Iterator[Rig]:
    try:
        yield rig
    finally:
        rig.stop()


def sound(sessions: Path) -> list[str]:
    """What is wrong with the sessions below ``sessions``: unverified, unreadable, locked, or not to be gone on with."""
    problems: list[str] = []
    if not sessions.exists():
        return problems  # ended before it made any
    store = Store(sessions)
    for summary in store.list():
        if not summary.events:
            continue  # killed before the first event was acknowledged: the list says so, and there is nothing to lose
        report = store.verify(summary.id)
        if not report.ok:
            problems += report.lines()
        reader = store.open(summary.id)
        if reader.damage:
            problems.append(f"{summary.id}: {reader.damage}")
        before = reader.state().events
        try:
            with store.writer(summary.id) as again:
                noted(again, before, problems)
        except SessionError as e:
            problems.append(f"{summary.id}: cannot be gone on with: {e}")
        after = store.verify(summary.id)
        if not after.ok:
            problems += after.lines()
    return problems


def noted(writer: Writer, before: int, problems: list[str]) -> None:
    if writer.state().events < before:
        problems.append(f"{writer.id}: {before} events were read and {writer.state().events} are left")
    writer.append("note", {"text": "gone on with"})
