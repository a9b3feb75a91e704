"""The structure of zeros: two independent ways to count must agree, and both with counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsetui.ingest.structure import BAND, Structure, break_even, of_dense, of_pattern, skew

masks = hnp.arrays(bool, st.tuples(st.integers(1, 70), st.integers(1, 70)), elements=st.booleans())


@settings(max_examples=60, deadline=None)
@given(masks, st.sampled_from([1, 2, 4]))
def test_dense_and_pattern_agree(mask, item):
    row, col = np.nonzero(mask)
    assert of_dense(mask, item) == of_pattern(*mask.shape, row, col, item)


@settings(max_examples=40, deadline=None)
@given(masks)
def test_bands_change_nothing(mask):
    whole = of_dense(mask, 4)
    banded = Structure(*mask.shape, 4)
    for start in range(0, len(mask), BAND):
        banded.add(mask[start : start + BAND])
    assert banded.result() == whole


@settings(max_examples=40, deadline=None)
@given(masks)
def test_groups_and_tiles_by_hand(mask):
    got = of_dense(mask, 4)
    rows, cols = mask.shape
    groups = [mask[r, c : c + 4] for r in range(rows) for c in range(0, cols, 4)]
    assert got["nm"]["2:4"]["along_rows"] == np.mean([g.sum() <= 2 for g in groups])
    groups = [mask[r : r + 8, c] for c in range(cols) for r in range(0, rows, 8)]
    assert got["nm"]["4:8"]["along_columns"] == np.mean([g.sum() <= 4 for g in groups])
    tiles = [mask[r : r + 16, c : c + 16].any() for r in range(0, rows, 16) for c in range(0, cols, 16)]
    assert got["blocks"]["16x16"]["occupied"] == sum(tiles)
    assert got["empty_columns"] == int((~mask.any(axis=0)).sum())
    assert got["zeros"] == 1 - mask.mean() or abs(got["zeros"] - (1 - mask.mean())) < 1e-12


def test_bytes_are_what_the_layouts_store():
    mask = np.zeros((64, 64), bool)
    mask[:16, :16] = True  # one full 16×16 tile: 256 values
    got = of_dense(mask, 4)["bytes"]
    assert got["dense"] == 64 * 64 * 4
    assert got["coo"] == 256 * (4 + 16)
    assert got["csr-int64"] == 256 * 12 + 65 * 8
    assert got["csr-int32"] == 256 * 8 + 65 * 4
    assert got["bsr-16-int32"] == 256 * 4 + 1 * 4 + 5 * 4
    assert "2:4" not in got  # the tile is full


def test_two_of_four_is_told_on_the_axis_it_lies_on():
    mask = np.tile([True, True, False, False], (8, 4))
    along = of_dense(mask, 2)
    assert along["nm"]["2:4"] == {"along_rows": 1.0, "along_columns": 0.5}
    assert along["bytes"]["2:4"] == 8 * 16 // 2 * 2 + 8 * 16 // 8
    assert "2:4" not in of_dense(mask.T.copy(), 2)["bytes"]


@pytest.mark.parametrize("item", [1, 2, 4, 8])
def test_break_even_separates_smaller_from_larger(item):
    rows, cols = 128, 256
    for name, density in break_even(rows, cols, item).items():
        if name.startswith("bsr"):
            continue
        for factor, smaller in ((0.95, True), (1.05, False)):
            nnz = int(density * factor * rows * cols)
            if not 0 < nnz < rows * cols:
                continue
            at = np.arange(nnz)
            size = of_pattern(rows, cols, at // cols, at % cols, item)["bytes"]
            assert (size[name] < size["dense"]) is smaller, name


def test_skew_of_one_heavy_run_of_rows():
    even = skew(np.full(16, 3))
    assert even["max_over_mean"] == 1
    assert even["worst_static_share"]["4"] == 0.25
    heavy = skew(np.array([9, 9, 9, 9] + [1] * 12))
    assert heavy["worst_static_share"]["4"] == 36 / 48
    assert skew(np.zeros(4, np.int64))["max_over_mean"] is None


def test_rows_that_were_not_given_are_missed():
    s = Structure(5, 4, 4)
    s.add(np.zeros((3, 4), bool))
    with pytest.raises(ValueError, match="3 of 5 rows"):
        s.result()


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_empty_shapes_have_no_ratio(shape):
    got = of_pattern(*shape, np.zeros(0, int), np.zeros(0, int), 4)
    assert got["zeros"] is None
    assert got["bytes"]["dense"] == 0
