"""A full disk, a read-only one, a folder that is not ours, no home: one clear line, and a ledger that stays whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsetui.session.errors import SessionError, StorageError
from sparsetui.session.folder import LEDGER
from sparsetui.session.store import Store, default_root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mount)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)  # lazy: a failed test may still hold a file


def test_a_full_disk_costs_the_event_but_not_the_ledger(small_disk: Path) -> None:
    store = Store(small_disk / "s")
    w = store.create("x")
    written, error = 1, ""
    while not error:
        try:
            w.append("log", {"source": "test", "text": "x" * 3000})
            written += 1
        except StorageError as e:
            error = str(e)
    assert "the disk is full" in error
    assert "\n" not in error
    data = (w.path / LEDGER).read_bytes()
    assert data.endswith(b"\n")
    assert data.count(b"\n") == written == w.state().events
    assert store.verify(w.id).ok
    with pytest.raises(StorageError, match="the disk is full"):
        w.evidence("kernel", "census", {"blob": os.urandom(20_000).hex()})
    assert not list(w.path.rglob(".tmp-*"))
    assert store.verify(w.id).ok

    w.append("note", {"text": "s"})  # what still fits is still taken
    w.close()
    assert store.open(w.id).state().events == written + 1
    assert store.list()[0].events == written + 1


def test_a_full_disk_refuses_a_new_session_in_one_line(small_disk: Path) -> None:
    store = Store(small_disk / "s")
    store.create("first").close()
    fd = os.open(small_disk / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(fd, b"x" * 512):
            pass
    except OSError:
        pass
    finally:
        os.close(fd)
    with pytest.raises(StorageError, match="the disk is full"):
        store.create("second")
    assert [s.workload for s in store.list()] == ["first"]
    assert len(list((small_disk / "s").iterdir())) == 1
    os.unlink(small_disk / "ballast")
    store.create("third").close()


def test_a_read_only_disk_still_shows_everything(small_disk: Path) -> None:
    store = Store(small_disk / "s")
    with store.create("x") as w:
        w.evidence("kernel", "census", {"a": 1})
        w.write_memo("# memo")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert store.list()[0].id == w.id
    assert store.verify(w.id).ok
    assert store.open(w.id).memo() == "# memo"
    for write in (lambda: store.create("y"), lambda: store.writer(w.id), lambda: store.delete(w.id)):
        with pytest.raises(StorageError, match="the file system is read-only"):
            write()
    with pytest.raises(StorageError, match="the file system is read-only"):
        store.import_(store.export(w.id, small_disk.parent / "x.tar.gz"))


NOBODY = """
import os, sys
from pathlib import Path
from sparsetui.session.errors import SessionError
from sparsetui.session.store import Store
os.setgid(65534); os.setuid(65534)
store = Store(Path(sys.argv[1]))
for act in (lambda: store.list(), lambda: store.create("y"), lambda: Store(Path(sys.argv[1]) / "new").create("z")):
    try:
        act()
    except SessionError as e:
        print(e)
    else:
        print("permitted")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_a_folder_of_another_user_is_one_line_each(store: Store) -> None:
    store.create("x").close()
    done = subprocess.run([sys.executable, "-c", NOBODY, str(store.root)], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert all("permission denied" in line for line in lines)
    assert done.stderr == ""


def test_the_readonly_store_writes_nothing(store: Store) -> None:
    with store.create("x") as w:
        pass
    look = Store(store.root, readonly=True)
    assert look.open(w.id).state().workload == "x"
    for write in (
        lambda: look.create("y"),
        lambda: look.writer(w.id),
        lambda: look.delete(w.id),
        lambda: look.import_(Path("x.tar.gz")),
    ):
        with pytest.raises(SessionError, match="read-only"):
            write()


def _complaint(store: Store, id: str) -> str:
    """What reading all of a session says, whichever file it stumbles over."""
    try:
        store.open(id).memo()
    except SessionError as e:
        return e.message
    return store.list()[0].damage


def test_a_link_or_pipe_in_place_of_a_file_is_not_followed(store: Store, tmp_path: Path) -> None:
    with store.create("x") as w:
        pass
    secret = tmp_path / "secret"
    secret.write_text("{}")
    for name in (LEDGER, "session.json", "memo.md"):
        path = w.path / name
        kept = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.symlink_to(secret)
        assert "it is a symbolic link" in _complaint(store, w.id)
        path.unlink()
        os.mkfifo(path)
        assert "not a plain file" in _complaint(store, w.id)
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
    assert store.verify(w.id).ok


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data" / "sparsetui" / "sessions"
    (tmp_path / "sessions").mkdir()
    assert default_root() == Path("sessions")


def test_without_a_home_the_line_says_where_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nowhere")
    with pytest.raises(StorageError, match="/proc/nowhere"):
        Store().create("x")
