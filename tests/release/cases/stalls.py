"""Services that differ in how they are slow: one stalls now and then, one is slower for every request. They sleep."""

import time

import torch


def _service(seconds, stall, every):
    count = [0]

    def step(x):
        count[0] += 1
        time.sleep(stall if every and count[0] % every == 0 else seconds)
        return x

    return step


def steady():
    return _service(0.0005, 0.0, 0)


def now_and_then():
    return _service(0.0005, 0.120, 137)


def always():
    return _service(0.006, 0.0, 0)


def requests():
    return [(torch.zeros(n),) for n in (4, 8)]
