"""Builders that fail, each in its own way."""

import os
import subprocess
import sys
import time

import torch


def raises():
    print("about to fail")
    print("on stderr", file=sys.stderr)
    raise ValueError("no such weights")


def raises_odd():
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError("even its text fails")

    raise Odd


def raises_escape():
    raise ValueError("\x1b[31mred\x1b[0m\nsecond line")


def interrupts():
    raise KeyboardInterrupt


def not_callable():
    return 3


def sys_exit():
    sys.exit(3)


def os_exit():
    os._exit(7)


def daemonises():
    """The classic: the parent leaves at once, the daemon lives in a session of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(600)


def segfault():
    import ctypes

    ctypes.string_at(0)


def python_loop():
    while True:
        pass


def sleeps():
    time.sleep(600)


def c_loop():
    """Holds the GIL in C, for hours."""
    return sum(range(10**12))


def ignores_everything():
    import signal

    for number in range(1, 32):
        try:
            signal.signal(number, signal.SIG_IGN)
        except OSError:
            pass
    time.sleep(600)


def allocates():
    held = []
    while True:
        held.append(torch.ones(1 << 24))  # 64 MiB


def wants_too_much():
    return torch.empty(1 << 30, dtype=torch.float64)


def allocates_in_children():
    """Each stays below the ceiling; together they do not."""
    code = "x = bytearray(b'1') * (600 << 20); import time; time.sleep(600)"
    helpers = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(4)]
    for helper in helpers:
        helper.wait()


def fork_bomb():
    while True:
        try:
            os.fork()
        except OSError:
            pass


def closes_all_descriptors():
    os.closerange(3, 4096)
    return torch.nn.Identity()


def writes_garbage():
    import fcntl

    for fd in range(190, 300):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
            os.write(fd, b"\xff" * 64)
        except OSError:
            pass
    time.sleep(600)


def kills_the_server():
    import signal

    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
