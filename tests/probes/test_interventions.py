"""Each intervention: where it applies, that it changes no result, and that nothing of it stays."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from sparsetui.probes import outputs  # noqa: E402
from sparsetui.probes.interventions import arm, registry  # noqa: E402

SETTINGS = {"one-thread", "right-threads", "skip-validation"}
REWRITES = sorted(set(registry()) - SETTINGS - {"larger-calls"})  # that one is another way of calling the step


def mostly_zero(n=16, m=16, keep=0.1, dtype=torch.float32):
    return (torch.randn(n, m) * (torch.rand(n, m) < keep)).to(dtype)


def with_stored_zeros(w):
    full = torch.full_like(w, 1.0).to_sparse_csr()
    return torch.sparse_csr_tensor(full.crow_indices(), full.col_indices(), w.reshape(-1), w.shape)


def stored_twice(w):
    s = w.to_sparse()
    return torch.sparse_coo_tensor(
        torch.cat([s.indices(), s.indices()], 1), torch.cat([s.values(), s.values()]), w.shape
    )


def masked(w):
    mask = (torch.rand_like(w) < 0.1).to(w.dtype)
    return lambda x: x @ (w * mask)


def batched(w):
    b = torch.stack([w, 2 * w]).to_sparse()
    return lambda x: torch.bmm(b, torch.stack([x.t(), x.t()]))


# id -> the code that holds its mechanism, from a weight; each in the forms that people write
def unpacked_into_zeros(w):
    bits, values = w != 0, w[w != 0]

    def step(x):
        made = torch.zeros(16, 16, dtype=w.dtype)
        made[bits] = values
        return x @ made.mul_(1.5)

    return step


def half_with_a_way_out(w):
    narrow = w.to(torch.bfloat16).to_sparse_csr()

    def step(x):
        x = x.t().to(torch.bfloat16)
        try:
            return narrow @ x
        except RuntimeError:
            return narrow.to_dense() @ x

    return step


def in_blocks(w):
    """The weight with its zeros in whole blocks, as CSR with int32 indices."""
    kept = torch.eye(4, dtype=w.dtype)
    kept[0, 2] = 1
    s = ((w + 1) * torch.kron(kept, torch.ones(4, 4, dtype=w.dtype))).to_sparse_csr()
    return torch.sparse_csr_tensor(s.crow_indices().int(), s.col_indices().int(), s.values(), s.shape)


def recurrent(make):
    """A layer that holds the weight as its input matrix."""

    def built(w):
        layer = make().to(w.dtype)
        with torch.no_grad():
            next(layer.parameters()).copy_(w)
        layer.requires_grad_(False)
        return lambda x: torch.cat([t.reshape(-1) for t in layer(x)[:1]])

    return built


def attention(w):
    def step(x):
        hidden = torch.ones(x.shape[0], x.shape[0]).triu(1).bool()
        return ((x @ w) @ x.t()).masked_fill(hidden, float("-inf")).softmax(-1) @ x

    return step


def attention_by_hand(w):
    def step(x):
        e = torch.exp(x @ w @ x.t() / 16).tril_()
        return (e / e.sum(1, keepdim=True)) @ (x @ w)

    return step


PRESENT = {
    "balance-rows": [
        lambda w: (lambda s: lambda x: s @ x.t())(w.to_sparse_csr()),
        lambda w: (lambda s: lambda x: F.linear(x, s))(w.to_sparse_csr()),
        lambda w: (lambda s: lambda x: torch.mv(s, x[0]))(w.to_sparse_csr()),
        lambda w: (lambda s: lambda x: s @ x.t().contiguous())(w.to_sparse_bsr((4, 4))),
        lambda w: (lambda s: lambda x: torch.mv(s, x[0]))(w.to_sparse_bsr((2, 2))),
    ],
    "cache-conversion": [
        lambda w: lambda x: w.to_sparse_csr() @ x.t(),
        lambda w: (lambda s: lambda x: s @ x.t())(w.to_sparse_csc()),
        lambda w: (lambda s: lambda x: s.coalesce() @ x.t())(stored_twice(w)),
        lambda w: (lambda s: lambda x: s @ x.t())(stored_twice(w)),
    ],
    "cache-dense": [lambda w: (lambda s: lambda x: x @ s.to_dense())(w.to_sparse_csr())],
    "coo-to-csr": [
        lambda w: (lambda s: lambda x: s @ x.t())(w.to_sparse()),
        lambda w: (lambda s: lambda x: torch.sparse.mm(s, x.t()))(w.to_sparse()),
        batched,
    ],
    "csr-twin": [
        lambda w: lambda x: x @ w,
        lambda w: lambda x: w @ x.t(),
        lambda w: lambda x: F.linear(x, w),
        lambda w: lambda x: torch.mv(w, x[0]),
        lambda w: lambda x: torch.bmm(x.expand(3, -1, -1), w.expand(3, -1, -1)),
        lambda w: lambda x: torch.bmm(w[None], x.t()[None]),
        lambda w: lambda x: torch.bmm(w.expand(2, -1, -1), torch.stack([x.t(), 2 * x.t()])),
        lambda w: (lambda s: lambda x: torch.bmm(x.expand(2, -1, -1), s))(torch.stack([w, 2 * w.t()])),
        lambda w: (lambda s: lambda x: torch.bmm(s, x.t().expand(2, -1, -1)))(torch.stack([w, 2 * w.t()])),
    ],
    "dense-twin": [
        lambda w: (lambda s: lambda x: s @ x.t())(w.to_sparse_csr()),
        lambda w: (lambda s: lambda x: x @ s)(w.to_sparse_csc()),
        batched,
    ],
    "drop-zeros": [lambda w: (lambda s: lambda x: s @ x.t())(with_stored_zeros(w))],
    "family-twin": [
        lambda w: lambda x: F.conv1d(x[:, None], w[:, None], torch.ones_like(w[0]), padding=3, stride=2),
        lambda w: lambda x: F.conv2d(x[:, :, None, None], w[:, :, None, None]),
        lambda w: (lambda s: lambda x: torch.bmm(x.expand(2, -1, -1), s))(torch.stack([w, 2 * w.t()])),
        recurrent(lambda: nn.LSTM(16, 4)),
        recurrent(lambda: nn.RNN(16, 16)),
    ],
    "fold-mask": [
        masked,
        lambda w: lambda x: x @ torch.where(w.abs() > 1, w, 0.0),
        lambda w: lambda x: x @ (w.double() * 2).to(w.dtype),
        lambda w: (lambda m: lambda x: x @ torch.where(m, w, 0.0))(w != 0),
        unpacked_into_zeros,
        lambda w: (lambda m: lambda x: x @ w.mul_(m))((w != 0).to(w.dtype)),
        lambda w: (lambda m: lambda x: x @ w.masked_fill_(m, 0.0))(w == 0),
        lambda w: (lambda held: lambda x: x @ held.copy_(w * (w.abs() > 1)))(torch.zeros_like(w)),
    ],
    "fuse-attention": [attention, attention_by_hand],
    "narrow-index": [lambda w: (lambda s: lambda x: s @ x.t())(w.to_sparse_csr())],
    "supported-dtype": [half_with_a_way_out],
    "swap-sides": [
        lambda w: (lambda s: lambda x: x @ s)(w.to_sparse_csc()),
        lambda w: (lambda s: lambda x: F.linear(x, s))(w.to_sparse_csr()),
    ],
    "to-blocks": [
        lambda w: (lambda s: lambda x: s @ x.t())(in_blocks(w)),
        lambda w: (lambda s: lambda x: torch.mv(s, x[0]))(in_blocks(w)),
        lambda w: (lambda s: lambda x: F.linear(x, s))(in_blocks(w)),
    ],
    "unblock": [lambda w: (lambda s: lambda x: s @ x.t())(w.to_sparse_bsr((4, 4)))],
}


def test_every_rewrite_has_a_case():
    assert sorted(PRESENT) == REWRITES


def inputs(dtype=torch.float32):
    return [(torch.randn(n, 16, dtype=dtype),) for n in (4, 7, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("ident", "form"), [(i, n) for i, forms in sorted(PRESENT.items()) for n in range(len(forms))])
def test_applies_and_is_equal_on_several_batch_sizes(replica, ident, form, dtype):
    step = PRESENT[ident][form](mostly_zero(dtype=dtype))
    r = replica(step, *inputs(dtype))
    before = outputs.run_outputs(r.ctx, 3)
    got = r.ask("check", intervention=ident)
    assert got["applied"] > 0
    assert got["equal"]
    assert got["repeats"]
    assert got["error"] <= got["tolerance"]
    assert got["where"]
    with arm(r.ctx, "control:" + ident) as live:
        count = live.applied
        assert same(outputs.run_outputs(r.ctx, 3, live.begin), before), "the control arm must equal off to the bit"
        assert live.applied == count
    assert same(outputs.run_outputs(r.ctx, 3), before), "a plain step after the arms"


def same(a, b):
    return all(torch.equal(s, t) for x, y in zip(a, b, strict=True) for s, t in zip(x, y, strict=True))


# what shares no mechanism with an intervention must be left alone by it
@pytest.mark.parametrize("ident", [i for i in REWRITES if i not in ("csr-twin",)])
def test_a_dense_step_is_left_alone(replica, ident):
    w = torch.randn(16, 16)
    got = replica(lambda x: torch.relu(x @ w + 1)).ask("check", intervention=ident)
    assert (got["applied"], got["equal"], got["error"]) == (0, True, 0.0)


def test_a_dense_weight_gets_no_csr_twin(replica):
    w = torch.randn(16, 16)
    assert replica(lambda x: x @ w).ask("check", intervention="csr-twin")["applied"] == 0


@pytest.mark.parametrize(
    "ident", ["narrow-index", "swap-sides", "drop-zeros", "unblock", "coo-to-csr", "cache-conversion", "to-blocks"]
)
def test_a_sound_csr_product_is_left_alone(replica, ident):
    from sparsetui.probes import tensors

    s = tensors.compressed(mostly_zero(), "csr")
    got = replica(lambda x: s @ x.t()).ask("check", intervention=ident)
    assert (got["applied"], got["equal"], got["error"]) == (0, True, 0.0)


@pytest.mark.parametrize("ident", ["csr-twin", "swap-sides", "coo-to-csr", "dense-twin", "balance-rows"])
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0.5, 2), (1, -3)])
def test_bias_alpha_beta(replica, ident, beta, alpha):
    w = mostly_zero()
    make = {
        "csr-twin": lambda: w,
        "swap-sides": lambda: None,
        "coo-to-csr": w.to_sparse,
        "dense-twin": w.to_sparse_csr,
        "balance-rows": w.to_sparse_csr,
    }[ident]
    s, csc = make(), w.to_sparse_csc()
    bias = torch.randn(16, 1)
    if ident == "swap-sides":
        r = replica(
            lambda x: torch.addmm(bias.t().expand(x.shape[0], 16).clone(), x, csc, beta=beta, alpha=alpha), *inputs()
        )
    else:
        r = replica(
            lambda x: torch.addmm(bias.expand(16, x.shape[0]).clone(), s, x.t(), beta=beta, alpha=alpha), *inputs()
        )
    got = r.ask("check", intervention=ident)
    assert got["applied"] > 0
    assert got["equal"]


def test_addmv(replica):
    w, b = mostly_zero(), torch.randn(16)
    got = replica(lambda x: torch.addmv(b, w, x[0], beta=0.5, alpha=2), *inputs()).ask("check", intervention="csr-twin")
    assert got["applied"] > 0
    assert got["equal"]


@pytest.mark.parametrize("ident", REWRITES)
def test_slices_of_one_stacked_weight_are_told_apart(replica, ident):
    experts = torch.stack([mostly_zero() for _ in range(3)])
    masks = (torch.rand(3, 16, 16) < 0.5).float()
    r = replica(lambda x: sum(x @ experts[i] + x @ (experts[i] * masks[i]) for i in range(3)), *inputs())
    got = r.ask("check", intervention=ident)
    assert got["equal"]
    if ident in ("csr-twin", "fold-mask"):
        assert got["applied"] > 0


@pytest.mark.parametrize("ident", REWRITES)
def test_matrices_over_one_vector_of_values_are_told_apart(replica, ident):
    ones = torch.ones(16)
    a, b = (torch.sparse_coo_tensor(torch.stack([torch.randperm(16), torch.arange(16)]), ones, (16, 16)) for _ in "ab")
    r = replica(lambda x: a @ x.t() + b @ x.t() + a.to_sparse_csr() @ x.t() - b.to_sparse_csr() @ x.t(), *inputs())
    assert r.ask("check", intervention=ident)["equal"]


@pytest.mark.parametrize("ident", REWRITES)
def test_a_result_that_the_step_writes_into_is_not_served_again(replica, ident):
    w, mask = mostly_zero(), (torch.rand(16, 16) < 0.5).float()
    s = w.to_sparse_csr()

    def step(x):
        m = w * mask
        m.add_(x.mean())
        d = s.to_dense()
        d += 1
        return x @ m + x @ d

    r = replica(step, *inputs())
    r.ask("check", intervention=ident)
    assert r.ask("check", intervention=ident)["equal"]


@pytest.mark.parametrize("ident", REWRITES)
def test_inference_mode_keeps_no_versions_and_is_followed_all_the_same(replica, ident):
    w, mask = mostly_zero(), (torch.rand(16, 16) < 0.5).float()

    def step(x):
        with torch.inference_mode():
            m = w * mask
            m.mul_(x.mean())
            return x @ m

    r = replica(step, *inputs())
    r.ask("check", intervention=ident)
    assert r.ask("check", intervention=ident)["equal"]


@pytest.mark.parametrize("ident", REWRITES)
@pytest.mark.parametrize("how", ["in place", "data", "swapped", "out"])
def test_weights_that_change_from_step_to_step_are_not_served_stale(replica, ident, how):
    """The weight's value follows the step's count, which starts over for each pass."""
    base = mostly_zero()
    holder = {"w": base.clone(), "mask": (torch.rand(16, 16) < 0.5).float()}

    def step(k, x):
        w = holder["w"]
        new = base * (1 + float(k))
        if how == "in place":
            w.copy_(new)
        elif how == "data":
            w.data.copy_(new)
        elif how == "out":
            torch.mul(base, 1 + float(k), out=w)
        else:
            holder["w"] = new
        w = holder["w"]
        return (
            x @ (w * holder["mask"])
            + x @ w
            + w.to_sparse_csr() @ x.t().sum(1, keepdim=True)
            + x @ w.to_sparse_csc().to_dense()
        )

    r = replica(step, *[(k, torch.randn(1, 16)) for k in range(4)])
    for _ in range(3):
        assert r.ask("check", intervention=ident)["equal"]


@pytest.mark.parametrize("ident", REWRITES)
def test_a_weight_changed_between_steps_from_outside(replica, ident):
    w, mask = mostly_zero(), (torch.rand(16, 16) < 0.5).float()
    r = replica(lambda x: x @ (w * mask) + x @ w + w.to_sparse_csr() @ x[:1].t(), (torch.randn(1, 16),))
    r.ask("check", intervention=ident)
    w.mul_(3)
    want = outputs.run_outputs(r.ctx, 1)[0][0]
    with arm(r.ctx, "on:" + ident) as live:
        got = outputs.run_outputs(r.ctx, 1, live.begin)[0][0]
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("ident", REWRITES)
def test_gradients_are_not_corrupted(replica, ident):
    w = nn.Parameter(torch.randn(16, 16))
    frozen, mask, sparse = mostly_zero(), (torch.rand(16, 16) < 0.5).float(), mostly_zero().to_sparse_csr()
    csc, coo = sparse.to_sparse_csc(), sparse.to_sparse()

    def step(x):
        w.grad = None
        y = x @ (w * mask) + x @ (frozen * mask) + (sparse @ (x @ w).t()).t() + x @ frozen + (coo @ (x @ w).t()).t()
        y = y + (x @ w) @ sparse.to_dense() + torch.stack(torch.unbind(frozen * mask)).sum() * w.sum()
        y = y + (x @ w) @ csc
        y.square().mean().backward()
        return w.grad.clone(), y

    r = replica(step, *inputs())
    for _ in range(3):
        got = r.ask("check", intervention=ident)
        assert got["repeats"]
        assert got["equal"]


@pytest.mark.parametrize("ident", REWRITES)
def test_a_trained_weight_is_followed(replica, ident):
    """Two trainings from one start, one of them under the intervention, reach the same weights."""

    def train(wrap):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        mask = (torch.rand(16, 16) < 0.1).float()
        with torch.no_grad():
            m[0].weight.mul_(mask)
        opt = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, foreach=True)

        def step(x):
            opt.zero_grad()
            F.linear(m[1](x), m[0].weight * mask).square().mean().backward()
            opt.step()
            return m[0].weight.detach().clone()

        r = replica(step, (torch.randn(4, 16),))
        r.ask("census", steps=2)
        return wrap(r)

    def plain(r):
        return outputs.run_outputs(r.ctx, 6)[-1][0]

    def arms(r):
        with arm(r.ctx, "on:" + ident) as live:
            return outputs.run_outputs(r.ctx, 6, live.begin)[-1][0]

    torch.testing.assert_close(train(arms), train(plain))


@pytest.mark.parametrize("ident", sorted(registry()))
@pytest.mark.parametrize("side", ["on", "control"])
def test_an_exception_in_the_step_leaves_nothing(replica, ident, side):
    w = mostly_zero()
    calls = []

    def step(x):
        calls.append(1)
        if x.shape[0] == 7:
            raise ValueError("the user's own")
        return x @ w

    r = replica(step, *inputs())
    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="the user's own"):
        r.ask("block", count=3, arm=f"{side}:{ident}")  # the fixture looks at the modes
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("ident", sorted(registry()))
def test_arms_run_blocks_in_order(replica, ident):
    w = mostly_zero()
    got = replica(lambda x: x @ w, *inputs()).ask("arms", arms=["control:" + ident, "on:" + ident, "off"], count=2)
    assert [b["arm"] for b in got["blocks"]] == ["control:" + ident, "on:" + ident, "off"]
    assert all(len(b["times_ms"]) == 2 for b in got["blocks"])


@pytest.mark.parametrize("values", [torch.int32, torch.complex64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ident", REWRITES)
def test_other_dtypes_end_no_arm(replica, ident, values):
    w = (mostly_zero() * 4).to(values)
    s, coo = w.to_sparse_csr(), w.to_sparse()
    r = replica(lambda x: (s.to_dense() + coo.to_dense()).to(torch.complex64).abs() @ x.t(), *inputs())
    assert r.ask("check", intervention=ident)["equal"]


@pytest.mark.parametrize(
    "draw",
    [
        torch._standard_gamma,
        torch._sample_dirichlet,
        lambda w: torch.binomial(w.floor(), torch.full_like(w, 0.5)),
        lambda w: w.clone().geometric_(0.3),
        lambda w: w.clone().cauchy_(),
    ],
    ids=["gamma", "dirichlet", "binomial", "geometric", "cauchy"],
)
@pytest.mark.parametrize("ident", ["fold-mask", "cache-conversion", "cache-dense"])
def test_what_is_drawn_from_constants_is_drawn_on_each_step(replica, ident, draw):
    w = (torch.rand(16, 16) < 0.1).float() * 3 + 1
    mask = (torch.rand(16, 16) < 0.1).float()
    r = replica(lambda x: x @ (draw(w) * mask).to_sparse().to_dense(), *[(torch.randn(3, 16),) for _ in range(4)])
    got = r.ask("check", intervention=ident)
    assert (got["equal"], got["error"]) == (True, 0.0)
