"""What interventions keep from step to step: for whom, for how long, and what they leave as they found it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from sparsetui.probes.interventions import arm  # noqa: E402


def mostly_zero(n=16, m=16, keep=0.1, dtype=torch.float32):
    return (torch.randn(n, m) * (torch.rand(n, m) < keep)).to(dtype)


def inputs(dtype=torch.float32):
    return [(torch.randn(n, 16, dtype=dtype),) for n in (4, 7, 1)]


def test_an_unknown_arm_is_named(replica):
    r = replica(lambda x: x + 1)
    with pytest.raises(ValueError, match=r"no such arm: 'on:nothing'.*csr-twin"):
        r.ask("block", count=1, arm="on:nothing")


def test_code_that_views_the_result(replica):
    s = mostly_zero().to_sparse_csc()
    r = replica(lambda x: (x @ s).view(-1), *inputs())
    got = r.ask("check", intervention="swap-sides")
    assert got["equal"]
    assert got["applied"] > 0
    assert got["notes"] == ["transposed results are copied, since the code views them"]


def test_skip_validation(replica):
    s = mostly_zero().to_sparse_csr()
    flag = torch.sparse.check_sparse_tensor_invariants
    assert not flag.is_enabled()

    def step(x):
        return torch.sparse_csr_tensor(s.crow_indices(), s.col_indices(), s.values(), (16, 16)) @ x.t()

    r = replica(step, *inputs())
    flag.enable()
    try:
        got = r.ask("check", intervention="skip-validation")
        assert flag.is_enabled()
    finally:
        flag.disable()
    assert got["applied"] > 0
    assert got["equal"]
    assert replica(step, *inputs()).ask("check", intervention="skip-validation")["equal"]
    assert not flag.is_enabled()


def test_drop_zeros_keeps_integers_and_what_is_not_finite():
    from sparsetui.probes.interventions.drop_zeros import _make

    def csr(v):
        return torch.sparse_csr_tensor(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), v, (2, 2))

    assert _make(csr(torch.tensor([1, 0, 2, 3])), 0).matrix.values().tolist() == [1, 2, 3]
    kept = _make(csr(torch.tensor([1.0, float("nan"), 0.0, 3.0])), 0).matrix
    assert kept.col_indices().tolist() == [0, 1, 1]
    hybrid = torch.sparse_coo_tensor([[0, 1]], torch.tensor([[0.0, 1], [1, 1]]), (2, 2))
    assert _make(hybrid, 0) is None


def test_lists_of_indices_are_told_apart_by_where_they_stand(replica):
    w, idx = torch.randn(16, 16, 16), torch.tensor([3, 1])
    r = replica(lambda x: w[idx, :, idx].sum() * x + w[:, idx, idx].mean() * x.square(), *inputs())
    r.ask("check", intervention="fold-mask")
    assert r.ask("check", intervention="fold-mask")["equal"]


def test_dropout_in_train_mode(replica):
    m = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    w = torch.randn(16, 16)
    r = replica(lambda x: m(x) @ F.dropout(w, 0.5, True), *inputs())
    for ident in ("fold-mask", "csr-twin"):
        got = r.ask("check", intervention=ident)
        assert got["repeats"]
        assert got["equal"]


def test_an_in_place_mask_over_a_weight_that_moves_is_left_alone(replica):
    w, mask, start = torch.randn(16, 16), (torch.rand(16, 16) > 0.5).float(), torch.randn(16, 16)
    w.copy_(start)
    at = {"n": 0}

    def step(x):
        at["n"] += 1
        w.copy_(start).add_(0.25 * x.mean())  # follows the input, so that no two steps leave the same weight
        return x @ w.mul_(mask)

    r = replica(step, *inputs())
    got = r.ask("check", intervention="fold-mask")
    assert got["equal"]
    assert got["applied"] == 0


def test_folded_results_that_no_step_asks_for_are_given_up(replica):
    w, flags = torch.randn(16, 16), {"n": 0}

    def step(x):
        return x @ (w * flags["n"])

    r = replica(step, (torch.randn(4, 16),))
    r.ask("check", intervention="fold-mask")
    live = r.ctx.state["interventions"]["fold-mask"]
    folding = live.on_write[0].__self__
    with arm(r.ctx, "on:fold-mask"), torch.no_grad():
        for n in range(200):
            live.begin()
            flags["n"] = n
            step(torch.randn(4, 16))
    assert len(folding.kept) <= folding.patience + 2


def test_twins_of_a_weight_that_always_changes_are_not_made_for_ever(replica):
    w, mask = mostly_zero(), torch.ones(16, 16)

    def step(x):
        w.mul_(mask)
        return x @ w

    r = replica(step, (torch.randn(4, 16),))
    r.ask("check", intervention="csr-twin")
    live = r.ctx.state["interventions"]["csr-twin"]
    with arm(r.ctx, "on:csr-twin"), torch.no_grad():
        for _ in range(30):
            live.begin()
            step(torch.randn(4, 16))
    assert len(live.on_write[0].__self__.twins) <= 1
    assert live.applied <= 10


@pytest.mark.parametrize("ident", ["fold-mask", "cache-conversion", "cache-dense"])
def test_a_folded_result_used_twice_in_a_step_has_a_graph_for_each_use(replica, ident):
    w, mask = nn.Parameter(torch.randn(16, 16)), (torch.rand(16, 16) < 0.5).float()

    def step(x):
        w.grad = None
        a = w * mask
        b = w * mask
        assert a is not b
        (a.sum() * b.square().sum() + (x @ (w * mask)).sum()).backward()
        return w.grad.clone(), a.grad_fn is not None

    r = replica(step, *inputs())
    for _ in range(2):
        got = r.ask("check", intervention=ident)
        assert got["equal"]
        assert got["repeats"]


def test_the_control_arm_keeps_nothing_alive_that_the_plain_step_frees(replica):
    """Else its buffers lie side by side in memory, out of the caches, and it is slower for that alone."""
    from sparsetui.probes.interventions import fold_mask

    w, mask = mostly_zero(), torch.ones(16, 16)
    r = replica(lambda x: x @ (((w * mask).abs() + 1) * mask).sqrt())
    live = fold_mask._prepare(r.ctx)
    folding = live.each_step[0].__self__
    for _ in range(3):
        live.begin()
        with live.arm(False):
            r.ctx.fn(*r.ctx.inputs[0])
    kept = {tensor.untyped_storage()._cdata for k in folding.kept.values() for tensor in [k.out]}
    assert folding.steps == 3
    assert len(folding.ids) >= 5
    assert set(folding.sigs) <= kept, "what the plain step frees is freed, and forgotten with its storage"


def test_a_storage_at_the_address_of_a_freed_one_is_not_taken_for_it(replica):
    """The plain step's buffers come and go; the next one at the same address holds something else."""
    w, mask = mostly_zero(), (torch.arange(256).reshape(16, 16) % 3 == 0).float()

    def step(x):
        made = w * mask
        out = x @ made
        del made
        return out @ (x.t() @ x)[:16, :16]

    r = replica(step, *[(torch.randn(16, 16),) for _ in range(6)])
    for _ in range(3):
        got = r.ask("check", intervention="fold-mask", count=6)
        assert got["equal"], got
        assert got["applied"]
