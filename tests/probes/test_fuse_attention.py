"""Masked attention in one op: what it stands for, what is not run then, and where the step stays as it is."""

from __future__ import annotations

import ctypes
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sparsetui.probes import outputs  # noqa: E402
from sparsetui.probes.interventions import arm  # noqa: E402

IDENT = "fuse-attention"
S = 24
SEEN = torch.ones(S, S).tril().bool()
HIDDEN = ~SEEN
INF = float("-inf")


class Ran(TorchDispatchMode):
    """Counts the ops that reach it: entered before an arm, those that the arm lets through."""

    def __init__(self):
        super().__init__()
        self.ops = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def ran(r, side, i=0):
    """The ops of one step under an arm."""
    with Ran() as seen, torch.no_grad():
        if side == "off":
            r.ctx.fn(*r.ctx.inputs[i])
        else:
            with arm(r.ctx, f"{side}:{IDENT}") as live:
                live.begin()
                r.ctx.fn(*r.ctx.inputs[i])
    return seen.ops


def live(r):
    return r.ctx.state["interventions"][IDENT]


def qkv(*shape, n=3, dtype=torch.float32):
    return [tuple(torch.randn(*(shape or (2, 4, S, 16)), dtype=dtype) for _ in range(3)) for _ in range(n)]


def scores(q, k):
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def where(q, k, v):
    return torch.where(SEEN, scores(q, k), INF).softmax(-1) @ v


def filled(q, k, v):
    return scores(q, k).masked_fill(HIDDEN, torch.finfo(q.dtype).min).softmax(-1) @ v


def filled_in_place(q, k, v):
    return scores(q, k).masked_fill_(HIDDEN, INF).softmax(-1) @ v


def added(q, k, v):
    return (scores(q, k) + torch.zeros(S, S, dtype=q.dtype).masked_fill_(HIDDEN, INF)).softmax(-1) @ v


def large_and_negative(q, k, v):
    return (scores(q, k) - 1e4 * HIDDEN.to(q.dtype)).softmax(-1) @ v


def made_each_step(q, k, v):
    return scores(q, k).masked_fill(torch.ones(S, S).tril() == 0, INF).softmax(-1) @ v


def multiplied_and_divided_again(q, k, v):
    p = scores(q, k).softmax(-1) * SEEN
    return (p / p.sum(-1, keepdim=True)) @ v


def by_hand(q, k, v):
    s = scores(q, k).masked_fill_(HIDDEN, INF)
    s -= s.amax(-1, keepdim=True)
    e = s.exp_()
    return (e / e.sum(-1, keepdim=True)) @ v


def exp_times_mask(q, k, v):
    e = scores(q, k).exp() * SEEN
    return (e / e.sum(-1, keepdim=True)) @ v


def logs(q, k, v):
    s = scores(q, k).masked_fill(HIDDEN, INF)
    return (s - s.logsumexp(-1, keepdim=True)).exp() @ v


def einsum(q, k, v):
    s = torch.einsum("...qd,...kd->...qk", q, k).div_(4.0)
    return torch.einsum("...qk,...kd->...qd", torch.where(SEEN, s, INF).softmax(-1), v)


def in_float32(q, k, v):
    return scores(q, k).masked_fill(HIDDEN, INF).softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def with_slopes(q, k, v):
    """A bias that falls with distance, besides the mask."""
    at = torch.arange(S)
    bias = (-0.25 * (at[:, None] - at[None]).abs()).to(q.dtype)
    return (scores(q, k) + bias + torch.triu(torch.full((S, S), INF, dtype=q.dtype), 1)).softmax(-1) @ v


def into_a_buffer(q, k, v):
    s = scores(q, k)
    made = torch.full_like(s, INF)
    made[..., SEEN] = s[..., SEEN]
    return made.softmax(-1) @ v


def number_as_tensor(q, k, v):
    least = torch.tensor(torch.finfo(q.dtype).min, dtype=q.dtype)
    return torch.where(SEEN, scores(q, k), least).softmax(-1) @ v


# code -> how many of its ops do not run in float32, the product that makes the scores among them
FORMS = {
    where: 5,
    filled: 4,
    filled_in_place: 4,
    added: 6,
    large_and_negative: 6,
    made_each_step: 7,
    multiplied_and_divided_again: 6,
    by_hand: 8,
    exp_times_mask: 6,
    logs: 6,
    einsum: 5,
    in_float32: 4,
    with_slopes: 11,
    into_a_buffer: 6,
    number_as_tensor: 4,
}
LEFT_OUT = {
    "_softmax",
    "where",
    "masked_fill",
    "masked_fill_",
    "exp",
    "exp_",
    "div",
    "amax",
    "triu",
    "tril",
    "eq",
    "logsumexp",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_one_op_stands_for_the_chain(replica, form, dtype):
    r = replica(form, *qkv(dtype=dtype))
    got = r.ask("check", intervention=IDENT)
    assert got["equal"], got
    assert got["applied"] == 3
    assert [place.split()[-1] for place in got["where"]] == [form.__name__]
    off, on = ran(r, "off"), ran(r, "on")
    assert not LEFT_OUT & set(on)
    assert (off["bmm"], on["bmm"]) == (2, 0)
    assert sum(n for op, n in on.items() if "scaled_dot_product" in op) == 1
    assert live(r).plans[0].skipped == FORMS[form] or dtype is torch.bfloat16  # where some more are conversions


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_the_control_arm_runs_all_that_the_plain_step_runs(replica, form):
    r = replica(form, *qkv())
    r.ask("check", intervention=IDENT)
    before = outputs.run_outputs(r.ctx, 3)
    with arm(r.ctx, f"control:{IDENT}") as held:
        count = (held.applied, held.skipped)
        after = outputs.run_outputs(r.ctx, 3, held.begin)
        assert (held.applied, held.skipped) == count
    assert all(torch.equal(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True))
    looks = Counter(item=ran(r, "control")["item"])  # at the numbers that the code lifts to tensors
    assert ran(r, "control") - looks == ran(r, "off")


@pytest.mark.parametrize(
    ("shape", "keys"), [((2, 4, S, 16), S), ((6, S, 16), S), ((S, 16), S), ((5, S, 16), 40), ((S, 8), 7)], ids=str
)
def test_heads_one_head_and_more_keys_than_queries(replica, shape, keys):
    mask = torch.rand(S, keys) < 0.5
    mask[:, 0] = True
    lead, width = shape[:-2], shape[-1]
    r = replica(
        lambda q, k, v: torch.where(mask, scores(q, k), INF).softmax(-1) @ v,
        *[(torch.randn(shape), torch.randn(*lead, keys, width), torch.randn(*lead, keys, width)) for _ in range(2)],
    )
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (2, True)
    assert ran(r, "on")["_softmax"] == 0


@pytest.mark.parametrize(
    ("shape", "kept"),
    [((S, S), (S, S)), ((2, 1, S, S), (2, 1, S, S)), ((1, 4, S, S), (1, 4, S, S)), ((2, 4, S, S), (8, 1, S, S))],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_of_each_head_or_request_is_not_repeated_over_the_others(replica, shape, kept, mode):
    mask = torch.rand(shape) < 0.5
    mask[..., 0] = True
    r = replica(mode()(lambda q, k, v: torch.where(mask, scores(q, k), INF).softmax(-1) @ v), *qkv())
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)
    calls = [s.chain for s in live(r).plans[0].steps if s.chain]
    assert tuple(calls[0].bias.shape) in (kept, shape)


@pytest.mark.parametrize("beta", [0, 1])
def test_a_product_that_adds_the_mask_itself(replica, beta):
    bias = torch.zeros(S, S).masked_fill_(HIDDEN, INF)

    def step(q, k, v):
        acc = bias.expand(4, S, S) if beta else torch.empty(4, S, S)
        s = torch.baddbmm(acc, q, k.transpose(1, 2), beta=beta, alpha=0.25)
        return torch.bmm((s if beta else s + bias).softmax(-1), v)

    got = replica(step, *qkv(4, S, 16)).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, hidden):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
        return x + self.out((scores(q, k).masked_fill(hidden, INF).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Three layers that share one mask, made at the start of each step."""

    def __init__(self, also=False):
        super().__init__()
        self.layers, self.also = nn.ModuleList(Layer() for _ in range(3)), also

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        for layer in self.layers:
            x = layer(x, hidden)
        return x + hidden.sum() if self.also else x


def test_layers_that_share_a_mask_made_in_the_step(replica):
    r = replica(Model().eval(), *[(torch.randn(2, n, 32),) for n in (S, 9, S)])
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (9, True)
    assert got["where"] == ["layers.0", "layers.1", "layers.2"]
    assert got["notes"] == ["masked attentions in a step: 3; ops left out for them: 15 of 117"]
    on = ran(r, "on")
    assert (on["triu"], on["_to_copy"], on["_softmax"], on["bmm"]) == (0, 0, 0, 0)
    biases = {id(s.chain.bias) for s in live(r).plans[0].steps if s.chain}
    assert len(biases) == 1


def test_layers_with_equal_masks_are_looked_at_once(replica, monkeypatch):
    from sparsetui.probes.interventions import chains

    class Own(Layer):
        def __init__(self, hidden):
            super().__init__()
            self.register_buffer("hidden", hidden)

        def forward(self, x):
            return super().forward(x, self.hidden)

    looked, real = [], chains.softmax_of
    monkeypatch.setattr(chains, "softmax_of", lambda *given: looked.append(given) or real(*given))
    layers = nn.Sequential(
        *[Own(h.clone()) for h in (HIDDEN, HIDDEN, (HIDDEN.t() & ~torch.eye(S).bool()).contiguous(), HIDDEN)]
    )
    got = replica(layers, (torch.randn(2, S, 32),)).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (4, True)
    assert len(looked) == 2


def test_a_mask_that_others_read_too_is_made(replica):
    r = replica(Model(also=True).eval(), *[(torch.randn(2, n, 32),) for n in (S, 9)])
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (6, True)
    on = ran(r, "on")
    assert (on["triu"], on["_softmax"]) == (1, 0)


def test_a_view_of_the_mask_that_others_read_too(replica):
    def step(q, k, v):
        seen = SEEN[: q.shape[2] - 1, : q.shape[2] - 1]
        q, k, v = q[:, :, 1:], k[:, :, 1:], v[:, :, 1:]
        return torch.where(seen, scores(q, k), INF).softmax(-1) @ v + seen.sum()

    got = replica(step, *qkv()).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)


def test_inputs_of_several_lengths(replica):
    def step(q, k, v):
        seen = SEEN[: q.shape[2], : q.shape[2]]
        return torch.where(seen, scores(q, k), INF).softmax(-1) @ v

    r = replica(step, *[qkv(2, 4, n, 16, n=1)[0] for n in (S, 7, 12, S)])
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (4, True)
    assert len(live(r).plans) == 3


def test_masks_that_follow_an_argument(replica):
    masks = [SEEN, SEEN.t().contiguous()]
    r = replica(
        lambda n, q, k, v: torch.where(masks[n], scores(q, k), INF).softmax(-1) @ v,
        *[(i % 2, *one) for i, one in enumerate(qkv(n=4))],
    )
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (4, True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("shape", [(2, S, 4, 16), (S, 4, 16)], ids=str)
def test_code_that_views_the_result(replica, shape, mode):
    """A product lays its result out in order; one op of attention lays it out as the queries are."""

    def step(*sides):
        return where(*(t.transpose(-3, -2) for t in sides)).view(-1)

    got = replica(mode()(step), *qkv(*shape)).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_dropout_that_is_switched_off(replica, mode):
    def step(q, k, v):
        return F.dropout(torch.where(SEEN, scores(q, k), INF).softmax(-1), 0.5, False) @ v

    got = replica(mode()(step), *qkv()).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)


@pytest.mark.parametrize("shape", [(2, 4, S, 16), (6, S, 16), (S, 16), (2, 2, 2, S, 16)], ids=str)
@pytest.mark.parametrize("form", [f for f in FORMS if f is not einsum], ids=lambda f: f.__name__)
def test_inference_mode_where_products_of_batches_are_one_op(replica, form, shape):
    r = replica(torch.inference_mode()(form), *qkv(*shape, n=1))
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (1, True)
    assert not {"softmax", "where", "masked_fill", "exp", "matmul"} & set(ran(r, "on"))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_keys_and_values_that_all_heads_share(replica, mode):
    r = replica(mode()(where), *[(q, k[:, :1], v[:, :1]) for q, k, v in qkv()])
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)


def test_an_op_that_raises_and_is_caught(replica):
    def step(q, k, v):
        try:
            q @ k
        except RuntimeError:
            pass
        return where(q, k, v)

    got = replica(step, *qkv()).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)


# -- where the step stays as it is ------------------------------------------------------------------------------


def returned(q, k, v):
    p = torch.where(SEEN, scores(q, k), INF).softmax(-1)
    return p @ v, p


KEPT = {}


def kept(q, k, v):
    KEPT["p"] = torch.where(SEEN, scores(q, k), INF).softmax(-1)
    return KEPT["p"] @ v


def averaged(q, k, v):
    p = torch.where(SEEN, scores(q, k), INF).softmax(-1)
    return p @ v, p.mean(1)


def follows_input(q, k, v):
    hidden = v.mean(-1)[..., None, :] > 0.5
    return scores(q, k).masked_fill(hidden, -1e9).softmax(-1) @ v


def relative(q, k, v):
    return (torch.where(SEEN, scores(q, k), INF) + q.mean(-1, keepdim=True)).softmax(-1) @ v


def dropped(q, k, v):
    return F.dropout(torch.where(SEEN, scores(q, k), INF).softmax(-1), 0.1, True) @ v


def noisy(q, k, v):
    return (torch.where(SEEN, scores(q, k), INF) + torch.rand(S, S)).softmax(-1) @ v


def no_softmax(q, k, v):
    w = scores(q, k).exp().square() * F.relu(scores(q, k)) * SEEN + 1e-3 * SEEN
    return (w / w.sum(-1, keepdim=True)) @ v


def windowed(q, k, v):
    w = torch.exp(-scores(q, k).square()) * SEEN
    return (w / w.sum(-1, keepdim=True)) @ v


def not_of_sum_one(q, k, v):
    return (scores(q, k).softmax(-1) * SEEN) @ v


def capped(q, k, v):
    return torch.where(SEEN, 20 * torch.tanh(scores(q, k) / 20), INF).softmax(-1) @ v


def nothing_masked(q, k, v):
    return scores(q, k).softmax(-1) @ v


def along_the_queries(q, k, v):
    return torch.where(SEEN, scores(q, k), INF).softmax(-2).nan_to_num() @ v


def row_of_nothing(q, k, v):
    return scores(q, k).masked_fill(HIDDEN | (torch.arange(S) == 3)[:, None], INF).softmax(-1).nan_to_num(0.5) @ v


def looked_at(q, k, v):
    s = torch.where(SEEN, scores(q, k), INF)
    return (s.softmax(-1) if float(s.max()) < 1e9 else s) @ v


def in_numpy(q, k, v):
    p = torch.where(SEEN, scores(q, k), INF).softmax(-1)
    return p @ v + float(p.numpy().max())


def queries_change(q, k, v):
    q = q.clone()
    p = torch.where(SEEN, scores(q, k), INF).softmax(-1)
    q.mul_(2)
    return p @ v + q


HELD = torch.zeros(2, 4, S, S)


def through_a_buffer(q, k, v):
    HELD.copy_(torch.where(SEEN, scores(q, k), INF))
    return HELD.softmax(-1) @ v


REFUSED = {
    returned: "its probabilities are returned as well",
    kept: "the code keeps its probabilities",
    averaged: "used elsewhere too (aten::mean)",
    follows_input: "a mask or bias that follows the input (aten::masked_fill)",
    relative: "a mask or bias that follows the input (aten::add)",
    dropped: "draws random numbers",
    noisy: "a mask or bias that follows the input (aten::add)",
    windowed: "it is no softmax of them",
    not_of_sum_one: "it is no softmax of them",
    capped: "it is no softmax of them",
    nothing_masked: "nothing is masked",
    along_the_queries: "no softmax of them",
    row_of_nothing: "no softmax of them",
    looked_at: "gives numbers of the scores to the code",
    in_numpy: "used elsewhere too (aten::detach)",
    queries_change: "queries or keys are written to",
    through_a_buffer: "writes them into a buffer that the code keeps",
}


@pytest.mark.parametrize("step", REFUSED, ids=lambda f: f.__name__)
def test_what_no_fused_attention_stands_for_is_left_alone_and_says_why(replica, step):
    r = replica(step, *qkv())
    got = r.ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"], got["error"]) == (0, True, 0.0)
    assert len(got["notes"]) == 1
    assert REFUSED[step].removeprefix("it is ") in got["notes"][0]
    assert ran(r, "on") == ran(r, "off")


def test_two_products_of_the_scores_are_left_alone(replica):
    got = replica(no_softmax, *qkv()).ask("check", intervention=IDENT)
    assert (got["applied"], got["error"]) == (0, 0.0)


def test_a_training_step_is_left_alone(replica):
    w = nn.Parameter(torch.randn(16, 16))

    def step(q, k, v):
        w.grad = None
        out = where(q @ w, k, v)
        out.square().mean().backward()
        return out, w.grad

    got = replica(step, *qkv()).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"], got["error"]) == (0, True, 0.0)
    assert got["notes"] == [
        "the step computes gradients, and backward needs the probabilities, which a fused attention does not keep"
    ]


def test_a_gradient_inside_a_step_of_inference_is_left_alone(replica):
    def step(q, k, v):
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            where(q, k, v).sum().backward()
        return q.grad

    got = replica(step, *qkv()).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (0, True)


def test_products_that_no_softmax_joins_are_not_spoken_of(replica):
    m = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Softmax(-1))
    got = replica(m).ask("check", intervention=IDENT)
    assert (got["applied"], got["notes"]) == (0, [])


# -- steps that take another way --------------------------------------------------------------------------------


def test_a_step_that_takes_another_way_before_the_chain_runs_as_it_is(replica):
    way = {"other": False}

    def step(q, k, v):
        return where(q * 2 if way["other"] else q + 1, k, v)

    r = replica(step, *qkv())
    r.ask("check", intervention=IDENT)
    way["other"] = True
    want = outputs.run_outputs(r.ctx, 1)[0][0]
    with arm(r.ctx, f"on:{IDENT}") as held:
        count = held.applied
        got = outputs.run_outputs(r.ctx, 1, held.begin)[0][0]
    assert torch.equal(got, want)
    assert held.applied == count
    assert held.notes[-1] == "a step took another way than those that were recorded"


def test_a_step_that_takes_another_way_within_the_chain_ends_the_trial(replica):
    way = {"other": False}

    def step(q, k, v):
        s = scores(q, k)
        return (s.masked_fill(HIDDEN, INF) if way["other"] else torch.where(SEEN, s, INF)).softmax(-1) @ v

    r = replica(step, *qkv())
    r.ask("check", intervention=IDENT)
    way["other"] = True
    assert r.ask("block", count=2, arm=f"control:{IDENT}")["times_ms"]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="another way than the recorded one"):
            r.ask("block", count=2, arm=f"on:{IDENT}")


def test_a_way_after_the_chain_is_free(replica):
    r = replica(lambda q, k, v: torch.relu(where(q, k, v)) if way else where(q, k, v).sum(), *qkv())
    way = []
    r.ask("check", intervention=IDENT)
    way.append(1)
    want = outputs.run_outputs(r.ctx, 1)[0][0]
    with arm(r.ctx, f"on:{IDENT}") as held:
        torch.testing.assert_close(outputs.run_outputs(r.ctx, 1, held.begin)[0][0], want)
    assert not held.void


@pytest.mark.parametrize("how", ["written", "swapped"])
def test_a_mask_that_changed_between_steps_is_not_served_stale(replica, how):
    holder = {"seen": SEEN.clone()}
    r = replica(lambda q, k, v: torch.where(holder["seen"], scores(q, k), INF).softmax(-1) @ v, *qkv())
    assert r.ask("check", intervention=IDENT)["applied"] == 3
    if how == "written":
        holder["seen"].logical_or_(torch.eye(S).roll(1, 1).bool())
        want = outputs.run_outputs(r.ctx, 1)[0][0]
        with arm(r.ctx, f"on:{IDENT}") as held:
            assert torch.equal(outputs.run_outputs(r.ctx, 1, held.begin)[0][0], want)
    else:
        holder["seen"] = holder["seen"].clone()
        with pytest.raises(RuntimeError, match="another way"):
            r.ask("block", count=1, arm=f"on:{IDENT}")


def test_code_that_reads_the_probabilities_past_the_dispatcher_is_found_out(replica):
    def step(q, k, v):
        p = torch.where(SEEN, scores(q, k), INF).softmax(-1)
        return p @ v + ctypes.c_float.from_address(p.data_ptr()).value

    got = replica(step, *qkv()).ask("check", intervention=IDENT)
    assert not got["equal"]
    assert got["error"] == 1e300, "what was left out holds NaN, not what lay there before"


def test_nothing_of_a_recorded_step_stays_in_memory(replica):
    import weakref

    made = []

    def step(q, k, v):
        s = scores(q, k)
        made.append(weakref.ref(s))
        return torch.where(SEEN, s, INF).softmax(-1) @ v

    r = replica(step, *qkv())
    r.ask("check", intervention=IDENT)
    with arm(r.ctx, f"control:{IDENT}") as held, torch.no_grad():
        held.begin()
        step(*r.ctx.inputs[0])
    assert all(ref() is None for ref in made)


def test_an_argument_that_is_not_a_number_is_the_same_on_each_step(replica):
    def step(q, k, v):
        return scores(q, k).masked_fill(HIDDEN, INF).softmax(-1).nan_to_num(float("nan")) @ v

    got = replica(step, *qkv()).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (3, True)


def many_masks(n=12):
    masks = [SEEN & torch.ones(S, S).triu(-2 - i).bool() for i in range(n)]

    def step(q, k, v):
        for m in masks:
            v = scores(q, k).masked_fill(~m, INF).softmax(-1) @ v
        return v

    return step


def test_what_it_takes_to_record_a_step_is_not_taken_from_looking_at_it(replica, monkeypatch):
    from sparsetui.probes.interventions import fuse_attention

    monkeypatch.setattr(fuse_attention, "_PREPARE_S", 0.0)
    got = replica(many_masks(), *qkv(n=1)).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"], got["reach"]) == (12, True, 1.0)


def test_chains_that_there_is_no_time_for_are_no_part_of_what_it_reaches(replica, monkeypatch):
    from sparsetui.probes.interventions import fuse_attention

    monkeypatch.setattr(fuse_attention, "_LOOK_S", 0.0)
    got = replica(many_masks(), *qkv(n=1)).ask("check", intervention=IDENT)
    assert (got["applied"], got["equal"]) == (1, True)
    assert got["reach"] == pytest.approx(1 / 12)


def test_what_feeds_a_chain_is_found_without_going_through_the_whole_step(replica):
    from sparsetui.probes.interventions import chains
    from sparsetui.probes.interventions.recording import record

    rec = record(replica(many_masks(), *qkv(n=1)).ctx, 0)
    looked = []

    class Ops(list):
        def __getitem__(self, j):
            looked.append(j)
            return super().__getitem__(j)

    found, _ = chains.find(rec)
    rec.ops = Ops(rec.ops)
    for chain in found:
        chains._feeders(rec, chain)
    assert len(looked) < 3 * len(rec.ops)
