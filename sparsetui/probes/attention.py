"""A twin for masked attention: the unfused chain against ``scaled_dot_product_attention``, on the shapes that ran."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List

import torch

from .context import Context


def attention(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """For each ``[batch, S, S, D]`` in ``shapes``: median ms of both paths, interleaved, in this process."""
    rows: List[Dict[str, Any]] = []
    end = time.perf_counter() + float(args.get("seconds", 2.0))
    for batch, rows_, cols, width in args.get("shapes", []):
        q = torch.randn(batch, rows_, width)
        k, v = torch.randn(batch, cols, width), torch.randn(batch, cols, width)
        mask = torch.rand(rows_, cols) > 0.5
        mask[:, 0] = True

        def chain(
            q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v, mask: torch.Tensor = mask
        ) -> torch.Tensor:
            s = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5
            return torch.bmm(torch.where(mask, s, float("-inf")).softmax(-1), v)

        def fused(
            q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v, mask: torch.Tensor = mask
        ) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]

        times: Dict[str, List[float]] = {"chain": [], "fused": []}
        with torch.no_grad():
            error = float((chain() - fused()).abs().max())
            while len(times["chain"]) < 5 or (len(times["chain"]) < 50 and time.perf_counter() < end):
                for name, f in (("chain", chain), ("fused", fused)):
                    times[name].append(_once(f))
        med = {n: sorted(t)[len(t) // 2] for n, t in times.items()}
        rows.append({"shape": [batch, rows_, cols, width], "unfused_ms": med["chain"], "fused_ms": med["fused"],
                     "n": len(times["chain"]), "error": error})  # fmt: skip
    gain = sum(r["unfused_ms"] - r["fused_ms"] for r in rows)
    return {"rows": rows, "summary": "the fused path saves %.3g ms over %d shapes" % (gain, len(rows))}


def _once(f: Callable[[], torch.Tensor]) -> float:
    t0 = time.perf_counter()
    f()
    return (time.perf_counter() - t0) * 1e3
