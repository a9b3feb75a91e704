"""The matrix over nodes in a session: what lands, what a lost node or connection leaves, and how it is gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from parts import SIGNATURES, lock, signature, survey, whole
from script import END, Event, Script, chosen, fails, workload

from sparsetui.fleet import run as fleet_run
from sparsetui.fleet.bundle import manifest
from sparsetui.fleet.matrix import FleetMatrix
from sparsetui.fleet.records import Part, lock_id
from sparsetui.report.memo import render
from sparsetui.runner.api import Cancelled, Update
from sparsetui.session.store import Store

A, B, C = SIGNATURES


def surveyed(host: str, **tags: str) -> list[Event]:
    sent = msgspec.to_builtins(survey(host, **tags))
    return [
        {"event": "looked", "host": host, "python": "3.11.7", "code": "shipped", "machine": host},
        {"event": "submitted", "host": host},
        {"event": "started", "host": host},
        {"event": "surveyed", "host": host, "survey": sent},
    ]


def taken(host: str, name: str, instead_of: str = "") -> Event:
    return {"event": "taken", "host": host, "signature": name, "instead_of": instead_of}


def told(part: Part) -> list[Event]:
    return [taken(part.host, part.signature), {"event": "part", "host": part.host, "part": msgspec.to_builtins(part)}]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a script of events in a fresh or a saved session; returns the runner."""
    monkeypatch.setattr(fleet_run, "Link", Script)
    Script.orders = []
    open_: list[FleetMatrix] = []

    def run(*events: Event, **options: Any) -> FleetMatrix:
        Script.events_to_say = list(events)
        runner = FleetMatrix(workload(tmp_path), Store(tmp_path / "sessions"), address="10.0.0.1:6379", **options)
        open_.append(runner)
        return runner

    yield run
    for r in open_:
        r.close()


@pytest.fixture
def code(tmp_path: Path) -> str:
    """The digest of the workload's folder."""
    return manifest(workload(tmp_path)).digest


def all_of(code: str, *hosts: str) -> list[Event]:
    parts = [*told(signature(hosts[0], A, code=code)), *told(signature(hosts[-1], B, code=code)),
             *told(signature(hosts[0], C, code=code))]  # fmt: skip
    return [*parts, *(e for h in hosts for e in told(whole(h, code=code)))]


def test_each_part_is_evidence_with_host_lock_and_provenance(made: Any, code: str) -> None:
    runner = made(chosen("a", "b"), *surveyed("a"), *surveyed("b"), *all_of(code, "a", "b"), END)
    body = runner.run_all()
    found = [e for e in runner.state().evidence if e.probe == "matrix"]
    assert [(e.source["host"], e.source["signature"]) for e in found] == [
        ("a", A), ("b", B), ("a", C), ("a", "whole steps"), ("b", "whole steps"),
    ]  # fmt: skip
    assert {e.source["lock"] for e in found} == {lock_id(lock("a"))}
    assert found[0].source["node_id"] == "aaaa"
    assert found[0].source["code"] == "shipped"
    assert found[0].figures[f"{A}: csr-int32 against dense"].value == pytest.approx(0.5, rel=0.03)
    assert [r["says"] for r in body["rows"]] == ["2 signatures, whole steps", "1 signature, whole steps"]
    assert [p.state for p in runner.state().phases] == ["started", "started", "done", "done"]


def test_the_memo_and_the_gate_have_the_matrix(made: Any, code: str) -> None:
    runner = made(chosen("a", "b"), *surveyed("a"), *surveyed("b", threads="64"), *all_of(code, "a"), END)
    runner.run_all()
    state = runner.state()
    assert state.sections["matrix"]["host"] == "a"
    assert next(g for g in state.gates if g.gate == "matrix").state == "passed"
    memo = render(state)
    assert "## Fleet matrix" in memo
    assert "threads: 64 here, 8 elsewhere" in memo
    assert f"Lock {lock_id(lock('b', threads='64'))}" in memo


def test_names_that_others_chose_cannot_harm_the_memo(made: Any, code: str) -> None:
    evil = "n<script>|\x1b[31m`x`"
    runner = made(
        chosen("a", evil), *surveyed("a"), *surveyed(evil, torch="<b>\x1b]0;x\x07"), *all_of(code, "a", evil),
        fails(evil, "lost", "no \x1b[2J<script>"), END,
    )  # fmt: skip
    runner.run_all()
    memo = render(runner.state())
    assert "\x1b" not in memo
    assert "<script>" not in memo
    assert "<b>" not in memo


def test_a_signature_whose_node_died_is_said_to_have_moved(made: Any, code: str) -> None:
    events = [*surveyed("a"), *surveyed("b"), taken("b", B), fails("b", "lost", "the node died"), taken("a", B, "b"),
              told(signature("a", B, code=code))[1]]  # fmt: skip
    heard: list[Update] = []
    runner = made(chosen("a", "b"), *events, END, listener=heard.append)
    body = runner.run_all()
    assert body["moved"] == [{"signature": B, "from": "b", "to": "a"}]
    assert [(r["host"], r["state"]) for r in body["rows"]] == [("a", "done"), ("b", "lost")]
    assert any(u.live.hosts.get("a", {}).get("phase") == f"{B}, instead of b" for u in heard)
    assert [f["what"] for f in runner.state().faults] == ["host b: lost"]


def test_it_is_gone_on_with_for_what_is_missing(made: Any, code: str) -> None:
    first = made(chosen("a", "b"), *surveyed("a"), *surveyed("b"), *told(signature("a", A, code=code)),
                 *told(whole("a", code=code)), {"event": "cut", "why": "signal 6"})  # fmt: skip
    body = first.run_all()
    assert [u["signature"] for u in body["unmeasured"]] == [B, C]
    assert [r["state"] for r in body["rows"]] == ["lost", "lost"]
    first.close()
    again = [
        *surveyed("a"),
        *surveyed("b"),
        *told(signature("b", B, code=code)),
        *told(signature("a", C, code=code)),
    ]
    second = made(chosen("a", "b"), *again, END, session=first.state().id)
    body = second.run_all()
    order, id_ = Script.orders[-1], lock_id(lock("a"))
    assert order.job["matrix"] == {"done": [[id_, A]], "whole": [[id_, "a"]]}
    assert order.hosts == ["a", "b"]
    assert order.done == []
    assert "unmeasured" not in body
    assert [r["state"] for r in body["rows"]] == ["done", "done"]


def test_parts_of_other_code_are_left_out_and_measured_again(made: Any, code: str, tmp_path: Path) -> None:
    first = made(chosen("a"), *surveyed("a"), *told(signature("a", A, code=code)), END)
    first.run_all()
    first.close()
    (tmp_path / "weights.bin").write_bytes(b"other weights")
    second = made(chosen("a"), *surveyed("a"), END, session=first.state().id)
    body = second.run_all()
    assert Script.orders[-1].job["matrix"]["done"] == []
    assert [u["signature"] for u in body["unmeasured"]] == [A, B, C]


def test_what_was_measured_is_not_replaced_by_what_was_not(made: Any, code: str) -> None:
    failed = Part("a", lock_id(lock("a")), A, "the worker died", code=code)
    runner = made(chosen("a"), *surveyed("a"), *told(signature("a", A, code=code)), *told(failed), END)
    body = runner.run_all()
    assert [u["signature"] for u in body["unmeasured"]] == [B, C]
    assert runner.state().faults[-1]["why"] == "the worker died"


@pytest.mark.parametrize(("kind", "name"), [("surveyed", "survey"), ("part", "part")])
def test_an_answer_that_cannot_be_read_costs_its_host_only(made: Any, code: str, kind: str, name: str) -> None:
    bad = {"event": kind, "host": "b", name: {"host": "b", "lock_id": 7}}
    runner = made(chosen("a", "b"), *surveyed("a"), bad, *told(signature("a", A, code=code)), END)
    body = runner.run_all()
    assert body["summary"].startswith("1 signatures on 1 node")
    assert runner.state().faults


def test_cancelling_keeps_what_was_measured(made: Any, code: str) -> None:
    runner = made(chosen("a", "b"), *surveyed("a"), *surveyed("b"), *told(signature("a", A, code=code)), END)
    runner._listener = lambda u: runner.cancel() if u.live.hosts.get("a", {}).get("says") else None
    with pytest.raises(Cancelled):
        runner.run_all()
    assert runner.state().interrupted == "cancelled"
    assert [e.source["signature"] for e in runner.state().evidence if e.probe == "matrix"] == [A]
    assert "tables" in runner.state().sections["fleet_matrix"]


def test_after_a_lost_node_the_same_runner_goes_on(made: Any, code: str) -> None:
    runner = made(chosen("a"), *surveyed("a"), fails("a", "lost", "the node died"), END)
    assert runner.run_all()["rows"][0]["state"] == "lost"
    Script.events_to_say = [chosen("a"), *surveyed("a"), *told(signature("a", A, code=code)), END]
    assert [(r["state"], r["says"]) for r in runner.run_all()["rows"]] == [("done", "1 signature")]


def test_a_refused_node_is_a_row_that_says_why(made: Any, code: str) -> None:
    bad = {"event": "surveyed", "host": "b", "survey": {"host": "b", "state": "refused", "why": "no torch"}}
    body = made(chosen("a", "b"), *surveyed("a"), bad, *told(signature("a", A, code=code)), END).run_all()
    assert (body["rows"][1]["state"], body["rows"][1]["says"]) == ("refused", "no torch")
    assert list(body["tables"]) == [f"lock {lock_id(lock('a'))}"]
