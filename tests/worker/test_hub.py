"""The reader thread by itself."""

from __future__ import annotations

import os
import threading
import time

from sparsetui.worker.hub import Hub


def test_settle_waits_for_what_was_already_written() -> None:
    hub = Hub()
    read, write = os.pipe()
    heard = bytearray()
    ended = threading.Event()
    watch = hub.watch(read, heard.extend, ended.set)
    hub.settle([watch])
    entered, leave = threading.Event(), threading.Event()

    def occupy() -> None:
        entered.set()
        leave.wait(5)

    hub._do(occupy)
    assert entered.wait(5)
    os.write(write, b"late")
    much_later = threading.Event()

    def let_go() -> None:
        hub._do(lambda: much_later.wait(5) and None)  # keeps it from reading by itself once we have settled
        leave.set()

    threading.Timer(0.1, let_go).start()
    hub.settle([watch], timeout=5)
    assert heard == b"late"
    much_later.set()
    os.close(write)
    assert ended.wait(5)
    assert not watch.open


def test_a_dropped_pipe_is_read_to_its_end_and_closed() -> None:
    hub = Hub()
    read, write = os.pipe()
    heard = bytearray()
    ended = threading.Event()
    watch = hub.watch(read, heard.extend, ended.set)
    os.write(write, b"x" * 5000)
    hub.drop([watch])
    assert ended.wait(5)
    assert len(heard) == 5000
    hub.drop([watch])  # again: its number may belong to somebody else by now
    other, other_write = os.pipe()
    hub.settle([hub.watch(other, heard.extend)])
    os.write(other_write, b"y")
    os.close(write)
    os.close(other_write)


def test_a_ticker_that_fails_does_not_end_the_reader() -> None:
    hub = Hub()
    calls: list[float] = []

    def fails(now: float) -> None:
        calls.append(now)
        raise OSError("too many open files")

    hub.tick(1, fails)
    end = time.monotonic() + 5
    while len(calls) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(calls) >= 3
