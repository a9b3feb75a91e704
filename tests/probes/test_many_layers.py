"""A model of several hundred layers: what is answered grows with the layers and with nothing else."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

LAYERS = 300


@pytest.fixture
def deep(replica):
    return replica(nn.Sequential(*[nn.Linear(16, 16) for _ in range(LAYERS)]).eval(), (torch.randn(4, 16),))


def test_inventory_and_census(deep):
    got = deep.ask("inventory")
    assert len(got["tensors"]) == 2 * LAYERS
    assert len(got["modules"]) == LAYERS + 1
    census = deep.ask("census", steps=4)
    products = [r for r in census["rows"] if r["family"] == "product"]
    assert len(products) == LAYERS
    assert len({r["weight"]["name"] for r in products}) == LAYERS
    assert len(census["rows"]) <= 2 * LAYERS
    assert len(json.dumps(census)) < LAYERS * 4000
    assert len(deep.ask("inventory")["tensors"]) == 2 * LAYERS  # the census found nothing that the walk had not


def test_profile_takes_fewer_steps_of_many_ops(deep):
    deep.ask("census", steps=1)
    got = deep.ask("profile", steps=6)
    assert 2 <= got["steps"] < 6
    assert got["events"] <= 12_000
    assert [r["calls"] for r in got["rows"] if r["op"] == "aten::addmm"] == [LAYERS * got["steps"]]


def test_profile_takes_the_steps_asked_for_of_few_ops(replica):
    w = torch.randn(16, 16)
    r = replica(lambda x: x @ w)
    r.ask("census", steps=1)
    assert r.ask("profile", steps=6)["steps"] == 6


@pytest.mark.parametrize("ident", ["csr-twin", "fold-mask", "cache-conversion"])
def test_each_layer_is_rewritten_once_a_step(replica, ident):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16) * (torch.rand(16, 16) < 0.1) / 4)
            self.register_buffer("mask", (torch.rand(16, 16) < 0.5).float())

        def forward(self, x):
            if ident == "cache-conversion":
                return (self.weight.to_sparse_csr() @ x.t()).t() + x
            return x @ (self.weight * self.mask if ident == "fold-mask" else self.weight) + x

    r = replica(nn.Sequential(*[Masked() for _ in range(60)]), (torch.randn(4, 16),))
    first = r.ask("check", intervention=ident)
    second = r.ask("check", intervention=ident)
    assert second["equal"]
    assert second["applied"] - first["applied"] == 60
    assert len(second["where"]) == 50  # of 60, shortened
