"""The truth pass: which op's result is wrong, and where the first NaN or Inf comes from."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


def mostly_zero(n=16, m=16, keep=0.1):
    return torch.randn(n, m) * (torch.rand(n, m) < keep)


def doubled():
    """Every entry stored twice, half of it each time."""
    w = mostly_zero().abs().to_sparse()
    return torch.sparse_coo_tensor(
        w.indices().repeat(1, 2), (w.values() / 2).repeat(2), w.shape, check_invariants=False
    )


def test_sound_sparse_ops_are_not_wrong(replica):
    csr, coo = mostly_zero().to_sparse_csr(), mostly_zero().to_sparse()
    r = replica(
        lambda x: (
            csr @ x.t() + coo.coalesce() @ x.t() + coo.to_sparse_csr() @ x.t() + csr.to_sparse_csc().to_dense() @ x.t()
        )
    )
    got = r.ask("truth")
    assert got["wrong"] == []
    assert got["nonfinite"] is None
    assert got["checked"] > 0


def test_duplicates_under_a_nonlinear_op(replica):
    w = doubled()._coalesced_(True)  # as a loader that trusts its file would

    def step(x):
        return w.sqrt() @ x.t()

    got = replica(step).ask("truth")
    assert got["wrong"][0]["op"] == "aten::sqrt"
    assert got["wrong"][0]["layouts"] == ["coo"]
    assert got["wrong"][0]["place"].startswith("test_truth.py:")
    assert got["wrong"][0]["mended"] < 1e-6  # coalesced, the same op is right


def test_an_op_that_is_wrong_on_sound_operands_is_not_mended_by_sorting_them(replica):
    torch.library.define("truth_test::twice_if_sparse", "(Tensor x) -> Tensor")
    torch.library.impl("truth_test::twice_if_sparse", "SparseCsrCPU", lambda x: 2 * x.to_dense())
    torch.library.impl("truth_test::twice_if_sparse", "CPU", lambda x: x.clone())
    w = mostly_zero().to_sparse_csr()
    got = replica(lambda x: torch.ops.truth_test.twice_if_sparse(w) @ x.t()).ask("truth")
    assert got["wrong"][0]["op"] == "truth_test::twice_if_sparse"
    assert got["wrong"][0]["mended"] > 0.5


def test_honest_duplicates_are_summed_first(replica):
    w = doubled()
    assert replica(lambda x: w.sqrt() @ x.t()).ask("truth")["wrong"] == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_op_that_makes_the_first_non_finite_value(replica, bad):
    w = torch.randn(16, 16)

    def step(x):
        y = torch.relu(x @ w)
        y = y / (0.0 if bad == float("inf") else 1.0) if bad == float("inf") else torch.sqrt(-y - 1)
        return y @ w

    got = replica(step).ask("truth")["nonfinite"]
    assert got["op"] == ("aten::div" if bad == float("inf") else "aten::sqrt")
    assert got["inputs_finite"]
    assert got["place"].endswith("step")


def test_a_weight_that_holds_nan_is_told_as_such(replica):
    w = torch.randn(16, 16)
    w[0, 0] = float("nan")
    got = replica(lambda x: x @ w).ask("truth")["nonfinite"]
    assert (got["op"], got["inputs_finite"]) == ("aten::mm", False)


def test_scores_masked_with_minus_infinity_are_meant(replica):
    mask = torch.ones(16, 16).tril().bool()
    added = torch.zeros(16, 16).masked_fill(~mask, float("-inf"))

    def step(x):
        s = torch.where(mask, x.t() @ x, float("-inf")).softmax(-1) + ((x.t() @ x) + added).softmax(-1)
        return s, (x.t() @ x).masked_fill(~mask, float("-inf")).softmax(-1)

    assert replica(step).ask("truth")["nonfinite"] is None


def test_a_row_that_is_masked_whole_is_not_meant(replica):
    def step(x):
        return torch.where(torch.zeros(16, dtype=torch.bool), x, float("-inf")).softmax(-1)

    got = replica(step).ask("truth")["nonfinite"]
    assert got["op"] == "aten::_softmax"


def test_hybrid_and_batched_operands(replica):
    hybrid = torch.sparse_coo_tensor([[0, 2]], torch.randn(2, 16), (16, 16))
    batch = torch.stack([mostly_zero(), mostly_zero()]).to_sparse()
    r = replica(lambda x: (hybrid.to_dense() @ x.t(), torch.bmm(batch, x.t().expand(2, 16, -1))))
    assert r.ask("truth")["wrong"] == []
