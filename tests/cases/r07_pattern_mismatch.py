"""R07: zeros do not fit what the kernel needs: 2:4 on the other axis, or blocks that are mostly fill-in."""

from __future__ import annotations

import torch
from blocks import FeedForward, batches, linear, noise, pruned


def _two_of_four(weight):
    groups = weight.reshape(-1, 4)
    kept = torch.zeros_like(groups).scatter_(1, groups.abs().topk(2, 1).indices, 1.0)
    return (groups * kept).reshape(weight.shape)


def module_failing():
    turned = [_two_of_four(noise(*shape).t().contiguous()).t().contiguous() for shape in ((512, 384), (384, 512))]
    return FeedForward(*(linear(weight) for weight in turned))


def module_comparator():
    return FeedForward(*(linear(_two_of_four(noise(*shape))) for shape in ((512, 384), (384, 512))))


def module_inputs():
    return batches(16, 384)


def closure_failing():
    weight = pruned(768, 1024, 0.9, seed=1).to_sparse_bsr((16, 16))
    return lambda x: (weight @ x.t()).t()


def closure_comparator():
    kept = (noise(48, 64, seed=2).abs().flatten().argsort().argsort() >= 48 * 64 * 0.9).reshape(48, 64)
    dense = noise(768, 1024, seed=1) * kept.repeat_interleave(16, 0).repeat_interleave(16, 1)
    weight = dense.to_sparse_bsr((16, 16))
    return lambda x: (weight @ x.t()).t()


def closure_inputs():
    return batches(16, 1024)
