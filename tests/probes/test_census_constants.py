"""What the census takes for a constant, where it says that work on one comes from, and what is none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


def mostly_zero(n=16, m=16, keep=0.1):
    return torch.randn(n, m) * (torch.rand(n, m) < keep)


def test_a_mask_computed_in_the_step_is_constant_work(replica):
    w, mask = torch.randn(16, 16), (torch.rand(16, 16) < 0.1).float()
    (row,) = replica(lambda x: x @ (w * mask), (torch.randn(4, 16),)).rows("mul")
    assert row["constant"]
    assert row["origin"] in ("w", "mask")
    (row,) = replica(lambda x: x @ (w * mask), (torch.randn(4, 16),)).rows("mm")
    assert row["weight_at"] == 1
    assert row["weight"]["derived"] == "aten::mul"
    assert row["weight"]["eligible"]


def test_a_weight_unpacked_into_a_blank_buffer_comes_out_of_its_values(replica):
    w = torch.randn(16, 16) * (torch.rand(16, 16) < 0.2)
    bits, values = w != 0, w[w != 0]

    def step(x):
        made = torch.zeros(16, 16)
        made[bits] = values
        return x @ made

    got = replica(step, (torch.randn(4, 16),))
    (row,) = got.rows("index_put_")
    assert row["constant"]
    assert row["origin"] == "values"
    blank = [o["blank"] for o in row["operands"]]
    assert blank[0]
    assert not any(blank[1:])
    (row,) = got.rows("mm")
    assert (row["weight"]["name"], row["weight"]["derived"]) == ("values", "aten::index_put_")
    assert row["weight"]["zeros"] == float((w == 0).float().mean())


def test_work_on_activations_is_not_constant(replica):
    w = torch.randn(16, 16)
    r = replica(lambda x: (x * x.mean()) @ w + torch.rand(16), (torch.randn(4, 16),))
    assert not any(x["constant"] for x in r.ask("census", steps=2)["rows"] if x["op"] != "aten::rand")


def test_a_twin_cached_by_the_first_step_is_no_conversion_in_the_step(replica):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(mostly_zero())
            self.twin = None

        def forward(self, x):
            if self.twin is None:
                self.twin = self.weight.detach().to_sparse_csr()
            return self.twin @ x.t()

    got = replica(Lazy()).ask("census", steps=3)
    assert {r["family"] for r in got["rows"]} & {"conversion", "build", "densify"} == set()
    (weight,) = [r["weight"] for r in got["rows"] if r["family"] == "product"][:1]
    assert weight["const"]
    assert weight["layout"] == "csr"


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_what_is_trained_is_not_constant(replica, options):
    m = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    frozen = torch.randn(16, 16)
    opt = torch.optim.SGD(m.parameters(), lr=0.1, **options)

    def step(x):
        opt.zero_grad()
        loss = m(x @ frozen).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    got = replica(step).ask("census", steps=3)
    assert got["grad"] is True
    mutated = {c["name"] for c in got["constants"] if c["mutated"]}
    assert {
        "m.0.weight",
        "m.0.bias",
        "m.1.weight",
        "m.1.running_mean",
        "m.1.num_batches_tracked",
        "m.3.weight",
    } <= mutated
    assert [c["name"] for c in got["constants"] if not c["mutated"] and c["shape"] == [16, 16]] == ["frozen"]
    products = [r for r in got["rows"] if r["family"] == "product"]
    assert {r["weight"]["name"] for r in products if r["weight"]} == {"frozen"}
    assert {r["backward"] for r in products} == {True, False}


def test_a_hidden_state_is_no_weight(replica):
    w, state = torch.randn(16, 16), [torch.zeros(4, 16)]

    def step(x):
        state[0] = torch.tanh(x + state[0] @ w)
        return state[0]

    r = replica(step, (torch.randn(4, 16),))
    (row,) = r.rows("mm")
    assert (row["weight_at"], row["weight"]["name"]) == (1, "w")
    assert [c["name"] for c in r.ask("census", steps=3)["constants"]] == ["w"]


def test_a_numpy_input_is_no_constant(replica):
    import numpy as np

    w = torch.randn(16, 16)
    r = replica(lambda a: torch.from_numpy(a) @ w, (np.ones((4, 16), dtype=np.float32),))
    (row,) = r.rows("mm")
    assert [o["const"] for o in row["operands"]] == [False, True]


def test_a_literal_is_no_state(replica):
    got = replica(lambda x: torch.tensor(0.0).add_(x.sum())).ask("census", steps=2)
    assert not any(c["mutated"] for c in got["constants"])


def test_out_and_in_place_products_make_activations(replica):
    w, held = torch.randn(16, 16), torch.empty(16, 16)

    def step(x):
        made = torch.empty_like(w)
        torch.mm(x.t(), x, out=made)
        torch.mm(x.t(), x, out=held)
        return made * 2 + held * 2

    rows = replica(step).rows("mul")
    assert rows
    assert not any(r["constant"] for r in rows)


def test_a_mask_applied_in_place_is_constant_work(replica):
    w, mask = torch.randn(16, 16), (torch.rand(16, 16) < 0.1).float()

    def step(x):
        w.mul_(mask)
        return x @ w

    r = replica(step)
    (row,) = r.rows("mul_")
    assert row["constant"]


def test_a_decaying_weight_is_not_constant(replica):
    w = torch.randn(16, 16)

    def step(x):
        w.mul_(0.99)
        return x @ w

    r = replica(step)
    assert not any(row["weight"] and row["weight"]["const"] for row in r.rows("mm"))
    assert [c["mutated"] for c in r.ask("census", steps=2)["constants"]] == [True]


def test_slices_of_one_storage_have_zeros_of_their_own(replica):
    experts = torch.randn(3, 16, 16)
    experts[1] = 0
    experts[2, :8] = 0

    def step(x):
        a = x @ experts[0]
        b = x @ experts[1]
        c = x @ experts[2]
        return a + b + c

    rows = replica(step, (torch.randn(4, 16),)).rows("mm")
    assert sorted(r["weight"]["zeros"] for r in rows) == [0.0, 0.5, 1.0]


def test_parts_of_one_weight_at_one_place_are_told_apart_by_their_zeros(replica):
    stacked = torch.randn(48, 16) * torch.cat([torch.rand(32, 16) < 0.1, torch.ones(16, 16) > 0])

    def step(x):
        return [x @ part.t() for part in stacked.chunk(3)]

    rows = replica(step, (torch.randn(4, 16),)).rows("mm")
    zeros = sorted(round(r["weight"]["zeros"], 1) for r in rows)
    assert (zeros[0], zeros[-1]) == (0.0, 0.9)


def test_weights_without_a_name_at_one_place_are_told_apart(replica):
    import itertools

    endless = itertools.cycle([mostly_zero(), torch.randn(16, 16)])  # held where no walk finds them
    rows = replica(lambda x: [x @ next(endless) for _ in range(2)], (torch.randn(4, 16),)).rows("mm")
    assert sorted(round(r["weight"]["zeros"], 1) for r in rows) == [0.0, 0.9]


@pytest.mark.parametrize("how", ["embedding", "embedding_bag"])
def test_a_masked_table_is_seen_where_it_is_looked_up(replica, how):
    table, mask = torch.randn(64, 16), torch.rand(64, 16) < 0.2
    look = getattr(F, how)
    r = replica(lambda i: look(i, table * mask), (torch.randint(0, 64, (4, 8)),))
    found = [row["lookup"] for row in r.ask("census", steps=2)["rows"] if row.get("lookup")]
    assert [(w["derived"], round(w["zeros"], 1)) for w in found] == [("aten::mul", 0.8)]


def test_indices_made_from_inputs_make_no_constant(replica):
    vals = torch.ones(16)

    def step(x):
        cols = x[0].argsort()
        adj = torch.sparse_coo_tensor(torch.stack([torch.arange(16), cols]), vals, (16, 16))
        return adj @ x.t()

    r = replica(step, (torch.randn(4, 16),))
    products = [x for x in r.ask("census", steps=2)["rows"] if x["family"] == "product" and x["sparse_at"] == 0]
    assert products
    assert not any(p["weight"]["const"] for p in products)


def test_prune_hooks_and_parametrizations(replica):
    from torch.nn.utils import parametrize, prune

    pruned = nn.Linear(16, 16)
    prune.random_unstructured(pruned, "weight", amount=0.9)

    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", (torch.rand(16, 16) < 0.1).float())

        def forward(self, w):
            return w * self.mask

    masked = nn.Linear(16, 16)
    parametrize.register_parametrization(masked, "weight", Mask())
    got = replica(nn.Sequential(pruned, masked), (torch.randn(4, 16),)).ask("census", steps=2)
    masks = [r for r in got["rows"] if r["op"] == "aten::mul"]
    assert {r["origin"] for r in masks} <= {
        "0.weight_orig",
        "0.weight_mask",
        "1.parametrizations.weight.original",
        "1.parametrizations.weight.0.mask",
    }
    assert len(masks) == 2
    assert all(r["constant"] for r in masks)


def test_quantised_weights_dequantised_in_the_step(replica):
    class Q(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("q", (torch.randn(16, 16) * (torch.rand(16, 16) < 0.1) * 10).to(torch.int8))
            self.register_buffer("scale", torch.tensor(0.1))

        def forward(self, x):
            return x @ (self.q.float() * self.scale)

    (row,) = replica(Q(), (torch.randn(4, 16),)).rows("mm")
    assert row["weight"]["const"]
    assert row["weight"]["name"] == "q"
    assert row["weight"]["derived"] == "aten::_to_copy>aten::mul"
