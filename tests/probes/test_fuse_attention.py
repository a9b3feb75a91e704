"""Masked attention in one op: what it stands for, and what is not run then."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from attended import FORMS, HIDDEN, IDENT, INF, LEFT_OUT, SEEN, Layer, Model, S, einsum, live, qkv, ran, scores, where  # noqa: E402

from sparsetui.probes import outputs  # noqa: E402
from sparsetui.probes.interventions import arm  # noqa: E402


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
