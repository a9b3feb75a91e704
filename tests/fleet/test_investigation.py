"""One session for many hosts: what lands in it, what a lost connection leaves, and how it is gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded import report
from script import END, Event, Script, chosen, fails, workload

from sparsetui.fleet import run as fleet_run
from sparsetui.fleet.investigation import FleetInvestigation, reports_of
from sparsetui.fleet.run import FleetError
from sparsetui.report.memo import render
from sparsetui.runner.api import Cancelled, Update
from sparsetui.session.store import Store


def answers(host: str, *args: Any, **more: Any) -> list[Event]:
    sent = msgspec.to_builtins(report(host, *args, **more))
    return [
        {"event": "looked", "host": host, "python": "3.11.7", "code": "shipped", "machine": host},
        {"event": "submitted", "host": host},
        {"event": "started", "host": host},
        {"event": "progress", "host": host, "phase": "clock", "spent_s": 3.0, "budget_s": 60.0, "ratio": 2.0},
        {"event": "report", "host": host, "report": sent},
    ]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script of events in a fresh or a saved session; returns the runner."""
    monkeypatch.setattr(fleet_run, "Link", Script)
    Script.orders = []
    open_: list[FleetInvestigation] = []

    def run(*events: Event, **options: Any) -> FleetInvestigation:
        Script.events_to_say = list(events)
        runner = FleetInvestigation(
            workload(tmp_path), Store(tmp_path / "sessions"), address="10.0.0.1:6379", **options
        )
        open_.append(runner)
        return runner

    yield run
    for r in open_:
        r.close()


def test_each_answer_is_evidence_with_host_lock_and_provenance(made: Any) -> None:
    runner = made(chosen("a", "b"), *answers("a", 2.0), *answers("b", 2.1), END)
    result = runner.run_all()
    first, second = (e for e in runner.state().evidence if e.probe == "host")
    assert (first.source["host"], second.source["host"]) == ("a", "b")
    assert first.source["lock"] == second.source["lock"]
    assert first.source["code"] == "shipped"
    assert first.source["node_id"] == "aaaa"
    assert first.figures["ratio"].value == pytest.approx(2.0)
    assert result.verdict.status == "fault"
    assert result.verdict.mechanism == "kernel.wrong-orientation"
    assert set(result.verdict.evidence) == {first.id, second.id}
    kept = {h: r for h, r, _ in reports_of(runner.state(), runner.writer.read_artifact)}
    assert kept["a"].rounds == report("a").rounds
    assert kept["a"].lock == report("a", 2.0).lock


def test_the_session_and_its_memo_tell_the_verdict_over_hosts(made: Any) -> None:
    runner = made(chosen("a", "b", "c"), *answers("a"), *answers("b"), *answers("c", level_ms=9.0), END)
    runner.run_all()
    body = runner.state().sections["fleet"]
    assert body["status"] == "host"
    assert [r["host"] for r in body["rows"]] == ["a", "b", "c"]
    assert body["rows"][2]["apart"] == "yes"
    memo = render(runner.state())
    assert "It is the host: c" in memo
    assert "## Fleet" in memo


def test_names_that_others_chose_cannot_harm_the_memo(made: Any) -> None:
    evil = "n<script>|\x1b[31m`x`"
    runner = made(chosen("a", evil), *answers("a", 2.0), fails(evil, "refused", "no \x1b]0;torch\x07 here"), END)
    runner.run_all()
    memo = render(runner.state())
    assert "\x1b" not in memo
    assert "<script>" not in memo


def test_a_lost_connection_is_said_and_the_rest_decides(made: Any) -> None:
    events = [chosen("a", "b", "c"), *answers("a", 2.0), *answers("b", 2.1), *answers("c")[:4]]
    runner = made(*events, {"event": "cut", "why": "the connection to Ray was lost: signal 6"})
    result = runner.run_all()
    assert runner.verdict().status == "release"
    assert [(h, s) for h, s, _ in runner.verdict().missing] == [("c", "lost")]
    assert any("connection to Ray was lost" in u.why for u in result.cannot_answer)
    assert runner.state().phases[-1].state == "failed"


def test_it_is_gone_on_with_for_the_missing_only(made: Any) -> None:
    first = made(
        chosen("a", "b", "c"),
        *answers("a", 2.0),
        fails("b", "lost", "the node died"),
        fails("c", "refused", "no torch"),
        END,
    )
    first.run_all()
    session = first.state().id
    first.close()
    second = made(chosen("a", "b", "c"), *answers("b", 2.0), *answers("c", 2.05), END, session=session)
    second.run_all()
    order = Script.orders[-1]
    assert order.done == ["a"]
    assert order.hosts == ["a", "b", "c"]
    assert second.state().id == session
    assert second.verdict().status == "release"
    assert second.verdict().missing == ()
    assert second.verdict().ratio.n == 3


def test_an_answer_that_is_there_is_never_replaced_by_a_failure(made: Any) -> None:
    runner = made(chosen("a", "b"), *answers("a", 2.0), *answers("b", 2.0), fails("a", "lost", "the node died"), END)
    runner.run_all()
    assert runner.verdict().missing == ()


def test_a_host_that_never_answered_is_missing_also_when_nobody_said_so(made: Any) -> None:
    runner = made(chosen("a", "b", "c"), *answers("a", 2.0), *answers("b", 2.0), END)
    runner.run_all()
    assert [h for h, _, _ in runner.verdict().missing] == ["c"]


def test_a_report_that_cannot_be_read_breaks_its_host_only(made: Any) -> None:
    bad = {"event": "report", "host": "c", "report": {"host": "c", "log_ratio": "much"}}
    runner = made(chosen("a", "b", "c"), *answers("a", 2.0), *answers("b", 2.0), bad, END)
    runner.run_all()
    assert [(h, s) for h, s, _ in runner.verdict().missing] == [("c", "broken")]


def test_a_cluster_that_cannot_be_used_leaves_no_session(made: Any, tmp_path: Path) -> None:
    runner = made({"event": "fatal", "why": "--address 10.0.0.1:6379: nobody answers there"})
    with pytest.raises(FleetError, match="nobody answers"):
        runner.run_all()
    assert not (tmp_path / "sessions").exists() or not list((tmp_path / "sessions").iterdir())


def test_cancelling_keeps_what_was_measured(made: Any) -> None:
    heard: list[Update] = []
    runner = made(chosen("a", "b"), *answers("a", 2.0), END)
    runner._listener = lambda u: (
        heard.append(u),
        runner.cancel() if u.live.hosts.get("a", {}).get("state") == "done" else None,
    )
    with pytest.raises(Cancelled):
        runner.run_all()
    assert runner.state().interrupted == "cancelled"
    assert [e.source["host"] for e in runner.state().evidence if e.probe == "host"] == ["a"]


def test_after_a_cancel_the_same_runner_goes_on(made: Any) -> None:
    runner = made(chosen("a", "b"), *answers("a", 2.0), END)
    runner._listener = lambda u: runner.cancel() if u.live.hosts.get("a", {}).get("state") == "done" else None
    with pytest.raises(Cancelled):
        runner.run_all()
    runner.journal._listener = None
    Script.events_to_say = [chosen("a", "b"), *answers("b", 2.0), END]
    assert runner.run_all().verdict.status == "fault"
    assert Script.orders[-1].done == ["a"]


def test_listeners_see_a_row_a_host_as_it_goes(made: Any) -> None:
    heard: list[Update] = []
    runner = made(chosen("a", "b"), *answers("a", 2.0), fails("b", "refused", "no torch"), END, listener=heard.append)
    runner.run_all()
    states = [u.live.hosts["a"]["state"] for u in heard if "a" in u.live.hosts]
    assert list(dict.fromkeys(states)) == ["waiting", "submitted", "running", "done"]
    assert heard[-1].live.hosts["b"] == {
        "state": "refused",
        "why": "no torch",
        "ratio": None,
        "says": "",
        "mechanism": "",
        "phase": "",
    }
    assert heard[-1].live.running is False
