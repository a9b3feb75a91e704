"""Matrix files: what is whole reads right, what is not gets one line."""

from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.matrices import inspect, read, render


def dense_of(m):
    out = np.zeros((m.rows, m.cols))
    np.add.at(out, (m.row, m.col), 1.0 if m.values is None else m.values)
    return out


def put(tmp_path, name, text):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def refused(tmp_path, name, text, words):
    file = put(tmp_path, name, text)
    with pytest.raises(IngestError) as e:
        inspect(file)
    line = str(e.value)
    assert str(file) in line
    assert "\n" not in line
    assert words in line, line


def reads_or_one_line(file):
    line = "fine"
    try:
        inspect(file)
    except IngestError as e:
        line = str(e)
    assert line.isprintable()


def random_sparse(seed=0, shape=(13, 9), kind="real"):
    m = scipy.sparse.random(*shape, density=0.3, random_state=seed, format="coo")
    return (m * 100).astype(np.int64) if kind == "integer" else m


@pytest.mark.parametrize("kind", ["real", "integer"])
@pytest.mark.parametrize("packed", [False, True])
def test_market_written_by_scipy(tmp_path, kind, packed):
    m = random_sparse(kind=kind)
    buffer = io.BytesIO()
    scipy.io.mmwrite(buffer, m)
    data = buffer.getvalue()
    file = put(tmp_path, "m.mtx.gz" if packed else "m.mtx", gzip.compress(data) if packed else data)
    np.testing.assert_allclose(dense_of(read(file)), m.toarray())


@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
@pytest.mark.parametrize("sparse", [True, False])
def test_symmetric_halves_are_mirrored(tmp_path, symmetry, sparse):
    a = np.random.default_rng(1).standard_normal((6, 6))
    a = a + a.T if symmetry == "symmetric" else a - a.T
    buffer = io.BytesIO()
    scipy.io.mmwrite(buffer, scipy.sparse.coo_matrix(a) if sparse else a, symmetry=symmetry)
    np.testing.assert_allclose(dense_of(read(put(tmp_path, "m.mtx", buffer.getvalue()))), a)


def test_pattern_and_complex(tmp_path):
    head = "%%MatrixMarket matrix coordinate "
    m = read(put(tmp_path, "p.mtx", head + "pattern general\n% c\n2 3 2\n1 3\n% between\n\n2 1\n"))
    assert m.values is None
    assert dense_of(m).tolist() == [[0, 0, 1], [1, 0, 0]]
    m = read(put(tmp_path, "c.mtx", head + "complex hermitian\n2 2 2\n1 1 2 0\n2 1 3 4\n"))
    assert dense_of(m).tolist() == [[2, 5], [5, 0]]


def test_explicit_zeros_and_duplicates_are_told(tmp_path):
    text = "%%MatrixMarket matrix coordinate real general\n2 2 4\n1 1 1\n1 1 2\n2 2 0\n1 2 5\n"
    got = inspect(put(tmp_path, "m.mtx", text))
    assert (got["stored"], got["nonzeros"], got["explicit_zeros"], got["duplicates"]) == (4, 2, 1, 1)


BAD_MARKET = {
    "banner": ("%%MatrixMarket matrix coordinate\n", "the banner is"),
    "field": ("%%MatrixMarket matrix coordinate quaternion general\n1 1 0\n", "field 'quaternion' is unknown"),
    "no sizes": ("%%MatrixMarket matrix coordinate real general\n% only\n", "before the line of sizes"),
    "sizes": ("%%MatrixMarket matrix coordinate real general\n% c\n2 2\n", "line 3: 2 sizes; coordinate needs 3"),
    "words": ("%%MatrixMarket matrix coordinate real general\n2 x 1\n", "line 2: '2 x 1' is no line of sizes"),
    "negative": ("%%MatrixMarket matrix coordinate real general\n2 -2 1\n", "negative"),
    "cut": ("%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n", "1 entries; the line of sizes says 3"),
    "more": ("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1\n2 2 1\n", "line 4: more than the 1"),
    "outside": ("%%MatrixMarket matrix coordinate real general\n2 2 1\n% c\n3 1 1\n", "line 4: '3 1 1' lies outside"),
    "zero index": ("%%MatrixMarket matrix coordinate real general\n2 2 1\n0 1 1\n", "lies outside"),
    "half index": ("%%MatrixMarket matrix coordinate real general\n2 2 1\n1.5 1 1\n", "lies outside"),
    "nan index": ("%%MatrixMarket matrix coordinate real general\n2 2 1\nnan 1 1\n", "lies outside"),
    "huge index": ("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1" + "0" * 400 + " 1\n", "lies outside"),
    "letters": ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 x\x1b[31m\n", "is not a number"),
    "short": ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1\n2 2 3 4\n", "line 3: 2 numbers"),
    "fraction": ("%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 1.5\n", "not a whole number"),
    "square": ("%%MatrixMarket matrix coordinate real symmetric\n2 3 0\n", "must be square"),
    "diagonal": ("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 3\n", "on its diagonal"),
    "array": (
        "%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n",
        "3 values; an array of 2×2 (general) needs 4",
    ),
    "fits": ("%%MatrixMarket matrix coordinate real general\n1 1 5\n", "5 entries do not fit"),
    "huge": ("%%MatrixMarket matrix coordinate real general\n999999999999 1 0\n", "at most"),
    "beyond": (f"%%MatrixMarket matrix coordinate real general\n{10**40} 1 0\n", "beyond"),
    "nothing": ("", "not a matrix"),
}


@pytest.mark.parametrize("case", BAD_MARKET)
def test_mangled_market_gets_one_line(tmp_path, case):
    text, words = BAD_MARKET[case]
    refused(tmp_path, "m.mtx", text, words)


BAD_SMTX = {
    "head": ("2, x, 3\n0 1 2\n0 1\n", "line 1: '2, x, 3' is not three numbers"),
    "offsets": ("2, 2, 2\n0 2\n0 1\n", "line 2: 2 row offsets; 2 rows need 3"),
    "falling": ("2, 2, 2\n0 3 2\n0 1\n", "must rise from 0 to 2"),
    "count": ("2, 2, 2\n0 1 2\n0\n", "line 3: 1 column indices; the header says 2"),
    "outside": ("2, 2, 2\n0 1 2\n0 2\n", "index 2 is 2; columns go from 0 to 1"),
    "letters": ("2, 2, 2\n0 1 2\n0 b\n", "line 3: 'b' is not a whole number"),
    "cut": ("2, 2, 2\n", "line 2"),
}


@pytest.mark.parametrize("case", BAD_SMTX)
def test_mangled_smtx_gets_one_line(tmp_path, case):
    text, words = BAD_SMTX[case]
    refused(tmp_path, "m.smtx", text, words)


def test_smtx(tmp_path):
    m = read(put(tmp_path, "m.smtx", "2, 3, 3\r\n0 1 3 \r\n2 0 1"))
    assert dense_of(m).tolist() == [[0, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
def test_npz_of_every_format(tmp_path, form):
    a = np.zeros((8, 6))
    a[0, 1], a[3, 4], a[7, 0], a[7, 5] = 1, 2, 3, -4
    scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.coo_matrix(a).asformat(form))
    got = inspect(tmp_path / "m.npz")
    np.testing.assert_array_equal(dense_of(read(tmp_path / "m.npz")), a)
    assert got["nonzeros"] == 4
    assert got["format"] == f"scipy {form}"
    assert any("dense" in line for line in render(got))


def test_bad_npz(tmp_path):
    refused(tmp_path, "m.npz", b"PK\x03\x04 nothing", "not a whole .npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(IngestError, match=r"holds a; accepted is what scipy"):
        inspect(tmp_path / "other.npz")
    np.savez(tmp_path / "p.npz", format=np.array([{"x": 1}], dtype=object), shape=np.array([1, 1]))
    with pytest.raises(IngestError, match="not a plain array"):
        inspect(tmp_path / "p.npz")
    parts = {"data": np.ones(2), "indices": np.array([0, 9]), "indptr": np.array([0, 1, 2]), "shape": np.array([2, 2])}
    np.savez(tmp_path / "o.npz", format=np.array(b"csr"), **parts)
    with pytest.raises(IngestError, match="lies outside"):
        inspect(tmp_path / "o.npz")


def test_bombs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sparsetui.ingest.npz._HARMLESS", 1 << 20)
    refused(tmp_path, "m.mtx.gz", gzip.compress(b"%%MatrixMarket\n" + b"1 " * (40 << 20), 9), "unpacks to more than")
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("data.npy", b"\0" * (60 << 20))
    with pytest.raises(IngestError, match="that is no matrix"):
        inspect(tmp_path / "b.npz")


def test_cut_gzip(tmp_path):
    whole = gzip.compress(b"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1\n" * 50)
    refused(tmp_path, "m.mtx.gz", whole[:40], "damaged or cut off")


def test_unreadable(tmp_path):
    with pytest.raises(IngestError, match="cannot be read"):
        inspect(tmp_path / "none.mtx")
    with pytest.raises(IngestError, match="cannot be read"):
        inspect(tmp_path)


WHOLE = b"%%MatrixMarket matrix coordinate real general\n% c\n3 3 3\n1 1 1.5\n2 3 -2\n3 1 4e3\n"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=6), st.integers(0, 8))
def test_any_mutation_reads_or_gets_one_line(tmp_path_factory, at, put_in, cut):
    file = tmp_path_factory.getbasetemp() / "fuzz.mtx"
    file.write_bytes(WHOLE[:at] + put_in + WHOLE[at + cut :])
    reads_or_one_line(file)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 24), st.binary(max_size=5), st.integers(0, 6))
def test_any_mutated_smtx_reads_or_gets_one_line(tmp_path_factory, at, put_in, cut):
    whole = b"3, 4, 4\n0 1 2 4\n0 3 1 2\n"
    file = tmp_path_factory.getbasetemp() / "fuzz.smtx"
    file.write_bytes(whole[:at] + put_in + whole[at + cut :])
    reads_or_one_line(file)
