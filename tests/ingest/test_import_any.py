"""``sparsetui import`` of whatever there is: kinds compared with each other, products measured, and files of no kind."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sparsetui.cli.import_ import Reader, import_
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.matrices import inspect
from sparsetui.session.store import Store
from tests.ingest.test_checkpoints import write

APP = typer.Typer()
APP.command()(import_)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return lambda *argv: CliRunner().invoke(APP, [*map(str, argv), "-q", "--sessions", str(tmp_path / "sessions")])


def put(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_stacks_against_stacks(tmp_path: Path, run: Any) -> None:
    slow = put(
        tmp_path, "slow.txt", "f (a.py:1);mkl_sparse_s_convert_csr_i4 60\nf (a.py:1);mkl_blas_avx2_sgemm_kernel_0 40\n"
    )
    fast = put(tmp_path, "fast.txt", "f (a.py:1);mkl_blas_avx2_sgemm_kernel_0 90\nf (a.py:1);old 10\n")
    told = json.loads(run(slow, "--against", fast, "--json").stdout)
    c = told["comparison"]
    assert c["kind"] == "stacks"
    first = c["paths"][0]
    assert (first["name"], first["failing"], first["against"]) == ("conversion", 0.6, 0.0)
    low, high = first["difference"]["ci"]
    assert 0.48 < low < 0.6 < high < 0.70
    assert c["only_failing"] == ["mkl_sparse_s_convert_csr_i4"]
    assert c["only_against"] == ["old"]
    state = Store(tmp_path / "sessions").open(told["session"]).state()
    assert [e.probe for e in state.evidence] == ["stacks", "stacks", "stacks comparison"]
    text = run(slow, "--against", fast).stdout
    assert "0.0% →  60.0%  conversion" in text
    assert "only there" in text


def test_a_checkpoint_against_another(tmp_path: Path, run: Any) -> None:
    dense = np.ones((8, 16), np.float32)
    pruned = dense * (np.arange(16) % 4 < 1)
    a = write(tmp_path / "a.safetensors", {"w": ("F32", pruned.astype(np.float32)), "b": ("F32", dense[0])})
    b = write(tmp_path / "b.safetensors", {"w": ("F32", dense), "b": ("F32", dense[0]), "old": ("F32", dense[0])})
    c = json.loads(run(a, "--against", b, "--json").stdout)["comparison"]
    (row,) = c["tensors"]
    assert (row["name"], row["failing"]["zeros"], row["against"]["zeros"]) == ("w", 0.75, 0.0)
    assert (c["alike"], c["only_against"]) == (1, ["old"])
    text = run(a, "--against", b).stdout
    assert "zeros 0.0% → 75.0%  w" in text
    assert "csr64/dense" in text


def test_products_are_measured_on_demand(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("sparsetui.ingest.spmm.MEASURE_S", 0.2)
    m = scipy.sparse.random(64, 64, density=0.1, random_state=0, format="csr", dtype=np.float32)
    scipy.sparse.save_npz(tmp_path / "w.npz", m)
    told = json.loads(run(tmp_path / "w.npz", "--measure", "--json").stdout)
    (file,) = told["files"]
    assert file["measured"]["formats"]["csr-int64"]["ms"]["value"] > 0
    assert file["file"] == str(tmp_path / "w.npz")
    state = Store(tmp_path / "sessions").open(told["session"]).state()
    assert any("sparsetui.probes.spmm" in c["argv"] for c in state.commands)
    assert run(put(tmp_path, "s.txt", "a;b 1\n"), "--measure").exit_code == 2


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, run: Any) -> None:
    a, b = (
        put(tmp_path, "a.txt", "a;b 1\n"),
        put(tmp_path, "b.mtx", "%%MatrixMarket matrix array real general\n1 1\n2\n"),
    )
    done = run(a, "--against", b)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "cannot be compared" in done.stderr


MARKET = "%%MatrixMarket matrix coordinate real general\n3 4 2\n1 2 1.5\n3 4 -2\n"


@pytest.mark.parametrize("name", ["utf-16", "bom", "gz", "no banner", "fortran", "tabs", "comments between"])
def test_the_same_matrix_in_other_clothes(tmp_path: Path, name: str) -> None:
    made = {
        "utf-16": MARKET.encode("utf-16"),
        "bom": b"\xef\xbb\xbf" + MARKET.encode(),
        "gz": gzip.compress(MARKET.encode()),
        "no banner": MARKET.split("\n", 1)[1].encode(),
        "fortran": MARKET.replace("1.5", "1.5D+00").encode(),
        "tabs": MARKET.replace(" ", "\t").replace("\t", " ", 4).encode(),
        "comments between": MARKET.replace("3 4 -2", "% here\n\n3 4 -2").encode(),
    }[name]
    got = Reader()(put(tmp_path, "m.mtx.gz" if name == "gz" else "m.mtx", made))
    assert (got["shape"], got["nonzeros"]) == ([3, 4], 2)
    assert ("no banner" in str(got["notes"])) == (name == "no banner")


@pytest.mark.parametrize("how", ["csr by hand", "coo by hand", "adj", "dense", "coords"])
def test_arrays_that_others_save(tmp_path: Path, how: str) -> None:
    m = scipy.sparse.random(13, 9, density=0.3, random_state=1, format="csr")
    coo = m.tocoo()
    parts = {"data": m.data, "indices": m.indices, "indptr": m.indptr, "shape": m.shape}
    np.savez(tmp_path / "m.npz", **{
        "csr by hand": parts,
        "coo by hand": {"row": coo.row, "col": coo.col, "data": coo.data, "shape": m.shape},
        "adj": {f"adj_{k}": v for k, v in parts.items()},
        "dense": {"weight": m.toarray()},
        "coords": {"format": b"coo", "coords": (coo.row, coo.col), "data": coo.data, "shape": m.shape},
    }[how])  # fmt: skip
    got = inspect(tmp_path / "m.npz")
    assert (got["shape"], got["nonzeros"]) == ([13, 9], m.nnz)


def test_a_market_file_read_at_one_go_is_the_same_as_line_by_line(tmp_path: Path) -> None:
    m = scipy.sparse.random(50, 40, density=0.2, random_state=2, format="coo")
    buffer = io.BytesIO()
    scipy.io.mmwrite(buffer, m)
    plain = inspect(put(tmp_path, "a.mtx", buffer.getvalue()))
    slow = inspect(put(tmp_path, "b.mtx", buffer.getvalue() + b"% the end\n"))
    assert plain["structure"] == slow["structure"]


NAMES = (
    "a.json",
    "a.json.gz",
    "a.txt",
    "a.mtx",
    "a.smtx",
    "a.npz",
    "a.safetensors",
    "model.index.json",
    "a.speedscope.json",
)
STARTS = (
    b"", b"{", b"[", b'{"traceEvents": [', b'{"weight_map": {"a": "b.safetensors"', b'{"profiles": [], "shared": {"frames": [',
    b"%%MatrixMarket matrix coordinate real general\n3 3 ", b"3, 3, 2\n0 1 2 2\n", b"PK\x03\x04", b"\x1f\x8b\x08\x00",
    b"\xff\xfe", b"\x08\x00\x00\x00\x00\x00\x00\x00{", b'{"traceEvents": [], "samples": [{"sf": 1}], "stackFrames": {',
    b"\x93NUMPY\x01\x00v\x00",
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(NAMES),
    start=st.sampled_from(STARTS),
    rest=st.one_of(st.binary(max_size=60), st.text(max_size=60)),
)
def test_any_bytes_give_a_payload_or_one_line(tmp_path: Path, name: str, start: bytes, rest: bytes | str) -> None:
    path = put(tmp_path, name, start + (rest if isinstance(rest, bytes) else rest.encode("utf-8", "replace")))
    told = f"{path} is read"
    try:
        Reader()(path)
    except IngestError as error:
        told = str(error)
    assert str(path) in told
    assert "\n" not in told


@pytest.mark.parametrize("name", ["bomb.json.gz", "bomb.txt.gz", "bomb.mtx.gz", "bomb.npz", "bomb.zip"])
def test_bombs_are_refused_without_being_unpacked(tmp_path: Path, name: str) -> None:
    import resource

    blank = b" " * (16 << 20)
    path = tmp_path / name
    head = {"txt": b"a;b 1\n", "mtx": MARKET.encode()}.get(name.split(".")[1], b'{"traceEvents": [')
    if name.endswith(".gz"):  # members of a gzip file follow each other
        path.write_bytes(gzip.compress(head) + gzip.compress(blank) * 8)
    else:
        member = "data.npy" if name.endswith("npz") else "a.json"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z, z.open(member, "w") as f:
            f.write(head)
            for _ in range(20):
                f.write(blank)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(IngestError):
        Reader()(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
