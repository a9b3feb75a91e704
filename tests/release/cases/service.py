"""A small service: a three-layer classifier, its pruned candidate on the slow side of the product, and its release."""

import torch
from torch import nn

torch.manual_seed(0)
WIDTH = 192


def _weights():
    g = torch.Generator().manual_seed(7)
    first = torch.randn(256, WIDTH, generator=g) / WIDTH**0.5
    second = torch.randn(16, 256, generator=g) / 16
    # a few entries carry the answer, as in a trained layer: pruning the others changes little
    heavy = torch.rand(first.shape, generator=g) < 0.1
    first = torch.where(heavy, first * 3, first * 0.02)
    return first, second


def _prune(w, sparsity):
    k = max(1, round((1 - sparsity) * w.numel()))
    keep = torch.zeros(w.numel(), dtype=torch.bool)
    keep[torch.topk(w.abs().reshape(-1), k).indices] = True
    return w * keep.reshape(w.shape)


class Net(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first = nn.Parameter(first, requires_grad=False)
        self.head = nn.Parameter(second, requires_grad=False)

    def forward(self, x):
        hidden = torch.relu(torch.mm(x, self.first.t()))
        return torch.mm(hidden, self.head.t())


def build_release():
    return Net(*_weights())


def build_candidate():
    first, second = _weights()
    return Net(_prune(first, 0.9).to_sparse_csr(), second)


def requests():
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, WIDTH, generator=g),) for n in (8, 16, 32, 48)]


def accuracy(model):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(128, WIDTH, generator=g)
    want = build_release()(x).argmax(-1)
    return {"agreement": float((model(x).argmax(-1) == want).double().mean())}
