"""Finding, listing and deleting sessions."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from sparsetui.evidence.records import Result, Verdict
from sparsetui.session.errors import LockedError, NotFoundError, SessionError
from sparsetui.session.folder import HEAD, HEADER, LEDGER, LOCK
from sparsetui.session.store import Store, Writer


def _concluded(store: Store, workload: str, mechanism: str, who: str = "") -> Writer:
    w = store.create(workload)
    role = "sparse kernel library owner"
    if who:
        w.append("owner", {"role": role, "who": who})
    verdict = Verdict(status="fault", summary="x", mechanism=mechanism, owner=role)
    w.append("result", Result(session=w.id, verdict=verdict))
    w.append("closed", {"by": "Ada"})
    w.close()
    return w


@pytest.fixture
def three(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    days = iter(range(1, 9))
    monkeypatch.setattr("sparsetui.session.folder.now", lambda: f"2026-11-0{next(days)}T10:00:00.000Z")
    return [
        _concluded(store, "ranker", "kernel.wrong-orientation", "@kernels").id,
        _concluded(store, "ranker", "lowering.dense-storage").id,
        _concluded(store, "search", "kernel.generic").id,
    ]


def test_the_list_is_newest_first_and_tells_the_verdict(store: Store, three: list[str]) -> None:
    found = store.list()
    assert [s.id for s in found] == three[::-1]
    last = found[-1]
    assert (last.status, last.mechanism, last.owner) == ("fault", "kernel.wrong-orientation", "@kernels")
    assert (last.workload, last.events, last.closed, last.writing, last.damage) == ("ranker", 4, "Ada", "", "")
    assert found[0].owner == "sparse kernel library owner"


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("ranker", [1, 0]),
        ("RANKER kernel.", [0]),
        ("kernel.", [2, 0]),
        ("@kernels", [0]),
        ("2026-11-02", [1]),
        ("", [2, 1, 0]),
        ("nothing", []),
    ],
)
def test_sessions_are_searched_by_workload_mechanism_owner_and_date(
    store: Store, three: list[str], text: str, hits: list[int]
) -> None:
    assert [s.id for s in store.list(text)] == [three[i] for i in hits]


@pytest.mark.parametrize("harm", ["missing", "damaged", "stale"])
def test_the_list_is_the_same_without_a_current_head(store: Store, three: list[str], harm: str) -> None:
    for name in three:
        path = store.root / name
        if harm == "stale":
            with store.writer(name) as w:
                old = (path / HEAD).read_bytes()
                w.append("note", {"text": 'a "kind":"result" in a text'})
                w.append("section", {"name": "x", "body": {"kind": "result"}})
            expected = store.list()
            (path / HEAD).write_bytes(old)
            assert store.list() == expected
    expected = store.list()
    for name in three if harm != "stale" else []:
        path = store.root / name / HEAD
        path.unlink() if harm == "missing" else path.write_bytes(b"\0" * 1024)
    assert store.list() == expected


def test_a_broken_session_is_listed_with_what_is_wrong(store: Store, three: list[str]) -> None:
    (store.root / three[0] / HEADER).write_bytes(b"{")
    (store.root / three[1] / HEADER).unlink()
    (store.root / "not-a-session").mkdir()
    (store.root / "file").write_bytes(b"")
    found = {s.id: s for s in store.list()}
    assert set(found) == set(three)
    assert "not a session's header" in found[three[0]].damage
    assert "no such file" in found[three[1]].damage
    assert store.open(three[1]).state().workload == "ranker"
    assert not store.verify(three[0]).ok


def test_an_empty_or_absent_root_is_an_empty_list(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").list() == []
    assert not (tmp_path / "none").exists()


def test_a_session_is_found_by_part_of_its_name_or_by_path(
    store: Store, three: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (store.root / three[0]).resolve()
    for ref in (three[0], "2026-11-01", three[0][-4:], str(first), f"{first}/", Path(first)):
        assert store.find(ref) == first
    assert store.find("search").name == three[2]
    monkeypatch.chdir(store.root)
    assert Store(tmp_path / "other").find(three[0]) == first
    assert Store(tmp_path / "other").find("./" + three[0]) == first
    monkeypatch.chdir(first)
    assert Store(tmp_path / "other").find(".") == first


@pytest.mark.parametrize(
    "ref", ["", "nope", "/", "..", "../..", "/nonexistent", "\0", "a/b", "~nobody-here/x", "x" * 5000]
)
def test_what_is_not_there_is_said_in_one_line(store: Store, three: list[str], ref: str) -> None:
    with pytest.raises(NotFoundError) as error:
        store.find(ref)
    assert "\n" not in str(error.value)


def test_an_ambiguous_name_lists_what_it_could_be(store: Store, three: list[str]) -> None:
    with pytest.raises(NotFoundError, match="2 sessions") as error:
        store.find("ranker")
    assert three[0] in str(error.value)
    assert three[1] in str(error.value)


def test_delete_removes_the_session_and_nothing_beside_it(store: Store, three: list[str]) -> None:
    assert store.delete(three[1]) == three[1]
    assert sorted(p.name for p in store.root.iterdir()) == sorted([three[0], three[2]])
    with pytest.raises(NotFoundError):
        store.delete(three[1])


def test_a_session_that_is_being_written_is_not_deleted(store: Store) -> None:
    with store.create("x") as w:
        with pytest.raises(LockedError):
            store.delete(w.id)
        assert (w.path / LEDGER).exists()


def test_a_session_behind_a_link_is_not_emptied(store: Store, three: list[str], tmp_path: Path) -> None:
    real = tmp_path / "kept"
    os.rename(store.root / three[0], real)
    (store.root / three[0]).symlink_to(real)
    assert store.find(three[0]) == real


def test_a_folder_copied_while_it_is_written_opens_with_what_was_copied(store: Store, tmp_path: Path) -> None:
    with store.create("x") as w:
        stop = threading.Event()

        def write() -> None:
            i = 0
            while not stop.is_set():
                w.evidence("kernel", "census", {"i": i})
                i += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for n in range(6):
                before = store.open(w.id).events()
                copy = tmp_path / f"copy{n}"
                try:
                    shutil.copytree(w.path, copy)
                except shutil.Error:  # a temporary file vanished under the copier, as it would under cp
                    pass
                events = Store(tmp_path / "s").open(copy).events()
                assert events[: len(before)] == before
                with Store(tmp_path / "s").writer(copy) as again:
                    again.append("note", {"text": "goes on"})
        finally:
            stop.set()
            thread.join()
    assert store.verify(w.id).ok


def test_sessions_created_at_once_get_names_of_their_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["2026-01-01-x-0001", "2026-01-01-x-0001", "2026-01-01-x-0002"])
    monkeypatch.setattr("sparsetui.session.store.new_id", lambda *_: next(names))
    assert [store.create("x").path.name, store.create("x").path.name] == ["2026-01-01-x-0001", "2026-01-01-x-0002"]


def test_verify_names_missing_and_damaged_artifacts(store: Store) -> None:
    with store.create("x") as w:
        shas = [str(w.evidence("kernel", "census", {"i": i}).sha256) for i in range(3)]
        w.artifact({"left": "over"})
    files = {sha: w.path / "artifacts" / sha[:2] / f"{sha}.json.gz" for sha in shas}
    files[shas[0]].unlink()
    data = bytearray(files[shas[1]].read_bytes())
    data[len(data) // 2] ^= 1
    files[shas[1]].write_bytes(data)
    report = store.verify(w.id)
    assert not report.ok
    assert report.missing == (shas[0],)
    assert len(report.damaged) == 1
    assert shas[1] in report.damaged[0]
    assert (report.artifacts, report.unnamed, report.whole) == (1, 1, 4)
    reader = store.open(w.id)
    assert reader.artifact(shas[2]) == b'{"i":2}'
    for sha in (shas[0], shas[1], "../../../etc/passwd", "ab"):
        with pytest.raises(SessionError):
            reader.artifact(sha)
    with store.writer(w.id) as again:  # storing the same content again heals it
        again.artifact({"i": 1})
        again.artifact({"i": 0})
    assert store.verify(w.id).ok


def test_a_lock_file_of_another_kind_is_nobodys(store: Store) -> None:
    with store.create("x") as w:
        pass
    for content in (b"", b"{}", b"\xff" * 10, b'{"pid":"x","host":1}', b"[" * 5000):
        (w.path / LOCK).write_bytes(content)
        assert store.list()[0].writing == ""
        store.writer(w.id).close()
