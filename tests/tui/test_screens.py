"""What holds on every screen: nothing wider than its cell, nothing that the terminal would obey, ASCII when asked."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from conftest import SESSION, Desktop, Opener, run
from rich.terminal_theme import TerminalTheme
from textual.color import Color
from textual.theme import Theme

from sparsetui.tui import look
from sparsetui.tui.look import ascii_form


async def every_screen(d: Desktop) -> None:
    """Check each screen of a finished investigation."""
    await d.investigate()
    for keys in ((), ("v",), ("enter",), ("enter",), ("escape", "escape", "escape", "o"), ("tab",), ("escape", "M"),
                 ("escape", "C"), ("escape", "question_mark"), ("escape", "colon"), ("escape", "H")):  # fmt: skip
        await d.press(*keys)
        check_cells(d)


def check_cells(d: Desktop) -> None:
    width, height = d.app.size
    strips = d.app.screen._compositor.render_strips(d.app.size)
    assert len(strips) == height
    for strip in strips:
        assert strip.cell_length == width
        for c in strip.text:
            assert unicodedata.category(c)[0] != "C", f"{c!r} in {strip.text!r}"
            assert unicodedata.east_asian_width(c) not in ("W", "F"), f"{c!r} takes two cells"


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 36), (200, 60)], ids=str)
def test_every_screen_fits_its_terminal_and_holds_no_control_character(desktop: Opener, size: tuple[int, int]) -> None:
    async def body() -> None:
        async with desktop(size) as d:
            await every_screen(d)

    run(body())


def test_without_unicode_every_screen_is_ascii(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(unicode=False) as d:
            await d.investigate()
            for keys in ((), ("v",), ("escape", "o"), ("escape", "M"), ("escape", "C"), ("escape", "question_mark"),
                         ("escape", "colon"), ("escape", "H")):  # fmt: skip
                await d.press(*keys)
                odd = {c for c in d.text() if not c.isascii()}
                assert not odd, (type(d.app.screen).__name__, odd)

    run(body())


def test_ascii_forms_keep_their_width() -> None:
    text = "✓▲►»·✗–×±…→█▁▂▃▄▅▆▇│─ä漢"
    assert ascii_form(text).isascii()
    assert len(ascii_form(text)) == len(text)


def test_markup_and_escapes_of_a_module_name_are_shown_not_obeyed(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((200, 60)) as d:
            await d.press("enter", "enter", "enter")
            shown = d.text()
            assert r"layers.0.[red]\x1b[31mlinear1\u202e" in shown

    run(body())


def test_resizing_live_keeps_the_place(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((80, 24)) as d:
            await d.press("enter", "enter", "enter", "tab")
            at = d.app.focused.id
            for size in ((120, 36), (200, 60), (61, 17), (20, 6), (80, 24)):
                await d.pilot.resize_terminal(*size)
                await d.settle()
                check_cells(d)
            assert d.app.focused.id == at
            assert "Do the zeros reach" in d.text()

    run(body())


def test_narrow_shows_one_pane_and_wide_all_of_them(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((80, 24)) as d:
            panes = ("ops", "findings", "live", "evidence")
            shown = [p for p in panes if d.app.sheet.query_one(f"#{p}").display]
            assert len(shown) == 1
            await d.pilot.resize_terminal(120, 36)
            await d.settle()
            assert [p for p in panes if d.app.sheet.query_one(f"#{p}").display] == list(panes)

    run(body())


def test_filter_sort_mark_and_yank(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("enter", "enter", "enter")
            while d.app.focused.id != "ops":
                await d.press("tab")
            ops = d.app.focused
            assert [r.cells[0] for r in ops.rows] == ["aten::mm", "aten::addmm", "aten::addmm"]
            await d.press("slash", *"head", "enter")
            assert [r.cells[1] for r in ops.rows] == ["head"]
            await d.press("slash", "escape")
            assert len(ops.rows) == 3
            await d.press("S")
            assert [r.cells[0] for r in ops.rows] == ["aten::addmm", "aten::addmm", "aten::mm"]
            await d.press("g", "space", "space", "y")
            copied = next(tmp_path.glob("sparsetui-yank-*.txt"))
            assert str(copied) in d.note
            lines = copied.read_text().splitlines()
            assert len(lines) == 2
            assert all(line.startswith("aten::addmm\t") for line in lines)
            assert copied.stat().st_mode & 0o777 == 0o600

    run(body())


def test_the_screen_is_saved_as_svg_and_as_text(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        async with desktop() as d:
            before = d.text()
            await d.press("s")
            svg, txt = next(tmp_path.glob("sparsetui-*.svg")), next(tmp_path.glob("sparsetui-*.txt"))
            assert svg.read_text().startswith("<svg")
            assert txt.read_text() == before
            assert svg.stem == txt.stem
            assert f"{svg} and .txt" in d.note

    run(body())


def test_home_lists_searches_and_opens(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.investigate()
        async with desktop(start=None) as d:
            assert "▲ fault" in d.text()
            await d.press("slash", *"nothing like it", "enter")
            assert "no row holds" in d.text()
            await d.press("slash", "escape", "enter")
            assert type(d.app.sheet).__name__ == "Investigate"
            await d.press("H", "tab")
            assert "A canary answers" in d.text(), "the story of the drill under the cursor"
            await d.press("f", *"/no/such/file.toml", "enter")
            assert "no file of this name" in d.text()

    run(body())


def test_a_damaged_session_is_a_line_on_home_not_a_crash(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        folder = tmp_path / "store" / "2026-11-30-broken-0000"
        folder.mkdir(parents=True)
        (folder / "session.json").write_text("{")
        (folder / "ledger.jsonl").write_bytes(b"\x00\xff not a ledger\n")
        async with desktop(start=None) as d:
            await d.press("enter")
            assert type(d.app.sheet).__name__ in ("Home", "Investigate")
            check_cells(d)

    run(body())


def test_a_store_that_is_not_there_is_an_empty_home(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(start=None) as d:
            assert "no session has been saved yet" in d.text()
            assert d.app.focused.id == "drills", "the drills are where to start"

    run(body())


def test_a_session_outside_the_store_is_read_with_its_artifacts(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.press("enter", "enter")
        there = tmp_path / "elsewhere" / SESSION
        there.parent.mkdir()
        (tmp_path / "store" / SESSION).rename(there)
        async with desktop(start={"session": str(there)}) as d:
            await d.press("v", "enter")
            assert '"probe": "lock"' in d.text()
            await d.press("escape", "escape", "e")
            assert d.app.desk.exported == there / "memo.md"

    run(body())


def _contrast(a: tuple[int, int, int], b: tuple[int, int, int]) -> float:
    """The contrast ratio of two colours, from 1 to 21, as WCAG 2 defines it."""

    def luminance(colour: tuple[int, int, int]) -> float:
        parts = [c / 255 for c in colour]
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    ("ink", "theme"), [(look.DARK_INK, look.DARK), (look.LIGHT_INK, look.LIGHT)], ids=["dark", "light"]
)
def test_every_role_can_be_read_on_its_background(ink: TerminalTheme, theme: Theme) -> None:
    backs = [Color.parse(x).rgb for x in (theme.background, theme.panel) if x]
    for i, name in enumerate(("red", "green", "yellow", "blue", "magenta", "cyan"), 1):
        assert min(_contrast(ink.ansi_colors[i], back) for back in backs) >= 4.5, name
