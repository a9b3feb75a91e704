"""A redacted copy of a whole session: nothing of the house is left in it, and it is a session like any other."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsetui.cli.app import app
from sparsetui.report import short
from sparsetui.report.share import share
from sparsetui.session.errors import SessionError
from sparsetui.session.store import Store

HOUSE = ("web-17", "alice", "@kernels", "/srv", "/home")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sparsetui.session.folder.socket.gethostname", lambda: "web-17")
    with Store(tmp_path / "own").create("ranker") as w:
        w.append(
            "workload",
            {"path": "/srv/models/w.toml", "sha256": "0" * 64, "spec": {}, "files": ["/srv/models/serving.py"]},
        )
        w.append("command", {"argv": ["/home/alice/venv/bin/python", "-c", "x"], "why": "worker on web-17", "pid": 7})
        stacks = {"/srv/models/serving.py:41 forward": 3, "/srv/other/serving.py:41 forward": 4, "host": "web-17"}
        made = w.evidence("kernel", "native", stacks, summary="seen in /srv/models/serving.py")
        w.append("owner", {"role": "sparse kernel library owner", "who": "@kernels"})
        w.append("artifact", {"role": "sparse kernel library owner", "evidence": made.id})
        w.append("signoff", {"role": "sparse kernel library owner", "who": "alice"})
    return w.path


def _all(folder: Path) -> str:
    parts = [p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".gz"]
    parts += [gzip.decompress(p.read_bytes()) for p in sorted(folder.rglob("*.gz"))]
    return b"\n".join(parts).decode()


def test_neither_ledger_nor_artifacts_name_the_house(session: Path, tmp_path: Path) -> None:
    assert all(word in _all(session) for word in HOUSE)
    copy = share(session, tmp_path / "out", "example")
    text = _all(copy)
    assert [word for word in HOUSE if word in text] == []
    assert "serving.py:41 forward" in text, "findings point into files by their name"
    assert text.count("serving.py:41 forward") == 2, "figures of two files of one name both stay"


def test_the_copy_is_whole_and_tells_the_same(session: Path, tmp_path: Path) -> None:
    share(session, tmp_path / "out", "example")
    store = Store(tmp_path / "out")
    assert store.verify("example").ok
    was, now = Store(session.parent).open(session).state(), store.open("example").state()
    assert [t[:2] for t in now.timeline] == [t[:2] for t in was.timeline], "the same events at the same times"
    assert short.chat(now, redact=True).replace("example", was.id) == short.chat(was, redact=True)
    proof = now.evidence[0].sha256
    assert proof is not None
    assert store.open("example").artifact(proof)
    assert [s.id for s in store.list()] == ["example"]
    with store.writer("example") as w:  # it can be gone on with
        w.append("note", {"text": "seen"})
    assert store.verify("example").ok


def test_an_id_that_is_taken_or_none_is_refused(session: Path, tmp_path: Path) -> None:
    share(session, tmp_path / "out", "example")
    for id, said in (("example", "already here"), ("../x", "no name of a session")):
        with pytest.raises(SessionError, match=said):
            share(session, tmp_path / "out", id)


def test_export_redact_packs_a_copy_that_imports(session: Path, tmp_path: Path) -> None:
    packed = tmp_path / "s.tar.gz"
    got = CliRunner().invoke(app, ["sessions", "export", str(session), "--redact", "-o", str(packed)])
    assert got.exit_code == 0, got.output
    (tmp_path / "away").mkdir()
    found = Store(tmp_path / "away").import_(packed)
    assert found.name == f"{session.name}-redacted"
    assert not any(word in _all(found) for word in HOUSE)
