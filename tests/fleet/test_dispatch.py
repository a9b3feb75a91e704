"""What the child that talks to Ray makes of what it hears, over a table in Ray's place."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparsetui.fleet.dispatch import Campaign
from sparsetui.fleet.remote import Board

exceptions = pytest.importorskip("ray.exceptions", reason="the extra fleet is not installed")


class Ray:
    """A board that answers late, and nodes of which one is dead."""

    def __init__(self) -> None:
        self.board = Board()
        self.ready = True

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return (refs, []) if self.ready else ([], refs)

    def get(self, ref: Any) -> Any:
        if isinstance(ref, Exception):
            raise ref
        return ref

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "n1", "Alive": True}, {"NodeID": "n2", "Alive": False}]

    @property
    def take(self) -> Any:
        return self

    def remote(self) -> Any:
        return self.board.take()


class Heard(Campaign):
    """A campaign whose events are kept."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        super().__init__({}, lambda event, **body: self.events.append((event, body)), threading.Event())
        self.ray, self.nodes = Ray(), {"up": {"node_id": "n1"}, "down": {"node_id": "n2"}}


@pytest.fixture
def campaign() -> Heard:
    return Heard()


def test_what_a_host_told_is_not_lost_where_the_board_answers_late(campaign: Heard) -> None:
    board = campaign.ray
    board.board.tell("a", {"started": True})
    board.ready = False
    campaign.progress(board)
    assert campaign.events == []
    board.board.tell("a", {"phase": "clock"})
    board.ready = True
    campaign.progress(board)
    campaign.progress(board)
    assert campaign.events == [("started", {"host": "a"}), ("progress", {"host": "a", "phase": "clock"})]
    assert campaign.began == {"a"}


@pytest.mark.parametrize(
    ("host", "error", "kind", "why"),
    [
        ("down", exceptions.RayActorError(), "lost", "the node died"),
        ("up", exceptions.RayActorError(), "lost", "Ray's worker process on it died"),
        ("up", exceptions.TaskUnschedulableError("no node"), "lost", "the node died"),
        ("up", exceptions.WorkerCrashedError(), "lost", "Ray's worker process"),
        ("up", exceptions.OutOfMemoryError("much"), "broken", "out of memory"),
        ("up", exceptions.RaySystemError("disk"), "broken", "disk"),
    ],
)
def test_each_way_to_fail_is_told_in_words(campaign: Heard, host: str, error: Exception, kind: str, why: str) -> None:
    assert campaign.got(host, error) is None
    ((event, body),) = campaign.events
    assert (event, body["host"], body["kind"]) == ("failed", host, kind)
    assert why in body["why"]
