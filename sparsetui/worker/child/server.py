"""The fork server: a process that has torch loaded and turns itself into replicas on request.

It never runs the user's code and never touches a tensor, so that no thread pool exists when it forks. What it tells on
its control socket: ``hello`` (Python runs), ``ready`` or ``launch_error``, ``spawned`` and ``exited``. When the other
end closes, for whatever reason, it kills every replica with all descendants and ends.
"""

import contextlib
import gc
import importlib
import os
import platform
import select
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional

from sparsetui.worker.child import limits, wire

OLDEST_TORCH = (2, 2)
_SWEEP_S = 3.0


def main(fd: int) -> int:
    """Serve on the connected socket ``fd`` until it closes; returns the exit status."""
    os.set_inheritable(fd, False)
    control = socket.socket(fileno=fd)
    limits.adopt_orphans()
    limits.prefer_me_for_oom()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        control.sendall(wire.encode({"event": "hello", "pid": os.getpid(), "python": platform.python_version()}))
        with _ending_with(control):
            problem, versions = _import_torch()
        if problem:
            control.sendall(wire.encode({"event": "launch_error", "message": problem}))
            return 3
        versions["os_threads"] = len(os.listdir("/proc/self/task"))
        control.sendall(wire.encode({"event": "ready", **versions}))
    except OSError:
        return 0  # nobody waits for us any more
    _Server(control).run()
    return 0


@contextlib.contextmanager
def _ending_with(control: socket.socket) -> Iterator[None]:
    """End this process as soon as the other end of ``control`` is gone: an import of torch can take a minute on a full host,
    and nothing reads the socket meanwhile. The thread that looks is gone again before anything is forked."""
    done, tell = os.pipe()

    def look() -> None:
        poll = select.poll()
        poll.register(control, select.POLLRDHUP)
        poll.register(done, select.POLLIN)
        if done not in [fd for fd, _ in poll.poll()]:
            os._exit(0)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        os.write(tell, b".")
        thread.join()
        os.close(done)
        os.close(tell)


def _import_torch() -> Any:
    """``(problem, versions)``. Warnings are silenced here only: an import must not fail under ``-W error``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import numpy
        except BaseException as why:
            return _cannot_import("numpy", why), {}
        try:
            import torch
        except BaseException as why:
            return _cannot_import("torch", why), {}
        version = str(torch.__version__)
        if _release(version) < OLDEST_TORCH:
            return "torch %s is too old; a worker needs 2.2 or newer" % version, {}
        _warm()
    return None, {
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": version,
        "numpy": str(numpy.__version__),
    }


def _warm() -> None:
    """Do once what each replica would otherwise do by itself: late imports, and seeding, which touches no tensor."""

    from sparsetui.worker.child import build, load, replica  # noqa: F401

    replica.seed_all()
    gc.collect()
    gc.freeze()  # a later collection in a replica would otherwise copy every page it visits
    try:
        import sparsetui.probes.context
        import sparsetui.probes.verbs  # noqa: F401
    except Exception:
        pass  # told with its traceback when a verb is asked for


def _import_each(names: List[str]) -> None:
    """Import parts of torch that each replica would otherwise import for itself; one that fails there fails there as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException:
                pass
    gc.collect()
    gc.freeze()


def _cannot_import(name: str, why: BaseException) -> str:
    if isinstance(why, ModuleNotFoundError) and why.name == name:
        return "no %s is installed there" % name
    return "%s cannot be imported there: %s: %s" % (name, type(why).__name__, why)


def _release(version: str) -> Any:
    parts: List[int] = []
    for part in version.split(".")[:2]:
        digits = "".join(c for c in part if c.isdigit())
        parts.append(int(digits) if digits else 0)
    return tuple(parts)


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._decoder = wire.Decoder()
        self._fds: Deque[int] = deque()
        self._replicas: Dict[int, Any] = {}  # pid -> the token that the other end knows it by
        self._scratch: List[str] = []
        self._threads_now = limits.threads_of_user()
        self._wake, poke = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(poke, False)
        self._poke = poke
        signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        try:
            while True:
                readable = select.select([self._control.fileno(), self._wake], [], [])[0]
                if self._wake in readable:
                    self._drain_wake()
                    self._reap()
                if self._control.fileno() in readable and not self._read():
                    break
        except (OSError, wire.WireError):
            pass  # the other end died in the middle of a message
        self._end()

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass

    def _read(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 16)
        self._fds.extend(fds)
        if not data:
            return False
        for message in self._decoder.feed(data):
            if "warm" in message:
                _import_each(message["warm"])
            else:
                self._spawn(message)
        return True

    def _spawn(self, message: Dict[str, Any]) -> None:
        fds = [self._fds.popleft() for _ in range(3)]
        self._scratch.append(str(message["scratch"]))
        server = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python 3.12 warns of any thread, even one that BLAS keeps
                pid = os.fork()
        except OSError as why:
            pid = -1
            self._tell({"event": "spawn_error", "token": message["token"], "message": str(why)})
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                for fd in (self._wake, self._poke):
                    os.close(fd)
                self._control.close()
                from sparsetui.worker.child import replica

                replica.main(message, fds, server, self._threads_now)
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self._replicas[pid] = message["token"]
            self._tell({"event": "spawned", "token": message["token"], "pid": pid})

    def _tell(self, message: Dict[str, Any]) -> None:
        self._control.sendall(wire.encode(message))

    def _reap(self) -> None:
        for pid in list(self._replicas):
            # look first and reap last: while the zombie stays, its process group cannot become somebody else's
            seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is None:
                continue
            token = self._replicas.pop(pid)
            _kill_group(pid)
            self._sweep(keep=pid)
            os.waitpid(pid, 0)
            how = "exit" if seen.si_code == os.CLD_EXITED else "signal"
            self._tell({"event": "exited", "token": token, "pid": pid, "how": how, "status": seen.si_status})
        self._sweep()

    def _sweep(self, keep: Optional[int] = None) -> None:
        """Kill what dead replicas left behind: it became our child when its parent died."""
        end = time.monotonic() + _SWEEP_S
        while True:
            orphans = [p for p in limits.children(os.getpid()) if p not in self._replicas and p != keep]
            if not orphans or time.monotonic() > end:
                return
            for pid in orphans:
                try:
                    group = os.getpgid(pid)
                    if group not in (os.getpgrp(), keep) and group not in self._replicas:
                        os.killpg(group, signal.SIGKILL)
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # a zombie already
            for pid in orphans:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except OSError:
                    pass
            time.sleep(0.002)

    def _end(self) -> None:
        for pid in self._replicas:
            _kill_group(pid)
        for pid in list(self._replicas):
            os.waitpid(pid, 0)
        self._replicas.clear()
        self._sweep()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        """Whoever made the scratch folder removes it, unless it was killed: then nobody else would. The last server to end
        takes the empty folder away too."""
        for folder in self._scratch:
            shutil.rmtree(folder, ignore_errors=True)
        for parent in {os.path.dirname(folder) for folder in self._scratch}:
            if not os.path.basename(parent).startswith("sparsetui-"):
                continue  # a place that somebody chose, not one that the tool made
            try:
                if os.listdir(parent) == [".lock"]:  # its owner's; see sparsetui/worker/scratch.py
                    os.unlink(os.path.join(parent, ".lock"))
                os.rmdir(parent)
            except OSError:
                pass  # the other variant's replicas are still in it, or it is gone


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # the group does not exist before the replica has called setsid
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass
