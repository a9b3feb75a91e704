"""Checkpoints: zeros by element type, headers that lie, shards, bitmasks, torch files that are never unpickled."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.ingest.checkpoints import inspect, render
from sparsetui.ingest.elements import ELEMENTS, nonfinite, nonzero
from sparsetui.ingest.errors import IngestError


def write(path, tensors, metadata=None, header=None):
    """A .safetensors file by hand: ``tensors`` maps names to (dtype, array); ``header`` replaces the table."""
    table, at, blobs = {}, 0, []
    for name, (dtype, array) in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        table[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        blobs.append(data)
    if metadata:
        table["__metadata__"] = metadata
    raw = json.dumps(table).encode() if header is None else header
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(blobs))
    return path


def two_of_four(rows=8, cols=16, dtype=np.float32):
    return np.tile(np.array([1, 0, 2, 0], dtype), (rows, cols // 4))


def only(path):
    (tensor,) = inspect(path)["tensors"]
    return tensor


def bf16(array):
    return (np.asarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("F32", two_of_four()),
        ("F64", two_of_four(dtype=np.float64)),
        ("F16", two_of_four(dtype=np.float16)),
        ("BF16", bf16(two_of_four())),
        ("I8", two_of_four(dtype=np.int8)),
        ("F8_E4M3", np.where(two_of_four() != 0, 0x38, 0).astype(np.uint8)),
        ("F8_E5M2", np.where(two_of_four() != 0, 0x3C, 0x80).astype(np.uint8)),  # negative zeros
    ],
)
def test_zeros_and_pattern_of_each_type(tmp_path, dtype, array):
    got = only(write(tmp_path / "m.safetensors", {"w": (dtype, array)}))
    assert got["zeros"] == 0.5
    assert got["structure"]["nm"]["2:4"]["along_rows"] == 1.0
    assert got["structure"]["bytes"]["dense"] == array.nbytes


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("F32", 0x7F800000),
        ("F16", 0x7E00),
        ("BF16", 0xFF80),
        ("F8_E4M3", 0x7F),
        ("F8_E5M2", 0x7C),
        ("F64", 0x7FF << 52),
    ],
)
def test_non_finite_values_are_counted_and_negative_zero_is_zero(dtype, bits):
    element = ELEMENTS[dtype]
    sign = 1 << (element.bits - 1)
    largest = {"F32": 0x7F7FFFFF, "F16": 0x7BFF, "BF16": 0x7F7F, "F8_E4M3": 0x7E, "F8_E5M2": 0x7B, "F64": 0x7FEF << 48}
    largest = largest[dtype]  # finite
    raw = np.array([bits, 0, 1, sign, largest, sign | largest], element.storage)
    assert nonfinite(raw, element) == 1
    assert nonzero(raw, element).tolist() == [True, False, True, False, True, True]


def test_bands_of_a_large_tensor(tmp_path, monkeypatch):
    array = np.random.default_rng(0).integers(0, 3, (300, 70)).astype(np.float32)
    whole = only(write(tmp_path / "m.safetensors", {"w": ("F32", array)}))
    monkeypatch.setattr("sparsetui.ingest.tensors.BAND_BYTES", 64 * 70 * 4)
    assert only(tmp_path / "m.safetensors") == whole
    assert whole["zeros"] == np.mean(array == 0)


def test_conv_is_seen_as_output_channels_by_the_rest(tmp_path):
    got = only(write(tmp_path / "m.safetensors", {"w": ("F32", np.ones((4, 3, 2, 2), np.float32))}))
    assert got["structure"]["shape"] == [4, 12]


def header_of(**spec):
    return json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **spec}}).encode()


BAD = {
    "short": (b"\x01\x02", "starts with an 8-byte header length"),
    "huge header": (struct.pack("<Q", 1 << 60) + b"{}", "at most 100000000"),
    "cut header": (struct.pack("<Q", 500) + b"{}", "and 2 follow (cut off?)"),
    "not json": (struct.pack("<Q", 2) + b"{x", "not the JSON"),
    "not utf-8": (struct.pack("<Q", 2) + b"\xff\xfe", "not UTF-8"),
    "list": (struct.pack("<Q", 2) + b"[]", "JSON object"),
    "deep": (struct.pack("<Q", 200_000) + b"[" * 200_000, "not the JSON"),
    "twice": (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "'a' occurs twice"),
    "metadata": (struct.pack("<Q", 22) + b'{"__metadata__":{"a":1', "not the JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_broken_files_get_one_line(tmp_path, case):
    data, words = BAD[case]
    file = tmp_path / "m.safetensors"
    file.write_bytes(data)
    with pytest.raises(IngestError) as e:
        inspect(file)
    assert words in str(e.value)
    assert str(e.value).isprintable()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (header_of(shape=[3]), "takes 12 bytes, its offsets give 8"),
        (header_of(shape=[-2]), "whole numbers"),
        (header_of(shape=[2.0]), "whole numbers"),
        (header_of(shape=[True, 2]), "whole numbers"),
        (header_of(dtype="F99\x1b[2J"), "is unknown"),
        (header_of(shape=[4], data_offsets=[0, 16]), "ends at byte"),
        (header_of(shape=[1], data_offsets=[0, 4]), "4 bytes after the last tensor belong to none"),
        (header_of(shape=[1], data_offsets=[4, 8]), "4 bytes before tensor 'w'"),
        (header_of(data_offsets=[8, 0]), "its offsets give -8"),
        (b'{"w": 3}', "needs dtype, shape and data_offsets"),
        (
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            "tensors 'a' and 'b' overlap",
        ),
    ],
)
def test_headers_that_lie_get_one_line(tmp_path, header, words):
    file = write(tmp_path / "m.safetensors", {"w": ("F32", np.ones(2, np.float32))}, header=header)
    with pytest.raises(IngestError) as e:
        inspect(file)
    assert words in str(e.value)
    assert str(e.value).isprintable()


def test_cut_tail(tmp_path):
    file = write(tmp_path / "m.safetensors", {"w": ("F32", np.ones((4, 4), np.float32))})
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(IngestError, match="cut off"):
        inspect(file)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 150), st.binary(max_size=4), st.integers(0, 4))
def test_any_mutation_reads_or_gets_one_line(tmp_path_factory, at, put_in, cut):
    file = write(
        tmp_path_factory.getbasetemp() / "fuzz.safetensors",
        {"a": ("F32", two_of_four()), "b": ("I8", np.ones(3, "i1"))},
    )
    whole = file.read_bytes()
    file.write_bytes(whole[:at] + put_in + whole[at + cut :])
    line = "fine"
    try:
        inspect(file)
    except IngestError as e:
        line = str(e)
    assert line.isprintable()


def test_declared_sparsity_is_held_against_the_tensors(tmp_path):
    dense = np.ones((8, 16), np.float32)
    file = write(tmp_path / "m.safetensors", {"a": ("F32", two_of_four()), "b": ("F32", dense)}, {"sparsity": "50%"})
    (claim,) = inspect(file)["claims"]
    assert (claim["real"], claim["of_the_pruned"], claim["holds"]) == (0.25, 0.5, True)
    write(file, {"a": ("F32", two_of_four()), "b": ("F32", dense)}, {"sparsity": "0.9"})
    got = inspect(file)
    assert not got["claims"][0]["holds"]
    assert "does not hold: sparsity 90.0%" in got["summary"]


def bitmask(array, **changes):
    bits = np.packbits(array != 0, axis=1, bitorder="little")
    parts = {
        "m.weight.compressed": ("BF16", bf16(array[array != 0])),
        "m.weight.bitmask": ("U8", bits),
        "m.weight.shape": ("I64", np.array(array.shape, np.int64)),
    }
    return parts | changes


def test_compressed_tensors_bitmask(tmp_path):
    said = {"format": "sparse-24-bitmask", "global_sparsity": 0.5, "sparsity_structure": "2:4"}
    config = {"quantization_config": {"sparsity_config": said}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = write(tmp_path / "model.safetensors", bitmask(two_of_four()))
    got = inspect(file)
    (tensor,) = got["tensors"]
    assert (tensor["name"], tensor["layout"], tensor["zeros"]) == ("m.weight", "bitmask", 0.5)
    assert [c["holds"] for c in got["claims"]] == [True, True]
    ragged = np.zeros((3, 13), np.float32)
    ragged[0, 8] = ragged[2, 3] = 1
    write(file, bitmask(ragged))
    got = inspect(file)
    assert got["tensors"][0]["structure"]["shape"] == [3, 13]
    assert got["tensors"][0]["structure"]["nonzeros"] == 2
    assert not got["claims"][0]["holds"]


def test_bitmask_that_contradicts_its_values(tmp_path):
    bad = bitmask(two_of_four(), **{"m.weight.compressed": ("BF16", bf16(np.ones(5)))})
    got = inspect(write(tmp_path / "m.safetensors", bad))
    assert got["problems"] == ["m.safetensors: tensor 'm.weight': 5 values for 64 bits that are set"]
    assert "1 problems" in got["summary"]


def index(tmp_path, weight_map):
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return file


def test_sharded(tmp_path):
    write(tmp_path / "m-1.safetensors", {"a": ("F32", two_of_four())})
    write(tmp_path / "m-2.safetensors", {"b": ("F32", np.ones((8, 16), np.float32))})
    file = index(
        tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors", "d": "m-3.safetensors"}
    )
    got = inspect(file)
    assert got == inspect(tmp_path)  # a model folder is its index
    assert got["totals"]["zeros_of_matrices"] == 0.25
    assert got["problems"][0] == "m-2.safetensors: tensor 'c' of the index is not in it"
    assert "m-3.safetensors: cannot be read" in got["problems"][1]


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "../secret.safetensors"}, "beside the index"),
        ({"a": "/etc/passwd"}, "beside the index"),
        ({"a": 3}, "no weight_map"),
        ({"a": "gone.safetensors"}, "none of its 1 shards"),
        (None, "no weight_map"),
    ],
)
def test_bad_index(tmp_path, weight_map, words):
    with pytest.raises(IngestError, match=words):
        inspect(index(tmp_path, weight_map))


def test_names_are_harmless_when_drawn(tmp_path):
    got = inspect(write(tmp_path / "m.safetensors", {"\x1b[2J\n|evil‮": ("F32", two_of_four())}))
    assert all(line.isprintable() for line in render(got))


MAKE = """
import os, sys, torch
folder, w = sys.argv[1], torch.tensor([[1., 0, 2, 0]]).repeat(32, 8)
state = {"w": w, "tied": w, "half": w.bfloat16(), "csr": w.to_sparse_csr(), "coo": w.to_sparse_coo(),
         "csc": w.to_sparse_csc(), "bsr": w.to_sparse_bsr((4, 4)), "l.weight_orig": torch.ones(32, 32),
         "l.weight_mask": (w != 0).float()}
state["bad"] = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 9]), torch.ones(2),
                                       size=(2, 2), check_invariants=False)
torch.save({"model": state, "step": 3}, folder + "/m.pt")
class Evil:
    def __reduce__(self):
        return os.system, ("touch " + folder + "/ran",)
torch.save({"w": w, "e": Evil()}, folder + "/evil.pt")
"""


@pytest.fixture(scope="module")
def torch_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    done = subprocess.run([sys.executable, "-c", MAKE, str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"torch cannot make the files: {done.stderr.decode()[-200:]}")
    return folder


def test_torch_file(torch_files):
    commands = []
    got = inspect(torch_files / "m.pt", on_command=lambda argv, why, pid: commands.append(argv))
    tensors = {t["name"].removeprefix("model."): t for t in got["tensors"]}
    assert commands[0][-1] == str(torch_files / "m.pt")
    assert tensors["tied"]["same_as"] == "model.w"
    for name in ("w", "half", "csr", "coo", "csc", "bsr"):
        assert tensors[name]["zeros"] == 0.5, name
        assert tensors[name]["structure"]["nm"]["2:4"]["along_rows"] == 1.0, name
    assert tensors["bsr"]["explicit_zeros"] == 512
    assert tensors["csr"]["index_bytes"] == (33 + 512) * 8
    if "bad" in tensors:  # newer releases of torch refuse to save or load it
        assert tensors["bad"]["invalid"]
    assert got["masks"][0]["zeros_of_mask"] == 0.5


def test_torch_file_with_code_is_refused_and_nothing_runs(torch_files):
    with pytest.raises(IngestError, match="objects other than tensors"):
        inspect(torch_files / "evil.pt")
    assert not (torch_files / "ran").exists()


def test_torch_bomb(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("m/data.pkl", b"\0" * (20 << 20))
    with pytest.raises(IngestError, match="torch does not compress"):
        inspect(tmp_path / "m.pt")
