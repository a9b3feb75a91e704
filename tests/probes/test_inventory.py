"""What the inventory says of tensors as they come, sound or not."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

from sparsetui.probes import inventory, walk  # noqa: E402


def row(t, pattern=None):
    return inventory.row("t", t, pattern)


def mostly_zero(n, m, keep=0.1, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, m, generator=g) * (torch.rand(n, m, generator=g) < keep)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "bsc"])
def test_bytes_by_part(kind):
    w = mostly_zero(16, 32)
    make = {
        "csr": w.to_sparse_csr,
        "csc": w.to_sparse_csc,
        "coo": w.to_sparse,
        "bsr": lambda: w.to_sparse_bsr((4, 4)),
        "bsc": lambda: w.to_sparse_bsc((4, 4)),
    }[kind]
    s = make()
    got = row(s)
    assert got["layout"] == kind
    assert got["bytes"]["dense"] == 16 * 32 * 4
    nnz, stored = s._nnz(), got["stored"]
    assert got["bytes"]["values"] == 4 * stored
    blocks = 16 if kind in ("bsr", "bsc") else 1
    assert stored == nnz * blocks
    pointers = {"csr": 17, "csc": 33, "bsr": 5, "bsc": 9, "coo": nnz}[kind]
    assert got["bytes"]["indices"] == 8 * (nnz + pointers)
    assert got["zeros"] == pytest.approx(float((w == 0).float().mean()))
    assert got["invalid"] == []


def test_structure_is_the_same_in_every_layout():
    w = mostly_zero(32, 64, keep=0.3)
    seen = [
        row(t)
        for t in (
            w,
            w.to_sparse(),
            w.to_sparse_csr(),
            w.to_sparse_csc(),
            w.to_sparse_bsr((4, 8)),
            w.to_sparse_bsc((8, 4)),
        )
    ]
    for key in ("nm", "blocks", "row_max_over_mean", "empty_rows", "static_share", "zeros"):
        assert all(s[key] == seen[0][key] for s in seen), key


def test_stored_zeros_and_tiny_values():
    crow, col = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1])
    t = torch.sparse_csr_tensor(crow, col, torch.tensor([1.0, 0.0, 1e-30, 2.0]), (2, 2))
    got = row(t)
    assert (got["stored"], got["stored_zeros"], got["stored_tiny"]) == (4, 1, 1)


def test_tiny_is_told_at_the_dtype_and_never_coarser_than_float32():
    t = torch.tensor([[1.0, 1e-8]], dtype=torch.float64)
    assert row(t)["tiny"] == 0
    assert row(t.to(torch.float32))["tiny"] == 1
    assert row(t.to(torch.bfloat16))["tiny"] == 1
    assert row(torch.tensor([[1.0, 1e-4]], dtype=torch.bfloat16))["tiny"] == 0


def test_a_nan_hides_no_tiny_values():
    t = torch.tensor([[float("nan"), 1e-30, 1.0]])
    got = row(t)
    assert got["finite"] is False
    assert got["tiny"] == 0


def test_uncoalesced_duplicates_are_one_place():
    t = torch.sparse_coo_tensor([[0, 0, 0, 1], [1, 1, 1, 0]], [1.0, 2.0, 3.0, 4.0], (2, 2))
    got = row(t)
    assert got["coalesced"] is False
    assert got["nnz"] == 4
    assert got["zeros"] == 0.5
    assert got["invalid"] == []


def _csr(comp, plain, n, idx, shape=(3, 3), layout=torch.sparse_csr):
    vals = torch.ones(n) if layout in (torch.sparse_csr, torch.sparse_csc) else torch.ones(n, 1, 1)
    return torch.sparse_compressed_tensor(
        torch.tensor(comp, dtype=idx),
        torch.tensor(plain, dtype=idx),
        vals,
        shape,
        layout=layout,
        check_invariants=False,
    )


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
@pytest.mark.parametrize("idx", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("comp", "plain", "word"),
    [
        ([0, 1, 2, 3], [0, 1, 7], "out of range 0..2"),
        ([0, 1, 2, 3], [0, -1, 2], "out of range 0..2"),
        ([0, 2, 1, 3], [0, 1, 2], "not monotone"),
        ([1, 2, 3, 3], [0, 1, 2], "pointer is 1, not 0"),
        ([0, 1, 2, 9], [0, 1, 2], "pointer is 9, but 3 entries"),
        ([0, 3, 3, 3], [0, 2, 1], "unsorted"),
        ([0, 3, 3, 3], [0, 1, 1], "duplicate"),
    ],
)
def test_invalid_compressed_indices_are_found_and_not_followed(layout, idx, comp, plain, word):
    got = row(_csr(comp, plain, 3, idx, layout=layout))
    assert any(word in b for b in got["invalid"]), got["invalid"]
    assert "nm" not in got


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_valid_compressed_indices(layout):
    assert row(_csr([0, 1, 2, 3], [2, 1, 0], 3, torch.int32, layout=layout))["invalid"] == []


def stand_in(comp, plain, values, shape=(3, 3)):
    """Torch refuses to build these; files and extensions do not."""
    return types.SimpleNamespace(
        layout=torch.sparse_csr,
        shape=shape,
        values=lambda: values,
        crow_indices=lambda: torch.tensor(comp),
        col_indices=lambda: torch.tensor(plain),
    )


def test_index_tensors_of_a_wrong_length():
    assert inventory.invalid(stand_in([0, 1, 3], [0, 1, 2], torch.ones(3)), "csr") == ["3 row pointers, not 4"]
    assert inventory.invalid(stand_in([], [0, 1, 2], torch.ones(3)), "csr") == ["0 row pointers, not 4"]
    assert "3 indices for 2 stored values" in inventory.invalid(stand_in([0, 1, 2, 3], [0, 1, 2], torch.ones(2)), "csr")


@pytest.mark.parametrize(
    ("idx", "mark", "word"),
    [
        ([[0, 5], [0, 1]], False, "dimension 0 out of range 0..2"),
        ([[0, 1], [0, -2]], False, "dimension 1 out of range 0..2"),
        ([[1, 1], [1, 1]], True, "duplicate"),
        ([[1, 0], [1, 1]], True, "unsorted"),
    ],
)
def test_invalid_coo_indices(idx, mark, word):
    t = torch.sparse_coo_tensor(torch.tensor(idx), torch.ones(2), (3, 3), check_invariants=False)._coalesced_(mark)
    assert any(word in b for b in row(t)["invalid"])


def test_unsorted_coo_that_does_not_claim_to_be_coalesced_is_sound():
    t = torch.sparse_coo_tensor(torch.tensor([[1, 0], [1, 1]]), torch.ones(2), (3, 3))
    assert row(t)["invalid"] == []


def test_nm_on_both_axes():
    along_rows = torch.tensor([[1.0, 1, 0, 0]]).repeat(8, 2)
    got = row(along_rows)["nm"]["2:4"]
    assert got == [1.0, 0.5]  # the first two columns are full
    assert row(along_rows.t().contiguous())["nm"]["2:4"] == [0.5, 1.0]
    assert row(along_rows, (1, 4))["nm"]["1:4"] == [0.0, 0.5]


def test_bsr_fill_and_block_occupancy():
    w = torch.zeros(32, 32)
    w[:16, :16] = torch.eye(16)
    got = row(w.to_sparse_bsr((16, 16)))
    assert got["block"] == [16, 16]
    assert got["fill"] == pytest.approx(1 / 16)
    assert got["blocks"]["16"] == [0.25, pytest.approx(1 / 16)]
    assert got["blocks"]["4"] == [4 / 64, pytest.approx(1 / 4)]


def test_row_skew():
    w = torch.zeros(8, 32)
    w[0] = 1.0
    got = row(w)
    assert got["row_max_over_mean"] == 8.0
    assert got["empty_rows"] == 7
    assert got["static_share"]["2"] == 1.0


@pytest.mark.parametrize("sparse", [False, True])
def test_blocks_of_a_tall_matrix_are_read_off_whole_bands(sparse):
    w = torch.zeros(16384, 64)
    tiles = torch.arange(16384 // 32) % 2 == 0
    w.view(-1, 32, 2, 32)[tiles, :, 0] = 1.0  # every second row of 32×32 tiles, in its left half, full
    got = row(w.to_sparse_csr() if sparse else w)
    assert got["rows_sampled"] == 4096
    share, inside = got["blocks"]["32"]
    assert inside == 1.0
    assert 0.2 <= share <= 0.5
    assert got["blocks"]["4"][1] == 1.0


def test_a_large_graph_is_read_without_its_square():
    n = 200_000  # as a dense mask it would take 40 GB
    idx = torch.stack([torch.arange(n), torch.arange(n).flip(0)])
    for t in (
        torch.sparse_coo_tensor(idx, torch.ones(n), (n, n)),
        torch.sparse_csr_tensor(torch.arange(n + 1), torch.arange(n).flip(0), torch.ones(n), (n, n)),
    ):
        got = row(t)
        assert got["row_max_over_mean"] == 1.0
        assert got["static_share"]["4"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    "t",
    [
        torch.empty(0),
        torch.empty(0, 5),
        torch.empty(4, 0),
        torch.tensor(3.0),
        torch.zeros(()),
        torch.empty(4, 4, device="meta"),
        torch.empty(3, 3).to_sparse(),
        torch.empty(0, 3).to_sparse(),
        torch.zeros(4, 4).to_sparse_csr(),
        torch.zeros(4, 4, dtype=torch.bool),
        torch.randn(8, 8, dtype=torch.complex64),
        torch.randn(8, 8, dtype=torch.complex64).to_sparse_csr(),
        torch.randn(8, 8).bfloat16(),
        torch.randn(8, 8).half(),
        torch.randn(8, 8).bfloat16().to_sparse_csr(),
        torch.randn(2, 8, 8).to_sparse_csr(),
        torch.randint(-3, 3, (8, 8), dtype=torch.int8),
        torch.randn(8, 8).to(torch.float8_e4m3fn),
        torch.randn(3, 4, 5).to_sparse(),
        torch.sparse_coo_tensor([[0, 2]], torch.randn(2, 4), (3, 4)),
        torch.sparse_coo_tensor([[0, 2]], torch.randn(2, 4), (8, 4)),
        torch.quantize_per_tensor(torch.randn(8, 8), 0.1, 0, torch.qint8),
        torch.quantize_per_tensor(torch.randn(8, 8), 0.1, 7, torch.quint8),
        torch.randn(8, 8).to_mkldnn(),
        torch.randn(8, 8).t(),
        torch.randn(8).expand(8, 8),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=lambda t: f"{t.layout}-{t.dtype}-{t.dim()}".replace("torch.", ""),
)
def test_odd_tensors_have_a_row(t, replica):
    got = replica(types.SimpleNamespace(w=t)).ask("inventory")["tensors"]
    assert [r["name"] for r in got] == ["w"]


def test_zero_point_of_a_quantised_tensor_is_zero():
    t = torch.quantize_per_tensor(torch.tensor([[0.0, 0.0, 0.0, 1.0]] * 4), 0.1, 7, torch.quint8)
    got = row(t)
    assert got["zeros"] == 0.75
    assert got["dtype"] == "quint8"


def test_complex_non_finite():
    assert row(torch.tensor([[complex(0, float("inf")), 1]]))["finite"] is False


def test_parameters_in_one_flat_buffer_are_each_counted(replica):
    flat = torch.randn(2, 8, 8)
    flat[1] = 0
    rows = replica(types.SimpleNamespace(a=flat[0], b=flat[1])).ask("inventory")["tensors"]
    assert [(r["name"], r["zeros"]) for r in rows] == [("a", 0.0), ("b", 1.0)]


def test_matrices_on_one_vector_of_values_are_each_counted(replica):
    ones = torch.ones(4)
    a = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]]), ones, (4, 4))
    b = torch.sparse_coo_tensor(torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]]), ones, (4, 4))
    rows = replica(types.SimpleNamespace(a=a, b=b)).ask("inventory")["tensors"]
    assert [r["name"] for r in rows] == ["a", "b"]


def test_a_tied_weight_is_counted_once(replica):
    m = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    m[1].weight = m[0].weight
    rows = replica(m).ask("inventory")["tensors"]
    assert [(r["name"], r["requires_grad"]) for r in rows] == [("0.weight", True)]


class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight


def test_walk_reaches_slots_queues_and_past_a_vocabulary(monkeypatch):
    import collections

    monkeypatch.setattr(walk, "_MAX_NODES", 1000)

    w, v, u = torch.ones(1), torch.ones(2), torch.ones(3)
    root = {
        "vocabulary": {f"w{i}": i for i in range(2000)},
        "deep": [[Slotted(w)], collections.deque([v])],
        "z": {"u": u},
    }
    assert {id(t) for _, t in walk.held_tensors(root)} == {id(w), id(v), id(u)}


def test_replacing_reaches_every_holder():
    w = torch.eye(4).to_sparse_csr()
    m = torch.nn.Linear(4, 4)
    box = {"a": w, "b": [w], "m": m, "p": m.weight}
    new = torch.zeros(4, 4)
    assert walk.replace_tensors(box, lambda t: t.to_dense() if t is w else new if t is m.weight else None) == 4
    assert box["a"] is box["b"][0]
    assert box["a"].layout == torch.strided
    assert box["p"] is m.weight
    assert isinstance(m.weight, torch.nn.Parameter)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_small_weights_of_a_coarse_dtype_are_no_zeros(replica, dtype):
    w = torch.linspace(1e-4, 1.0, 4096).reshape(64, 64)
    w[0, :8] = 1e-9
    w[1] = 0
    layer = torch.nn.Linear(64, 64, bias=False)
    layer.weight = torch.nn.Parameter(w.to(dtype))
    found = replica(layer, (torch.randn(2, 64, dtype=dtype),)).ask("inventory")["tensors"][0]
    assert found["zeros"] == pytest.approx((64 + 8) / 4096)
