"""Entries of a workload, resolved without a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsetui.worker.child import load


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(load, "_files", {})
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_a_file_entry_is_relative_to_the_folder_and_imports_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "svc/neighbour_q.py", "VALUE = 5\n")
    write(tmp_path, "svc/serving_q.py", "import neighbour_q\ndef build(): return neighbour_q.VALUE\n")
    build = load.resolve_callable("svc/serving_q.py:build", str(tmp_path))
    assert build() == 5
    assert build.__module__ == "serving_q"
    assert sys.modules["serving_q"].build is build
    assert sys.path[0] == str(tmp_path / "svc")


def test_one_file_is_one_module_for_all_its_entries(tmp_path: Path) -> None:
    write(tmp_path, "serving_q.py", "seen = []\ndef a(): return seen\ndef b(): return seen\n")
    a, b = (load.resolve(f"serving_q.py:{n}", str(tmp_path)) for n in "ab")
    assert a() is b()


def test_a_file_named_like_a_library_does_not_take_its_place(tmp_path: Path) -> None:
    import types

    write(tmp_path, "types.py", "def build(): return 'mine'\n")
    assert load.resolve("types.py:build", str(tmp_path))() == "mine"
    assert sys.modules["types"] is types


def test_a_module_entry_and_a_dotted_attribute(tmp_path: Path) -> None:
    write(tmp_path, "pack_q/__init__.py", "")
    write(tmp_path, "pack_q/serve.py", "class Service:\n    @staticmethod\n    def build(): return 1\n")
    assert load.resolve("pack_q.serve:Service.build", str(tmp_path))() == 1


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("nowhere.py:build", "there is no file"),
        ("serving_q.py:biuld", "has no biuld; did you mean build?"),
        ("serving_q.py:zzz", "has no zzz; it defines build"),
        ("serving_q.py:NUMBER", "is of type int and cannot be called"),
        ("serving_q.py", "expected path.py:callable"),
        (":build", "expected path.py:callable"),
        ("no_such_q.module:build", "no module no_such_q"),
        ("pack_q.absent:build", "no module pack_q.absent"),
    ],
)
def test_what_is_missing_is_named_in_one_line(tmp_path: Path, entry: str, says: str) -> None:
    write(tmp_path, "serving_q.py", "NUMBER = 3\ndef build(): return 1\n")
    write(tmp_path, "pack_q/__init__.py", "")
    with pytest.raises(load.LoadError) as raised:
        load.resolve_callable(entry, str(tmp_path))
    assert says in str(raised.value)
    assert repr(entry) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_module_missing_inside_the_users_module_is_the_users_error(tmp_path: Path) -> None:
    write(tmp_path, "serving_q.py", "import absent_q\n")
    with pytest.raises(ModuleNotFoundError, match="absent_q"):
        load.resolve("serving_q.py:build", str(tmp_path))
    assert "serving_q" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="absent_q"):
        load.resolve("serving_q:build", str(tmp_path))


def test_inputs_without_entry_or_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(load.LoadError, match="neither entry nor shape"):
        load.inputs({}, str(tmp_path))
