"""A matrix over nodes on the screen of hosts: what each node measured, and which lock it has."""

from __future__ import annotations

from typing import Any

from a_fleet import FLEET
from conftest import SESSION, Opener, run

from sparsetui.evidence.records import Evidence
from sparsetui.runner.api import Live
from sparsetui.session.state import SessionState

MATRIX: dict[str, Any] = {
    "summary": "3 signatures on 2 nodes of 2 locks, each with its own table.",
    "address": "10.0.0.1:6379",
    "chosen": "web-1, web-2, web-3",
    "rows": [
        {
            "host": "web-1",
            "state": "done",
            "says": "2 signatures, whole steps",
            "lock": "97f3ff10cb64",
            "seconds": 31.0,
        },
        {"host": "web-2", "state": "done", "says": "1 signature", "lock": "8973e4d6492e", "seconds": 12.0},
        {"host": "web-3", "state": "lost", "says": "the node died", "lock": "97f3ff10cb64", "seconds": 0},
    ],
    "locks": [
        {"lock": "97f3ff10cb64", "nodes": 2, "names": "web-1, web-3", "differs": ""},
        {"lock": "8973e4d6492e", "nodes": 1, "names": "web-2", "differs": "threads: 64 here, 8 elsewhere"},
    ],
}


def part(id: str, host: str, signature: str, said: str) -> Evidence:
    return Evidence(id, "release", "matrix", f"{host}: {signature}: {said}", "ab" * 32,
                    source={"host": host, "lock": "97f3ff10cb64", "signature": signature})  # fmt: skip


PARTS = (
    part("E03", "web-1", "640 x 512, width 48", "csr-int32, 0.90× of dense"),
    part("E07", "web-1", "640 x 512, width 48", "csr-int32, 0.51× of dense"),
    part("E04", "web-2", "96 x 640, width 48", "dense"),
)


def test_each_node_shows_what_it_measured_and_its_lock(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            d.app.open("fleet")
            await d.settle()
            d.app.desk.state = SessionState(id=SESSION, events=1, sections={"fleet_matrix": MATRIX}, evidence=PARTS)
            d.app.sheet.redraw()
            await d.settle()
            text = d.text()
            assert "3 signatures on 2 nodes" in text
            assert "2 signatures, whole steps" in text
            assert "the node died" in text
            assert "matrix E07" in text
            assert "csr-int32, 0.51× of dense" in text
            assert "0.90×" not in text, "an older part of the same signature"
            assert "threads: 64" not in text
            await d.press("down")
            text = d.text()
            assert "threads: 64 here, 8 elsewhere" in text
            assert "96 x 640, width 48: dense" in text

    run(body())


def test_where_hosts_were_investigated_as_well_their_verdict_stays(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            d.app.open("fleet")
            await d.settle()
            sections = {"fleet": FLEET, "fleet_matrix": MATRIX}
            d.app.desk.state = SessionState(id=SESSION, events=1, sections=sections, evidence=PARTS)
            d.app.sheet.redraw()
            await d.settle()
            text = d.text()
            assert "the host" in text
            assert "Matrix: 3 signatures on 2 nodes" in text
            assert "no fault" in text
            assert "matrix E07" in text

    run(body())


def test_a_node_shows_what_it_measures_now(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            d.app.open("fleet")
            await d.settle()
            now = {
                "web-1": {"state": "running", "phase": "96 x 640, width 48, instead of web-3"},
                "web-2": {"state": "waiting", "says": "1 signature"},
                "web-3": {"state": "lost", "why": "[red]the node died"},
            }
            d.app.desk.live = Live(running=True, message="1 of 3 hosts", hosts=now)
            d.app.sheet.redraw()
            await d.settle()
            text = d.text()
            assert "96 x 640, width 48, instead of" in text
            assert "[red]the node died" in text
            assert "1 signature" in text

    run(body())
