"""One daemon thread that reads every pipe of every worker and looks after their memory.

A pipe that nobody reads blocks the process that writes to it, and a thread a pipe would be many; so all reading is
here, and so is everything that must happen while the caller sleeps in a call.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

TICK_S = 0.05
_CHUNK = 1 << 20

OnData = Callable[[memoryview], None]


class Watch:
    """One descriptor that the hub reads. ``open`` turns false once the hub has closed it."""

    __slots__ = ("fd", "on_data", "on_end", "open")

    def __init__(self, fd: int, on_data: OnData, on_end: Callable[[], None]) -> None:
        self.fd = fd
        self.on_data = on_data
        self.on_end = on_end
        self.open = True


class Hub:
    """The reader thread. All methods may be called from any thread; callbacks run in the hub's own thread.

    A descriptor given to :meth:`watch` belongs to the hub, which closes it at its end or on :meth:`drop`.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._tickers: dict[int, Callable[[float], None]] = {}
        self._buffer = memoryview(bytearray(_CHUNK))
        self._thread = threading.Thread(target=self._run, name="sparsetui-worker-io", daemon=True)
        self._thread.start()

    def watch(self, fd: int, on_data: OnData, on_end: Callable[[], None] = lambda: None) -> Watch:
        """Feed what arrives on ``fd`` to ``on_data`` (the view is only valid within the call), then ``on_end`` once."""
        os.set_blocking(fd, False)
        watch = Watch(fd, on_data, on_end)
        self._do(lambda: self._register(watch))
        return watch

    def drop(self, watches: Iterable[Watch]) -> None:
        """Read what is there, then stop watching and close; ``on_end`` is called if it was not yet."""

        def job() -> None:
            for watch in watches:
                self._read(watch, rounds=64)
                self._finish(watch)

        self._do(job)

    def tick(self, key: int, callback: Callable[[float], None] | None) -> None:
        """Call ``callback(now)`` every :data:`TICK_S` seconds; ``None`` stops it."""

        def job() -> None:
            if callback is None:
                self._tickers.pop(key, None)
            else:
                self._tickers[key] = callback

        self._do(job)

    def settle(self, watches: Iterable[Watch], timeout: float = 1.0) -> None:
        """Return when all that had been written before this call has been fed to its callback."""
        if threading.current_thread() is self._thread or not any(w.open for w in watches):
            return
        done = threading.Event()

        def job() -> None:
            for watch in watches:
                self._read(watch, rounds=64)
            done.set()

        self._do(job)
        done.wait(timeout)

    def _do(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        os.eventfd_write(self._wake, 1)

    def _register(self, watch: Watch) -> None:
        self._selector.register(watch.fd, selectors.EVENT_READ, watch)

    def _run(self) -> None:
        next_tick = time.monotonic() + TICK_S
        while True:
            timeout = max(0.0, next_tick - time.monotonic()) if self._tickers else None
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    os.eventfd_read(self._wake)
                else:
                    self._read(key.data)
            while self._jobs:
                self._jobs.popleft()()
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                for callback in list(self._tickers.values()):
                    with contextlib.suppress(OSError, RuntimeError):  # no descriptor or thread to be had this time
                        callback(now)

    def _read(self, watch: Watch, rounds: int = 1) -> None:
        for _ in range(rounds):
            if not watch.open:
                return
            try:
                n = os.readv(watch.fd, [self._buffer])
            except BlockingIOError:
                return
            except OSError:
                n = 0
            if n == 0:
                self._finish(watch)
                return
            watch.on_data(self._buffer[:n])

    def _finish(self, watch: Watch) -> None:
        if watch.open:
            watch.open = False
            self._selector.unregister(watch.fd)
            os.close(watch.fd)
            watch.on_end()


_hub: Hub | None = None
_lock = threading.Lock()


def hub() -> Hub:
    """The one hub of this process, started on first use."""
    global _hub
    with _lock:
        if _hub is None or not _hub._thread.is_alive():
            _hub = Hub()
        return _hub
