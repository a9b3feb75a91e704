"""Which node measures what, and what becomes of it when a node is gone. Ray is played by a table of answers; the real one is in
test_cluster.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from parts import SIGNATURES, lock, survey

from sparsetui.fleet import spreading
from sparsetui.fleet.dispatch import Campaign
from sparsetui.fleet.records import lock_id
from sparsetui.fleet.spreading import Spread

pytest.importorskip("ray", reason="the extra fleet is not installed")

A, B, C = SIGNATURES
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


class Died(Exception):
    """Its node is gone."""


class Ray:
    """Answers come in the order in which they were asked, two at most at a time; of hosts in ``late`` after so many rounds."""

    def __init__(self, answer: Ask, late: dict[str, int]) -> None:
        self.answer, self.late = answer, late
        self.killed: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.together: list[set[str]] = []

    def remote(self, what: type) -> Any:
        return _Options(self)

    def wait(self, refs: list[Any], timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        self.together.append({r.host for r in refs if r.request.get("do") in ("whole", "signature")})
        done = [r for r in refs if self.late.get(r.host, 0) < len(self.together)][:2]
        return done, [r for r in refs if r not in done]

    def kill(self, worker: Any) -> None:
        self.killed.append(worker.host)


class _Options:
    def __init__(self, ray: Ray) -> None:
        self.ray = ray

    def options(self, **_: Any) -> _Options:
        return self

    def remote(self, job: dict[str, Any], *_: Any) -> Any:
        return Worker(self.ray, job["host"])


class Ref:
    def __init__(self, host: str, request: dict[str, Any]) -> None:
        self.host, self.request = host, request


class _Method:
    def __init__(self, call: Callable[..., Ref]) -> None:
        self.remote = call


class Worker:
    def __init__(self, ray: Ray, host: str) -> None:
        self.ray, self.host = ray, host
        self.ask = _Method(self._ask)
        self.end = _Method(lambda: Ref(host, {}))

    def _ask(self, request: dict[str, Any]) -> Ref:
        if request["do"] != "survey":
            self.ray.asked.append((self.host, request.get("name", "")))
        return Ref(self.host, request)


class Run(Campaign):
    """A campaign whose cluster is the table; ``got`` is the only thing of Ray's that matters here."""

    def __init__(self, answer: Ask, hosts: dict[str, str], late: dict[str, int] | None = None, **matrix: Any) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        order = {
            "job": {"budget_s": 30.0, "matrix": {"done": [], "whole": [], **matrix}},
            "limit_s": 100.0,
            "patience_s": 60.0,
        }
        super().__init__(order, lambda event, **body: self.events.append((event, body)), threading.Event())
        self.ray = Ray(answer, late or {})
        self.began = set(hosts) - set(late or ())
        Spread(self, [{"host": h, "machine": m, "cpus": 1, "code": "path"} for h, m in hosts.items()]).run()

    def board(self) -> Any:
        return None

    def bundle(self, ready: list[dict[str, Any]]) -> Any:
        return None

    def progress(self, board: Any) -> None:
        self.began |= {h for h, rounds in self.ray.late.items() if rounds < len(self.ray.together)}

    def pinned(self, n: dict[str, Any]) -> Any:
        return None

    def got(self, host: str, ref: Ref, **about: Any) -> dict[str, Any] | None:
        try:
            return self.ray.answer(host, ref.request)
        except Died:
            self.emit("failed", host=host, kind="lost", why="the node died")
            return None

    def of(self, event: str) -> list[dict[str, Any]]:
        return [body for name, body in self.events if name == event]


def well(host: str, request: dict[str, Any]) -> dict[str, Any]:
    """A healthy node; host c has another lock."""
    if request["do"] == "survey":
        return {"report": msgspec.to_builtins(survey(host, **({"threads": "64"} if host == "c" else {})))}
    return {"report": {"signature": request.get("name", "")}}


def dies(host: str, over: str) -> Ask:
    def answer(asked: str, request: dict[str, Any]) -> dict[str, Any]:
        if asked == host and request.get("name", request["do"]) == over:
            raise Died
        return well(asked, request)

    return answer


APART = {"a": "m1", "b": "m2", "c": "m3"}


def test_nodes_of_one_lock_share_the_list_and_another_lock_has_its_own() -> None:
    run = Run(well, APART)
    by = {h: [n for host, n in run.ray.asked if host == h] for h in "abc"}
    assert sorted([*by["a"], *by["b"]]) == sorted(["", "", A, B, C])
    assert by["c"] == ["", A, B, C]
    assert all(names[0] == "" for names in by.values()), "whole steps come first"
    assert len(run.of("part")) == 9


def test_nodes_of_one_machine_take_turns() -> None:
    run = Run(well, {"a": "m1", "b": "m1", "c": "m1"})
    assert max(len(hosts) for hosts in run.ray.together) == 1
    assert len(run.of("part")) == 9


def test_nodes_of_machines_of_their_own_do_not_wait_for_each_other() -> None:
    assert {"a", "b", "c"} in Run(well, APART).ray.together


def test_what_a_dead_node_was_measuring_goes_to_another_of_its_lock() -> None:
    run = Run(dies("b", A), {"b": "m1", "bb": "m2", "c": "m3"})
    again = [t for t in run.of("taken") if t["instead_of"]]
    assert [(t["signature"], t["host"], t["instead_of"]) for t in again] == [(A, "bb", "b")]
    assert sorted(n for h, n in run.ray.asked if h == "bb") == sorted(["", A, B, C])


def test_it_never_goes_to_a_node_of_another_lock() -> None:
    run = Run(dies("a", A), {"a": "m1", "c": "m3"})
    assert [n for h, n in run.ray.asked if h == "c"] == ["", A, B, C]
    assert not [t for t in run.of("taken") if t["instead_of"]]


def test_the_whole_steps_of_a_dead_node_are_nobody_elses() -> None:
    run = Run(dies("a", "whole"), {"a": "m1", "b": "m2"})
    assert [n for h, n in run.ray.asked if h == "b"] == ["", A, B, C]


def test_what_is_measured_already_is_not_asked_again() -> None:
    id_ = lock_id(lock("a"))
    run = Run(well, {"a": "m1", "c": "m3"}, done=[[id_, A], [id_, C]], whole=[[id_, "a"]])
    assert [n for h, n in run.ray.asked if h == "a"] == [B]
    assert [n for h, n in run.ray.asked if h == "c"] == ["", A, B, C]


def test_a_node_that_cannot_is_told_and_the_rest_goes_on() -> None:
    def answer(host: str, request: dict[str, Any]) -> dict[str, Any]:
        return {"failed": "refused", "why": "no torch"} if host == "a" else well(host, request)

    run = Run(answer, {"a": "m1", "b": "m2"})
    assert run.of("failed") == [{"host": "a", "kind": "refused", "why": "no torch"}]
    assert len(run.of("part")) == 4


def test_a_node_that_never_answers_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def later() -> float:
        clock[0] += 20.0
        return clock[0]

    monkeypatch.setattr(spreading.time, "monotonic", later)
    run = Run(well, {"a": "m1", "b": "m2"}, {"b": 10**9})
    assert [(f["host"], f["kind"]) for f in run.of("failed")] == [("b", "slow")]
    assert "b" in run.ray.killed
    assert len(run.of("part")) == 4


def test_a_node_that_is_late_holds_nobody_up_and_joins_the_rest_of_the_list() -> None:
    """b's cores are held by others at first; that it stands on a's machine disturbs nobody as long as it waits."""
    run = Run(well, {"a": "m1", "b": "m1"}, late={"b": 4})
    names = [n for _, n in run.ray.asked]
    assert run.ray.asked[:2] == [("a", ""), ("a", A)]
    assert ("b", "") in run.ray.asked
    assert sorted(names) == sorted(["", "", A, B, C])


def test_seconds_are_shared_over_signatures_and_nodes() -> None:
    asked: list[float] = []

    def answer(host: str, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "signature":
            asked.append(request["seconds"])
        return well(host, request)

    Run(answer, {"a": "m1", "b": "m2"})
    assert asked == pytest.approx([30.0 / 2 * 2 / 3] * 3)
