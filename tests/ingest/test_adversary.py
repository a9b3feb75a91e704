"""Files that were made to hurt: each ends in figures with what was left out, or in one line; nothing hangs or fills the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import resource
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sparsetui.cli.import_ import Reader, conclude
from sparsetui.evidence.records import to_json
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.traces.text import lines


def event(ts: Any, dur: Any = 5, name: str = "aten::add", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


EVENTS = [event(10 * i) for i in range(10)]


def document(events: list[Any], **more: Any) -> str:
    return json.dumps({"schemaVersion": 1, **more, "traceEvents": events})


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def imported(*paths: Path) -> tuple[dict[str, Any], str]:
    """What the command makes of the files: its result, and all of its lines."""
    result = conclude([Reader()(p) for p in paths], [])
    told = lines(result)
    assert all(line.isprintable() for line in told)
    assert b"NaN" not in to_json(result)
    return result, "\n".join(told)


def refused(path: Path) -> str:
    with pytest.raises(IngestError) as e:
        imported(path)
    line = str(e.value)
    assert str(path) in line
    assert line.isprintable()
    return line


# ── traces ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bad", [(0, 1e308), (1.7e308, 5), (-1e300, 5), (1e18, 1), (10**400, 1)])
def test_times_beyond_all_measure_are_no_times(tmp_path: Path, bad: tuple[float, float]) -> None:
    events = [*EVENTS, *(event(*bad, tid=i) for i in range(3))]
    ((trace,), _) = (imported(put(tmp_path, "t.json", document(events)))[0]["files"], None)
    assert trace["oddities"]["incomplete"] == 3
    assert trace["time_table"].paths[0].share.value == 1.0
    assert 0 < trace["span_ms"] < 1


@pytest.mark.parametrize("bad", [[1], [], [1, 2], [[1]], {"a": 1}])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_lists_in_place_of_times_are_no_times(tmp_path: Path, key: str, bad: Any) -> None:
    """Where all are of one length NumPy makes a table of them, not a column."""
    for events in ([{**e, key: bad} for e in EVENTS], [{**EVENTS[0], key: bad}]):
        ((trace,), _) = (imported(put(tmp_path, "t.json", document(events)))[0]["files"], None)
        assert trace["oddities"]["incomplete"] == len(events)
        assert trace["timed_events"] == 0


ODD = {
    "a name": event(5, name=7),
    "a category": event(5, cat=7),
    "no thread": {k: v for k, v in event(5).items() if k not in ("pid", "tid")},
    "a time": event(True),
    "a number as text": {**event(5, name="k", args={"correlation": "3"}), "cat": "kernel"},
    "a number as float": {**event(5, name="k", args={"correlation": 3.0}), "cat": "kernel"},
}


@pytest.mark.parametrize("kind", ODD)
def test_what_an_event_is_does_not_depend_on_those_beside_it(kind: str) -> None:
    """Columns are made in bulk where all is in order, and event by event where something is not: both must agree."""
    from sparsetui.ingest.events.reader import Event
    from sparsetui.ingest.events.table import Tabling

    def made(*events: dict[str, Any]) -> list[tuple[Any, ...]]:
        told = msgspec.convert(events, list[Event])
        table = Tabling().table(told)
        rows = zip(*(c.tolist() for c in table.columns), strict=True)
        return [(k, table.names[n], table.lanes[lane], ts, dur, corr) for k, n, lane, ts, dur, corr, _, _ in rows]

    odd, beside = ODD[kind], {**event(9, name="k", args={"correlation": None}), "cat": "kernel"}
    alone = made(odd)
    assert made(odd, event(1, dur=-1)) == alone
    assert made(odd, beside) == alone + made(beside)


@pytest.mark.parametrize(
    "text",
    [
        document(EVENTS[:5]) + document(EVENTS[5:]),
        '{"traceEvents":' + json.dumps(EVENTS[:5]) + ', "traceEvents" : ' + json.dumps(EVENTS[5:]) + "}",
        json.dumps([{**e, "cat": "cpu_op"} for e in EVENTS[:5]]) + "\n" + json.dumps(EVENTS[5:]),
        document(EVENTS[:5]) + " " * 9_000_000 + document(EVENTS[5:]),
    ],
    ids=["two documents", "a key that occurs twice", "two lists", "two documents far apart"],
)
def test_a_second_list_of_events_is_told(tmp_path: Path, text: str) -> None:
    result, told = imported(put(tmp_path, "t.json", text))
    (trace,) = result["files"]
    assert trace["events"] == 5
    assert trace["salvage"]["cut"] == "a second list of events follows, which is not read"
    at = trace["salvage"]["cut_at"]["byte"]
    assert len(document(EVENTS[:4])) - 60 < at < len(text) - 200
    assert f"at byte {at}" in told


def test_two_files_of_one_rank_blame_nobody(tmp_path: Path) -> None:
    info = {"rank": 0, "world_size": 4}
    one, two = (put(tmp_path, f"{n}.json", document(EVENTS[: 4 + n], distributedInfo=info)) for n in (1, 2))
    result, told = imported(one, two)
    assert "rank_verdict" not in result
    (question,) = [u for u in result["cannot_answer"] if u.question == "Which rank is behind?"]
    assert question.why == "2 files call themselves rank 0"
    assert "most compute" not in told
    assert "not among the files: rank 1, 2, 3" in told
    other = put(tmp_path, "3.json", document(EVENTS, distributedInfo={"rank": 1, "world_size": 2}))
    result, _ = imported(one, other)
    assert "they tell of runs of 2 and of 4 ranks" in result["ranks"]["doubts"]
    honest = put(tmp_path, "4.json", document(EVENTS, distributedInfo={"rank": 3, "world_size": 4}))
    result, told = imported(one, honest)
    assert "rank_verdict" in result
    assert "not among the files: rank 1, 2" in told


def encrypted() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("t.json", document(EVENTS))
    raw = bytearray(out.getvalue())
    raw[6] |= 1
    raw[raw.find(b"PK\x01\x02") + 8] |= 1
    return bytes(raw)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(gzip.compress(document(EVENTS).encode())), "packed twice"),
        (b"\x1f\x8b\x08", "ends early, after 0 unpacked bytes"),
        (encrypted(), "an encrypted zip archive"),
        (lzma.compress(document(EVENTS).encode()), "packed by xz; unpack it first"),
        (bz2.compress(document(EVENTS).encode()), "packed by bzip2; unpack it first"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "packed by zstandard; unpack it first"),
    ],
    ids=["gzip in gzip", "a head of gzip", "encrypted", "xz", "bzip2", "zstandard"],
)
def test_packings_that_hide_what_is_in_them(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refused(put(tmp_path, "t.json.gz", content))


SLOW = {
    "escaped quotes without end": lambda k: '{"a": "' + '\\"' * k,
    "names in names": lambda k: '{"name": "a' + ' "name": "a' * k + " x }",
    "lines without end": lambda k: '{"a": 1' + "\n" * k + "x }",
    "spaces behind an event": lambda k: '{"a": 1}' + " " * k + "x",
    "values without commas": lambda k: '{"x": ' + '"a" ' * k + "}",
    "nothing but beginnings": lambda k: '}{"ph":' * k,
}


@pytest.mark.parametrize("kind", SLOW)
def test_broken_text_costs_time_in_proportion_to_its_length(tmp_path: Path, kind: str) -> None:
    """A repair that begins to read anew at each quote would take hours here; the kernel ends it after a minute of CPU."""
    text = document(EVENTS)[:-2] + ", " + SLOW[kind](150_000) + "]}"
    path = put(tmp_path, "t.json", text)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\nfrom pathlib import Path\n"
        "from sparsetui.ingest.errors import IngestError\nfrom sparsetui.ingest.traces import inspect\n"
        "try: print(inspect(Path(sys.argv[1]))['events'])\nexcept IngestError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-300:])
    hopeless = kind == "nothing but beginnings"
    assert ("beyond repair, and so are 5001 events" in done.stdout) if hopeless else done.stdout in ("10\n", "11\n")


# ── text that is none ────────────────────────────────────────────────────────────────────────────────────────────────

LONE = "a\ud800"  # half of a pair, as an escape in JSON may give it


def speedscope() -> str:
    frames = [{"name": LONE}, {"name": "b", "file": f"{LONE}.py", "line": 3}]
    profile = {"type": "sampled", "name": LONE, "unit": LONE, "samples": [[0, 1], [1, 0]], "weights": [1, 2]}
    return json.dumps({"$schema": "speedscope", "shared": {"frames": frames}, "profiles": [profile]})


def named_tensors() -> bytes:
    raw = json.dumps({LONE: tensor("F32", [2, 2], 0, 16), "__metadata__": {LONE: LONE}}).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(16)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "t.json",
            lambda: json.dumps({"traceEvents": [event(1, name=LONE, pid=LONE)], "deviceProperties": [{"name": LONE}]}),
        ),
        ("s.json", speedscope),
        ("m.safetensors", named_tensors),
        (os.fsdecode(b"\xff\xfe\x1b[31m.json"), lambda: document(EVENTS)),
    ],
    ids=["trace", "stacks", "checkpoint", "file name"],
)
def test_half_characters_are_written_and_kept(tmp_path: Path, name: str, content: Callable[[], str | bytes]) -> None:
    from tests.cli.forked import command

    path = put(tmp_path, name, content())
    for more in (["--json"], []):
        done = command(["import", str(path), "--sessions", str(tmp_path / "s"), *more], cwd=tmp_path)
        assert (done.code, done.hung) == (0, False), done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert done.stdout
    report = command(["sessions", "list", "--json", "--sessions", str(tmp_path / "s")], cwd=tmp_path)
    assert len(json.loads(report.stdout)) == 2


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────────────


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(folder: Path, name: str, table: dict[str, Any] | bytes, blob: bytes = b"") -> Path:
    raw = table if isinstance(table, bytes) else json.dumps(table).encode()
    return put(folder, name, struct.pack("<Q", len(raw)) + raw + blob)


@pytest.mark.parametrize("dtype", ["C64", "F32", "F8_E4M3", "BOOL"])
def test_a_bitmask_whose_shape_is_no_whole_numbers(tmp_path: Path, dtype: str) -> None:
    size = {"C64": 16, "F32": 8}.get(dtype, 2)
    table = {"w.bitmask": tensor("U8", [4, 1], 0, 4), "w.compressed": tensor("F32", [4], 4, 20),
             "w.shape": tensor(dtype, [2], 20, 20 + size)}  # fmt: skip
    blob = bytes([1, 1, 1, 1]) + np.ones(4, "f4").tobytes() + bytes([0, 1]) * (size // 2)
    result, _ = imported(safetensors(tmp_path, "m.safetensors", table, blob))
    (problem,) = result["files"][0]["problems"]
    assert f"tensor 'w': its shape must be two whole numbers, not {dtype} [2]" in problem


def test_zeros_of_packed_integers_are_not_zeros_of_the_weight(tmp_path: Path) -> None:
    names = ("l.weight_packed", "l.qweight", "l.qzeros", "l.weight")
    table = {n: tensor("I32", [4, 4], 64 * i, 64 * i + 64) for i, n in enumerate(names)}
    result, _ = imported(safetensors(tmp_path, "m.safetensors", table, bytes(256)))
    tensors = {t["name"]: t for t in result["files"][0]["tensors"]}
    assert [n for n in names if "zeros" in tensors[n]] == ["l.weight"]
    assert all("quantised values share" in tensors[n]["note"] for n in names[:3])
    assert result["files"][0]["totals"]["matrices"] == 1


def test_very_many_bitmasks_take_no_longer_than_their_number(tmp_path: Path) -> None:
    n = 15_000
    table = {}
    for i in range(n):
        table[f"w{i}.bitmask"] = tensor("U8", [1, 1], 5 * i, 5 * i + 1)
        table[f"w{i}.compressed"] = tensor("F32", [1], 5 * i + 1, 5 * i + 5)
    path = safetensors(tmp_path, "m.safetensors", table, (b"\x01" + np.ones(1, "f4").tobytes()) * n)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\nfrom pathlib import Path\n"
        "from sparsetui.ingest.checkpoints import inspect; print(len(inspect(Path(sys.argv[1]))['tensors']))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stdout.strip() == str(n), done.stderr[-300:]


def test_a_shard_that_is_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.safetensors")
    safetensors(tmp_path, "a.safetensors", {"a": tensor("F32", [2, 2], 0, 16)}, bytes(16))
    path = put(tmp_path, "m.index.json", json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    result, _ = imported(path)
    assert result["files"][0]["problems"] == [
        f"{tmp_path}/b.safetensors: not a regular file; a file is accepted, not a folder, device or pipe"
    ]


def test_shards_that_contradict_each_other(tmp_path: Path) -> None:
    for shard, names in (("a", ("x", "y")), ("b", ("x", "z", "q"))):
        table = {n: tensor("F32", [2, 2], 16 * i, 16 * i + 16) for i, n in enumerate(names)}
        safetensors(tmp_path, f"{shard}.safetensors", table, bytes(16 * len(names)))
    index = {"weight_map": {"x": "a.safetensors", "y": "a.safetensors", "gone": "b.safetensors"}}
    result, _ = imported(put(tmp_path, "m.index.json", json.dumps(index)))
    assert result["files"][0]["problems"] == [
        "b.safetensors: tensor 'x' is in an earlier shard too",
        "b.safetensors: tensor 'q' is not in the index, and so are 1 more",
        "b.safetensors: tensor 'gone' of the index is not in it",
    ]
    twice = '{"weight_map": {"x": "a.safetensors", "x": "b.safetensors"}}'
    assert "'x' occurs twice" in refused(put(tmp_path, "m.index.json", twice))
    assert "no weight_map" in refused(put(tmp_path, "m.index.json", '{"weight_map": {}}'))


def test_a_size_of_thousands_of_digits(tmp_path: Path) -> None:
    raw = json.dumps({"w": tensor("F32", [2, 2], 0, 16)}).replace("16", "1" + "0" * 6000).encode()
    assert "tensor 'w': shape and data_offsets must be" in refused(
        safetensors(tmp_path, "m.safetensors", raw, bytes(16))
    )


CHECKPOINTS = """
import sys, torch
folder = sys.argv[1]
w = torch.eye(8)
torch.save({"w": w, "wide": torch.ones(1).expand(1 << 18, 1 << 18)}, folder + "/expanded.pt")
round_ = {"w": w}
for i in range(20):
    round_["again%d" % i] = round_
torch.save(round_, folder + "/round.pt")
nest = [w]
for i in range(15):
    nest = [nest] * 20
torch.save(nest, folder + "/lists.pt")
torch.save({"w": torch.sparse_coo_tensor([[0], [5]], [1.0], (1 << 30, 1 << 30))}, folder + "/vast.pt")
torch.save({"w": w, "n": 3}, folder + "/old.pt", _use_new_zipfile_serialization=False)
class Evil:
    def __reduce__(self):
        return __import__("os").system, ("touch " + folder + "/ran",)
torch.save({"w": w, "e": Evil()}, folder + "/evil.pt")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    done = subprocess.run([sys.executable, "-c", CHECKPOINTS, str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"torch cannot make the files: {done.stderr.decode()[-200:]}")
    return folder


@pytest.mark.parametrize("name", ["round", "lists", "old"])
def test_containers_that_hold_themselves_are_entered_once(made: Path, name: str) -> None:
    result, _ = imported(made / f"{name}.pt")
    (only,) = result["files"][0]["tensors"]
    assert only["zeros"] == 1 - 1 / 8


def test_a_tensor_that_is_nearly_all_repetition_is_left_out(made: Path) -> None:
    """Four bytes that say to be 256 GiB."""
    result, told = imported(made / "expanded.pt")
    kept, left = result["files"][0]["tensors"]
    assert kept["zeros"] == 1 - 1 / 8
    assert left["note"] == "left out: 4 bytes are stored for it, and its shape says 274877906944"
    assert "tensor 'wide' is left out" in told


def test_damage_in_a_checkpoint_is_not_called_code(made: Path) -> None:
    old = (made / "old.pt").read_bytes()
    at = old.rindex(b"X")  # the code of one of its operations
    assert "damaged, torch cannot read it" in refused(put(made, "hurt.pt", old[:at] + b"\xc8\xc8" + old[at + 2 :]))
    assert "cut off?" in refused(put(made, "short.pt", old[: len(old) // 2]))
    line = refused(made / "evil.pt")
    assert "holds objects other than tensors (posix.system); only weights are read" in line
    assert not (made / "ran").exists()


def test_a_vast_sparse_tensor_costs_no_memory(made: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result, _ = imported(made / "vast.pt")
    (only,) = result["files"][0]["tensors"]
    assert only["zeros"] == pytest.approx(1.0)
    assert "rows and columns" in only["note"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


# ── matrices ─────────────────────────────────────────────────────────────────────────────────────────────────────────

VAST = 60_000_000
MARKET = "%%MatrixMarket matrix coordinate real general\n"


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "m.npz", **arrays)
    return folder / "m.npz"


@pytest.mark.parametrize(
    "make",
    [
        lambda d: put(d, "m.mtx", f"{MARKET}{VAST} {VAST} 1\n1 1 1.0\n"),
        lambda d: put(d, "m.mtx", f"{MARKET}3 {VAST} 1\n1 1 1.0\n"),
        lambda d: npz(d, format=b"coo", shape=[VAST, VAST], row=[0], col=[5], data=[1.0]),
        lambda d: npz(d, format=b"dia", shape=[VAST, VAST], offsets=[0], data=[[1.0]]),
    ],
    ids=["mtx", "wide", "coo", "dia"],
)
def test_vast_sizes_that_nothing_bears_out(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert "for so few entries; at most 16777216 rows and columns" in refused(make(tmp_path))


def test_blocks_that_their_indices_multiply(tmp_path: Path) -> None:
    """One block of a megabyte and fifty thousand places for it."""
    path = npz(tmp_path, format=b"bsr", shape=[4000, 4000], indptr=np.arange(5) * 12500, indices=np.zeros(50000, int),
               data=np.ones((1, 1000, 1000), "f4"))  # fmt: skip
    assert "50000 block columns and 1 blocks do not match" in refused(path)


@pytest.mark.parametrize(
    "header", [b"(" * 8000, b"{'descr': '<f8', ", b"\x00" * 50, b"{" * 3000 + b"}" * 3000, b"'" * 77, b"{1:2}\n  x\n y"]
)
def test_array_headers_that_are_no_literals(tmp_path: Path, header: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as z:
        z.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    assert "a.npy: not a plain array" in refused(tmp_path / "m.npz")


def test_an_array_that_is_there_twice(tmp_path: Path) -> None:
    one = io.BytesIO()
    np.save(one, np.eye(3))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as z, warnings.catch_warnings(action="ignore"):
        z.writestr("w.npy", one.getvalue())
        z.writestr("w.npy", one.getvalue())
    assert "w.npy is in it twice" in refused(tmp_path / "m.npz")


def test_what_a_matrix_file_holds_beside_numbers_is_told(tmp_path: Path) -> None:
    _, told = imported(put(tmp_path, "m.mtx", f"{MARKET}3 3 3\n1 1 inf\n1 2 nan\n2 2 1e999\n"))
    assert "3 values are not finite" in told
    _, told = imported(put(tmp_path, "m.smtx", "3, 4, 2\n0 1 1 2\n0 3\nand more\n"))
    assert "note: what follows the third line was not read" in told
