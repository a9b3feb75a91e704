"""Stands for the child that talks to Ray: a script of the events that it sends. The real one is in test_cluster.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsetui.fleet.link import Order
from sparsetui.workload.spec import Workload, load

Event = dict[str, Any]


class Script:
    """Stands for the child: says its events, and remembers the order that it was given."""

    events_to_say: list[Event] = []
    orders: list[Order] = []

    def __init__(self, order: Order) -> None:
        self.orders.append(order)
        self.argv, self.pid, self.tail = ["python", "-m", "sparsetui.fleet.dispatch"], 1, []
        self.cancelled = False

    def events(self) -> Iterator[Event]:
        yield from self.events_to_say

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self.cancel()


def chosen(*hosts: str) -> Event:
    return {
        "event": "chosen",
        "hosts": [{"host": h, "node_id": h * 4, "address": "10.0.0.1", "hostname": h, "cpus": 1} for h in hosts],
    }


def fails(host: str, kind: str, why: str) -> Event:
    return {"event": "failed", "host": host, "kind": kind, "why": why}


END: Event = {"event": "end"}


def workload(folder: Path) -> Workload:
    """A pair of twins that is never run."""
    (folder / "serving.py").write_text("def build(): return lambda x: x\n")
    (folder / "w.toml").write_text(
        '[failing]\nentry = "serving.py:build"\n[comparator]\nentry = "serving.py:build"\n[inputs]\nshape = [2]\n'
    )
    return load(folder / "w.toml")
