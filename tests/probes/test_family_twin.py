"""Layers without a sparse path as sparse products: convolutions of every form, recurrent layers and cells, stacks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from pruned import pruned  # noqa: E402

from sparsetui.probes.interventions import arm  # noqa: E402
from sparsetui.probes.interventions.to_blocks import cheapest  # noqa: E402
from sparsetui.probes.outputs import run_outputs  # noqa: E402


def tried(r):
    return r.ask("check", intervention="family-twin")


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"bias": False},
        {"padding": 1},
        {"stride": 2, "padding": (2, 0)},
        {"dilation": (1, 2)},
        {"groups": 4},
        {"groups": 16},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "circular"},
        {"kernel_size": (1, 4), "padding": "same"},
        {"kernel_size": 1},
        {"kernel_size": 1, "stride": 2},
    ],
    ids=str,
)
def test_convolutions_equal_their_products_on_each_input(replica, form):
    layer = pruned(nn.Conv2d(16, 32, **{"kernel_size": 3, **form}))
    got = tried(replica(layer, (torch.randn(3, 16, 9, 11),), (torch.randn(1, 16, 6, 7),)))
    assert (got["applied"], got["equal"], got["notes"]) == (2, True, [])
    assert got["where"] == ["weight"]


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Conv1d, (3, 16, 20)), (nn.Conv3d, (2, 16, 5, 6, 7)), (nn.Conv2d, (16, 9, 9))], ids=str
)
def test_other_dimensions_and_an_input_without_a_batch(replica, layer, shape):
    got = tried(replica(pruned(layer(16, 24, 3, padding=1)), (torch.randn(shape),)))
    assert (got["applied"], got["equal"]) == (1, True)


def test_inference_mode_hands_over_whole_convolutions(replica):
    layer = pruned(nn.Conv2d(16, 32, 4, padding="same"))  # one more after than before

    def step(x):
        with torch.inference_mode():
            return layer(x)

    got = tried(replica(step, (torch.randn(3, 16, 9, 9),), (torch.randn(16, 9, 9),)))
    assert (got["applied"], got["equal"]) == (2, True)


def test_images_whose_channels_lie_last(replica):
    layer = pruned(nn.Conv2d(16, 32, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(3, 16, 9, 9).contiguous(memory_format=torch.channels_last)
    got = tried(replica(layer, (x,)))
    assert (got["applied"], got["equal"]) == (1, True)


@pytest.mark.parametrize("last", ["input", "weight"])
@pytest.mark.parametrize(
    ("conv", "size", "form"),
    [(nn.Conv2d, (8, 9), torch.channels_last), (nn.Conv3d, (4, 5, 6), torch.channels_last_3d)],
    ids=["2d", "3d"],
)
def test_results_lie_as_those_of_the_convolution_do(replica, conv, size, form, last):
    layer, x = pruned(conv(16, 32, 3, padding=1)), torch.randn(2, 16, *size)
    if last == "input":
        x = x.contiguous(memory_format=form)
    else:
        layer = layer.to(memory_format=form)
    want = layer(x).stride()
    seen = []
    got = tried(replica(lambda x: seen.append(layer(x).stride()) or layer(x).movedim(1, -1).view(-1, 32), (x,)))
    assert (got["applied"], got["equal"]) == (2, True)
    assert set(seen) == {want}


@pytest.mark.parametrize("shape", [(2, 16, 9, 0), (2, 16, 1, 9), (2, 5, 9, 9)], ids=str)
def test_an_input_that_does_not_fit_the_kernel_raises_as_before_and_costs_no_twin(replica, shape):
    layer = pruned(nn.Conv2d(16, 32, 3, padding=(0, 1)))

    def step(x):
        try:
            return layer(x)
        except RuntimeError:
            return x.sum()

    got = tried(replica(step, (torch.randn(shape),), (torch.randn(2, 16, 9, 9),)))
    assert (got["applied"], got["equal"]) == (1, True)


def test_a_gradient_goes_back_through_a_convolution_as_before(replica):
    layer, x = pruned(nn.Conv2d(16, 32, 3)), torch.randn(2, 16, 6, 6, requires_grad=True)
    got = tried(replica(lambda x: torch.autograd.grad(layer(x).square().sum(), x)[0], (x,)))
    assert (got["applied"], got["equal"]) == (1, True)


@pytest.mark.parametrize(
    "form", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_lstm_equals_its_products(replica, form, dtype):
    layer = pruned(nn.LSTM(16, 24, **form)).to(dtype)
    got = tried(replica(lambda x: layer(x), (torch.randn(5, 3, 16, dtype=dtype),), (torch.randn(5, 16, dtype=dtype),)))
    assert got["equal"]
    assert got["applied"] >= 2
    assert all("weight" in w for w in got["where"])


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell], ids=str)
def test_products_of_recurrent_cells_are_theirs_and_plain_ones_are_not(replica, cell):
    layer, plain = pruned(cell(16, 24)), pruned(nn.Linear(16, 16))
    got = tried(replica(lambda x: layer(plain(x))))
    assert (got["applied"], got["equal"]) == (4, True)  # two products a cell, two inputs
    assert got["where"] == ["layer.weight_hh", "layer.weight_ih"]


def test_one_matrix_for_a_whole_batch_is_no_stack(replica):
    w = pruned(nn.Linear(16, 16)).weight
    assert tried(replica(lambda x: torch.bmm(x.expand(4, -1, -1), w.expand(4, 16, 16))))["applied"] == 0


@pytest.mark.parametrize(
    ("step", "note"),
    [
        (
            lambda layer, x: nn.functional.conv_transpose2d(x, layer.weight[:, :8]),
            "a transposed convolution is not unfolded",
        ),
        (lambda layer, x: layer.to(torch.bfloat16)(x.bfloat16()), "no twin for bfloat16 csr"),
    ],
    ids=["transposed", "bfloat16"],
)
def test_what_has_no_such_form_says_why_and_runs_as_it_was(replica, step, note):
    layer = pruned(nn.Conv2d(16, 16, 3))
    got = tried(replica(lambda x: step(layer, x), (torch.randn(3, 16, 9, 9),)))
    assert (got["applied"], got["equal"], got["error"]) == (0, True, 0.0)
    assert any(note in n for n in got["notes"])


def test_an_lstm_that_is_gone_back_through_is_left_alone(replica):
    layer, x = pruned(nn.LSTM(16, 24)), torch.randn(5, 3, 16, requires_grad=True)
    got = tried(replica(lambda x: torch.autograd.grad(layer(x)[0].sum(), x)[0], (x,)))
    assert (got["applied"], got["equal"]) == (0, True)
    assert "backward" in got["notes"][0]


def test_a_dense_convolution_is_left_alone_to_the_bit(replica):
    got = tried(replica(nn.Conv2d(16, 32, 3), (torch.randn(3, 16, 9, 9),)))
    assert (got["applied"], got["equal"], got["error"], got["where"]) == (0, True, 0.0, [])


def test_a_kernel_that_changes_is_followed(replica):
    layer = pruned(nn.Conv2d(16, 32, 3))
    r = replica(layer, (torch.randn(3, 16, 9, 9),))
    tried(r)
    layer.weight.mul_(3)
    want = run_outputs(r.ctx, 1)[0][0]
    with arm(r.ctx, "on:family-twin") as live:
        torch.testing.assert_close(run_outputs(r.ctx, 1, live.begin)[0][0], want, atol=1e-4, rtol=1e-4)


def test_a_kernel_that_the_step_itself_rewrites_is_followed(replica):
    layer = pruned(nn.Conv2d(16, 32, 3))
    base = layer.weight.detach().clone()

    def step(k, x):
        layer.weight.data.copy_(base * (1 + k))  # counts no version
        return layer(x)

    r = replica(step, *[(k, torch.randn(1, 16, 5, 5)) for k in range(4)])
    for _ in range(2):
        assert tried(r)["equal"]
    layers = next(f.__self__ for f in r.ctx.state["interventions"]["family-twin"].on_write)
    layers.allowed.update({layer.weight.untyped_storage()._cdata: layer.weight})
    assert tried(r)["equal"], "even where it passes for a constant"


def test_patches_too_large_for_memory_leave_the_convolution_as_it_is(replica, monkeypatch):
    monkeypatch.setattr("sparsetui.probes.unfolded._LARGEST", 1000)
    got = tried(replica(pruned(nn.Conv2d(16, 32, 3)), (torch.randn(3, 16, 9, 9),)))
    assert (got["applied"], got["equal"]) == (0, True)
    assert "patches" in got["notes"][0]


@pytest.mark.parametrize(("edge", "best"), [(2, 2), (4, 4), (8, 8), (16, 16), (1, None)])
def test_the_blocks_that_move_the_fewest_bytes_are_those_that_the_zeros_lie_in(edge, best):
    from sparsetui.probes import tensors

    kept = (torch.rand(64 // edge, 64 // edge) < 0.2).float()
    kept[0, 0] = 1
    w = torch.kron(kept, torch.ones(edge, edge)) * (torch.rand(64, 64) + 1)
    assert cheapest(tensors.compressed(w, "csr")) == best


def test_blocks_that_do_not_tile_the_matrix_are_not_taken():
    from sparsetui.probes import tensors

    w = torch.zeros(6, 10)
    w[:4, :4] = 1
    assert cheapest(tensors.compressed(w, "csr")) == 2


def test_wide_indices_get_no_blocks(replica):
    w = torch.kron(torch.eye(4), torch.ones(4, 4)).to_sparse_csr()
    assert w.col_indices().dtype == torch.int64
    assert replica(lambda x: w @ x.t()).ask("check", intervention="to-blocks")["applied"] == 0
