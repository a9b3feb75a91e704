"""Workloads in which a family of layers has no sparse path, or a product another form that would move fewer bytes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Step = Callable[[torch.Tensor], torch.Tensor]


def _pruned(*shape: int, zeros: float, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g) * (torch.rand(*shape, generator=g) >= zeros) / shape[-1] ** 0.5


def _csr(w: torch.Tensor) -> torch.Tensor:
    s = w.to_sparse_csr()
    return torch.sparse_csr_tensor(s.crow_indices().int(), s.col_indices().int(), s.values(), s.shape)


def _wide(zeros: float) -> tuple[torch.Tensor, torch.Tensor]:
    return _pruned(256, 256, 3, 3, zeros=zeros, seed=1), _pruned(64, 256, zeros=zeros, seed=2)


def pruned_convolution() -> Step:
    """A wide convolution with hardly any weights left, before a CSR head."""
    kernel, head = _wide(0.985)
    sparse = _csr(head)
    return lambda x: (sparse @ F.conv2d(x, kernel, padding=1).mean((2, 3)).t()).t()


def whole_convolution() -> Step:
    kernel, head = _wide(0.0)
    return lambda x: F.conv2d(x, kernel, padding=1).mean((2, 3)) @ head.t()


def images() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(3)
    return [(torch.randn(1, 256, 14, 14, generator=g),) for _ in range(3)]


def _classifier(zeros: float) -> tuple[torch.Tensor, torch.Tensor]:
    return _pruned(32, 16, 3, 3, zeros=zeros, seed=4), _pruned(640, 2048, zeros=zeros, seed=5)


def wrong_side_after_a_convolution() -> Step:
    """What is slow is the CSR product on the wrong side; the pruned convolution takes what it took before."""
    kernel, weight = _classifier(0.9)
    sparse = _csr(weight)
    return lambda x: F.linear(F.conv2d(x, kernel, padding=1).flatten(1), sparse)


def dense_after_a_convolution() -> Step:
    kernel, weight = _classifier(0.0)
    return lambda x: F.linear(F.conv2d(x, kernel, padding=1).flatten(1), weight)


def patches() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(6)
    return [(torch.randn(48, 16, 8, 8, generator=g),) for _ in range(3)]


def _blocky(seed: int) -> torch.Tensor:
    """1024 x 1024 in double precision, a tenth of its 16 x 16 blocks kept, as CSR with int32 indices."""
    g = torch.Generator().manual_seed(seed)
    kept = (torch.rand(64, 64, generator=g) < 0.1).repeat_interleave(16, 0).repeat_interleave(16, 1)
    return _csr(torch.randn(1024, 1024, generator=g, dtype=torch.float64) * kept / 10)


def _chain(length: int) -> Step:
    weights = [_blocky(i) for i in range(length)]

    def step(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.tanh(torch.mv(w, x))
        return x

    return step


def eight_matrices() -> Step:
    return _chain(8)


def four_matrices() -> Step:
    return _chain(4)


def vectors() -> list[tuple[torch.Tensor]]:
    g = torch.Generator().manual_seed(7)
    return [(torch.randn(1024, generator=g, dtype=torch.float64),) for _ in range(3)]
