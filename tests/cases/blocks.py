"""What the field cases are made of: seeded tensors, magnitude pruning, and the good way to run a CSR weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def pruned(rows: int, columns: int, fraction: float, seed: int = 0) -> Tensor:
    """A random ``(rows, columns)`` weight without ``fraction`` of its smallest values."""
    weight = noise(rows, columns, seed=seed)
    limit = weight.abs().flatten().kthvalue(int(fraction * weight.numel())).values
    return weight * (weight.abs() > limit)


def csr(weight: Tensor, index: torch.dtype = torch.int32) -> Tensor:
    made = weight.to_sparse_csr()
    return torch.sparse_csr_tensor(
        made.crow_indices().to(index), made.col_indices().to(index), made.values(), made.shape
    )


def batches(rows: int, width: int, count: int = 8) -> list[tuple[Tensor]]:
    return [(noise(rows, width, seed=100 + i) * width**0.5,) for i in range(count)]


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


class Csr(nn.Module):
    """``x Wᵀ`` with the sparse weight on the left; ``weight`` may have any layout that multiplies from there."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", csr(weight) if weight.layout == torch.strided else weight)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.t()).t()


class FeedForward(nn.Module):
    """Two projections with a GELU between them."""

    def __init__(self, up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.up = up
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.nn.functional.gelu(self.up(x))
        out: Tensor = self.down(hidden)
        return out
