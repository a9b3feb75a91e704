"""Validation of sparse indices is skipped."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional

import torch

from .. import optable
from ..context import Context
from .engine import Handler, Intervention, Rewrites


class _NoChecks(Rewrites):
    """Skips the validating ops, and turns the global flag off where the step builds tensors under it."""

    def __init__(self) -> None:
        super().__init__([self._match])

    def _match(self, name: str, func: Any) -> Optional[Handler]:
        if optable.family(name) == "validate":

            def skip(func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
                if not active:
                    return NotImplemented
                self.applied += 1
                return None

            return skip
        return None

    @contextlib.contextmanager
    def arm(self, active: bool) -> Iterator[Any]:
        flag = torch.sparse.check_sparse_tensor_invariants
        was = flag.is_enabled()  # type: ignore[no-untyped-call]
        if active and was:
            flag.disable()  # type: ignore[no-untyped-call]
            self.applied += 1
        try:
            with super().arm(active):
                yield self
        finally:
            if was:
                flag.enable()  # type: ignore[no-untyped-call]


def _prepare(ctx: Context) -> Rewrites:
    return _NoChecks()


INTERVENTION = Intervention("skip-validation", "index validation is off", _prepare)
