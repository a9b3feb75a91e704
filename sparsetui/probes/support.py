"""Which products this build has a kernel for: each (layout, dtype) that the model holds, tried on a tiny twin."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch

from . import tensors, walk
from .context import Context

_EDGE = 8


def support(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """``{"products": [{layout, dtype, device, ok, error}]}`` for ``tiny @ dense`` in every (layout, dtype, device) held."""
    held = [t for _, t in walk.held_tensors(ctx.fn)] + list(ctx.state.get("constants", {}).values())
    seen: Dict[Tuple[str, str, str], torch.Tensor] = {}
    for t in held:
        if tensors.is_sparse(t) and t.dim() == 2:
            seen.setdefault((tensors.layout(t), tensors.dtype(t), t.device.type), t)
    out: List[Dict[str, Any]] = []
    for (lay, dt, device), t in sorted(seen.items()):
        error = _try(lay, t.dtype, t.device)
        out.append({"layout": lay, "dtype": dt, "device": device, "ok": not error, "error": error})
    bad = [o for o in out if not o["ok"]]
    text = "; ".join("%s %s has no product kernel" % (o["layout"], o["dtype"]) for o in bad)
    return {"products": out, "summary": text or "%d (layout, dtype) pairs have a product kernel" % len(out)}


def _try(lay: str, dt: torch.dtype, device: torch.device) -> str:
    eye = torch.eye(_EDGE)
    make: Dict[str, Callable[[], torch.Tensor]] = {
        "coo": lambda: eye.to_sparse(), "csr": lambda: eye.to_sparse_csr(), "csc": lambda: eye.to_sparse_csc(),
        "bsr": lambda: eye.to_sparse_bsr((2, 2)), "bsc": lambda: eye.to_sparse_bsc((2, 2)),
    }  # fmt: skip
    try:
        with torch.no_grad():
            make[lay]().to(dt).to(device) @ torch.ones(_EDGE, 2, dtype=dt, device=device)
    except RuntimeError as e:
        return (str(e).splitlines() or [type(e).__name__])[0][:200]
    return ""
