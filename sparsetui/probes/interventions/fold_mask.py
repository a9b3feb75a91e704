"""Elementwise work on constants (a weight times its mask), and finding its threshold, runs once."""

from __future__ import annotations

from typing import List

import torch

from ..context import Context
from .engine import Intervention, Rewrites
from .folding import fold


def _wanted(family: str, name: str, ins: List[torch.Tensor]) -> bool:
    return family in ("pointwise", "copy", "other", "sort")


def _prepare(ctx: Context) -> Rewrites:
    return fold(ctx, _wanted)


INTERVENTION = Intervention("fold-mask", "masking of constants runs once", _prepare)
