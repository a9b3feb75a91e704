"""The tool's end of the child that talks to Ray: an order goes down, events come up, and its death is an event as well."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from sparsetui.evidence.text import clean

_GRACE_S = 8.0  # for tasks to be cancelled on their nodes
_TAIL = 40  # lines of Ray's own words that are kept


class Order(msgspec.Struct, frozen=True):
    """What the child is asked to do. ``hosts`` is how many, which, or ``None`` for all that offer cores; ``known`` are hosts
    of the session so far, ``done`` those that need no second run; ``job`` is passed to each host.
    """

    address: str
    hosts: int | list[str] | None
    root: str
    files: dict[str, str]
    version: str
    job: dict[str, Any]
    limit_s: float
    patience_s: float
    known: list[str] = []
    done: list[str] = []


class Link:
    """One child. Iterate :meth:`events` until it ends; :meth:`cancel` may be called from any thread, also from a signal."""

    def __init__(self, order: Order) -> None:
        self._cancelled = False
        self.tail: list[str] = []
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.argv = [sys.executable, "-m", "sparsetui.fleet.dispatch"]
        self._child = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.pid = self._child.pid
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._listen)]
        for t in self._threads:
            t.start()
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # it died at once: the end of its events says so
            self._child.stdin.write(msgspec.json.encode(order) + b"\n")
            self._child.stdin.flush()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                event = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(event, dict):
                self._queue.put(event)
        self._queue.put(None)

    def _listen(self) -> None:
        assert self._child.stderr is not None
        for raw in self._child.stderr:
            text = clean(raw.decode("utf-8", "replace").strip(), 300)
            if text:
                self.tail.append(text)
                del self.tail[:-_TAIL]

    def events(self) -> Iterator[dict[str, Any]]:
        """Events as they come. The last is ``end``, ``fatal``, or ``cut`` where the child died without either."""
        while True:
            event = self._queue.get()
            if event is None:
                code = self._child.wait()
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                last = self.tail[-1] if self.tail else "it said nothing"
                yield {"event": "cut", "why": f"the connection to Ray was lost: its driver ended with {how} ({last})"}
                return
            yield event
            if event.get("event") in ("end", "fatal"):
                return

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """Ask the child to cancel its tasks and end."""
        self._cancelled = True
        with contextlib.suppress(OSError, ValueError):
            if self._child.stdin is not None:
                self._child.stdin.close()

    def close(self) -> None:
        """End the child, and wait until it is gone. Idempotent."""
        self.cancel()
        try:
            self._child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for t in self._threads:
            t.join(2.0)
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()
