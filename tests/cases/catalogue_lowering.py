"""Lowering and kernel selection, beyond the field cases: other layer families, masks in attention, packed and batched weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from blocks import Csr, batches, csr, linear, noise, pruned
from torch import nn

# lowering.unsupported-family: the linear layers run sparse, the pruned convolution or recurrent cell does not


def _pruned_conv(fraction):
    weight = (pruned(48, 288, fraction, seed=1) if fraction else noise(48, 288, seed=1)).view(48, 32, 3, 3)
    layer = nn.Conv2d(32, 48, 3, padding=1, bias=False)
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    return layer


def _head(fraction):
    if fraction:
        return Csr(pruned(64, 48 * 16 * 16, fraction, seed=2))
    return linear(noise(64, 48 * 16 * 16, seed=2))


def family_module_failing():
    return nn.Sequential(_pruned_conv(0.9), nn.ReLU(), nn.Flatten(), _head(0.9))


def family_module_comparator():
    return nn.Sequential(_pruned_conv(0.0), nn.ReLU(), nn.Flatten(), _head(0.0))


def family_module_inputs():
    return [(noise(4, 32, 16, 16, seed=100 + i) * 4,) for i in range(8)]


def _reader(fraction):
    """An LSTM over the sequence and a projection of its last state; all weights pruned."""
    cell = nn.LSTM(160, 160, batch_first=True, bias=False)
    with torch.no_grad():
        for i, weight in enumerate(cell.parameters()):
            weight.copy_(
                pruned(*weight.shape, fraction, seed=3 + i)
                if fraction
                else weight * 0 + noise(*weight.shape, seed=3 + i)
            )
    cell.requires_grad_(False)
    last = pruned(96, 160, fraction, seed=9) if fraction else noise(96, 160, seed=9)
    project = csr(last) if fraction else None

    def step(x):
        state = cell(x)[0][:, -1]
        return (project @ state.t()).t() if project is not None else state @ last.t()

    return step


def family_closure_failing():
    return _reader(0.92)


def family_closure_comparator():
    return _reader(0)


def family_closure_inputs():
    return [(noise(6, 24, 160, seed=100 + i) * 12,) for i in range(6)]


# lowering.unfused-mask: a block mask becomes a where() over the whole score matrix


def _block_mask(length, block):
    """Local blocks and the first block, which all others see."""
    at = torch.arange(length) // block
    return (at[:, None] == at[None]) | (at[None] == 0)


class BlockAttention(nn.Module):
    def __init__(self, fused, width=192, heads=4, length=384):
        super().__init__()
        self.fused, self.heads = fused, heads
        self.mix = linear(noise(3 * width, width, seed=12))
        self.register_buffer("mask", _block_mask(length, 32))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            scores = torch.where(self.mask, scores, float("-inf"))
            out = scores.softmax(-1) @ v
        return out.transpose(1, 2).flatten(2)


def mask_module_failing():
    return BlockAttention(fused=False)


def mask_module_comparator():
    return BlockAttention(fused=True)


def mask_module_inputs():
    return [(noise(2, 384, 192, seed=100 + i) * 14,) for i in range(6)]


def mask_closure_failing():
    hidden = ~_block_mask(512, 64)

    def attend(q, k, v):
        scores = torch.bmm(q, k.transpose(1, 2)).mul_(q.shape[-1] ** -0.5)
        return torch.bmm(scores.masked_fill_(hidden, float("-inf")).softmax(-1), v)

    return attend


def mask_closure_comparator():
    seen = _block_mask(512, 64)
    return lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen)[0]


def mask_closure_inputs():
    return [tuple(noise(6, 512, 32, seed=100 + 3 * i + j) * 5 for j in range(3)) for i in range(5)]


# lowering.densified: int8 weights that are dequantised in each step


def _quantised(weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round().to(torch.int8), scale


class Dequantising(nn.Module):
    def __init__(self, weight, once):
        super().__init__()
        packed, scale = _quantised(weight)
        if once:
            self.register_buffer("weight", packed.float() * scale)
        else:
            self.register_buffer("packed", packed)
            self.register_buffer("scale", scale)
        self.once = once

    def forward(self, x):
        weight = self.weight if self.once else self.packed.float() * self.scale
        return F.linear(x, weight)


def _int8(once):
    return nn.Sequential(
        Dequantising(noise(1500, 800, seed=13), once), nn.GELU(), Dequantising(noise(800, 1500, seed=14), once)
    )


def int8_module_failing():
    return _int8(once=False)


def int8_module_comparator():
    return _int8(once=True)


def int8_module_inputs():
    return batches(6, 800)


def int8_closure_failing():
    scale = 4 / 1300**0.5 / 127
    packed = torch.quantize_per_tensor(noise(1100, 1300, seed=15), scale, 0, torch.qint8)
    return lambda x: x @ packed.dequantize().t()


def int8_closure_comparator():
    scale = 4 / 1300**0.5 / 127
    weight = torch.quantize_per_tensor(noise(1100, 1300, seed=15), scale, 0, torch.qint8).dequantize()
    return lambda x: x @ weight.t()


def int8_closure_inputs():
    return batches(5, 1300)


# kernel.generic: a batch of sparse matrices as one COO tensor


class Mixers(nn.Module):
    """A sparse mixing matrix for each of twelve heads."""

    def __init__(self, batched):
        super().__init__()
        weights = torch.stack([pruned(320, 320, 0.93, seed=20 + i) for i in range(12)])
        self.batched = batched
        if batched:
            self.register_buffer("weight", weights.to_sparse().coalesce())
        else:
            for i, weight in enumerate(weights):
                self.register_buffer(f"weight{i}", csr(weight))

    def forward(self, x):
        if self.batched:
            return torch.bmm(self.weight, x)
        return torch.stack([getattr(self, f"weight{i}") @ x[i] for i in range(12)])


def batched_module_failing():
    return Mixers(batched=True)


def batched_module_comparator():
    return Mixers(batched=False)


def batched_module_inputs():
    return [(noise(12, 320, 48, seed=100 + i) * 7,) for i in range(6)]


def batched_closure_failing():
    weight = torch.stack([pruned(256, 400, 0.9, seed=40 + i) for i in range(8)]).to_sparse().coalesce()
    return lambda x: torch.relu(torch.bmm(weight, x))


def batched_closure_comparator():
    weights = [csr(pruned(256, 400, 0.9, seed=40 + i)) for i in range(8)]
    return lambda x: torch.relu(torch.stack([w @ x[i] for i, w in enumerate(weights)]))


def batched_closure_inputs():
    return [(noise(8, 400, 64, seed=100 + i) * 8,) for i in range(6)]
