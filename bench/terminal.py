"""The app in a pseudo-terminal, as its users see it: bytes, CPU and the time until the screen answers."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_GIVE_UP_S = 120.0
ESCAPES = re.compile(rb"\x1b\[[0-9;?:]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]")


class Screen:
    """A command under a pty of 120×36; everything it writes is kept in ``out``."""

    def __init__(self, argv: list[str], cwd: Path, *, truecolour: bool = False) -> None:
        env = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
        env |= {"LANG": "C.UTF-8", "TERM": "xterm-256color" if truecolour else "screen"}
        if truecolour:
            env["COLORTERM"] = "truecolor"
        self.out = bytearray()
        self.began = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:  # the child: nothing but exec
            try:
                os.chdir(cwd)
                os.execve(argv[0], argv, env)
            finally:
                os._exit(127)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.process = psutil.Process(self.pid)

    def read(self, seconds: float) -> int:
        """Read for ``seconds``; how many bytes came."""
        was, end = len(self.out), time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                break
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:  # it ended
                break
            self.out += data
        return len(self.out) - was

    def until(self, seen: Callable[[bytes], object], since: int = 0) -> float:
        """Seconds from now until ``seen(output since then)``. Raises TimeoutError with the last of what was written."""
        began = time.perf_counter()
        while not seen(bytes(self.out[since:])):
            if time.perf_counter() - began > _GIVE_UP_S:
                raise TimeoutError(f"it never came; the screen's last bytes: {bytes(self.out[-300:])!r}")
            select.select([self.fd], [], [], 0.5)
            self.read(0.001)
        return time.perf_counter() - began

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def answer(self, key: str, shows: bytes) -> float:
        """Seconds from a key until what it opens is on the screen. Other repaints in between do not count."""
        at = len(self.out)
        self.press(key)
        return self.until(lambda out: shows in words(out), at)

    def over(self, seconds: float) -> tuple[float, float]:
        """``(bytes a second, share of one core)`` of the app process alone over that time."""
        before, began = self.process.cpu_times(), time.perf_counter()
        came = 0
        while (left := seconds - (time.perf_counter() - began)) > 0:
            came += self.read(min(left, 0.5))
            if not self.alive():
                break
        after, took = self.process.cpu_times(), time.perf_counter() - began
        return came / took, (after.user + after.system - before.user - before.system) / took

    def alive(self) -> bool:
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    def close(self) -> None:
        """End it as a closed terminal does, and insist."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.alive():
                break
            os.kill(self.pid, number)
            end = time.monotonic() + 12
            while self.alive() and time.monotonic() < end:
                self.read(0.1)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def words(data: bytes) -> bytes:
    """What was written, without its escape sequences."""
    return ESCAPES.sub(b"", data)


def sparsetui() -> str:
    return str(Path(sys.executable).with_name("sparsetui"))
