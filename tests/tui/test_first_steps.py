"""What somebody meets who opens the app for the first time: lists, titles, dialogs, figures, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SESSION, Opener, Page, run
from rich.text import Text

from sparsetui.runner.api import Live
from sparsetui.session.store import Store
from sparsetui.tui.app import reopened
from sparsetui.tui.topline import budget_text
from sparsetui.tui.wrapping import wrap, wrap_text
from sparsetui.workload.drills.catalogue import all_drills


@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=str)
def test_down_goes_on_from_the_sessions_to_the_drills_and_up_comes_back(desktop: Opener, size: tuple[int, int]) -> None:
    async def body() -> None:
        async with desktop(size) as d:
            await d.press("enter", "enter")
        async with desktop(size, start=None) as d:
            assert d.app.focused.id == "sessions"
            assert "Tab drills" in d.text(), "the key bar tells how to get there"
            await d.press("down")
            assert (d.app.focused.id, d.app.focused.key) == ("drills", "wrong-orientation")
            assert "A canary answers" in d.text()
            await d.press("down", "down", "down")
            assert (d.app.focused.id, d.app.focused.key) == ("drills", "clean-pair"), "the last row is the end"
            await d.press("k", "k")
            assert (d.app.focused.id, d.app.focused.key) == ("sessions", SESSION)
            await d.press("up")
            assert d.app.focused.id == "sessions"

    run(body())


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)], ids=str)
def test_the_title_of_every_drill_can_be_read_whole(desktop: Opener, size: tuple[int, int]) -> None:
    async def body() -> None:
        async with desktop(size, start=None) as d:
            d.app.shelf._drills = [Page(x.name, x.title, x.story) for x in all_drills()]
            d.app.sheet.redraw()
            seen = ""
            for _ in all_drills():
                seen += d.text()
                await d.press("down")
            missing = [x.title for x in all_drills() if x.title not in seen]
            assert not missing

    run(body())


def test_roles_are_named_whole_where_they_have_to_act(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((80, 24)) as d:
            await d.press("enter", "enter", "o")
            for role in ("ML performance engineer", "sparse kernel library owner", "production reliability owner"):
                assert role in d.text()

    run(body())


@pytest.mark.parametrize("key", ["q", "n", "escape"])
def test_a_dialog_that_asks_is_closed_by_the_keys_that_say_no(desktop: Opener, key: str) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.press("enter")
            assert "this runs code" in d.text()
            await d.press(key)
            assert type(d.app.screen).__name__ == "Investigate"
            assert not d.made.runners
            assert not d.app.ending

    run(body())


def test_the_budget_is_said_to_be_that_of_a_run(desktop: Opener) -> None:
    assert budget_text(0.0, 60.0) == "run budget 60 s"
    assert budget_text(12.6, 60.0) == "run budget 13/60 s"

    async def body() -> None:
        async with desktop() as d:
            d.app.desk.live = Live(running=True, budget_s=60, spent_s=12.6)
            d.app.sheet.redraw()
            await d.settle()
            assert "run budget 13/60 s" in d.text()

    run(body())


@pytest.mark.parametrize(
    "figure", ["93 %", "84% [69, 99]", "87.4 % of the step", "gap 3.17 ms", "12 µs", "5.34× [-1.5, 2.40]", "9 GB/s"]
)
def test_no_figure_is_parted_from_its_unit_by_a_line_break(figure: str) -> None:
    number, _, unit = figure.partition(" ")
    whole = figure.split(" [")[-1].rstrip("]") if "[" in figure else " ".join(figure.split()[:2])
    if figure.startswith("gap"):
        whole = "3.17 ms"
    for width in range(max(len(whole) + 2, 12), 40):
        text = f"the product takes {figure} of all that it can"
        for lines in (wrap(text, width), [x.plain for x in wrap_text(Text(text, "bold"), width)]):
            assert any(whole in line for line in lines), (width, lines)
            assert " ".join(lines) == text
            assert max(map(len, lines)) <= width
    assert number
    assert unit


def test_styles_survive_the_wrapping() -> None:
    text = Text.assemble("closes ", ("84 %", "bold"), " of the gap between the two")
    found = [(str(s.style), line.plain[s.start : s.end]) for line in wrap_text(text, 14) for s in line.spans]
    assert found == [("bold", "84 %")]


def test_the_last_line_names_the_session_and_how_to_open_it_again(tmp_path: Path) -> None:
    assert reopened(None) == ()
    with Store(Path("sessions")).create("ranker") as writer:
        here = writer.path
    assert reopened(here)[1] == f"sparsetui sessions open {here.name} opens it again"
    with Store(tmp_path / "else where").create("ranker") as writer:
        there = writer.path
    assert reopened(there) == (
        f"session {there.name} is saved",
        f"sparsetui sessions open '{there}' opens it again",
    )
