"""One writer, readers always; what was acknowledged is there."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparsetui.evidence.records import Number
from sparsetui.session.errors import LockedError, SessionError
from sparsetui.session.folder import HEAD, LEDGER, LOCK
from sparsetui.session.state import Event
from sparsetui.session.store import Reader, Store, Writer

HOLD = """
import sys, time
from pathlib import Path
from sparsetui.session.store import Store
w = Store(Path(sys.argv[1])).writer(sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


def test_a_new_session_begins_with_its_header_as_an_event(store: Store) -> None:
    with store.create("Ränker v2 / final", "a title") as w:
        assert w.id.split("-", 3)[3].rsplit("-", 1)[0] == "ranker-v2-final"
        state = w.state()
    assert (state.title, state.workload, state.events) == ("a title", "Ränker v2 / final", 1)
    assert state.tool.startswith("sparsetui ")


@pytest.mark.parametrize("name", ["", "///", "日本", "../../etc", "a" * 300, ".", "\x1b[31m"])
def test_any_workload_name_gives_a_safe_folder(store: Store, name: str) -> None:
    with store.create(name) as w:
        assert w.path.parent == store.root
        assert w.id.isascii()
        assert w.id.replace("-", "").isalnum()


def test_folders_and_files_are_private_under_any_umask(store: Store) -> None:
    old = os.umask(0)
    try:
        with store.create("x") as w:
            w.evidence("kernel", "census", {"a": 1})
            w.write_memo("# memo")
    finally:
        os.umask(old)
    paths = [store.root, *store.root.rglob("*")]
    assert {stat.S_IMODE(p.stat().st_mode) for p in paths if p.is_dir()} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in paths if p.is_file()} == {0o600}


def test_evidence_numbers_go_on_after_a_resume_and_name_their_artifact(store: Store) -> None:
    with store.create("x") as w:
        first = w.evidence("kernel", "census", {"ops": [1]}, figures={"calls": Number(3.0, unit="1")})
    with store.writer(w.id) as w:
        second = w.evidence("kernel", "native", None, quality="unavailable", summary="py-spy is not permitted")
        third = w.evidence("kernel", "census", {"ops": [1]})
    assert [first.id, second.id, third.id] == ["E01", "E02", "E03"]
    assert first.sha256 == third.sha256
    reader = store.open(w.id)
    assert reader.artifact(str(first.sha256)) == b'{"ops":[1]}'
    assert reader.state().evidence == (first, second, third)


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        ("evidence", {"id": "E01"}, "stage"),
        ("phase", {"stage": "kernel", "name": "x"}, "state"),
        ("note", ["text"], "an object"),
        ("gate", {"gate": "lock", "state": "maybe"}, "maybe"),
        ("ops", {"rows": [{"op": 1}]}, "op"),
    ],
)
def test_a_body_that_its_kind_does_not_take_is_refused_before_it_is_written(
    store: Store, kind: str, body: object, what: str
) -> None:
    with store.create("x") as w:
        before = (w.path / LEDGER).read_bytes()
        with pytest.raises(ValueError, match=what):
            w.append(kind, body)
        assert (w.path / LEDGER).read_bytes() == before


def test_an_unknown_kind_is_kept_for_newer_versions(store: Store) -> None:
    with store.create("x") as w:
        w.append("from-the-future", [1, 2])
    state = store.open(w.id).state()
    assert state.events == 2
    assert state.timeline[-1][1] == "from-the-future"


@pytest.mark.usefixtures("no_sync")
def test_many_threads_write_one_chain(store: Store) -> None:
    with store.create("x") as w:

        def work(n: int) -> None:
            for i in range(25):
                w.append("log", {"source": f"t{n}", "text": str(i)})
                w.evidence("kernel", "census", {"n": n})

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert store.verify(w.id).ok
    state = store.open(w.id).state()
    assert state.events == 1 + 6 * 50
    assert sorted(e.id for e in state.evidence) == sorted(f"E{i:02d}" for i in range(1, 151))


def test_two_writers_in_one_process(store: Store) -> None:
    with store.create("x") as w:
        with pytest.raises(LockedError, match=f"process {os.getpid()} on "):
            store.writer(w.id)
        w.append("note", {"text": "still mine"})
    store.writer(w.id).close()


def test_a_dead_owner_loses_the_lock_and_is_named(store: Store, python: object) -> None:
    with store.create("x") as w:
        pass
    other = python(HOLD, store.root, w.id)  # type: ignore[operator]
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(LockedError, match=f"process {other.pid} on "):
        store.writer(w.id)
    reader = store.open(w.id)
    assert reader.writing.startswith(f"process {other.pid}")
    other.kill()
    other.wait()
    assert reader.writing == ""
    with store.writer(w.id) as again:
        assert again.state().faults[-1]["why"].startswith(f"process {other.pid}")
    assert store.verify(w.id).ok


def test_a_closed_writer_writes_no_more(store: Store) -> None:
    w = store.create("x")
    w.close()
    w.close()
    with pytest.raises(SessionError, match="closed"):
        w.append("note", {"text": "late"})


def test_an_event_from_within_an_event_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.create("x") as w:
        real = os.fsync
        inner: list[Exception] = []

        def fsync(fd: int) -> None:
            monkeypatch.setattr(os, "fsync", real)
            try:
                w.append("note", {"text": "from a signal handler"})
            except SessionError as e:
                inner.append(e)
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        w.append("note", {"text": "outer"})
        assert len(inner) == 1
    assert store.verify(w.id).ok
    assert [n["text"] for n in store.open(w.id).state().notes] == ["outer"]


def test_an_interrupt_in_the_middle_of_an_append_leaves_no_half_line(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    with store.create("x") as w:
        before = (w.path / LEDGER).read_bytes()
        with monkeypatch.context() as m:
            m.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                w.append("note", {"text": "never"})
        assert (w.path / LEDGER).read_bytes() == before
        w.append("interrupted", {"why": "Ctrl-C"})
    assert store.verify(w.id).ok
    assert store.open(w.id).state().interrupted == "Ctrl-C"


def test_a_torn_tail_is_cut_off_and_recorded(store: Store) -> None:
    with store.create("x") as w:
        w.append("note", {"text": "kept"})
    with (w.path / LEDGER).open("ab") as f:
        f.write(b'{"seq":2,"time":"2026')
    report = store.verify(w.id)
    assert report.ok
    assert "torn last line of 21 bytes is dropped: it was never acknowledged" in "\n".join(report.lines())
    assert store.open(w.id).damage
    with store.writer(w.id) as again:
        assert "torn last line of 21 bytes" in again.state().faults[-1]["why"]
    report = store.verify(w.id)
    assert (report.ok, report.torn_bytes, report.whole) == (True, 0, 3)


def test_a_torn_tail_without_a_head_may_have_been_promised(store: Store) -> None:
    with store.create("x") as w:
        w.append("note", {"text": "kept"})
    (w.path / HEAD).unlink()
    with (w.path / LEDGER).open("ab") as f:
        f.write(b'{"seq":2')
    report = store.verify(w.id)
    assert not report.ok
    assert "cannot be told" in report.problems[0]
    assert "ledger.head is missing" in report.notes[0]


def test_what_a_killed_writer_left_half_written_is_swept(store: Store) -> None:
    with store.create("x") as w:
        w.evidence("kernel", "census", {"a": 1})
    left = next((w.path / "artifacts").iterdir()) / ".tmp-0123456789ab"
    left.write_bytes(b"half")
    assert store.verify(w.id).ok
    store.writer(w.id).close()
    assert not left.exists()


def test_a_second_person_follows_another_process_live(store: Store, python: object) -> None:
    with store.create("x") as w:
        pass
    script = """
import sys
from pathlib import Path
from sparsetui.session.store import Store
with Store(Path(sys.argv[1])).writer(sys.argv[2]) as w:
    for i in range(40):
        w.append("note", {"text": str(i)})
"""
    reader = Store(store.root, readonly=True).open(w.id)
    process = python(script, store.root, w.id)  # type: ignore[operator]
    seen: list[str] = []
    while process.poll() is None:
        seen += [e.body["text"] for e in reader.follow()]
    seen += [e.body["text"] for e in reader.follow()]
    assert seen == [str(i) for i in range(40)]
    assert reader.damage == ()
    assert reader.state() == store.open(w.id).state()


def test_a_damaged_session_is_resumed_and_its_damage_recorded_once(store: Store) -> None:
    with store.create("x") as w:
        for i in range(5):
            w.append("note", {"text": f"note {i}"})
    path = w.path / LEDGER
    path.write_bytes(path.read_bytes().replace(b"note 2", b"note 7"))
    for _ in range(3):
        store.writer(w.id).close()
    state = store.open(w.id).state()
    assert [n["text"] for n in state.notes] == ["note 0", "note 1", "note 3", "note 4"]
    assert [f["why"] for f in state.faults] == ["line 4 (event 3): altered: its hash is not the one recorded after it"]
    assert not store.verify(w.id).ok


def test_a_clock_that_jumps_back_changes_no_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(["2026-01-01T00:00:05.000Z", "1999-01-01T00:00:00.000Z", "2030-01-01T00:00:00.000Z"])
    with store.create("x") as w:
        monkeypatch.setattr("sparsetui.session.ledger.now", lambda: next(times))
        for text in "abc":
            w.append("note", {"text": text})
    assert store.verify(w.id).ok
    assert [n["text"] for n in store.open(w.id).state().notes] == ["a", "b", "c"]


def test_follow_returns_each_event_once(store: Store) -> None:
    with store.create("x") as w:
        reader = store.open(w.id)
        assert reader.follow() == []
        w.append("note", {"text": "a"})
        w.append("note", {"text": "b"})
        with (w.path / LEDGER).open("ab") as f:  # a line that is being written
            f.write(b'{"seq":3')
        assert [e.body["text"] for e in reader.follow()] == ["a", "b"]
        assert reader.follow() == []
        assert [n["text"] for n in reader.state().notes] == ["a", "b"]
        assert reader.damage == ()


def test_follow_survives_a_line_that_is_taken_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.create("x") as w:
        reader = store.open(w.id)

        def fails(fd: int) -> None:
            reader.follow()  # the reader sees the line before its fsync fails
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as m:
            m.setattr(os, "fsync", fails)
            with pytest.raises(SessionError, match="input/output error"):
                w.append("note", {"text": "taken back"})
        w.append("note", {"text": "in its place, and longer"})
        assert [e.body["text"] for e in reader.follow()] == ["in its place, and longer"]
        assert reader.state() == w.state()


def test_memo_is_replaced_as_a_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.create("x") as w:
        w.write_memo("first ▲\n")

        def fails(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as m:
            m.setattr(os, "rename", fails)
            with pytest.raises(SessionError, match="the disk is full"):
                w.write_memo("second")
        assert store.open(w.id).memo() == "first ▲\n"
        assert not list(w.path.glob(".tmp-*"))


class Crashes(RuleBasedStateMachine):
    """Append, be killed at a bad moment, resume, follow: whatever the order, nothing that was acknowledged is lost."""

    @initialize()
    def start(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name))
        self.fsync, os.fsync = os.fsync, lambda fd: None
        self.writer: Writer | None = self.store.create("x")
        self.path = self.writer.path
        self.acknowledged: list[Event] = list(Reader(self.path).events())
        self.reader = Reader(self.path)
        self.followed = list(self.reader.events())

    def teardown(self) -> None:
        if self.writer:
            self.writer.close()
        os.fsync = self.fsync
        self.folder.cleanup()

    @precondition(lambda self: self.writer is not None)
    @rule(text=st.text(max_size=20))
    def append(self, text: str) -> None:
        assert self.writer is not None
        self.acknowledged.append(self.writer.append("note", {"text": text}))

    @precondition(lambda self: self.writer is not None)
    @rule(torn=st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), lag=st.booleans())
    def killed(self, torn: bytes, lag: bool) -> None:
        """The process dies: its lock goes, a part of a line may be left, and the head may lag by one event."""
        assert self.writer is not None
        head = (self.path / HEAD).read_bytes()
        owner = (self.path / LOCK).read_bytes()
        if lag:
            self.acknowledged.append(self.writer.append("note", {"text": "head lags"}))
        self.writer.close()
        self.writer = None
        (self.path / LOCK).write_bytes(owner.replace(f'"pid":{os.getpid()}'.encode(), b'"pid":1'))
        if lag:
            (self.path / HEAD).write_bytes(head)
        with (self.path / LEDGER).open("ab") as f:
            f.write(torn)

    @precondition(lambda self: self.writer is None)
    @rule()
    def resume(self) -> None:
        self.writer = self.store.writer(self.path)
        self.acknowledged += [e for e in Reader(self.path).events() if e.seq > self.acknowledged[-1].seq]

    @rule()
    def follow(self) -> None:
        self.followed += self.reader.follow()
        assert self.followed == self.acknowledged

    @invariant()
    def nothing_is_lost(self) -> None:
        assert list(Reader(self.path).events()) == self.acknowledged
        report = self.store.verify(self.path)
        assert report.ok, report.lines()


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
