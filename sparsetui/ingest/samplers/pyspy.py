"""The py-spy sampler: Python and native frames together, at the price of stopping the target for each sample."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from sparsetui.evidence.records import Missing
from sparsetui.evidence.text import clean
from sparsetui.ingest.samplers.base import (
    Frame,
    OnCommand,
    SamplerError,
    Stack,
    alive,
    gone,
    ptrace_missing,
)

WHAT = "py-spy"
#: Time py-spy takes before its first sample, while it reads symbols (about 1 s with libtorch, more on a busy host).
STARTUP_S = 1.0
#: How long a native sample stops its target (measured with libtorch loaded: 1.5–2 ms); the forecast before the start.
STOP_S = 0.002

# Becomes py-spy, and gets SIGINT when we die, however we die: py-spy then lets go of its target and ends.
_TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(2))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_PYTHON = re.compile(r"^(?P<name>.*) \((?P<file>[^()]*\.(?:py|pyx|pyi|pxd)|<[^()]*>|[^()]*):(?P<line>\d+)\)$")
_NATIVE = re.compile(r"^(?P<name>.*) \((?P<module>[^()]*)\)$")
_THREAD = re.compile(r"^thread \((?P<id>0x[0-9a-fA-F]+|\d+)\)")
_PROCESS = re.compile(r"^process (?P<pid>\d+):")


_UNKNOWN_VERSION = re.compile(r"Unsupported version of Python: (?P<version>[\w.+-]{1,40})")


def binary() -> str | None:
    """The py-spy beside this interpreter (it was installed with us), else the one on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy")


class PySpy:
    """Samples ``pid`` with py-spy. ``gentle`` reads Python frames only and never stops the target."""

    name = "py-spy"

    def __init__(
        self,
        pid: int,
        rate_hz: float = 10,
        native: bool = True,
        gentle: bool = False,
        subprocesses: bool = False,
        on_command: OnCommand | None = None,
    ) -> None:
        self.pid, self.rate_hz = pid, rate_hz
        self.native, self.gentle, self.subprocesses = native and not gentle, gentle, subprocesses
        self.on_command = on_command
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()

    def available(self) -> Missing | None:
        """The reason why py-spy cannot look at this process; ``None`` when nothing forbids it that shows beforehand."""
        if not alive(self.pid):
            return gone(self.pid, WHAT)
        if binary() is None:
            return Missing(WHAT, "py-spy is not installed; pip install py-spy")
        try:  # the same permission that ptrace asks for, without touching the target
            with open(f"/proc/{self.pid}/mem", "rb"):
                pass
        except PermissionError as e:
            return ptrace_missing(self.pid, WHAT, e.strerror or "")
        except OSError:
            return gone(self.pid, WHAT)
        return None

    def forecast(self) -> float:
        """The share of time that the target will stand still, before it was measured."""
        return 0.0 if self.gentle else min(1.0, self.rate_hz * STOP_S)

    def argv(self, seconds: float, out: str) -> list[str]:
        argv = [binary() or "py-spy", "record", "--format", "raw", "--threads", "--full-filenames"]
        if self.native:
            argv.append("--native")
        if self.gentle:
            argv.append("--nonblocking")
        if self.subprocesses:
            argv.append("--subprocesses")
        return [*argv, "-r", f"{max(1, round(self.rate_hz))}", "-d", f"{max(1, round(seconds))}",
                "-p", str(self.pid), "-o", out]  # fmt: skip

    def collect(self, seconds: float) -> list[Stack]:
        """Sample for about ``seconds`` (plus py-spy's own start) and return the stacks of active threads."""
        missing = self.available()
        if missing:
            raise SamplerError(missing)
        self._stop.clear()
        # a file in memory: nothing is left behind, however this process ends
        with os.fdopen(os.memfd_create("stacks.raw"), "rb") as out:
            argv = self.argv(max(seconds, 1), f"/proc/self/fd/{out.fileno()}")
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(out.fileno(),),
                start_new_session=True,
            )
            self._process = process
            if self.on_command:
                self.on_command(
                    argv, "native stacks by py-spy" if self.native else "Python stacks by py-spy", process.pid
                )
            try:
                err = self._wait(process, seconds)
            finally:
                self._process = None
                if _end(process):
                    self._resume()
            out.seek(0)
            text = out.read().decode("utf-8", "replace")
            # interrupted before it was ready, py-spy ends without a word and without a file: nothing was seen, that is all
            if not text.strip() and process.returncode and ("Error" in err or not self._stop.is_set()):
                raise SamplerError(self._refused(err))
        return parse(text, self.pid)

    def interrupt(self) -> None:
        """End the running ``collect`` early; py-spy writes what it has seen."""
        self._stop.set()

    def _resume(self) -> None:
        """A tracer that is killed in the moment in which it stops its target may leave it stopped: set it going again."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as f:
                stopped = f.read().rpartition(b")")[2].split(None, 1)[0] == b"T"
            if stopped:
                os.kill(self.pid, signal.SIGCONT)
        except (OSError, IndexError):
            pass

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> str:
        """Wait for the end, for ``interrupt`` or for the deadline; stderr is drained meanwhile."""
        chunks: list[bytes] = []
        pipe = process.stderr
        assert pipe is not None
        reader = threading.Thread(target=lambda: chunks.append(pipe.read()), daemon=True)
        reader.start()
        deadline = time.monotonic() + 1.3 * seconds + 20
        asked = False
        while process.poll() is None:
            if not asked and self._stop.is_set():
                asked = True
                process.send_signal(signal.SIGINT)  # as Ctrl-C: it writes the file and ends
                deadline = time.monotonic() + 5
            if time.monotonic() > deadline:
                _end(process)
                break
            time.sleep(0.02)
        reader.join(2)
        return b"".join(chunks).decode("utf-8", "replace")

    def _refused(self, err: str) -> Missing:
        """py-spy's own complaint, as one line with the way out."""
        low = err.lower()
        if not alive(self.pid):
            return gone(self.pid, WHAT)
        if "permission denied" in low or "operation not permitted" in low:
            return ptrace_missing(self.pid, WHAT)
        if unknown := _UNKNOWN_VERSION.search(err):
            return Missing(
                WHAT,
                f"py-spy does not know Python {unknown['version']}, the interpreter of process {self.pid}; "
                "update it (pip install -U py-spy), or use --sampler perf",
            )
        if "failed to find python" in low or "python interpreter" in low or "_pyruntime" in low:
            return Missing(
                WHAT,
                f"no Python interpreter was found in process {self.pid} ({_program(self.pid)}): not Python, or a static "
                "build without symbols; use --sampler perf",
            )
        lines = [line.strip() for line in err.splitlines() if line.strip() and not line.startswith("py-spy>")]
        last = lines[0] if lines else "no reason given"
        return Missing(WHAT, f"py-spy could not read process {self.pid}: {clean(last, 200)}")


def _program(pid: int) -> str:
    """What ``pid`` executes, as one clean word."""
    try:
        return clean(os.path.basename(os.readlink(f"/proc/{pid}/exe")), 60)
    except OSError:
        return "unknown program"


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Kill py-spy with all it started, if it still runs; returns whether it did. The kernel detaches a tracer that dies."""
    running = process.poll() is None
    if running:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    process.wait()
    if process.stderr:
        process.stderr.close()
    return running


def parse(text: str, pid: int = 0) -> list[Stack]:
    """Stacks of py-spy's raw format: ``frame;frame;… count`` a line, root first. Lines that do not fit are skipped."""
    out = []
    for line in text.splitlines():
        head, _, count = line.rpartition(" ")
        if not head or not count.isdigit():
            continue
        thread, owner = 0, pid
        frames: list[Frame] = []
        for part in head.split(";"):
            if m := _THREAD.match(part):
                thread = int(m["id"], 0)
            elif m := _PROCESS.match(part):
                owner, frames = int(m["pid"]), []
            else:
                frames.append(_frame(part))
        if frames:
            out.append(Stack(thread, tuple(frames), int(count), owner))
    return out


def _frame(text: str) -> Frame:
    if m := _PYTHON.match(text):
        return Frame(m["name"], "", m["file"], int(m["line"]), True)
    if m := _NATIVE.match(text):
        return Frame(m["name"], os.path.basename(m["module"]))
    return Frame(text)
