"""The tool's end of a fork server: its process, its control socket, and the certainty that both end with us."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from sparsetui.worker.capture import Capture
from sparsetui.worker.child import wire
from sparsetui.worker.hub import hub
from sparsetui.worker.memory import descendants

OnEvent = Callable[[dict[str, Any]], None]


class Link:
    """A started server process. ``ended`` is set once it is gone or its control socket closed."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        ours, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [*argv, "--fd", str(theirs.fileno())],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.out, self.err = Capture(), Capture()
        self.changed = threading.Condition()
        self.hello: dict[str, Any] | None = None
        self.ready: dict[str, Any] | None = None
        self.launch_error: str | None = None
        self.ended = threading.Event()
        self.listeners: dict[int, OnEvent] = {}  # token -> what hears of that replica
        self._send = threading.Lock()
        self._socket = ours
        self._decoder = wire.Decoder()
        self._shut = threading.Lock()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._token = 0
        self._known: dict[int, dict[int, float]] = {}  # token -> pid -> create time, for when the server is shot
        # the hub closes what it reads, so it gets descriptors of its own; sends know that they do not block
        self._pipes = [
            hub().watch(os.dup(self.process.stdout.fileno()), self.out.feed),
            hub().watch(os.dup(self.process.stderr.fileno()), self.err.feed),
        ]
        self.process.stdout.close()
        self.process.stderr.close()
        self._control = hub().watch(os.dup(ours.fileno()), self._heard, self._closed)

    def token(self, on_event: OnEvent) -> int:
        """A new number for a replica, whose events go to ``on_event`` in the hub's thread."""
        with self._send:
            self._token += 1
            self.listeners[self._token] = on_event
            return self._token

    def spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        """Ask for a replica. Raises :class:`OSError` if the server is gone."""
        self._push(wire.encode(message), fds)

    def warm(self, modules: list[str]) -> None:
        """Have the server import ``modules`` before its next fork. Raises :class:`OSError` if the server is gone."""
        self._push(wire.encode({"warm": modules}), [])

    def _push(self, data: bytes, fds: list[int]) -> None:
        with self._send:
            sent = 0
            end = time.monotonic() + 10
            while sent < len(data):
                try:
                    if sent == 0 and fds:
                        sent = socket.send_fds(self._socket, [data], fds)
                    else:
                        sent += self._socket.send(data[sent:])
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TimeoutError("the server does not read its control socket") from None
                    time.sleep(0.005)

    def _heard(self, data: memoryview) -> None:
        try:
            messages = self._decoder.feed(bytes(data))
        except wire.WireError as why:
            messages = [{"event": "launch_error", "message": f"its control socket held garbage: {why}"}]
        for message in messages:
            token = message.get("token")
            if token is not None:
                listener = self.listeners.get(token)
                if listener is not None:
                    listener(message)
                continue
            with self.changed:
                event = message.get("event")
                if event == "hello":
                    self.hello = message
                elif event == "ready":
                    self.ready = message
                elif event == "launch_error":
                    self.launch_error = str(message.get("message"))
                self.changed.notify_all()

    def _closed(self) -> None:
        with self.changed:
            self.ended.set()
            self.changed.notify_all()
        for listener in list(self.listeners.values()):
            listener({"event": "server_ended"})
        self._kill_known()

    def settle(self) -> None:
        hub().settle(self._pipes)

    def remember(self, token: int, pids: tuple[int, ...]) -> None:
        """Note a replica's processes while they live, to end them ourselves if the server cannot any more."""
        known = self._known.get(token, {})
        if known.keys() != set(pids):
            self._known[token] = {pid: known.get(pid) or _created(pid) for pid in pids}

    def forget(self, token: int) -> None:
        """The server has reaped that replica and swept up after it."""
        self.listeners.pop(token, None)
        self._known.pop(token, None)

    def shutdown(self, seconds: float = 5.0) -> None:
        """End the server and all its descendants within about ``seconds``. Idempotent."""
        with self._shut:
            if self._socket.fileno() < 0:
                return
            if self.process.poll() is None:
                self.remember(0, tuple(descendants(self.process.pid)))
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)  # the server now kills its replicas, sweeps and ends
            try:
                self.process.wait(max(0.1, seconds))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.kill()
                self.process.wait()
            self._kill_known()
            self._socket.close()
            hub().drop([*self._pipes, self._control])

    def _kill_known(self) -> None:
        for known in list(self._known.values()):
            for pid, created in known.items():
                if created and _created(pid) == created:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)


def _created(pid: int) -> float:
    """When a process was started, or 0.0 if it is gone: with its id, this names it for good."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.Error, OSError):
        return 0.0
