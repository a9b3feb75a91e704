"""Fewer, larger calls: one call of the step does the work of several inputs, joined along their batch dimension.

What a call costs whatever its size is then paid once for all of them. The control arm calls the step on the same inputs one
by one, and both arms count their time by input.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch

from ..context import Context
from ..joining import Joint, Unjoinable, join
from ..step import Stepper
from .engine import Intervention, Prepared


class LargerCalls(Prepared):
    def __init__(self, joint: Optional[Joint], why: str) -> None:
        super().__init__()
        self._joint, self._active, self.why = joint, False, why
        self.reach = joint.reach if joint is not None else 0.0
        if joint is not None:
            self.where.add("the step")
            self.notes.append("%d inputs a call, joined in dimension %d" % (joint.k, joint.dim))

    @contextlib.contextmanager
    def arm(self, active: bool) -> Iterator[Any]:
        self._active = active
        if active and self._joint is not None:
            self.applied += 1
        yield self

    def calls(self, run: Stepper) -> Tuple[Callable[[int], Any], int]:
        joint = self._joint
        if joint is None:
            return run, 1
        return (joint.together if self._active else lambda number: joint.one_by_one(run, number)), joint.k

    def outputs(self, ctx: Context, count: int) -> List[List[torch.Tensor]]:
        if self._joint is None or not self._active:
            return super().outputs(ctx, count)
        return self._joint.outputs(count)


def _prepare(ctx: Context) -> LargerCalls:
    try:
        return LargerCalls(join(ctx), "")
    except Unjoinable as e:
        return LargerCalls(None, str(e))


INTERVENTION = Intervention("larger-calls", "several inputs in one call of the step", _prepare)
