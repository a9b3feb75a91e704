"""A session moves as one file, and nothing else gets in that way."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from sparsetui.session import archive
from sparsetui.session.errors import DamagedError, RefusedError, SessionError
from sparsetui.session.folder import HEAD, LEDGER
from sparsetui.session.ledger import encode_head, read_head
from sparsetui.session.store import Store


@pytest.fixture
def session(store: Store) -> Path:
    with store.create("ranker", "moved") as w:
        w.evidence("kernel", "census", {"ops": list(range(500))}, summary="500 ops")
        w.evidence("kernel", "native", {"samples": []})
        w.append("note", {"text": "kept"})
        w.write_memo("# memo ▲\n")
    return w.path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Store:
    return Store(tmp_path / "elsewhere")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


def _nothing_left(store: Store) -> None:
    assert not store.root.exists() or list(store.root.iterdir()) == []


Members = list[tuple[tarfile.TarInfo, bytes]]


def _packed(session: Path, dest: Path, change: Callable[[Members], None], fmt: int = tarfile.USTAR_FORMAT) -> Path:
    """An archive of ``session`` whose members ``change`` has had its hands on."""
    members: Members = []
    for name, data in _files(session).items():
        info = tarfile.TarInfo(f"{session.name}/{name}")
        info.size = len(data)
        members.append((info, data))
    change(members)
    with tarfile.open(dest, "w:gz", format=fmt) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return dest


def test_a_round_trip_gives_the_same_session_and_the_same_archive(
    store: Store, elsewhere: Store, session: Path, tmp_path: Path
) -> None:
    one = store.export(session, tmp_path / "one.tar.gz")
    moved = elsewhere.import_(one)
    assert moved.name == session.name
    assert _files(moved) == _files(session)
    two = elsewhere.export(moved.name, tmp_path / "two.tar.gz")
    assert one.read_bytes() == two.read_bytes()
    assert elsewhere.open(moved.name).state() == store.open(session.name).state()
    assert {stat.S_IMODE(p.stat().st_mode) for p in moved.rglob("*") if p.is_file()} == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (moved, *moved.rglob("*")) if p.is_dir()} == {0o700}
    assert stat.S_IMODE(one.stat().st_mode) == 0o600


def test_an_archive_is_plain_tar_for_everybody_else(store: Store, session: Path, tmp_path: Path) -> None:
    with tarfile.open(store.export(session, tmp_path / "x.tar.gz")) as tar:
        assert {i.name for i in tar} == {f"{session.name}/{n}" for n in _files(session)}
        assert {(i.uid, i.gid, i.mtime, i.uname, i.mode) for i in tar} == {(0, 0, 0, "", 0o600)}


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_folder_that_was_packed_by_other_tools_is_taken(
    store: Store, elsewhere: Store, session: Path, tmp_path: Path, fmt: int
) -> None:
    longer = session.rename(session.with_name(session.name + "-" + "long" * 10))  # names beyond 100 characters
    (longer / HEAD).unlink()
    (longer / "lock").write_bytes(b"")
    file = tmp_path / "x.tgz"
    with tarfile.open(file, "w:gz", format=fmt) as tar:
        tar.add(longer, f"./{longer.name}")
    moved = elsewhere.import_(file)
    assert elsewhere.verify(moved).ok
    assert not (moved / "lock").exists()
    assert elsewhere.list()[0].workload == "ranker"


def test_a_live_session_is_exported_up_to_its_last_whole_line(store: Store, elsewhere: Store, tmp_path: Path) -> None:
    with store.create("live") as w:
        w.append("note", {"text": "whole"})
        with (w.path / LEDGER).open("ab") as f:
            f.write(b'{"seq":2,"ti')
        file = store.export(w.id, tmp_path / "x.tar.gz")
    moved = elsewhere.import_(file)
    assert elsewhere.verify(moved).torn_bytes == 0
    assert elsewhere.open(moved).state().events == 2


def test_the_same_session_is_not_placed_twice(store: Store, elsewhere: Store, session: Path, tmp_path: Path) -> None:
    file = store.export(session, tmp_path / "x.tar.gz")
    elsewhere.import_(file)
    before = _files(elsewhere.root)
    with pytest.raises(SessionError, match="already here"):
        elsewhere.import_(file)
    assert _files(elsewhere.root) == before


def _add(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[Members], None]:
    def change(members: Members) -> None:
        info = tarfile.TarInfo(name.replace("TOP", members[0][0].name.split("/")[0]))
        info.type, info.linkname = kind, link
        info.size = len(data) if kind == tarfile.REGTYPE else 0
        members.insert(0, (info, data))

    return change


def _alter(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        for i, (info, data) in enumerate(members):
            if name in info.name:
                members[i] = (info, edit(data))
                info.size = len(members[i][1])

    return change


def _drop(name: str) -> Callable[[Members], None]:
    return lambda members: members.__setitem__(slice(None), [m for m in members if name not in m[0].name])


def _twice(members: Members) -> None:
    members.append(members[0])


def _many(members: Members) -> None:
    info = tarfile.TarInfo("./")
    info.type = tarfile.DIRTYPE
    members[:0] = [(info, b"")] * 50


REFUSED = {
    "absolute": (_add("/etc/cron.d/x"), "leads out"),
    "parent": (_add("TOP/../../x"), "leads out"),
    "parent first": (_add("../x"), "leads out"),
    "backslash": (_add("TOP\\..\\x"), "leads out"),
    "other folder": (_add("other/session.json"), "one session"),
    "no folder": (_add("session.json"), "no session has|one session"),
    "unknown file": (_add("TOP/run.sh"), "no session has"),
    "hidden file": (_add("TOP/.bashrc"), "no session has"),
    "unknown folder": (_add("TOP/bin", kind=tarfile.DIRTYPE), "no session has"),
    "artifact in a wrong place": (_add(f"TOP/artifacts/00/{'ab' * 32}.json.gz"), "no session has"),
    "artifact with a wrong name": (_add("TOP/artifacts/ab/abc.json.gz"), "no session has"),
    "escape in a name": (_add("TOP/\x1b[31m"), "no session has"),
    "symbolic link": (_add("TOP/memo.md", kind=tarfile.SYMTYPE, link="/etc/passwd"), "a symbolic link"),
    "hard link": (_add("TOP/memo.md", kind=tarfile.LNKTYPE, link="/etc/passwd"), "a hard link"),
    "character device": (_add("TOP/memo.md", kind=tarfile.CHRTYPE), "a device"),
    "block device": (_add("TOP/memo.md", kind=tarfile.BLKTYPE), "a device"),
    "pipe": (_add("TOP/memo.md", kind=tarfile.FIFOTYPE), "a pipe"),
    "sparse": (_add("TOP/memo.md", kind=tarfile.GNUTYPE_SPARSE), "a special member"),
    "twice": (_twice, "twice"),
    "no ledger": (_drop("ledger.jsonl"), "holds no session"),
    "no header": (_drop("session.json"), "holds no session"),
    "too many members": (_many, "more than the 40 members"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_session_has_is_refused(
    elsewhere: Store, session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 40)
    change, why = REFUSED[name]
    file = _packed(session, tmp_path / "x.tar.gz", change)
    with pytest.raises(RefusedError, match=why) as error:
        elsewhere.import_(file)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
    _nothing_left(elsewhere)
    assert not (tmp_path / "x").exists()


DAMAGED = {
    "altered event": (_alter("ledger.jsonl", lambda d: d.replace(b"500 ops", b"900 ops")), "altered"),
    "cut ledger": (_alter("ledger.jsonl", lambda d: d[: d.rfind(b'{"seq"')]), "missing at the end"),
    "empty ledger": (_alter("ledger.jsonl", lambda d: b""), "missing at the end"),
    "altered artifact": (_alter("artifacts/", lambda d: gzip.compress(b"{}", mtime=0)), "sha256 of its name"),
    "torn artifact": (_alter("artifacts/", lambda d: d[:-9]), "cut short"),
    "artifact with more after its end": (_alter("artifacts/", lambda d: d + b"x"), "1 bytes after its end"),
    "artifact that is no gzip": (_alter("artifacts/", lambda d: b"{}"), "not readable gzip"),
    "missing artifact": (_drop("artifacts/"), "missing"),
    "header of another schema": (
        _alter("session.json", lambda d: d.replace(b'"schema": 1', b'"schema": 9')),
        "schema 9",
    ),
    "header that is none": (_alter("session.json", lambda d: b"[]"), "not a session's header"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_session_whose_hashes_do_not_hold_is_refused(
    elsewhere: Store, session: Path, tmp_path: Path, name: str
) -> None:
    change, why = DAMAGED[name]
    with pytest.raises(DamagedError, match=why):
        elsewhere.import_(_packed(session, tmp_path / "x.tar.gz", change))
    _nothing_left(elsewhere)


def test_a_forged_head_does_not_forge_the_list(elsewhere: Store, session: Path, tmp_path: Path) -> None:
    head = read_head(session / HEAD)
    assert head is not None
    forged = encode_head(type(head)(head.seq, head.sha256, head.size, {"status": "no_fault", "closed": "@boss"}))
    elsewhere.import_(_packed(session, tmp_path / "x.tar.gz", _alter(HEAD, lambda d: forged)))
    assert (elsewhere.list()[0].status, elsewhere.list()[0].closed) == ("", "")


def _bomb(tmp_path: Path, size: int, level: int = 9) -> Path:
    """A memo of ``size`` zero bytes, as an archive."""
    file = tmp_path / "bomb.tar.gz"
    info = tarfile.TarInfo("2026-01-01-bomb-0000/memo.md")
    info.size = size
    with gzip.open(file, "wb", compresslevel=level) as f:
        f.write(info.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(size >> 20):
            f.write(bytes(1 << 20))
    return file


def test_a_bomb_by_ratio_is_refused_before_it_is_unpacked(elsewhere: Store, tmp_path: Path) -> None:
    file = _bomb(tmp_path, 64 << 20)
    assert file.stat().st_size < 100_000
    with pytest.raises(RefusedError, match="200 times its size"):
        elsewhere.import_(file)
    _nothing_left(elsewhere)


def test_a_bomb_by_total_is_refused(elsewhere: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_TOTAL", 4 << 20)
    with pytest.raises(RefusedError, match="4194304"):
        elsewhere.import_(_bomb(tmp_path, 8 << 20))
    monkeypatch.setattr(archive, "MAX_TOTAL", (8 << 20) + 512)
    with pytest.raises((RefusedError, DamagedError), match=r"more than the|cut short"):
        elsewhere.import_(_bomb(tmp_path, 8 << 20))
    _nothing_left(elsewhere)


def test_many_members_count_together(
    elsewhere: Store, session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = os.urandom(300_000)

    def change(members: Members) -> None:
        for _ in range(6):
            _add(f"TOP/artifacts/00/{'00' * 30}{len(members):04d}.json.gz", noise)(members)

    monkeypatch.setattr(archive, "MAX_TOTAL", 1 << 20)
    with pytest.raises(RefusedError, match="unpacks to more than the 1048576 bytes"):
        elsewhere.import_(_packed(session, tmp_path / "x.tar.gz", change))
    _nothing_left(elsewhere)


def test_an_artifact_that_is_a_bomb_inside_is_refused(elsewhere: Store, session: Path, tmp_path: Path) -> None:
    zeros = bytes(80 << 20)
    sha = sha256(zeros).hexdigest()
    inner = gzip.compress(zeros, 9, mtime=0)
    bomb = _packed(session, tmp_path / "x.tar.gz", _add(f"TOP/artifacts/{sha[:2]}/{sha}.json.gz", inner))
    with pytest.raises(DamagedError, match="unpacks to more than"):
        elsewhere.import_(bomb)
    _nothing_left(elsewhere)


def _raw(tmp_path: Path, data: bytes) -> Path:
    file = tmp_path / "raw.tar.gz"
    file.write_bytes(gzip.compress(data))
    return file


def test_a_huge_member_name_is_refused_before_it_is_read(elsewhere: Store, tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    with pytest.raises(RefusedError, match="member name of 1073741824 bytes"):
        elsewhere.import_(_raw(tmp_path, info.tobuf(tarfile.GNU_FORMAT)))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"18 linkpath=/etc/x\n", "linkpath"),
        (b"11 size=99\n", "size"),
        (b"99 path=x\n", "malformed"),
        (b"x", "malformed"),
        (b"13 path=../x\n", "leads out"),
    ],
)
def test_an_extended_header_that_changes_more_than_a_name_is_refused(
    elsewhere: Store, tmp_path: Path, record: bytes, why: str
) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    body = info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")
    member = tarfile.TarInfo("2026-01-01-x-0000/memo.md").tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(RefusedError, match=why):
        elsewhere.import_(_raw(tmp_path, body + member + bytes(1024)))


@pytest.mark.parametrize("data", [b"", b"hello", os.urandom(4096), gzip.compress(b""), gzip.compress(b"x" * 700)])
def test_what_is_no_archive_is_one_line(elsewhere: Store, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_bytes(data)
    with pytest.raises(SessionError) as error:
        elsewhere.import_(file)
    assert "\n" not in str(error.value)
    _nothing_left(elsewhere)


@pytest.mark.usefixtures("no_sync")
def test_an_archive_cut_anywhere_is_never_placed(store: Store, elsewhere: Store, session: Path, tmp_path: Path) -> None:
    whole = store.export(session, tmp_path / "x.tar.gz").read_bytes()
    file = tmp_path / "cut.tar.gz"
    for size in range(0, len(whole) - 40, 211):
        file.write_bytes(whole[:size])
        with pytest.raises(SessionError):
            elsewhere.import_(file)
    _nothing_left(elsewhere)


@pytest.mark.usefixtures("no_sync")
def test_an_archive_with_a_flipped_byte_is_never_placed_altered(
    store: Store, elsewhere: Store, session: Path, tmp_path: Path
) -> None:
    whole = store.export(session, tmp_path / "x.tar.gz").read_bytes()
    tar = zlib.decompress(whole, 31)
    truth = store.open(session).state()
    file = tmp_path / "flipped.tar.gz"
    for offset in range(0, len(tar), 331):
        data = bytearray(tar)
        data[offset] ^= 0x10
        file.write_bytes(gzip.compress(bytes(data), 1))
        try:
            moved = elsewhere.import_(file)
        except SessionError:
            continue
        state = elsewhere.open(moved).state()
        assert (state.events, state.evidence, state.notes) == (truth.events, truth.evidence, truth.notes)
        elsewhere.delete(moved)


def test_a_folder_or_a_missing_file_is_one_line(elsewhere: Store, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="not a plain file"):
        elsewhere.import_(tmp_path)
    with pytest.raises(SessionError, match="no such file"):
        elsewhere.import_(tmp_path / "none")
