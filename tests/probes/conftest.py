"""A replica's context in this process, and the verbs on it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parent))  # what several of these tests are made of lies beside them


class Replica:
    """One callable with its inputs; ``ask`` runs a verb and holds its answer to be plain JSON."""

    def __init__(self, fn: Any, inputs: list[tuple[Any, ...]], scratch: str) -> None:
        from sparsetui.probes.context import Context

        self.ctx = Context({"folder": "."}, scratch, lambda d: json.dumps(d))
        self.ctx.fn, self.ctx.inputs = fn, inputs

    def ask(self, verb: str, **args: Any) -> dict[str, Any]:
        import torch
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        from sparsetui.probes.verbs import VERBS

        grad = torch.is_grad_enabled()
        try:
            out = VERBS[verb](self.ctx, args)
        finally:
            assert _get_current_dispatch_mode_stack() == [], "a mode was left behind"
            assert torch.is_grad_enabled() == grad
        json.dumps(out, allow_nan=False)
        return out

    def rows(self, op: str, **args: Any) -> list[dict[str, Any]]:
        """The census rows of an ATen op."""
        return [r for r in self.ask("census", **{"steps": 3, **args})["rows"] if r["op"] == "aten::" + op]


@pytest.fixture
def replica(tmp_path: Any) -> Callable[..., Replica]:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)

    def make(fn: Any, *inputs: tuple[Any, ...]) -> Replica:
        return Replica(fn, list(inputs) or [(torch.randn(4, 16),), (torch.randn(7, 16),)], str(tmp_path))

    return make
