"""The dtype alone: what rounding to it does to answers, and that it touches nothing else."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_rounding_moves_answers_by_what_the_dtype_holds(replica):
    w = torch.randn(64, 64)
    step = lambda x: x @ w  # noqa: E731
    x = (torch.randn(4, 64),)
    half, brain = (replica(step, x).ask("rounding", dtype=d)["moved"] for d in ("float16", "bfloat16"))
    assert 1e-5 < half < 1e-3 < brain < 2e-2  # 11 and 8 bits of significand
    native = ((x[0].bfloat16() @ w.bfloat16()).float() - x[0] @ w).norm() / (x[0] @ w).norm()
    assert brain == pytest.approx(float(native), rel=0.5)
    assert replica(step, x).ask("rounding", dtype="float32")["moved"] == 0.0


def test_sparse_weights_and_a_small_difference_of_large_sums(replica):
    a = torch.randn(64, 64).relu()
    b = (a + 0.001 * torch.randn(64, 64) * (a > 0)).to_sparse_csr()
    a = a.to_sparse_csr()
    got = replica(lambda x: a @ x.t() - b @ x.t(), (torch.randn(4, 64),)).ask("rounding", dtype="bfloat16")
    assert got["moved"] > 0.5


@pytest.mark.parametrize("dtype", ["", "int8", "no_such"])
def test_what_is_no_floating_dtype_is_not_rounded_to(replica, dtype):
    assert replica(lambda x: x).ask("rounding", dtype=dtype)["moved"] is None


def test_a_step_that_writes_in_place_is_rounded_where_it_computes(replica):
    held = torch.zeros(4, 64)

    def step(x):
        held.copy_(x * 3)
        return held + 1

    assert 0 < replica(step, (torch.randn(4, 64),)).ask("rounding", dtype="bfloat16")["moved"] < 0.02
