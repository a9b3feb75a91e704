"""Processes of several hosts watched at once: what one host sees of one process, and what lands in the session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from script import END, Event, Script, chosen

from sparsetui.evidence.records import Number, PathShare, TimeTable
from sparsetui.fleet import attaching
from sparsetui.fleet.attaching import FleetWatch, parse
from sparsetui.fleet.run import FleetError
from sparsetui.fleet.watch import RankReport, WatchJob, watch
from sparsetui.session.store import Store


def seen(host: str, pid: int, waits: float, busy: float = 1.0) -> RankReport:
    paths = (PathShare("dense", Number(1 - waits)), PathShare("collective", Number(waits)))
    return RankReport(
        host, pid, cmdline="python train.py", table=TimeTable(paths), busy=busy, samples=4000, seconds=10.0
    )


def told(report: RankReport) -> Event:
    return {"event": "report", "host": report.host, "report": msgspec.to_builtins(report)}


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(attaching, "Link", Script)
    Script.orders = []

    def make(targets: str, *events: Event) -> FleetWatch:
        Script.events_to_say = list(events)
        return FleetWatch(Store(tmp_path / "s"), parse(targets), address="10.0.0.1:6379", seconds=10)

    return make


def test_the_rank_that_is_waited_for_is_named_over_hosts(watcher: Any, tmp_path: Path) -> None:
    w = watcher(
        "a:10,b:20,c:30",
        chosen("a", "b", "c"),
        told(seen("a", 10, 0.4)),
        told(seen("b", 20, 0.02)),
        told(seen("c", 30, 0.38)),
        END,
    )
    id_, body = w.run()
    assert (body["waits"], body["waited_for"]) == ("a:10", "b:20")
    state = Store(tmp_path / "s").open(id_).state()
    assert [e.source["host"] for e in state.evidence] == ["a", "b", "c"]
    assert state.sections["ranks"]["rows"][1]["role"] == "waited for"


def test_a_rank_that_sleeps_waits_as_well(watcher: Any) -> None:
    assert seen("a", 1, 0.0, busy=0.3).rank().share == pytest.approx(0.7)
    _, body = watcher(
        "a:1,b:2", chosen("a", "b"), told(seen("a", 1, 0.0, busy=0.3)), told(seen("b", 2, 0.0)), END
    ).run()
    assert body["waited_for"] == "b:2"


def test_a_process_that_cannot_be_seen_is_named_and_the_rest_is_compared(watcher: Any, tmp_path: Path) -> None:
    gone = RankReport("b", 20, "refused", "process 20 does not exist")
    dead: Event = {"event": "failed", "host": "c", "kind": "lost", "why": "the node died"}
    w = watcher(
        "a:10,b:20,c:30,d:40",
        chosen("a", "b", "c", "d"),
        told(seen("a", 10, 0.4)),
        told(gone),
        dead,
        told(seen("d", 40, 0.1)),
        END,
    )
    id_, body = w.run()
    assert body["waited_for"] == "d:40"
    assert [(m["rank"], m["state"]) for m in body["missing"]] == [("b:20", "refused"), ("c:30", "lost")]
    assert len(Store(tmp_path / "s").open(id_).state().faults) == 2


def test_one_that_was_seen_has_nobody_to_be_compared_with(watcher: Any) -> None:
    _, body = watcher(
        "a:10,b:20", chosen("a", "b"), told(seen("a", 10, 0.4)), {"event": "cut", "why": "signal 6"}
    ).run()
    assert "rows" not in body
    assert body["missing"][0]["why"] == "signal 6"


def test_an_address_that_nobody_answers_at_leaves_no_session(watcher: Any, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="nobody"):
        watcher("a:10", {"event": "fatal", "why": "nobody answers there"}).run()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:x", "a:1,,b:2", "a:0", "a:1,a:1", "a:99999999999", "a:-1", "a:٣"]
)
def test_what_is_no_process_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PID|twice"):
        parse(text)


def test_hosts_may_have_colons_of_their_own() -> None:
    assert parse("fd00::7:12, b:1") == [("fd00::7", 12), ("b", 1)]


@pytest.fixture
def worker() -> Iterator[int]:
    p = subprocess.Popen([sys.executable, "-c", f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10000))"])
    yield p.pid
    p.kill()
    p.wait()


def test_a_live_process_is_seen_from_its_own_host(worker: int) -> None:
    r = watch(WatchJob("here", worker, seconds=1.5))
    if r.state == "refused" and "permi" in r.why.lower():
        pytest.skip(f"no sampler may look here: {r.why}")
    assert r.state == "done", r.why
    assert r.samples > 0
    assert r.table.paths[0].path == "python"
    assert r.name == f"here:{worker}"


def test_a_process_that_is_not_there_is_refused() -> None:
    r = watch(WatchJob("here", 2**22 + 5, seconds=1.0))
    assert r.state == "refused"
    assert "does not exist" in r.why
