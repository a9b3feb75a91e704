"""What every screen looks like, cell by cell, at the two sizes that matter, in colour and in none.

``grids/`` holds the text, ``grids/ink/`` how it is inked: the runs of each line that are not plain, first in sixteen colours
and then under ``NO_COLOR``. ``SPARSETUI_GRIDS=write`` draws them anew.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from pathlib import Path

import pytest
from a_fleet import FLEET, HOST_EVIDENCE, HOSTS
from conftest import SESSION, Desktop, Opener, run
from rich.cells import cell_len
from rich.style import Style
from textual.filter import NoColor
from textual.strip import Strip
from watched import PROCESSES, Watched

from sparsetui.runner.api import Live
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.tui.screens import names

ATTRIBUTES = {"bold", "dim", "italic", "underline", "reverse"}
FRAME = set("╭╮╰╯│─")
GRIDS = Path(__file__).parent / "grids"
SIZES = [(80, 24), (120, 36)]


class Book:
    """Compares screens with their files, and tells all differences at once."""

    def __init__(self, d: Desktop, size: tuple[int, int]) -> None:
        self.d, self.size = d, size
        self.wrong: list[str] = []
        self.seen: set[str] = set()

    def look(self, name: str) -> None:
        width, height = self.size
        sheet = self.d.app.sheet
        self.seen.add(type(sheet).__module__.rsplit(".", 1)[-1])
        lines = self.d.text(notes=False).splitlines()
        lines += [""] * (height - len(lines))
        self._compare(GRIDS / f"{name}-{width}x{height}.txt", lines)
        bare = self.inked(bare=True)
        assert not set(re.findall(r"[a-z_]{3,}", " ".join(bare))) - ATTRIBUTES, "a colour where there is to be none"
        self._compare(GRIDS / "ink" / f"{name}-{width}x{height}.txt", [*self.inked(), "NO_COLOR", *bare])

    def _compare(self, path: Path, lines: list[str]) -> None:
        text = "\n".join(lines) + "\n"
        if os.environ.get("SPARSETUI_GRIDS") == "write":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        was = path.read_text() if path.exists() else ""
        if was != text:
            diff = difflib.unified_diff(was.splitlines(), lines, str(path.name), "screen", lineterm="", n=1)
            self.wrong.append("\n".join(diff))

    def inked(self, bare: bool = False) -> list[str]:
        """The runs that are not plain, line by line; ``bare`` through the filter that ``NO_COLOR`` puts on the app."""
        app, screen = self.d.app, self.d.app.screen
        filters = list(app._filters)
        app._filters = [*filters, NoColor()] if bare else filters
        try:
            for widget in (screen, *screen.walk_children()):
                widget._styles_cache.clear()
            found = []
            for y, strip in enumerate(screen._compositor.render_strips(app.size)):
                runs = " ".join(f"{a}-{b}:{style}" for a, b, style in _runs(strip))
                if runs:
                    found.append(f"{y:2} {runs}")
            return found
        finally:
            app._filters = filters
            for widget in (screen, *screen.walk_children()):
                widget._styles_cache.clear()


def _runs(strip: Strip) -> list[tuple[int, int, str]]:
    """First cell, last cell and look of each run of text; frames and blanks without a look of their own are left out."""
    found: list[tuple[int, int, str]] = []
    at = 0
    for text, style, _ in strip:
        end = at + cell_len(text)
        look = _look(style)
        if look and not (set(text) <= FRAME) and (text.strip() or "reverse" in look or " on " in look):
            if found and found[-1][1] == at - 1 and found[-1][2] == look:
                found[-1] = (found[-1][0], end - 1, look)
            else:
                found.append((at, end - 1, look))
        at = end
    return found


def _look(style: Style | None) -> str:
    if style is None:
        return ""
    words = [w for w in sorted(ATTRIBUTES) if getattr(style, w)]
    if style.color is not None and not style.color.is_default:
        words.append(style.color.name)
    if style.bgcolor is not None and not style.bgcolor.is_default:
        words.append(f"on {style.bgcolor.name}")
    return "+".join(words)


def another_session(root: Path) -> None:
    """A second session beside the first: the same investigation, with another ratio."""
    other = f"{SESSION[:-4]}9999"
    shutil.copytree(root / SESSION, root / other)
    with Store(root).writer(other) as writer:
        ratio = {"value": 1.31, "ci": [1.28, 1.34], "n": 48, "unit": "", "quality": "measured"}
        writer.append("metrics", {"latency_ms": {"ratio": ratio}})


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_every_screen_looks_as_drawn(desktop: Opener, size: tuple[int, int]) -> None:
    async def body() -> None:
        async with desktop(size, watch_factory=Watched) as d:
            d.app.watches.processes = lambda: list(PROCESSES)
            book = Book(d, size)
            book.look("investigate-start")
            await d.press("enter", "enter")
            book.look("investigate-ingress")
            await d.press("enter", "enter")
            book.look("investigate-kernel")
            await d.press("enter", "enter", "enter", "enter")
            book.look("investigate-verdict")
            await d.press("5")
            while d.app.sheet.pane != "live":
                await d.press("tab")
            book.look("investigate-live")
            await d.press("escape", "v")
            book.look("evidence-findings")
            await d.press("enter")
            book.look("evidence-of-finding")
            await d.press("enter")
            book.look("evidence-op")
            await d.press("enter")
            book.look("evidence-stack")
            await d.press("enter")
            book.look("evidence-artifact")
            await d.press("escape", "escape", "escape", "escape", "escape")
            await d.press("C")
            book.look("commands")
            await d.press("escape", "o")
            book.look("owners")
            await d.press("a")
            book.look("owners-form")
            await d.press("escape", "escape", "M")
            book.look("memo")
            await d.press("escape", "question_mark")
            book.look("help")
            await d.press("escape", "colon", *"own")
            book.look("palette")
            await d.press("escape", "t")
            book.look("paths")
            await d.press("escape")
            await d.press("u")
            assert type(d.app.sheet).__name__ == "Investigate", "what no tool has left yet has no screen"
            for key, name in (("m", "matrix"), ("b", "lens")):
                await d.press(key)
                book.look(f"{name}-before")
                await d.press("r")
                book.look(name)
                await d.press("escape")
            await d.press("o", "tab")
            while d.app.sheet._gate_here().gate != "replay":
                await d.press("down")
            await d.press("enter", "escape", "u")
            book.look("sections")
            await d.press("escape", "V")
            book.look("charts")
            await d.press("escape")
            another_session(d.app.desk.store.root)
            await d.press("H")
            book.look("home")
            await d.press("space", "space", "c")
            book.look("compare")
            await d.press("escape", "P")
            book.look("playbooks")
            await d.press("escape", "a")
            book.look("processes")
            await d.press("enter")
            book.look("watch-asks")
            await d.press("enter")
            await d.until(lambda: d.app.watches.now.over)
            await d.settle()
            book.look("watch")
            assert not book.wrong, "\n\n".join(book.wrong)
            assert set(names()) == book.seen | {"fleet"}, "a screen without a grid"

    run(body())


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_a_fleet_looks_as_drawn(desktop: Opener, size: tuple[int, int]) -> None:
    """Before it is asked, while hosts run, and with its verdict."""

    async def body() -> None:
        async with desktop(size) as d:
            book = Book(d, size)
            d.app.open("fleet")
            await d.settle()
            book.look("fleet-before")
            d.app.desk.live = Live(running=True, message="1 of 4 hosts; web-2 measured now", hosts=HOSTS)
            d.app.sheet.redraw()
            await d.settle()
            book.look("fleet-live")
            d.app.desk.live = Live()
            d.app.desk.state = SessionState(id=SESSION, events=1, sections={"fleet": FLEET}, evidence=HOST_EVIDENCE)
            d.app.sheet.redraw()
            await d.press("down", "down")
            book.look("fleet")
            assert not book.wrong, "\n\n".join(book.wrong)

    run(body())
