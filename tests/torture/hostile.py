"""Workload code that does to its host what real code has done: each function is one builder, or the inputs of one."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[torch.Tensor], torch.Tensor]

torch.manual_seed(3)
_WEIGHT = torch.randn(64, 64)
_OUTPUT_MB = int(os.environ.get("TORTURE_OUTPUT_MB", "1000"))
_SLOW_S = float(os.environ.get("TORTURE_BUILD_S", "12"))


def fine() -> Step:
    return lambda x: x @ _WEIGHT


def requests() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 64, generator=g),) for _ in range(3)]


def after(n: int, act: Callable[[], Any]) -> Step:
    """A step that does ``act`` at its ``n``-th call."""
    calls = itertools.count()

    def step(x: torch.Tensor) -> torch.Tensor:
        if next(calls) == n:
            act()
        return x @ _WEIGHT

    return step


def segfaults() -> Step:
    return after(30, lambda: ctypes.string_at(0))


def exits_at_once() -> Step:
    os._exit(7)


def exits_in_a_step() -> Step:
    return after(30, lambda: os._exit(0))


def says_goodbye() -> Step:
    return after(30, lambda: sys.exit("that is all"))


def threads_that_never_end() -> Step:
    for _ in range(20):
        threading.Thread(target=lambda: [time.sleep(0.2) for _ in itertools.count()]).start()
    return fine()


def forks() -> Step:
    """A child in a session of its own that outlives everybody, if nobody looks after it."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    return fine()


def forks_in_a_step() -> Step:
    def act() -> None:
        if os.fork() == 0:
            time.sleep(3600)

    return after(20, act)


def forks_far_too_much() -> Step:
    """650 children and grandchildren that stay. No more, so that the host survives a guard that fails."""

    def act() -> None:
        for _ in range(25):
            if os.fork() == 0:
                for _ in range(25):
                    if os.fork() == 0:
                        break
                time.sleep(3600)
                os._exit(0)
        time.sleep(3600)

    return after(20, act)


def spins_in_c() -> Step:
    """Holds the interpreter's lock in a loop that no Python signal handler interrupts."""
    return after(20, lambda: sum(itertools.repeat(0)))


def talks_without_end() -> Step:
    line = b"x" * 4095 + b"\n"

    def act() -> None:
        for i in range(_OUTPUT_MB * 256):
            os.write(1 + i % 2, line)

    return after(2, act)


def builds_slowly() -> Step:
    time.sleep(_SLOW_S)
    return fine()


def eats_memory() -> Step:
    hoard: list[bytearray] = []

    def act() -> None:
        while True:
            hoard.append(bytearray(b"x") * (64 << 20))

    return after(10, act)


def closes_descriptors() -> Step:
    for fd in range(10):
        try:
            os.close(fd)
        except OSError:
            pass
    return fine()


def changes_folder() -> Step:
    os.chdir("/")
    os.umask(0)
    return after(5, lambda: os.chdir("/proc"))


def takes_signals() -> Step:
    for s in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGALRM,
        signal.SIGUSR1,
        signal.SIGCHLD,
        signal.SIGABRT,
    ):
        signal.signal(s, signal.SIG_IGN)
    multiprocessing.set_start_method("spawn", force=True)
    signal.alarm(2)
    return fine()


def warns() -> Step:
    warnings.simplefilter("error")
    return after(3, lambda: warnings.warn("as an error", stacklevel=1))


def prints_always() -> Step:
    return fine()


def hostile_names() -> Any:
    """A module whose names hold escapes, bidi marks, markup and Markdown."""
    name = "\x1b[31mred\x1b]0;title\x07 \u202eevil [bold]b[/] <script>alert(1)</script> | `x` ![i](http://e)"
    net = torch.nn.Sequential()
    net.add_module(name.replace(".", "_"), torch.nn.Linear(64, 64, bias=False))
    print(name)
    print(name, file=sys.stderr)
    return net.eval()


def raises_hostile() -> Step:
    raise ValueError("\x1b[2J\u202e[red]<script>x</script>\n# heading\n| a | `b` \x9b31m")


def many_modules() -> Any:
    """2,000 modules."""
    return torch.nn.Sequential(
        *(torch.nn.Linear(16, 16) for _ in range(1000)), *(torch.nn.ReLU() for _ in range(1000))
    ).eval()


def small_requests() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 16, generator=g),) for _ in range(2)]
