"""A playbook walked over a saved session: on the command line, and again when the release half adds what it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparsetui.cli.app import app
from sparsetui.playbook import library
from sparsetui.release import closing
from sparsetui.session.store import Store


def _n(value: float, **more: Any) -> dict[str, Any]:
    return {"value": value, **more}


@pytest.fixture
def session(tmp_path: Path) -> str:
    """What a decided pair leaves: a lock that matches and a ratio within the floor."""
    with Store(tmp_path).create("ranker") as w:
        w.append("lock", {"match": True, "tags": {"torch": "2.13"}, "differs": []})
        ratio = _n(1.001, ci=[0.995, 1.008], n=12)
        w.append("metrics", {"latency_ms": {"ratio": ratio, "noise_floor": _n(0.02)}})
    return w.id


def _follow(tmp_path: Path, name: str, session: str) -> Any:
    return CliRunner().invoke(app, ["playbooks", "follow", name, session, "--sessions", str(tmp_path)])


def test_it_tells_the_way_and_its_end_and_keeps_both(tmp_path: Path, session: str) -> None:
    got = _follow(tmp_path, "latency-regression-after-pruning", session)
    assert got.exit_code == 0, got.output
    assert "lock.match = yes" in got.stdout
    assert got.stdout.splitlines()[-1].startswith("no_fault: ")
    kept = Store(tmp_path).open(session).state()
    assert kept.playbook["id"] == "latency-regression-after-pruning"
    events = kept.events
    _follow(tmp_path, "latency-regression-after-pruning", session)
    assert Store(tmp_path).open(session).state().events == events, "the same way is not told twice"


def test_where_it_cannot_answer_it_says_what_would_settle_it(tmp_path: Path, session: str) -> None:
    got = _follow(tmp_path, "structured-or-unstructured", session)
    assert got.exit_code == 3
    assert got.stdout.splitlines()[-1] == "settle it with: sparsetui matrix WORKLOAD.toml"


def test_a_mechanism_is_exit_code_1(tmp_path: Path, session: str) -> None:
    with Store(tmp_path).writer(session) as w:
        w.append(
            "lock",
            {
                "match": False,
                "tags": {},
                "differs": [{"tag": "torch", "failing": "2.1", "comparator": "2.2", "declared": False}],
            },
        )
    got = _follow(tmp_path, "structured-or-unstructured", session)
    assert got.exit_code == 1
    assert got.stdout.splitlines()[-1].startswith("ingress.lock-mismatch: ")


@pytest.mark.parametrize(("name", "which"), [("no-such-book", None), ("p99-only", "no-such-session")])
def test_what_is_not_there_is_one_line(tmp_path: Path, session: str, name: str, which: str | None) -> None:
    got = _follow(tmp_path, name, which or session)
    assert got.exit_code == 2
    assert len(got.stderr.strip().splitlines()) == 1
    assert name in got.stderr or str(which) in got.stderr


def test_the_playbook_is_walked_again_once_what_it_asks_for_was_measured(tmp_path: Path, session: str) -> None:
    book = library.find("structured-or-unstructured")
    rows = [{"name": "dense", "kind": "dense", "p50": _n(2.0), "risk": "low"},
            {"name": "bsr-16", "kind": "structured", "p50": _n(1.0), "risk": "low"}]  # fmt: skip
    with Store(tmp_path).writer(session) as w:
        assert closing.follow(w, book).end.kind == "cannot_answer"
        w.append("section", {"name": "matrix", "body": {"rows": rows}})
        closing.walk_again(w)
        assert w.state().playbook["end"]["kind"] == "no_fault"
        w.append("playbook", {**w.state().playbook, "id": "of-another-team"})
        was = w.state().events
        closing.walk_again(w)
        assert w.state().events == was, "one that is not here stays as it was walked"
