"""What the census makes of a step: owners, places, layouts, sides, and rows that stay few."""

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


def test_a_pointwise_convolution_is_judged_by_the_matrix_that_it_is(replica):
    conv = torch.nn.Conv2d(32, 16, 1, bias=False).eval()
    with torch.no_grad():
        conv.weight.mul_(torch.rand(16, 32, 1, 1) < 0.1)
    (row,) = replica(conv, (torch.randn(2, 32, 5, 5),)).rows("convolution")
    assert row["weight"]["eligible"]


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
