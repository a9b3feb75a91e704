"""The profile pass: what a product hides, counted once, and what its indices cost."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def mostly_zero(n=16, m=16, keep=0.2):
    return torch.randn(n, m) * (torch.rand(n, m) < keep)


def test_a_hidden_conversion_is_counted_once_a_product(replica):
    s = mostly_zero().to_sparse_csc()
    got = replica(lambda x: s @ x.t(), (torch.randn(4, 16),)).ask("profile", steps=3)
    assert got["steps"] == 3
    hidden = {h["op"]: h for h in got["hidden"]}
    assert hidden
    assert {h["calls"] for h in hidden.values()} == {3}
    assert sum(h["total_ms"] for h in hidden.values()) <= got["wall_ms"] * 3


def test_an_open_conversion_is_not_hidden(replica):
    w = mostly_zero()
    got = replica(lambda x: w.to_sparse_csr() @ x.t(), (torch.randn(4, 16),)).ask("profile", steps=2)
    assert not [h for h in got["hidden"] if "to_sparse" in h["op"]]
    assert [r["calls"] for r in got["rows"] if r["op"] == "aten::to_sparse_csr"] == [2]


def test_wide_indices_are_copied_in_each_product(replica):
    from sparsetui.probes import tensors

    wide = mostly_zero().to_sparse_csr()
    nnz = wide._nnz()
    got = replica(lambda x: wide @ x.t(), (torch.randn(4, 16),)).ask("profile", steps=4)
    copies = {tuple(c["shape"]): c["calls"] for c in got["copies_in_products"]}
    narrow = tensors.with_index(wide, torch.int32)
    after = replica(lambda x: narrow @ x.t(), (torch.randn(4, 16),)).ask("profile", steps=4)
    fewer = {tuple(c["shape"]): c["calls"] for c in after["copies_in_products"]}
    assert copies.get((nnz,), 0) == 4
    assert fewer.get((nnz,), 0) == 0


def test_backward_is_told_apart(replica):
    w = torch.nn.Parameter(torch.randn(16, 16))

    def step(x):
        w.grad = None
        (x @ w).sum().backward()

    got = replica(step, (torch.randn(4, 16),)).ask("profile", steps=2)
    products = {(r["op"], r["backward"]): r["calls"] for r in got["rows"] if r["op"] == "aten::mm"}
    assert products == {("aten::mm", False): 2, ("aten::mm", True): 2}


def test_hidden_work_of_backward_is_marked(replica):
    s = mostly_zero().to_sparse_csr()
    x0 = torch.nn.Parameter(torch.randn(16, 4))

    def step(x):
        x0.grad = None
        (s @ x0).sum().backward()
        return x0.grad

    got = replica(step, (torch.randn(4, 16),)).ask("profile", steps=2)
    assert all(isinstance(h["backward"], bool) for h in got["hidden"])


def test_self_times_add_up(replica):
    w = torch.randn(64, 64)
    got = replica(lambda x: torch.relu(x @ w) @ w, (torch.randn(64, 64),)).ask("profile", steps=3)
    assert sum(r["self_ms"] for r in got["rows"]) <= got["wall_ms"] * 3 * 1.05
    assert got["in_ops_ms"] <= got["wall_ms"]


def test_a_users_own_range_with_colons_is_no_op(replica):
    w = torch.randn(16, 16)

    def step(x):
        with torch.profiler.record_function("ranker::score"):
            return x @ w

    got = replica(step, (torch.randn(4, 16),)).ask("profile", steps=2)
    (mm,) = [r for r in got["rows"] if r["op"] == "aten::mm"]
    assert mm["within"] in ("", "aten::matmul")
    assert not [r for r in got["rows"] if r["op"] == "ranker::score"]
