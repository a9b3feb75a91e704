"""What the census makes of a step: owners, places, layouts, sides, constants and where they come from."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


def mostly_zero(n=16, m=16, keep=0.1):
    return torch.randn(n, m) * (torch.rand(n, m) < keep)


@pytest.mark.parametrize(
    ("form", "side", "path"),
    [
        (lambda w: lambda x: w.to_sparse_csr() @ x.t(), 0, "sparse-csr"),
        (lambda w: lambda x: w.to_sparse_csc() @ x.t(), 0, "sparse-csc"),
        (lambda w: lambda x: w.to_sparse() @ x.t(), 0, "sparse-coo"),
        (lambda w: lambda x: w.to_sparse_bsr((4, 4)) @ x.t(), 0, "sparse-bsr"),
        (lambda w: lambda x: x @ w.to_sparse_csc(), 1, "sparse-csr-rhs"),
        (lambda w: lambda x: F.linear(x, w.to_sparse_csr()), 1, "sparse-csr-rhs"),
        (lambda w: lambda x: torch.sparse.mm(w.to_sparse_csr(), x.t()), 0, "sparse-csr"),
        (lambda w: lambda x: torch.mv(w.to_sparse_csr(), x[0]), 0, "sparse-csr"),
        (lambda w: lambda x: x @ w, None, "dense"),
        (lambda w: lambda x: torch.addmm(torch.ones(16), x, w), None, "dense"),
        (lambda w: lambda x: torch.bmm(w.expand(2, 16, 16), x.t().expand(2, 16, -1)), None, "dense"),
    ],
    ids=["csr@", "csc@", "coo@", "bsr@", "@csc", "linear", "sparse.mm", "mv", "dense", "addmm", "bmm"],
)
def test_path_and_sparse_side(replica, form, side, path):
    rows = [r for r in replica(form(mostly_zero())).ask("census", steps=2)["rows"] if r["family"] == "product"]
    assert {(r["sparse_at"], r["path"]) for r in rows if r["weight"]} == {(side, path)}


@pytest.mark.parametrize("shape", [(4, 16), (2, 3, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_of_any_rank(replica, shape, bias):
    m = nn.Linear(16, 8, bias=bias)
    m.weight.data.mul_(torch.rand(8, 16) < 0.1)
    r = replica(nn.Sequential(m), (torch.randn(shape),))
    (row,) = [r for r in r.ask("census", steps=3)["rows"] if r["family"] == "product"]
    assert (row["module"], row["weight"]["name"], row["calls"]) == ("0", "0.weight", 3)
    assert row["weight"]["zeros"] == pytest.approx(float((m.weight == 0).float().mean()))
    assert row["weight"]["eligible"]


def test_module_and_place(replica):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x):
            return torch.relu(self.inner(x))

    net = nn.Sequential(Block(), Block())
    one = (torch.randn(4, 16),)
    rows = replica(net, one).rows("relu")
    assert sorted(r["module"] for r in rows) == ["0", "1"]
    assert all(r["place"].startswith("test_census.py:") and r["place"].endswith("forward") for r in rows)
    assert sorted(r["module"] for r in replica(net, one).rows("addmm")) == ["0.inner", "1.inner"]
    assert (
        sorted(r["module"] for r in replica(net).rows("addmm")) == ["0.inner"] * 2 + ["1.inner"] * 2
    )  # two batch sizes


def test_a_module_reached_twice_is_one_owner(replica):
    one = nn.Linear(16, 16)
    (row,) = replica(nn.Sequential(one, one), (torch.randn(4, 16),)).rows("addmm")
    assert (row["module"], row["calls"]) == ("0", 6)


def test_owners_survive_a_forward_that_raises(replica):
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no kernel")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Broken(), nn.Linear(16, 16)

        def forward(self, x):
            try:
                return self.a(x)
            except RuntimeError:
                return self.b(x).relu()

    r = replica(Net(), (torch.randn(4, 16),))
    assert [(x["module"]) for x in r.rows("relu")] == ["Net"]


def test_a_mask_computed_in_the_step_is_constant_work(replica):
    w, mask = torch.randn(16, 16), (torch.rand(16, 16) < 0.1).float()
    (row,) = replica(lambda x: x @ (w * mask), (torch.randn(4, 16),)).rows("mul")
    assert row["constant"]
    assert row["origin"] in ("w", "mask")
    (row,) = replica(lambda x: x @ (w * mask), (torch.randn(4, 16),)).rows("mm")
    assert row["weight_at"] == 1
    assert row["weight"]["derived"] == "aten::mul"
    assert row["weight"]["eligible"]


def test_a_pointwise_convolution_is_judged_by_the_matrix_that_it_is(replica):
    conv = torch.nn.Conv2d(32, 16, 1, bias=False).eval()
    with torch.no_grad():
        conv.weight.mul_(torch.rand(16, 32, 1, 1) < 0.1)
    (row,) = replica(conv, (torch.randn(2, 32, 5, 5),)).rows("convolution")
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


@pytest.mark.parametrize(
    ("mask", "hides"),
    [
        (torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1) > 0, float("-inf")), True),
        (torch.full((6, 6), -1e9).tril(-1), True),
        (torch.randn(6, 6), False),
        (torch.ones(6, 6) > 0, True),
    ],
)
def test_a_mask_is_told_from_a_bias(replica, mask, hides):
    r = replica(lambda x: torch.where(mask, x, 0) if mask.dtype == torch.bool else x + mask, (torch.randn(2, 6, 6),))
    row = r.rows("where" if mask.dtype == torch.bool else "add")[0]
    assert row["hides"] is hides


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


def test_sparse_inputs(replica):
    adj = mostly_zero().to_sparse_csr()
    w = torch.randn(16, 16)
    r = replica(lambda a, x: (a @ x) @ w, (adj, torch.randn(16, 16)))
    rows = [x for x in r.rows("mm") if x["sparse_at"] == 0] + [x for x in r.rows("addmm") if x["sparse_at"] == 0]
    assert rows
    assert not any(x["weight"]["const"] for x in rows)


def test_a_failed_op_that_the_code_catches(replica):
    w = mostly_zero().to_sparse_csr()

    def step(x):
        try:
            return torch.bmm(w, x)
        except RuntimeError:
            return w.to_dense() @ x.t()

    got = replica(step).ask("census", steps=3)
    (fail,) = [f for f in got["failed"] if f["counted"]]
    assert (fail["op"], fail["counted"]) == ("aten::bmm", 3)
    assert fail["place"].startswith("test_census.py:")
    assert fail["error"]
    assert [r["constant"] for r in got["rows"] if r["family"] == "densify"] == [True]


def test_calls_a_step_do_not_depend_on_steps(replica):
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    for steps in (1, 2, 5):
        got = replica(net, (torch.randn(4, 16),)).ask("census", steps=steps)
        assert got["steps"] == steps
        assert got["calls"] % steps == 0
        assert {r["calls"] / steps for r in got["rows"] if r["family"] == "product"} == {1.0}


def test_rows_are_bounded(replica, monkeypatch):
    from sparsetui.probes import census

    monkeypatch.setattr(census, "_MAX_ROWS", 5)
    got = replica(lambda x: sum((x[:, :i] * 2).sum() for i in range(1, 16))).ask("census", steps=2)
    assert len(got["rows"]) == 5
    assert got["dropped"] > 0
    assert got["calls"] == got["dropped"] + sum(r["calls"] for r in got["rows"])


def test_repeated_calls_add_no_rows(replica):
    w = torch.randn(16, 16)

    def step(x):
        for _ in range(50):
            x = torch.relu(x @ w)
        return x

    got = replica(step, (torch.randn(4, 16),)).ask("census", steps=2)
    assert len(got["rows"]) <= 4
    assert got["calls"] == 200


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


@pytest.mark.parametrize("kind", ["lstm", "conv"])
def test_other_families_beside_a_linear(replica, kind):
    if kind == "lstm":
        part, x = nn.LSTM(16, 8, batch_first=True), torch.randn(2, 5, 16)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.part, self.head = part, nn.Linear(8, 2)

            def forward(self, x):
                return self.head(self.part(x)[0])
    else:
        part, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.part, self.head = part, nn.Linear(4, 2)

            def forward(self, x):
                return self.head(self.part(x).mean((2, 3)))

    rows = replica(Net(), (x,)).ask("census", steps=2)["rows"]
    by = {r["module"]: r["family"] for r in rows if r["family"] in ("product", "conv", "recurrent")}
    assert by["head"] == "product"
    if kind == "conv":
        assert by["part"] == "conv"
    weights = {r["weight"]["name"].split(".")[0] for r in rows if r["weight"]}
    assert weights == {"part", "head"}


@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript(replica, how):
    m = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    t = torch.jit.script(m) if how == "script" else torch.jit.trace(m, torch.randn(4, 16))
    r = replica(t)
    names = {x["weight"]["name"] for x in r.ask("census", steps=3)["rows"] if x["weight"]}
    assert names == {"0.weight", "2.weight"}
    assert {x["name"] for x in r.ask("inventory")["tensors"]} >= {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_an_attention_layer_on_its_fast_path_shows_its_products(replica):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        layer.linear1.weight.mul_(torch.rand(32, 16) < 0.1)
    before = torch.backends.mha.get_fastpath_enabled()
    rows = replica(layer, (torch.randn(2, 5, 16),)).ask("census", steps=2)["rows"]
    assert "linear1.weight" in {row["weight"]["name"] for row in rows if row.get("weight")}
    assert torch.backends.mha.get_fastpath_enabled() is before
