"""Attention over the blocks that a mask leaves equals attention over all of it."""

from __future__ import annotations

import math

import pytest
import torch

from sparsetui.probes.interventions.attending import attend, blocks_of, faster

S = 256


def diagonal(size: int = 32) -> torch.Tensor:
    at = torch.arange(S) // size
    return at[:, None] == at[None, :]


def banded() -> torch.Tensor:
    at = torch.arange(S)
    return (at[:, None] - at[None, :]).abs() < 20


def shuffled() -> torch.Tensor:
    order = torch.randperm(S, generator=torch.Generator().manual_seed(2))
    return diagonal()[order][:, order]


def uneven() -> torch.Tensor:
    at = torch.bucketize(torch.arange(S), torch.tensor([64, 160]), right=True)
    return at[:, None] == at[None, :]


def first_keys() -> torch.Tensor:
    return (torch.arange(S) < 40).expand(S, S).clone()


@pytest.mark.parametrize("mask", [diagonal, banded, shuffled, uneven, first_keys])
@pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 2, 2)])
def test_blocks_give_what_the_whole_gives(mask, batch):
    torch.manual_seed(1)
    q, kt, v = torch.randn(*batch, S, 8), torch.randn(*batch, 8, S), torch.randn(*batch, S, 8)
    bias = torch.zeros(S, S).masked_fill(~mask(), -math.inf)
    for added in (bias, bias + torch.randn(S, S)):
        blocks = blocks_of(added)
        assert blocks is not None
        made = sum(p.blocks * (S if p.rows is None else len(p.rows)) // p.blocks for p in blocks.parts)
        assert made == S
        whole = attend(q, kt, v, added, 0.3, batch)
        torch.testing.assert_close(attend(q, kt, v, added, 0.3, batch, blocks), whole, rtol=1e-4, atol=1e-5)


def test_a_mask_that_leaves_most_or_is_scattered_has_no_blocks():
    scattered = torch.rand(S, S, generator=torch.Generator().manual_seed(3)) > 0.5
    scattered.fill_diagonal_(True)
    for mask in (
        torch.ones(S, S, dtype=torch.bool),
        scattered,
        torch.ones(S, S, dtype=torch.bool).fill_diagonal_(False),
    ):
        assert blocks_of(torch.zeros(S, S).masked_fill(~mask, -math.inf)) is None
    assert blocks_of(torch.zeros(2, 1, S, S)) is None


def test_whole_blocks_in_order_are_taken_without_a_copy():
    blocks = blocks_of(torch.zeros(S, S).masked_fill(~diagonal(), -math.inf))
    assert blocks is not None
    (part,) = blocks.parts
    assert (part.blocks, part.rows, part.keys, part.bias, blocks.back) == (8, None, None, None, None)


def test_blocks_are_taken_where_they_were_faster(monkeypatch):
    from sparsetui.probes.interventions import attending

    bias = torch.zeros(S, S).masked_fill(~diagonal(), -math.inf)
    blocks = blocks_of(bias)
    assert blocks is not None
    now = iter(range(10_000))
    slow: list[bool] = []

    def clocked(*args):
        for _ in range(9 if (args[-1] is not None) in slow else 1):
            next(now)

    monkeypatch.setattr(attending, "attend", clocked)
    monkeypatch.setattr(attending.time, "perf_counter", lambda: next(now))
    shapes = [(2, S, 8), (2, 8, S), (2, S, 8)]
    slow[:] = [False]
    assert faster(shapes, bias, 1.0, (2,), blocks)
    slow[:] = [True]
    assert not faster(shapes, bias, 1.0, (2,), blocks)


def test_trying_blocks_draws_none_of_the_numbers_of_the_step():
    bias = torch.zeros(S, S).masked_fill(~diagonal(), -math.inf)
    blocks = blocks_of(bias)
    assert blocks is not None
    before = torch.get_rng_state()
    faster([(2, S, 8), (2, 8, S), (2, S, 8)], bias, 1.0, (2,), blocks)
    assert torch.equal(torch.get_rng_state(), before)
