"""Formats and the open loop inside a replica: real weights, real products, real sleeps."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sparsetui.probes import pruning  # noqa: E402
from sparsetui.probes.context import Context  # noqa: E402
from sparsetui.probes.formats import formats  # noqa: E402
from sparsetui.probes.serve import choose, serve  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _context(fn: Any, inputs: list[tuple[Any, ...]]) -> Context:
    ctx = Context({}, "/tmp", lambda message: None)
    ctx.fn, ctx.inputs = fn, inputs
    return ctx


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 0.99), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_masks_keep_what_was_asked_for(rows: int, cols: int, sparsity: float, seed: int) -> None:
    w = torch.randn(rows * 4, cols * 4, generator=torch.Generator().manual_seed(seed))
    free = pruning.unstructured(w, sparsity)
    assert int(free.sum()) == max(1, round((1 - sparsity) * w.numel()))
    assert float(w.abs()[free].min()) >= float(w.abs()[~free].max() if (~free).any() else 0)
    tiles = pruning.blocks(w, sparsity, 4).reshape(rows, 4, cols, 4).sum((1, 3))
    assert set(tiles.unique().tolist()) <= {0, 16}
    assert int((tiles > 0).sum()) == max(1, round((1 - sparsity) * rows * cols))
    assert set(pruning.channels(w, sparsity).sum(1).tolist()) <= {0, w.shape[1]}
    assert set(pruning.n_of_m(w, 2, 4).reshape(-1, 4).sum(1).tolist()) == {2}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("fmt", [f.id for f in pruning.catalogue([4, 8]) if f.id != "2:4"])
def test_every_format_multiplies_as_its_masked_dense_weight_does(fmt: str, side: int) -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(16, 24, generator=g)
    other = torch.randn(24, 5, generator=g) if side == 0 else torch.randn(5, 24, generator=g)
    f = next(x for x in pruning.catalogue([4, 8]) if x.id == fmt)
    if fmt.endswith("-rhs") and side == 0:
        with pytest.raises(pruning.Unfit, match="already stands on the left"):
            pruning.twin(f, w, 0.75, side)
        return
    t = pruning.twin(f, w, 0.75, side)
    dense = w * f.mask(w, 0.75)
    want = dense @ other if side == 0 else other @ dense.t()
    assert torch.allclose(pruning.product(t, other, side), want, atol=1e-5)
    if fmt != "dense":
        assert pruning.is_sparse(t)
        assert pruning.stored(t)["values"] < w.numel() * 4


def test_what_a_weight_or_device_cannot_have_is_said() -> None:
    by_id = {f.id: f for f in pruning.catalogue([32])}
    with pytest.raises(pruning.Unfit, match="32 x 32 blocks do not tile 16 x 24"):
        pruning.twin(by_id["bsr-32"], torch.randn(16, 24), 0.5, 1)
    with pytest.raises(pruning.Unfit, match="CUDA devices only"):
        pruning.twin(by_id["2:4"], torch.randn(16, 24), 0.5, 1)


def test_drift_knows_distributions_and_decisions() -> None:
    a = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
    assert pruning.drift([a], [a]) == {"relative_l2": 0.0, "max_error": 0.0, "cosine": pytest.approx(1), "top1": 1.0,
                                       "kl": pytest.approx(0, abs=1e-9)}  # fmt: skip
    moved = pruning.drift([a], [torch.tensor([[0.7, 0.3], [0.6, 0.4]])])
    assert moved is not None
    assert moved["top1"] == 0.5
    assert moved["kl"] > 0
    assert pruning.drift([torch.tensor([1])], [torch.tensor([2])]) is None


def _model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8)).eval()


def test_a_bench_prunes_the_models_own_products_and_mixes_what_measured_best() -> None:
    model = _model()
    ctx = _context(model, [(torch.randn(n, 64),) for n in (2, 16)])
    seen = formats(ctx, {"do": "scout"})["layers"]
    assert {tuple(x["shape"]) for x in seen} == {(96, 64), (8, 96)}
    assert seen[0]["signature"] == "96 x 64, width 16"  # the shape with most of the work
    ready = formats(ctx, {"do": "prepare", "targets": {x["name"]: 0.75 for x in seen}, "blocks": [8, 32]})
    assert "CUDA devices only" in ready["refused"]["2:4"]
    assert ready["arms"]["csr-int32"]["bytes"]["indices"] < ready["arms"]["csr-int64"]["bytes"]["indices"]
    # 32 x 32 blocks do not tile the head, which then multiplies the same zeros dense
    assert ready["arms"]["bsr-32"]["fell_back"] == ["2.weight"]
    assert (ready["arms"]["bsr-32"]["dense_calls"], ready["arms"]["bsr-32"]["calls"]) == (1, 2)
    formats(ctx, {"do": "layers", "seconds": 0.05})
    mix = formats(ctx, {"do": "mix", "among": ["dense", "csr-int32", "bsr-8"], "start": "dense"})
    assert {c["format"] for c in mix["choice"]} <= {"dense", "csr-int32", "bsr-8"}
    drift = formats(ctx, {"do": "outputs", "arms": ["dense", "csr-int32", "csr-int64-rhs", "coo", "bsr-8", "masked:2:4"],
                          "count": 2})["arms"]  # fmt: skip
    lost = {a: d["per_input"][0]["relative_l2"] for a, d in drift.items()}
    assert lost["dense"] == 0
    assert lost["csr-int32"] == pytest.approx(lost["coo"], rel=1e-3) == pytest.approx(lost["csr-int64-rhs"], rel=1e-3)
    assert lost["bsr-8"] > lost["csr-int32"] > lost["masked:2:4"] > 0  # blocks lose most; half of the weights least
    blocks = formats(ctx, {"do": "steps", "arms": [{"arm": a, "count": 3} for a in ("dense", "csr-int32", "alone")]})[
        "blocks"
    ]
    assert [len(b["times_ms"]) for b in blocks] == [3, 3, 3]
    curve = formats(ctx, {"do": "curve", "layer": 0, "seconds": 0.05, "grid": [0.5, 0.9]})
    assert [p["sparsity"] for p in curve["points"]] == [0.5, 0.9]
    assert "csr-int32" in curve["points"][0]["speedup"]
    assert all(bool((p == q).all()) for p, q in zip(model.parameters(), _model().parameters(), strict=True))


def test_fused_encoder_layers_are_opened_so_that_their_products_can_be_compared() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    ctx = _context(model, [(torch.randn(2, 6, 32),)])
    seen = formats(ctx, {"do": "scout"})
    assert seen["unfused"] is True
    assert {x["name"].rpartition(".")[2] for x in seen["layers"]} == {"in_proj_weight", "weight"}
    ready = formats(ctx, {"do": "prepare", "targets": {x["name"]: 0.5 for x in seen["layers"]}, "blocks": [8]})
    assert ready["arms"]["csr-int32"]["dense_calls"] == 0
    got = formats(ctx, {"do": "outputs", "arms": ["csr-int32"]})["arms"]["csr-int32"]
    assert got["per_input"][0]["relative_l2"] > 0
    assert torch.backends.mha.get_fastpath_enabled()


def test_rounding_alone_is_told_apart_from_pruning() -> None:
    ctx = _context(_model(), [(torch.randn(4, 64),)])
    seen = formats(ctx, {"do": "scout"})["layers"]
    formats(ctx, {"do": "prepare", "targets": {x["name"]: 0.5 for x in seen}, "blocks": []})
    rows = {r["dtype"]: r for r in formats(ctx, {"do": "precision"})["rows"]}
    assert rows["float32"]["dense"][0]["relative_l2"] < 1e-6
    assert 1e-4 < rows["bfloat16"]["dense"][0]["relative_l2"] < rows["bfloat16"]["pruned"][0]["relative_l2"]


def test_an_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known are scout, prepare"):
        formats(_context(_model(), [(torch.randn(1, 64),)]), {"do": "brew"})


# The open loop


def _sleeper(seconds: float) -> Any:
    def step(x: Any) -> Any:
        time.sleep(seconds)
        return x

    return step


def test_latency_counts_from_the_intended_arrival_so_that_waiting_shows() -> None:
    ctx = _context(_sleeper(0.01), [(torch.zeros(1),)])
    got = serve(ctx, {"arrivals": [0, 1, 2, 3], "warm": 0})
    assert got["served"] == 4
    assert all(later > sooner + 5 for sooner, later in zip(got["latency_ms"], got["latency_ms"][1:], strict=False))
    assert max(got["service_ms"]) < got["latency_ms"][-1]
    assert got["waited"] >= 3


def test_a_worker_that_cannot_keep_up_stops_in_time_and_says_how_far_it_came() -> None:
    got = serve(_context(_sleeper(0.02), [(torch.zeros(1),)]), {"arrivals": [0.0] * 50, "seconds": 0.1, "warm": 0})
    assert 1 <= got["served"] < 50
    assert got["of"] == 50


def test_requests_take_inputs_by_rank_of_size_or_in_turn() -> None:
    ctx = _context(None, [(torch.zeros(9),), (torch.zeros(1),), (torch.zeros(4),)])
    assert choose(ctx, 6, [10, 900, 50, 10, 900, 50], 0) == [1, 0, 2, 1, 0, 2]
    assert choose(ctx, 4, None, 1) == [1, 2, 0, 1]
    alike = _context(None, [(torch.zeros(2),), (torch.zeros(2),)])
    assert choose(alike, 3, [5, 1, 9], 0) == [0, 1, 0]
