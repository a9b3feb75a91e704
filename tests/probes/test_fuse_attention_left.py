"""Where masked attention in many ops stays as it is, and steps that take another way than the recorded one."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from attended import HIDDEN, IDENT, INF, SEEN, S, qkv, ran, scores, where  # noqa: E402

from sparsetui.probes import outputs  # noqa: E402
from sparsetui.probes.interventions import arm  # noqa: E402

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
