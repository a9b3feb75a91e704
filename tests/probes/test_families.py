"""The twin of layers that have no sparse path: what is recorded, which forms there are, and what they are of."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from pruned import pruned  # noqa: E402

from sparsetui.probes import families  # noqa: E402

KINDS = ["batched", "conv", "recurrent"]


def ask(r, kinds=KINDS):
    return r.ask("families", kinds=kinds, seconds=0.05)


def narrowed(r, kinds=KINDS):
    """The shapes of what the channel forms make of the recorded ops."""
    recorder = families._Recorder(r.ctx, frozenset(kinds))
    with torch.no_grad(), recorder:
        r.ctx.fn(*r.ctx.inputs[0])
        out = [families._channels(s)() for s in recorder.seen.values()]
    return [[tuple(t.shape) for t in o[:3]] if isinstance(o, tuple) else tuple(o.shape) for o in out]


def test_ops_of_one_signature_are_one_row_and_its_forms_are_timed_in_turns(replica):
    step = nn.Sequential(*(pruned(nn.Conv2d(16, 16, 3, padding=1)) for _ in range(3)), pruned(nn.Conv2d(16, 8, 1)))
    got = ask(replica(step, (torch.randn(2, 16, 8, 8),), (torch.randn(2, 16, 8, 8),)))
    rows = {tuple(r["shape"]): r for r in got["rows"]}
    assert sum(r["calls"] for r in got["rows"] if r["shape"] == [16, 16, 3, 3]) == 3
    assert rows[(8, 16, 1, 1)]["calls"] == 1
    for r in got["rows"]:
        assert set(r["forms"]) == {"dense", "unfold + CSR", "channels"}
        assert r["refused"] == {}
        assert r["best"] in r["forms"]
        assert r["n"] >= 5
        low, mid, high = r["saves_ms"]
        assert low <= mid <= high
        assert r["zeros"] == pytest.approx(0.9, abs=0.08)
    assert {w for r in got["rows"] for w in r["weights"]} == {f"{i}.weight" for i in range(4)}
    assert (got["left_out"], got["covers"]) == (0, 1.0)
    assert all(name in got["summary"] for name in ("dense", "unfold + CSR", "channels"))


def test_other_shapes_and_other_non_zeros_are_rows_of_their_own(replica):
    sparse, sparser = pruned(nn.Conv2d(16, 16, 3), 0.3), pruned(nn.Conv2d(16, 16, 3), 0.01)
    step = lambda x: (sparse(x), sparser(x))  # noqa: E731
    got = ask(replica(step, (torch.randn(2, 16, 8, 8),), (torch.randn(1, 16, 8, 8),)))
    assert len(got["rows"]) == 4
    assert {r["calls"] for r in got["rows"]} == {0.5}


@pytest.mark.parametrize(
    ("groups", "keep", "channels"), [(1, 0.25, 10), (4, 0.25, 8), (40, 0.25, 10)], ids=["one", "four", "each"]
)
def test_channels_keep_the_same_share_of_non_zeros(replica, groups, keep, channels):
    layer = nn.Conv2d(40, 40, 3, groups=groups).requires_grad_(False)
    flat = layer.weight.view(-1)
    flat.zero_()
    flat[: round(keep * flat.numel())] = 1
    assert narrowed(replica(layer, (torch.randn(2, 40, 8, 8),))) == [(2, channels, 6, 6)]


def test_of_an_lstm_hidden_units_go(replica):
    layer = nn.LSTM(32, 32).requires_grad_(False)
    for w in layer.parameters():
        if w.dim() > 1:
            w.zero_()
            w[:40, :32] = 1  # 2560 of 8192: 4 h (32 + h) of them at h = 14
    (shapes,) = narrowed(replica(lambda x: layer(x)[0], (torch.randn(5, 3, 32),)))
    assert shapes == [(5, 3, 14), (3, 14), (3, 14)]


def test_products_of_cells_and_stacks_lose_output_columns(replica):
    cell, stack = nn.GRUCell(16, 16).requires_grad_(False), torch.zeros(4, 16, 16)
    stack[:, :4] = 1
    for w in (cell.weight_ih, cell.weight_hh):
        w.zero_()
        w[:12] = 1
    r = replica(lambda x: (cell(x), torch.bmm(x.expand(4, -1, -1), stack)), (torch.randn(5, 16),))
    assert narrowed(r) == [(5, 12), (4, 5, 4)]


def test_slow_ops_are_timed_as_far_as_time_allows_and_the_rest_is_left_out(replica):
    step = nn.Sequential(*(pruned(nn.Conv2d(16, 16, k, padding=k // 2)) for k in (1, 3, 5, 7)))
    r = replica(step, (torch.randn(2, 16, 8, 8),))
    got = r.ask("families", kinds=["conv"], seconds=0.0)
    assert (len(got["rows"]), got["left_out"]) == (1, 3)
    assert 0 < got["covers"] < 1
    assert got["rows"][0]["n"] == 5


def test_only_the_kinds_that_are_asked_for(replica):
    conv, cell = pruned(nn.Conv1d(16, 16, 3)), pruned(nn.GRUCell(16, 16))
    r = replica(lambda x: (conv(x.t()[None]), cell(x)), (torch.randn(5, 16),))
    assert {row["kind"] for row in ask(r, ["conv"])["rows"]} == {"conv"}
    assert {row["kind"] for row in ask(r, ["recurrent"])["rows"]} == {"recurrent"}
    plain = pruned(nn.Linear(16, 16))
    assert ask(replica(plain))["rows"] == []


def test_a_form_that_this_build_lacks_is_refused_with_its_reason(replica):
    layer = pruned(nn.Conv2d(16, 32, 3)).bfloat16()
    (row,) = ask(replica(layer, (torch.randn(3, 16, 9, 9).bfloat16(),)))["rows"]
    assert set(row["forms"]) == {"dense", "channels"}
    assert "BFloat16" in row["refused"]["unfold + CSR"]


def test_a_sparse_form_with_another_result_is_refused(replica, monkeypatch):
    layer = pruned(nn.Conv2d(16, 32, 3))
    monkeypatch.setattr("sparsetui.probes.unfolded.run", lambda c, csr: torch.ones(3, 32, 7, 7))
    (row,) = ask(replica(layer, (torch.randn(3, 16, 9, 9),)))["rows"]
    assert "differs" in row["refused"]["unfold + CSR"]


def test_without_pruned_layers_there_is_nothing_to_time(replica):
    got = ask(replica(nn.Conv2d(16, 32, 3), (torch.randn(3, 16, 9, 9),)))
    assert got["rows"] == []
    assert got["summary"] == "no pruned layer of these kinds runs dense"


def test_the_census_tells_the_kinds_of_layers_apart(replica):
    conv, lstm, cell, plain = (
        pruned(m) for m in (nn.Conv1d(16, 16, 3), nn.LSTM(16, 16), nn.GRUCell(16, 16), nn.Linear(16, 16))
    )
    stack, one = torch.rand(3, 16, 16), torch.rand(16, 16)

    def step(x):
        return (
            conv(x.t()[None]),
            lstm(x),
            cell(x, x),
            plain(x),
            torch.bmm(x.expand(3, -1, -1), stack),
            x.expand(3, -1, -1) @ one,
        )

    rows = replica(step, (torch.randn(5, 16),)).ask("census", steps=2)["rows"]
    kinds = {}
    for r in rows:
        if r["weight"]:
            kinds.setdefault(r["layer"], set()).add(r["weight"]["name"].split(".")[0])
    assert kinds == {"conv": {"conv"}, "recurrent": {"lstm", "cell"}, "product": {"plain", "one"}, "batched": {"stack"}}
