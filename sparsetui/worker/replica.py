"""One replica as the tool sees it: a process to ask, with its output, its end and the reason for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparsetui.evidence.text import clean
from sparsetui.worker.capture import Capture
from sparsetui.worker.child import wire
from sparsetui.worker.faults import CallCancelled, Fault, Kind, WorkerFault, gib, python_stack, signal_name
from sparsetui.worker.hub import Watch, hub
from sparsetui.worker.memory import MOST_PROCESSES, Tree

if TYPE_CHECKING:
    from sparsetui.worker.link import Link

_ABORT_GRACE_S = 0.3
_CANCEL_POLL_S = 0.05
_PIPE_BYTES = 1 << 20

OnMessage = Callable[[dict[str, Any]], None]


class Replica:
    """Made by :meth:`~sparsetui.worker.handle.Server.spawn`. One call at a time; :meth:`kill`, :meth:`close` and
    :meth:`captured` may come from any thread."""

    def __init__(self, link: Link, memory_bytes: int, label: str) -> None:
        self.pid = 0
        self.label = label
        self.memory_bytes = memory_bytes
        self.peak_bytes = 0  # of the replica with its descendants, as the watchdog saw it
        self.token = link.token(self._heard)
        self._link = link
        self._out, self._err = Capture(), Capture()
        self._pipes: list[Watch] = []
        self._socket: socket.socket | None = None
        self._decoder = wire.Decoder()
        self._inbox: list[dict[str, Any]] = []
        self._spawned = threading.Event()
        self._spawn_error: str | None = None
        self._exit: tuple[str, int] | None = None  # ("exit", code), ("signal", number) or ("server", 0)
        self._gone = threading.Event()
        self._killed: tuple[Kind, str] | None = None  # why we killed it, if we did
        self._busy = threading.Lock()
        self._calls = 0
        self._tree: Tree | None = None

    # life

    def open(self, spec: dict[str, Any], scratch: str, deadline_s: float) -> None:
        """Have the server fork it. Raises :class:`WorkerFault` of kind ``launch``."""
        began = time.monotonic()
        message = {"token": self.token, "spec": spec, "scratch": scratch, "memory_bytes": self.memory_bytes}
        try:
            with contextlib.ExitStack() as theirs:
                fds = self._make_ends(theirs)
                self._link.spawn(message, fds)
                self._spawned.wait(deadline_s)
        except (OSError, wire.WireError) as why:
            self._spawn_error = str(why)
        if not self.pid:
            self._release()
            self._link.forget(self.token)
            problem = self._spawn_error or f"the fork server did not answer within {deadline_s:.0f} s"
            raise WorkerFault(self._fault("launch", f"no replica could be forked: {problem}", "spawn", began))

    def _make_ends(self, theirs: contextlib.ExitStack) -> list[int]:
        """Keep our ends of the message socket and both pipes; the other ends are closed with ``theirs``."""
        self._socket, socket_of_replica = socket.socketpair()
        theirs.enter_context(socket_of_replica)
        fds = [socket_of_replica.fileno()]
        for capture in (self._out, self._err):
            read, write = os.pipe()
            theirs.callback(os.close, write)
            self._pipes.append(hub().watch(read, capture.feed))
            _enlarge(write)
            fds.append(write)
        return fds

    def _heard(self, message: dict[str, Any]) -> None:
        """Hub thread: what the server tells of this replica."""
        event = message["event"]
        if event == "spawned":
            self.pid = int(message["pid"])
            self._tree = Tree(self.pid)
            hub().tick(id(self), self._watch)
        elif event == "spawn_error":
            self._spawn_error = str(message["message"])
        elif event == "exited":
            self._ended((str(message["how"]), int(message["status"])))
        elif event == "server_ended":
            self._ended(("server", 0))
            self._spawn_error = self._spawn_error or "the fork server has ended"
        self._spawned.set()

    def _ended(self, how: tuple[str, int]) -> None:
        if self._exit is None:
            self._exit = how
            hub().tick(id(self), None)
            if how[0] != "server":
                self._link.forget(self.token)
            self._gone.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):  # wakes a call, also while a fork of the code holds the other end
                    self._socket.shutdown(socket.SHUT_RD)

    def _watch(self, now: float) -> None:
        """Hub thread, each tick: the memory ceiling and the fork bomb guard."""
        tree = self._tree
        if tree is None or self._killed:
            return
        processes = tree.refresh(now)
        self._link.remember(self.token, tree.pids)
        if processes > MOST_PROCESSES:
            self.kill("signal", f"killed: it had more than {MOST_PROCESSES} processes (fork bomb guard)")
            return
        used = tree.bytes_used(self.memory_bytes)
        self.peak_bytes = max(self.peak_bytes, used)
        if used > self.memory_bytes:
            self.kill("memory", f"killed: it used {gib(used)}, the ceiling is {gib(self.memory_bytes)}")

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._exit is None and self._killed is None and bool(self.pid)

    def kill(self, kind: Kind = "signal", why: str = "killed by the tool") -> None:
        """SIGKILL to the whole process group, at once. The server ends what had left the group."""
        if self._killed is None:
            self._killed = (kind, why)
        if self._exit is None and self.pid:
            for send in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    send(self.pid, signal.SIGKILL)

    def close(self, seconds: float = 1.0) -> None:
        """Let an idle replica run its exit handlers for up to ``seconds``, then kill it. Idempotent."""
        if self._socket is None or self._socket.fileno() < 0:
            return
        if self.alive and self._busy.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._socket.settimeout(0.2)
                    self._socket.sendall(wire.encode({"call": 0, "verb": "exit"}))
                self._gone.wait(seconds)
            finally:
                self._busy.release()
        self.kill("signal", "closed")
        self._gone.wait(5.0)
        self._release()

    def _release(self) -> None:
        if self._socket is not None:
            self._socket.close()
        hub().tick(id(self), None)
        hub().drop(self._pipes)

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # asking

    def call(
        self,
        verb: str,
        args: dict[str, Any] | None = None,
        *,
        deadline_s: float,
        on_message: OnMessage | None = None,
        cancel: threading.Event | None = None,
    ) -> dict[str, Any]:
        """Run ``verb`` and return its answer; progress goes to ``on_message`` in this thread.

        Raises :class:`WorkerFault`, or :class:`CallCancelled` once ``cancel`` is set. At the deadline, on cancel and if
        ``on_message`` raises, the replica is killed.
        """
        with self._busy:
            began = time.monotonic()
            if not self.alive or self._socket is None:
                raise WorkerFault(self._death(verb, began, None))
            self._calls += 1
            try:
                return self._exchange(self._socket, verb, args or {}, began, deadline_s, on_message, cancel)
            except WorkerFault:
                raise
            except BaseException:
                self.kill("signal", f"killed: the call of {verb} was broken off")
                raise

    def _exchange(
        self,
        sock: socket.socket,
        verb: str,
        args: dict[str, Any],
        began: float,
        deadline_s: float,
        on_message: OnMessage | None,
        cancel: threading.Event | None,
    ) -> dict[str, Any]:
        last: dict[str, Any] | None = None
        end = began + deadline_s
        sock.settimeout(max(0.05, deadline_s))
        try:
            sock.sendall(wire.encode({"call": self._calls, "verb": verb, "args": args}))
        except TimeoutError:
            raise self._timed_out(verb, began, deadline_s, last) from None
        except OSError:
            raise WorkerFault(self._death(verb, began, last)) from None
        sock.setblocking(False)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        while True:
            while self._inbox:
                message = self._inbox.pop(0)
                if message.get("call") != self._calls:
                    continue
                if "ok" in message:
                    return dict(message["ok"] or {})
                if "error" in message:
                    raise WorkerFault(self._raised(verb, began, message["error"]))
                last = message.get("progress")
                if on_message is not None and isinstance(last, dict):
                    on_message(last)
            if cancel is not None and cancel.is_set():
                raise CallCancelled(f"{verb} was cancelled")
            left = end - time.monotonic()
            if left <= 0:
                raise self._timed_out(verb, began, deadline_s, last)
            wait = min(left, _CANCEL_POLL_S) if cancel is not None else left
            ready = poll.poll(max(1, int(wait * 1000)))
            if ready and not self._read(sock) and not self._inbox:
                raise WorkerFault(self._death(verb, began, last))

    def _read(self, sock: socket.socket) -> bool:
        """Read what is there; ``False`` at the end of the stream, which the end of the process also is."""
        try:
            data = sock.recv(1 << 20)
            if not data:
                return False
            self._inbox += self._decoder.feed(data)
            return True
        except BlockingIOError:
            return True
        except OSError:
            return False
        except wire.WireError as why:
            self.kill("protocol", f"killed: its message pipe held garbage: {why}")
            return False

    def _timed_out(self, verb: str, began: float, deadline_s: float, last: dict[str, Any] | None) -> WorkerFault:
        self._killed = ("timeout", f"no answer within {deadline_s:.1f} s; killed")
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGABRT)  # faulthandler then writes where it hung
        self._gone.wait(_ABORT_GRACE_S)
        self.kill()
        return WorkerFault(self._death(verb, began, last))

    # what it left

    def captured(self) -> tuple[str, str]:
        """``(stdout, stderr)`` so far: the beginning and the end of each, and how much lies between."""
        hub().settle(self._pipes)
        return self._out.text(), self._err.text()

    def allow_ptrace(self, allow: bool = True, deadline_s: float = 5.0) -> bool:
        """Let any process of this user attach to it (or no longer), which Yama's ptrace scope 1 else forbids.

        Call it before the verb that is to be watched. ``False`` where there is no Yama and so nothing to allow.
        """
        return bool(self.call("ptrace", {"allow": allow}, deadline_s=deadline_s)["yama"])

    def _raised(self, verb: str, began: float, error: dict[str, Any]) -> Fault:
        kind: Kind = error.get("kind", "exception")
        what, text = str(error.get("type", "")), str(error.get("message", ""))
        place = f" ({error['place']})" if error.get("place") else ""
        code = error.get("exit_code")
        if kind == "exit":
            line = f"the code called sys.exit({text}){place}"
        elif kind == "memory":
            line = f"memory ceiling of {gib(self.memory_bytes)} reached: {what}: {clean(text, 200)}{place}"
        elif what == "LoadError":
            line = text
        else:
            line = f"{what}: {clean(text, 300)}{place}" if text else f"{what}{place}"
        return self._fault(
            kind, line, verb, began, type=what, traceback=str(error.get("traceback", "")), exit_code=code
        )

    def _death(self, verb: str, began: float, last: dict[str, Any] | None) -> Fault:
        """The process is gone, or no longer to be reached: why."""
        self._gone.wait(3.0)
        how, status = self._exit or ("pipe", 0)
        name: str | None = None
        code: int | None = None
        kind: Kind
        if how == "signal":
            name = signal_name(status)
        if self._killed is not None:
            kind, line = self._killed
        elif how == "exit":
            kind, code, line = "exit", status, f"the process ended by itself with exit code {status}"
        elif how == "signal":
            kind, line = "signal", f"killed by signal {status} ({name})"
            if status == signal.SIGKILL:
                line += ", not by this tool: the kernel's out-of-memory killer, or somebody on this host"
        elif how == "server":
            kind, line = "signal", "its fork server was killed, and it with it"
        else:
            kind, line = "protocol", "the code closed the worker's message pipe"
            self.kill(kind, line)
            self._gone.wait(3.0)
        if last is not None:
            line += f" (last message: {clean(json.dumps(last, default=str), 160)})"
        hub().settle(self._pipes)
        stack = python_stack(self._err.tail(16_384))
        return self._fault(kind, line, verb, began, traceback=stack, signal=name, exit_code=code)

    def _fault(self, kind: Kind, line: str, verb: str, began: float, **more: Any) -> Fault:
        hub().settle(self._pipes)
        return Fault(
            kind=kind,
            message=clean(": ".join(filter(None, [self.label, verb, line])), 600),
            stdout_tail=self._out.tail(),
            stderr_tail=self._err.tail(),
            verb=verb,
            seconds=time.monotonic() - began,
            label=self.label,
            **more,
        )


def _enlarge(pipe: int) -> None:
    with contextlib.suppress(OSError):  # a user's share of pipe memory may be used up; the default size serves too
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
