"""Builders and inputs that do what they should."""

import os
import signal

import torch


def linear():
    print("building")
    return torch.nn.Linear(4, 2)


def function():
    w = torch.randn(4, 2)
    return lambda x: x @ w


def tensors():
    return [torch.randn(3, 4), (torch.randn(1, 4),)]


def one_tuple():
    return (torch.ones(2), 3)


def generator():
    return (torch.full((1, 4), float(i)) for i in range(3))


def nothing():
    return []


def none():
    return None


class Service:
    @staticmethod
    def build():
        return torch.nn.Identity()


NUMBER = 7


def NAME_OF_IT():
    return "resolved"


def sparse_everywhere():
    csr = torch.eye(4).to_sparse_csr()
    closed = torch.eye(3).to_sparse()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(csr, requires_grad=False)
            self.register_buffer("mask", torch.eye(2).to_sparse())
            self.plain = torch.eye(2).to_sparse_csr()
            self.held = {"a": torch.eye(5).to_sparse(), "b": [torch.eye(6).to_sparse_csr()]}
            self.call = lambda x: x + closed.sum()

        def forward(self, x):
            return x

    return Model()


def restless():
    """Changes what a process shares with us: handlers, folder, start method, stdio."""
    import multiprocessing

    os.chdir("/")
    multiprocessing.set_start_method("spawn")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGABRT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return torch.nn.Identity()


def closes_low_descriptors():
    print("before")
    for fd in range(10):
        try:
            os.close(fd)
        except OSError:
            pass
    return torch.nn.Identity()


def forks():
    """The copy runs on as if it were the replica; it must stay silent."""
    import time

    if os.fork():
        time.sleep(0.3)  # the copy is first
    return torch.nn.Identity()


def shares_memory():
    """Forks that only read: together they seem to hold 7 times what they do."""
    held = torch.ones(300 << 18)  # 300 MiB
    import time

    for _ in range(6):
        if os.fork() == 0:
            float(held[0])
            time.sleep(1.0)
            os._exit(0)
    for _ in range(6):
        os.wait()
    return torch.nn.Identity()


def chatty():
    line = b"x" * 9999 + b"\n"
    os.write(1, b"first line\n")
    for _ in range(100):
        os.write(1, line * 1000)
        os.write(2, line * 20)
    os.write(1, b"last line\n")
    return torch.nn.Identity()
