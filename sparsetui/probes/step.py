"""Stepping the user's callable over its inputs, under the grad mode it needs."""

from __future__ import annotations

import contextlib
import time
from typing import Any, ContextManager

import torch

from .context import Context

NEEDS_GRAD = ("does not require grad", "requires grad", "grad_fn", "grad can be implicitly", "requires_grad")


class Stepper:
    """Calls ``ctx.fn(*ctx.inputs[i])`` and knows whether gradients have to be on.

    Inference runs under ``no_grad`` (not ``inference_mode``, in which ``F.linear`` over a CSR weight raises). A callable
    that calls ``backward`` itself fails there for want of a graph, and is then stepped with gradients on.
    """

    def __init__(self, ctx: Context) -> None:
        self.fn = ctx.fn
        self.inputs = ctx.inputs
        self.first_ms = 0.0  # of the very first call in this process: cold caches, lazy set-up and all
        self.grad = self._decide()

    def _decide(self) -> bool:
        try:
            with torch.no_grad():
                self._first()
            return False
        except RuntimeError as e:
            if not any(mark in str(e) for mark in NEEDS_GRAD):
                raise
        with torch.enable_grad():
            self._first()
        return True

    def _first(self) -> None:
        began = time.perf_counter()
        self.fn(*self.inputs[0])
        self.first_ms = (time.perf_counter() - began) * 1e3

    def mode(self) -> ContextManager[Any]:
        return torch.enable_grad() if self.grad else torch.no_grad()

    def __call__(self, i: int) -> Any:
        return self.fn(*self.inputs[i % len(self.inputs)])


def stepper(ctx: Context) -> Stepper:
    """The replica's one stepper, made on first use."""
    s = ctx.state.get("stepper")
    if s is None:
        s = ctx.state["stepper"] = Stepper(ctx)
    return s


@contextlib.contextmanager
def threads(count: int) -> Any:
    """``count`` threads for ops; restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def seeded(seed: int = 0) -> Any:
    """The global generator at a known point, so that dropout and the like repeat; restored afterwards."""
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
