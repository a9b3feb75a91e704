"""The base of our dispatch modes: it keeps the compiler out of the handlers without importing the compiler, and has attention
layers run op by op.

torch wraps ``__torch_dispatch__`` of every mode in ``torch._disable_dynamo``, whose first call imports all of ``torch._dynamo``: a
second or more in each process, for code that compiles nothing. Here the wrapping waits until something else has loaded it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A ``TorchDispatchMode`` whose subclasses define ``__torch_dispatch__`` as usual."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks when a subclass is defined; __enter__ makes up for it

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Any:
        cls = type(self)
        if "torch._dynamo" in sys.modules and "_kept_from_dynamo" not in cls.__dict__:
            setattr(cls, "__torch_dispatch__", torch._disable_dynamo(cls.__torch_dispatch__, recursive=True))  # type: ignore[attr-defined]  # noqa: B010
            setattr(cls, "_kept_from_dynamo", True)  # noqa: B010
        # attention has a path that runs a whole layer as one op, where no product shows: under a mode it takes the other
        self._fast = _fast_path(False)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *why: Any) -> Any:
        _fast_path(self._fast)
        return super().__exit__(*why)  # type: ignore[no-untyped-call]


def _fast_path(on: bool) -> bool:
    """Switch the fused path of attention layers on or off; returns how it was. Before torch 2.1 there is no switch."""
    mha = getattr(torch.backends, "mha", None)
    if mha is None:
        return True
    before = bool(mha.get_fastpath_enabled())
    mha.set_fastpath_enabled(on)
    return before
