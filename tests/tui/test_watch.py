"""Watching running processes in the app: cost first, tables that can be frozen, an end that lets the process go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Opener, run
from watched import PROCESSES, Held, Refused, Watched

from sparsetui.session.store import Store
from sparsetui.tui.screens.processes import Process, running
from sparsetui.tui.watching import Watching


async def attach(d: object, *, answer: bool = True) -> None:
    d.app.watches.processes = lambda: list(PROCESSES)
    await d.press("a", "enter")
    if answer:
        await d.press("enter")


def test_the_cost_is_told_before_anything_touches_the_process(desktop: Opener) -> None:
    async def body() -> None:
        Watched.made.clear()
        async with desktop(start=None, watch_factory=Watched) as d:
            await attach(d, answer=False)
            assert "2 ms a sample" in d.text()
            await d.press("escape")
            assert d.app.watches.now is None
            assert not any(w.stopped for w in Watched.made), "it was never begun"

    run(body())


def test_a_watch_fills_tables_and_leaving_it_stops_the_observers(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36), start=None, watch_factory=Held) as d:
            await attach(d)
            await d.until(lambda: "gomp_barrier_wait_end" in d.text())
            shown = d.text()
            for text in (
                "sparse-csr-rhs",
                "72%",
                "63.0–79.0%",
                "serve.py:41 forward",
                "barrier 90%",
                "stood still 2.1%",
            ):
                assert text in shown
            assert r"\x1b[31mranker[red]" in shown, "the target's own words are shown, not obeyed"
            held = d.app.watches.now.watch
            await d.press("escape")
            await d.until(lambda: held.stopped)
            assert type(d.app.sheet).__name__ == "Processes"

    run(body())


def test_pause_freezes_the_tables_and_not_the_clock(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36), start=None, watch_factory=Held) as d:
            await attach(d)
            await d.until(lambda: d.app.watches.now.last)
            await d.press("p", "x")
            await d.until(lambda: d.app.watches.now.over)
            await d.settle()
            assert d.app.sheet.query_one("#paths").rows[0].cells[2] == "72%"
            assert "watched 12 s" in d.text()
            await d.press("p")
            assert d.app.sheet.query_one("#paths").rows[0].cells[2] == "70%"

    run(body())


def test_what_was_seen_is_kept_in_a_new_session_with_its_commands(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        async with desktop(start=None, watch_factory=Watched) as d:
            await attach(d)
            await d.until(lambda: d.app.watches.now.over)
            await d.press("w", "enter")
            assert "kept as E01" in d.note
            store = Store(tmp_path / "store")
            state = store.open(store.list()[0].id).state()
            assert state.native is not None
            assert state.native.paths[0].path == "sparse-csr-rhs"
            assert [e.probe for e in state.evidence] == ["attach"]
            assert state.commands[0]["argv"][0] == "py-spy"
            await d.press("w", *"no-such-session", "enter")
            assert "not kept" in d.note
            await d.press("r")
            await d.until(lambda: len(d.app.watches.now.commands) == 2)

    run(body())


def test_a_process_that_may_not_be_looked_at_says_why(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(start=None, watch_factory=Refused) as d:
            await attach(d)
            await d.until(lambda: d.app.watches.now.over)
            await d.settle()
            assert "ptrace is not permitted" in d.text()

    run(body())


def test_readonly_watches_nothing(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(start=None, readonly=True, watch_factory=Watched) as d:
            await d.press("a")
            assert "read-only" in d.note

    run(body())


def test_an_app_opened_to_watch_asks_nothing_and_ends_the_watch_with_itself(desktop: Opener) -> None:
    async def body() -> None:
        watching = Watching(lambda told: Held([4242], on_command=told))
        async with desktop(start={"watching": watching}) as d:
            await d.until(lambda: watching.last)
            assert type(d.app.sheet).__name__ == "Watch"
            await d.press("q")
            await d.until(lambda: watching.watch.stopped)
            assert watching.last.done

    run(body())


def test_the_list_of_processes_holds_a_python_that_runs_and_not_ourselves() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = {p.pid: p for p in running()}
        assert found[child.pid].python
        assert os.getpid() not in found
    finally:
        child.communicate(b"\n")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_attaching_to_nothing_is_one_line(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(start=None) as d:
            d.app.watches.offer([2**22 + 1])
            await d.settle()
            assert "does not exist" in d.note

    run(body())


def test_a_process_is_told_by_what_follows_its_program_and_in_full_below(desktop: Opener) -> None:
    folder = "/srv/environments/of-a-long-name/ranker-2026-11/bin/"
    command = f"{folder}python -u /srv/ranker/serving/main.py --model ranker --port 8080"

    async def body() -> None:
        async with desktop((80, 24)) as d:
            d.app.watches.processes = lambda: [Process(4242, "serving", 5.0, 2, command, True)]
            await d.press("H", "a")
            table = d.app.sheet.query_one("#processes")
            assert "python -u /srv/ranker/serving/main.py" in table.line_at(1).plain
            assert d.app.sheet.query_one("#story").text().replace("\n", " ").startswith(command)
            await d.press("slash", *"of-a-long", "enter")
            assert [r.key for r in table.rows] == ["4242"], "the folder is found all the same"

    run(body())
