"""The digits classifier as its service loads it: needs NumPy and torch, nothing else.

Weights are those that ``sparsetui drill`` trained and pruned; layer names are ``stem``, ``hidden.0`` … and ``head``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

HIDDEN = 3


def weights_folder() -> Path:
    """The folder of the newest trained release, as the trainer left it in ``latest``."""
    root = os.environ.get("SPARSETUI_DRILLS")
    if not root:
        default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        root = os.path.join(os.environ.get("XDG_CACHE_HOME") or default, "sparsetui", "drills")
    folder = Path(root).expanduser()
    try:
        return folder / (folder / "latest").read_text().strip()
    except OSError:
        raise FileNotFoundError(f"no trained drills in {folder}: run `sparsetui drill` once") from None


def tensor(name: str) -> Tensor:
    """One array of the release, such as ``pruned.hidden.0.weight``, in torch's own memory.

    NumPy aligns to 16 bytes and asks for huge pages, torch aligns to 64 and does not: a weight that stays in NumPy's
    memory is a few per cent faster or slower than its pruned copy, and nothing about pruning is to blame.
    """
    return torch.from_numpy(np.load(weights_folder() / f"{name}.npy", allow_pickle=False)).clone()


def dense_layer(weight: Tensor, bias: Tensor) -> nn.Module:
    """An ordinary linear layer with these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def to_csr(weight: Tensor, index: torch.dtype = torch.int32) -> Tensor:
    """CSR with 32-bit indices, which is what MKL takes as it is."""
    csr = weight.to_sparse_csr()
    return torch.sparse_csr_tensor(csr.crow_indices().to(index), csr.col_indices().to(index), csr.values(), csr.shape)


class CsrLinear(nn.Module):
    """``y = x Wᵀ + b`` with the CSR weight on the left, where its kernel is good: ``(W xᵀ)ᵀ``."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight if weight.layout != torch.strided else to_csr(weight))
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.t()).t() + self.bias


class Classifier(nn.Module):
    """8x8 images as rows of 64 pixels in, ten scores out."""

    def __init__(self, stem: nn.Module, hidden: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.hidden = nn.ModuleList(hidden)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        scores: Tensor = self.head(x)
        return scores


Layer = Callable[[Tensor, Tensor], nn.Module]


def assemble(release: str, layer: Layer) -> Classifier:
    """The classifier with the weights of ``release`` ("dense" or "pruned") and hidden layers made by ``layer``."""

    def parts(name: str) -> tuple[Tensor, Tensor]:
        return tensor(f"{release}.{name}.weight"), tensor(f"{release}.{name}.bias")

    hidden = [layer(*parts(f"hidden.{i}")) for i in range(HIDDEN)]
    return Classifier(dense_layer(*parts("stem")), hidden, dense_layer(*parts("head"))).eval()


def magnitude_pruned(weight: Tensor, fraction: float) -> Tensor:
    """``weight`` without the given fraction of its smallest values."""
    limit = weight.abs().flatten().kthvalue(int(fraction * weight.numel())).values
    return torch.where(weight.abs() > limit, weight, torch.zeros((), dtype=weight.dtype))


def requests(size: int, count: int = 16) -> list[tuple[Tensor]]:
    """``count`` requests of ``size`` held-out images each."""
    images = tensor("images")
    rows = torch.arange(count * size).reshape(count, size) % len(images)
    return [(images[r].contiguous(),) for r in rows]


def accuracy(model: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """Share of the held-out images that are classified right."""
    images, labels = tensor("images"), tensor("labels")
    with torch.no_grad():
        chosen = torch.cat([model(part).argmax(1) for part in torch.split(images, 64)])
    return {"accuracy": float((chosen == labels).float().mean())}
