"""Validation of sparse indices is skipped: as an op of its own, and inside the ops that build sparse tensors."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch

from .. import optable
from ..context import Context
from .engine import Handler, Intervention, Rewrites


class _NoChecks(Rewrites):
    """While a building op runs, the flag that makes it validate is off; the step sees the flag as it was."""

    def __init__(self) -> None:
        super().__init__([self._match])

    def _match(self, name: str, func: Any) -> Optional[Handler]:
        return {"validate": self._skip, "build": self._build}.get(optable.family(name))

    def _skip(self, func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
        if not active:
            return NotImplemented
        self.applied += 1
        self.skipped += 1
        return None

    def _build(self, func: Any, args: Any, kwargs: Dict[str, Any], active: bool) -> Any:
        flag = torch._C._check_sparse_tensor_invariants()
        if not (active and flag):
            return NotImplemented
        torch._C._set_check_sparse_tensor_invariants(False)
        try:
            self.applied += 1
            return func(*args, **kwargs)
        finally:
            torch._C._set_check_sparse_tensor_invariants(flag)


def _prepare(ctx: Context) -> Rewrites:
    return _NoChecks()


INTERVENTION = Intervention("skip-validation", "index validation is off", _prepare)
