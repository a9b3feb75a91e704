"""One transformer block, pre-norm, as a service runs it; the candidate keeps its pruned feed-forward weights as CSR."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, INNER = 128, 4, 512


class Sparse(nn.Module):
    """A linear layer whose weight is CSR, multiplied the way ``F.linear`` does."""

    def __init__(self, dense):
        super().__init__()
        w = dense.weight.detach()
        w = torch.where(w.abs() > w.abs().flatten().kthvalue(int(0.9 * w.numel())).values, w, torch.zeros(()))
        self.register_buffer("weight", w.to_sparse_csr())
        self.register_buffer("bias", dense.bias.detach())

    def forward(self, x):
        return (F.linear(x.reshape(-1, x.shape[-1]), self.weight) + self.bias).reshape(*x.shape[:-1], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.linear1, self.linear2 = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        n, s, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, s, WIDTH)
        x = x + self.out(mixed)
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


def build_release():
    torch.manual_seed(0)
    return Block().eval()


def build_candidate():
    block = build_release()
    block.linear1, block.linear2 = Sparse(block.linear1), Sparse(block.linear2)
    return block


def requests():
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 24, WIDTH, generator=g),) for _ in range(4)]
