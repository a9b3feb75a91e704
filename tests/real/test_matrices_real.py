"""Matrices that others made: pruned layers and Matrix Market files, some mangled on purpose."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.matrices import inspect

pytestmark = pytest.mark.real

DATA = Path(os.environ.get("SPARSETUI_REAL_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
SMTX = sorted((DATA / "smtx").rglob("*.smtx"))
MTX = sorted((DATA / "mtx").glob("*.mtx*"))

# file → (rows, columns, non-zeros after mirroring and adding duplicates up), read off the files by SciPy and by hand
RIGHT = {
    "A.mtx": (7, 7, 30),
    "LFAT5_hypersparse.mtx": (2000, 2000, 46),
    "complex.mtx": (3, 3, 9),
    "empty.mtx": (3, 4, 0),
    "full_symmetric.mtx": (4, 4, 16),
    "lp_afiro.mtx": (27, 51, 102),
    "matrix_bool.mtx": (7, 7, 7),
    "matrix_fp64.mtx": (7, 7, 11),
    "skew_int8.mtx": (6, 6, 18),
    "olm1000.mtx": (1000, 1000, 3996),
    "n1024-l6.mtx.gz": (1024, 1024, 32768),
    "west0067_jumbled.mtx": (67, 67, 294),
}
# infinities in a file of integers; entries of a line that are split by more than the usual blanks
SCIPY_REFUSES = {"matrix_fp64.mtx", "west0067_jumbled.mtx"}
# file → what the line must say
LINES = {
    "mangled4.mtx": "symmetry 'mangled' is unknown",
    "mangled7.mtx": "2 numbers in '1 1'",
    "mangled10.mtx": "2 entries; the line of sizes says 3",
    "mangled13.mtx": "'3 9999 3.4' lies outside",
    "mangled16.mtx": "an array has one value a line",
}

if not DATA.is_dir():
    pytest.skip(f"no outside data at {DATA} (SPARSETUI_REAL_DATA)", allow_module_level=True)


@pytest.mark.parametrize("file", MTX, ids=lambda p: p.name)
def test_every_market_file_reads_right_or_gets_its_line(file):
    if file.name in LINES:
        with pytest.raises(IngestError, match=re.escape(LINES[file.name])):
            inspect(file)
        return
    got = inspect(file)
    if file.name in RIGHT:
        assert (*got["shape"], got["nonzeros"]) == RIGHT[file.name]
    if file.name in SCIPY_REFUSES:
        assert file.name in RIGHT
        return
    theirs = scipy.io.mmread(file)
    theirs = np.asarray(theirs.toarray() if hasattr(theirs, "toarray") else theirs)
    assert got["shape"] == list(theirs.shape)
    assert got["nonzeros"] == np.count_nonzero(theirs)
    assert got["structure"]["empty_rows"] == int((~theirs.astype(bool).any(axis=1)).sum())


@pytest.mark.parametrize("file", SMTX, ids=lambda p: "/".join(p.parts[-4:]))
def test_every_pruned_layer_reads_right(file):
    got = inspect(file)
    head = file.read_text().split("\n")
    rows, cols, nnz = (int(x) for x in head[0].split(","))
    assert got["shape"] == [rows, cols]
    assert got["nonzeros"] == nnz
    per_row = np.diff([int(x) for x in head[1].split()])
    assert got["structure"]["skew"]["max_row"] == per_row.max()
    assert got["structure"]["zeros"] == pytest.approx(1 - nnz / (rows * cols))


def test_folder_names_do_not_tell_the_sparsity():
    """Variational dropout's folders claim more than their files hold: only the file counts."""
    claimed = {f: float(f.parent.name) for f in SMTX if "variational_dropout" in f.parts and "rn50" in f.parts}
    assert any(abs(inspect(f)["structure"]["zeros"] - c) > 0.1 for f, c in claimed.items())
