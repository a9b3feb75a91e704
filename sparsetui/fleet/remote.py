"""What Ray runs on a node. Only the standard library: this module travels by value, to nodes that may have nothing of ours.

Each function answers a plain dictionary and raises nothing on purpose, so that a node that cannot do its part says why
instead of failing to unpickle an exception.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

LEAST_PYTHON = (3, 11)
_SAID = 300
_GRACE_S = 10.0  # for a process to end its workers


def look(root: str, digests: dict[str, str], version: str) -> dict[str, Any]:
    """The facts of a node: what it is, which machine it shares, and whether the tool and the workload's files are there."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            machine = f.read().strip()
    except OSError:
        machine = socket.gethostname()
    facts: dict[str, Any] = {"hostname": socket.gethostname(), "machine": machine, "python": platform.python_version(),
                             "interpreter": sys.executable, "cores": os.cpu_count() or 1}  # fmt: skip
    if sys.version_info[:2] < LEAST_PYTHON:
        facts["refuses"] = (
            f"its Python is {facts['python']}; the tool needs {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer"
        )
        return facts
    ours = subprocess.run([sys.executable, "-c", "import sparsetui.fleet.host, sparsetui; print(sparsetui.__version__)"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)  # fmt: skip
    if ours.returncode:
        last = (ours.stderr.strip().splitlines() or ["no reason was given"])[-1]
        facts["refuses"] = f"sparsetui cannot be loaded by {sys.executable} there: {last[:_SAID]}"
        return facts
    facts["tool"] = ours.stdout.strip()
    if facts["tool"] != version:
        facts["refuses"] = (
            f"it has sparsetui {facts['tool']}, and here it is {version}: their figures are not comparable"
        )
        return facts
    facts["code"] = "path" if _same(root, digests) else "shipped"
    return facts


def _same(root: str, digests: dict[str, str]) -> bool:
    """Whether every file is at its path with its content."""
    for name, digest in digests.items():
        try:
            with open(os.path.join(root, name), "rb") as f:
                if hashlib.sha256(f.read()).hexdigest() != digest:
                    return False
        except OSError:
            return False
    return True


def investigate(job: dict[str, Any], bundle: bytes | None, board: Any, patience_s: float) -> dict[str, Any]:
    """Do one host's part in a process of its own; answers ``{"report": …}`` or ``{"failed": kind, "why": …}``."""
    board.tell.remote(job["host"], {"started": True})
    try:
        with code(job, bundle) as own:
            return _watch(own, board, patience_s)
    except NoCode as e:
        return {"failed": "refused", "why": str(e)}
    except OSError as e:
        return {"failed": "broken", "why": f"{type(e).__name__}: {e}"}


def watch(job: dict[str, Any], patience_s: float) -> dict[str, Any]:
    """Look at one process of this node from outside, in a process of its own; answers as :func:`investigate` does."""
    try:
        return _watch(job, None, patience_s, "sparsetui.fleet.watch")
    except OSError as e:
        return {"failed": "broken", "why": f"{type(e).__name__}: {e}"}


class Worker:
    """An actor: a node's part of a matrix, in a process that keeps the model built from one request to the next."""

    def __init__(self, job: dict[str, Any], bundle: bytes | None, board: Any) -> None:
        self._job, self._bundle, self._board = job, bundle, board
        self._open = contextlib.ExitStack()
        self._own: dict[str, Any] | None = None  # the job with its path on this node
        self._child: Child | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request; answers as :func:`investigate` does. A process that died is started anew by the next one."""
        try:
            if self._own is None:
                self._tell({"started": True})
                self._own = self._open.enter_context(code(self._job, self._bundle))
            if self._child is None:
                self._child = Child("sparsetui.fleet.part")
                self._child.say(self._own)
            self._child.say(request)
            report = self._child.report(self._tell)
        except NoCode as e:
            return {"failed": "refused", "why": str(e)}
        except OSError as e:
            return {"failed": "broken", "why": f"{type(e).__name__}: {e}"}
        if report is None:
            said, self._child = self._child.death(), None
            return {"failed": "broken", "why": said}
        return {"report": report}

    def _tell(self, progress: dict[str, Any]) -> None:
        self._board.tell.remote(self._job["host"], progress)

    def end(self) -> None:
        """Let the process end its workers, and remove the code."""
        if self._child is not None:
            self._child.end()
        self._open.close()


class NoCode(Exception):
    """The workload's folder cannot be had on this node."""


@contextlib.contextmanager
def code(job: dict[str, Any], bundle: bytes | None) -> Iterator[dict[str, Any]]:
    """The job with its path on this node: where it lies already, or unpacked from ``bundle`` for as long as this is entered."""
    with tempfile.TemporaryDirectory(prefix="sparsetui-code-", ignore_cleanup_errors=True) as folder:
        held = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(held, fcntl.LOCK_SH)  # a folder that nobody holds is swept by the next run on this host
        try:
            if bundle is not None:
                try:
                    with tarfile.open(fileobj=io.BytesIO(bundle)) as packed:
                        packed.extractall(folder, filter="data")
                except (OSError, tarfile.TarError) as e:
                    raise NoCode(f"the code cannot be unpacked there: {e}") from None
                job = dict(job, path=os.path.join(folder, os.path.basename(job["path"])))
            yield job
        finally:
            os.close(held)


class Child:
    """A process of the tool's on this node: requests as JSON lines go in, messages come out."""

    def __init__(self, module: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env=environment(), start_new_session=True, text=True,
                                        preexec_fn=_die_with_parent)  # fmt: skip
        self._tail: list[str] = []
        self._reader = threading.Thread(target=_keep_tail, args=(self.process.stderr, self._tail), daemon=True)
        self._reader.start()

    def say(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:  # it died; how is told by what its messages end with
            pass

    def report(self, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any] | None:
        """The next report; ``None`` where it ended without one. What it says before is passed to ``progress``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "progress" in message:
                progress(message["progress"])
            if "report" in message:
                report: dict[str, Any] = message["report"]
                return report
        return None

    def death(self) -> str:
        """How it ended, and the last that it said."""
        code = self.process.wait()
        self._reader.join(2.0)
        said = next((t for t in reversed(self._tail) if t.strip()), "it said nothing")
        ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"its process ended {ended} without a report: {said.strip()[:_SAID]}"

    def end(self) -> None:
        """Ask it to end by closing its requests, then insist."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(_GRACE_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:  # it is gone
            pass


def _watch(job: dict[str, Any], board: Any, patience_s: float, module: str = "sparsetui.fleet.host") -> dict[str, Any]:
    child = Child(module)
    late = threading.Timer(patience_s, child.process.terminate)
    last = threading.Timer(patience_s + 20, child.kill)
    began = time.monotonic()
    died = ""
    try:
        for timer in (late, last):
            timer.daemon = True
            timer.start()
        child.say(job)
        report = child.report(lambda said: board.tell.remote(job["host"], said))
        if report is None:
            died = child.death()
        else:
            child.end()
    finally:
        late.cancel()
        last.cancel()
        child.kill()
    if time.monotonic() - began >= patience_s and (report is None or report.get("state") == "slow"):
        return {"failed": "slow", "why": f"no answer within {patience_s:.0f} s"}
    return {"failed": "broken", "why": died} if report is None else {"report": report}


def _keep_tail(stream: Any, tail: list[str]) -> None:
    for line in stream:
        tail.append(line)
        del tail[:-20]


def _die_with_parent() -> None:
    """A worker that Ray kills must not leave a measurement running; prctl(PR_SET_PDEATHSIG, SIGKILL)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def environment() -> dict[str, str]:
    """The node's own environment: without the thread setting that Ray gives a worker where the node has none.

    The pair would else run under another lock in a fleet than alone on the same host.
    """
    env = dict(os.environ)
    raylet = env.get("RAY_RAYLET_PID", str(os.getppid()))
    try:
        with open(f"/proc/{raylet}/environ", "rb") as f:
            own = {e.partition(b"=")[0] for e in f.read().split(b"\0")}
    except OSError:
        return env
    if b"OMP_NUM_THREADS" not in own:
        env.pop("OMP_NUM_THREADS", None)
    return env


class Board:
    """An actor that holds the newest message of each host until it is asked for."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, Any]] = {}

    def tell(self, host: str, message: dict[str, Any]) -> None:
        self._newest[host] = {**self._newest.get(host, {}), **message}

    def take(self) -> dict[str, dict[str, Any]]:
        taken, self._newest = self._newest, {}
        return taken
