"""What a workload file may say, and the one line that every mistake gets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.flow import OWNERS
from sparsetui.workload import spec
from sparsetui.workload.errors import printable
from sparsetui.workload.spec import Workload, WorkloadError, load

SERVING = """
import functools
def build_pruned(): ...
def build_release(): ...
requests = functools.partial(list, [])
class Service:
    def build(self): ...
if True:
    def evaluate(model): ...
"""

FULL = """\
[workload]
name = "ranker"
change = ["weights"]

[failing]
entry = "serving.py:build_pruned"
python = "{python}"
threads = 2
env = {{ OMP_NUM_THREADS = "2", TOKEN = "s3cret" }}

[comparator]
entry = "serving.py:build_release"

[inputs]
entry = "serving.py:requests"

[declared]
sparsity = 0.90
layout = "csr"
pattern = "2:4"
targets = ["layers.*.linear1"]
speedup = 1.5

[quality]
entry = "serving.py:evaluate"
max_drift = 0.01

[sla]
p50_ms = 5
p99_ms = 12

[replay]
log = "requests.csv"

[owners]
"ML performance engineer" = "@perf-team"
"sparse kernel library owner" = "@kernels"
"runtime systems architect" = "@runtime"
"production reliability owner" = "@sre"

[energy]
watts_per_core = 7.5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serving.py").write_text(SERVING)
    (tmp_path / "requests.csv").write_text("time,size\n0,1\n")
    return tmp_path


def write(folder: Path, text: str, name: str = "ranker.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def full(folder: Path) -> str:
    return FULL.format(python=sys.executable)


def error_of(path: Path | str) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        load(path)
    text = str(caught.value)
    assert text == printable(text, 10_000), "an error is one printable line"
    assert text.startswith(printable(str(path), 200))
    return caught.value


def test_a_whole_file_is_read_as_the_contract_says(folder: Path) -> None:
    workload = load(write(folder, full(folder)))
    assert workload.name == "ranker"
    assert workload.folder == folder
    assert workload.change == ("weights",)
    assert workload.failing.entry.file == str(folder / "serving.py")
    assert workload.failing.entry.attribute == "build_pruned"
    assert workload.failing.python == sys.executable
    assert workload.failing.threads == 2
    assert workload.comparator.python is None
    assert workload.derived is None
    assert workload.declared == spec.Declared(0.9, "csr", (2, 4), ("layers.*.linear1",), 1.5)
    assert workload.quality is not None
    assert workload.quality.max_drift == 0.01
    assert workload.sla == spec.Sla(p50_ms=5.0, p99_ms=12.0)
    assert workload.replay == spec.Replay(str(folder / "requests.csv"))
    assert set(workload.owners) == set(OWNERS.values())
    assert workload.energy == spec.Energy(7.5)
    assert workload.files() == (folder / "serving.py",)


def test_only_a_variant_and_inputs_are_needed(folder: Path) -> None:
    text = '[failing]\nentry = "serving.py:build_pruned"\n[inputs]\nshape = [8, 512]\n'
    workload = load(write(folder, text, "other.toml"))
    assert workload.name == "other"
    assert workload.change == ("weights", "code")
    assert workload.inputs == spec.Inputs(shape=(8, 512), dtype="float32", seed=0)
    assert workload.derived == "comparator"
    assert workload.comparator.entry == workload.failing.entry
    assert workload.comparator.derived
    assert not workload.failing.derived
    assert list(workload.entries()) == ["failing.entry"]


def test_a_lone_comparator_derives_the_failing_variant(folder: Path) -> None:
    text = '[comparator]\nentry = "serving.py:build_release"\nthreads = 3\n[inputs]\nshape = [1]\n'
    workload = load(write(folder, text))
    assert workload.derived == "failing"
    assert workload.failing.threads == 3


def test_values_of_the_environment_are_recorded_by_allow_list(folder: Path) -> None:
    plain = load(write(folder, full(folder))).as_dict()
    assert plain["failing"]["env"] == {"OMP_NUM_THREADS": "2", "TOKEN": "withheld"}
    assert "s3cret" not in json.dumps(plain)
    assert load(folder / "ranker.toml").failing.env["TOKEN"] == "s3cret"


def test_a_module_entry_is_found_without_importing_it(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / "pkg" / "serve.py").write_text("raise SystemExit('imported')")
    text = '[failing]\nentry = "pkg.serve:Service.build"\n[inputs]\nentry = "elsewhere.mod:requests"\n'
    workload = load(write(folder, text))
    assert workload.failing.entry.module == "pkg.serve"
    assert workload.failing.entry.attribute == "Service.build"
    assert workload.files() == (folder / "pkg" / "serve.py",)
    assert workload.modules() == ("elsewhere.mod",)


def test_a_python_keeps_its_link_and_is_relative_to_the_file(folder: Path) -> None:
    (folder / "venv").mkdir()
    (folder / "venv" / "python").symlink_to(sys.executable)
    text = full(folder).replace(sys.executable, "venv/python")
    assert load(write(folder, text)).failing.python == str(folder / "venv" / "python")


def test_a_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / "python").symlink_to(sys.executable)
    text = full(folder).replace(sys.executable, "~/python").replace('"requests.csv"', '"~/requests.csv"')
    workload = load(write(folder, text))
    assert workload.failing.python == str(folder / "python")
    assert workload.replay is not None
    assert workload.replay.log == str(folder / "requests.csv")


# (what is replaced, by what, key path, line or None, words of the message)
MISTAKES: list[tuple[str, str, str, int, str]] = [
    ("threads = 2", "threads = 0", "failing.threads", 8, "a whole number from 1"),
    ("threads = 2", "threads = true", "failing.threads", 8, "no whole number"),
    ("threads = 2", 'threads = "2"', "failing.threads", 8, '"2" is no whole number'),
    ("threads = 2", "thread = 2", "failing.thread", 8, "did you mean threads?"),
    ("[sla]", "[slo]", "slo", 30, "did you mean sla?"),
    ("[declared]", "[Declared]", "Declared", 18, "did you mean declared?"),
    ("build_release", "build_relase", "comparator.entry", 12, 'did you mean "build_release"?'),
    ("serving.py:build_release", "serving.py", "comparator.entry", 12, "is no entry"),
    ("serving.py:build_release", "serving.py:a b", "comparator.entry", 12, "no name of a callable"),
    ("serving.py:build_release", "serving.txt/x:y", "comparator.entry", 12, "no Python file"),
    ("serving.py:build_release", "a-b.c:y", "comparator.entry", 12, "no module name"),
    ("serving.py:build_release", "gone.py:y", "comparator.entry", 12, "gone.py does not exist"),
    ('entry = "serving.py:build_release"', "", "comparator", 11, "has no entry"),
    ("0.90", "1.0", "declared.sparsity", 18, "zero fraction"),
    ("0.90", "nan", "declared.sparsity", 18, "out of range"),
    ("0.90", '"90%"', "declared.sparsity", 18, "no number"),
    ('"csr"', '"scr"', "declared.layout", 19, "did you mean csr?"),
    ('"2:4"', '"4:2"', "declared.pattern", 20, "n:m"),
    ('"2:4"', "24", "declared.pattern", 20, "no text"),
    ('["layers.*.linear1"]', '"layers"', "declared.targets", 21, "no list"),
    ('["layers.*.linear1"]', "[1]", "declared.targets", 21, "1 is not accepted"),
    ("1.5", "0", "declared.speedup", 22, "above 0"),
    ("0.01", "-0.01", "quality.max_drift", 26, "from 0 on"),
    ("p50_ms = 5", "p50_ms = 0", "sla.p50_ms", 29, "above 0"),
    ("p99_ms = 12", "p99_ms = 2", "sla.p99_ms", 30, "below p50_ms"),
    ("p99_ms", "p999_ms", "sla.p999_ms", 30, "did you mean p99_ms?"),
    ("requests.csv", "log.csv", "replay.log", 33, "does not exist"),
    ("ML performance engineer", "ML perf engineer", 'owners."ML perf engineer"', 36, "ML performance engineer?"),
    ('"@sre"', '""', 'owners."production reliability owner"', 39, "is empty"),
    ('["weights"]', '["weight"]', "workload.change", 3, "did you mean weights?"),
    ('["weights"]', '"weights"', "workload.change", 3, "no list"),
    ('OMP_NUM_THREADS = "2"', "OMP_NUM_THREADS = 2", "failing.env.OMP_NUM_THREADS", 9, 'write "2"'),
    ("7.5", "0", "energy.watts_per_core", 42, "watts"),
    ("{python}", "/nowhere/python", "failing.python", 7, "does not exist"),
    ("{python}", "no-such-python-anywhere", "failing.python", 7, "not on PATH"),
    ("{python}", "./requests.csv", "failing.python", 7, "not executable"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "line", "words"), MISTAKES)
def test_a_mistake_is_named_with_its_place(folder: Path, old: str, new: str, key: str, line: int, words: str) -> None:
    text = FULL.replace(old, new, 1)
    assert text != FULL
    path = write(folder, text.format(python=sys.executable))
    error = error_of(path)
    assert error.key == key
    assert words in str(error)
    lines = path.read_text().splitlines()
    assert error.line is not None
    assert key.rpartition(".")[2].strip('"')[:6] in lines[error.line - 1], "the line named is the key's own"


def test_what_is_needed_and_missing_is_named(folder: Path) -> None:
    assert "[inputs]" in str(error_of(write(folder, '[failing]\nentry = "serving.py:build_pruned"\n')))
    assert "neither [failing] nor [comparator]" in str(error_of(write(folder, "[inputs]\nshape = [1]\n")))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ('entry = "serving.py:requests"\nseed = 1', "stands beside entry"),
        ("seed = 1", "neither entry nor shape"),
        ("shape = []", "no shape"),
        ("shape = [0, 4]", "0 is no size"),
        ("shape = [true]", "no size"),
        ("shape = [1000000, 1000000]", "elements"),
        ('shape = [4]\ndtype = "float"', "did you mean float"),
        ("shape = [4]\nseed = -1", "out of range"),
        ("shape = 4", "no shape"),
    ],
)
def test_inputs_are_generated_or_named_not_both(folder: Path, inputs: str, words: str) -> None:
    error = error_of(write(folder, f'[failing]\nentry = "serving.py:build_pruned"\n[inputs]\n{inputs}\n'))
    assert error.key.startswith("inputs")
    assert words in str(error)


def test_a_broken_source_is_named_unless_another_python_runs_it(folder: Path) -> None:
    (folder / "serving.py").write_text("def build_pruned(:\n")
    text = '[failing]\nentry = "serving.py:build_pruned"\n[inputs]\nshape = [1]\n'
    assert "does not parse in line 1" in str(error_of(write(folder, text)))
    load(write(folder, text.replace("[inputs]", f'python = "{sys.executable}"\n[inputs]')))


@pytest.mark.parametrize("source", ["from x import *", "def __getattr__(n): ...", "globals()['build'] = 1"])
def test_names_that_only_running_can_tell_are_left_to_the_worker(folder: Path, source: str) -> None:
    (folder / "serving.py").write_text(source)
    load(write(folder, '[failing]\nentry = "serving.py:build"\n[inputs]\nshape = [1]\n'))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"# nothing\n", "neither [failing] nor [comparator]"),
        (b"\x00\x01\x02", "is binary"),
        (b"\xff\xfe[\x00a\x00", "is UTF-16"),
        (b"name = '\xe9'\n", "is no UTF-8 text"),
        (b"#" * (1024 * 1024 + 1), "larger than 1 MiB"),
        (b"[failing\n", ":1:9: is no TOML"),
        (b"a = 1\na = 2\n", ":2:6: is no TOML"),
        (b"a = [1,\n", ":1: is no TOML"),
        (b"a = " + b"[" * 40_000, "nested too deeply"),
        (b"a = " + b"9" * 5000, "is no usable TOML"),
        (b"failing = 3\n", "no table"),
        (b"[[failing]]\n", "no table"),
        (b'[failing]\n"a\\u202eb" = 1\n', "\\u202e"),
        (b'[failing]\n"\\u001b[2J" = 1\n', "\\x1b[2J"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_workload_gets_one_line(folder: Path, body: bytes, words: str) -> None:
    path = folder / "x.toml"
    path.write_bytes(body)
    assert words in str(error_of(path))


def test_a_byte_order_mark_is_no_mistake(folder: Path) -> None:
    path = folder / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + full(folder).encode())
    assert load(path).name == "ranker"


def test_paths_that_are_no_files_are_named(folder: Path) -> None:
    assert "does not exist" in str(error_of(folder / "gone.toml"))
    assert "is a directory" in str(error_of(folder))
    assert "cannot be read" in str(error_of("x" * 5000))
    assert "does not exist" in str(error_of("a\0b"))
    os.mkfifo(folder / "pipe.toml")
    assert "no regular file" in str(error_of(folder / "pipe.toml"))
    (folder / "dangling.toml").symlink_to(folder / "nothing")
    assert "link to nothing" in str(error_of(folder / "dangling.toml"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(folder: Path) -> None:
    path = write(folder, full(folder))
    path.chmod(0)
    assert "may not be read" in str(error_of(path))


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value).replace("\\ud", "\\\\ud")
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return repr(value)


WORDS = [
    "entry", "python", "threads", "env", "shape", "dtype", "seed", "sparsity", "layout", "pattern", "targets",
    "speedup", "max_drift", "p50_ms", "p99_ms", "log", "speed", "name", "change", "watts_per_core",
    "ML performance engineer",
]  # fmt: skip
SCALARS = (
    st.none().map(lambda _: 0)
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(width=32)
    | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(
        ["serving.py:build_pruned", "a.b:c", "csr", "2:4", "float32", "weights", "serving.py:", ":x", "~x/y"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TABLES = st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=6), VALUES, max_size=5)
DOCUMENTS = st.dictionaries(
    st.sampled_from(
        ["workload", "failing", "comparator", "inputs", "declared", "quality", "sla", "replay", "owners", "energy"]
    )
    | st.text(max_size=6),
    TABLES | VALUES,
    max_size=6,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("any")
    (folder / "serving.py").write_text(SERVING)
    return folder


def only_one_line_or_a_workload(path: Path) -> None:
    try:
        workload = load(path)
    except WorkloadError as why:
        line = str(why)
        assert line.isprintable()
    else:
        assert isinstance(workload, Workload)
        json.dumps(workload.as_dict())
        workload.files()


@settings(max_examples=300, deadline=None)
@given(document=DOCUMENTS)
def test_any_values_give_a_workload_or_one_line(shared: Path, document: dict[str, Any]) -> None:
    base = {"failing": {"entry": "serving.py:build_pruned"}, "inputs": {"shape": [1]}}
    text = "\n".join(f"{toml(k)} = {toml(v)}" for k, v in {**base, **document}.items())
    path = shared / "any.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    only_one_line_or_a_workload(path)


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=200) | st.text(max_size=200).map(lambda s: s.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_a_workload_or_one_line(shared: Path, body: bytes) -> None:
    path = shared / "bytes.toml"
    path.write_bytes(body)
    only_one_line_or_a_workload(path)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, len(FULL) - 1), char=st.characters(codec="utf-8"), cut=st.booleans())
def test_any_slip_of_a_good_file_gives_a_workload_or_one_line(shared: Path, at: int, char: str, cut: bool) -> None:
    good = FULL.replace("{python}", sys.executable).replace("{{", "{").replace("}}", "}")
    path = shared / "slip.toml"
    path.write_text(good[:at] if cut else good[:at] + char + good[at + 1 :], encoding="utf-8")
    only_one_line_or_a_workload(path)
