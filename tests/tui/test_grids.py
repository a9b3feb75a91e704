"""What every screen looks like, cell by cell, at the two sizes that matter. ``SPARSETUI_GRIDS=write`` draws them anew."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path

import pytest
from conftest import SESSION, Desktop, Opener, run
from watched import PROCESSES, Watched

from sparsetui.session.store import Store
from sparsetui.tui.screens import names

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
        text = "\n".join(lines) + "\n"
        path = GRIDS / f"{name}-{width}x{height}.txt"
        if os.environ.get("SPARSETUI_GRIDS") == "write":
            path.write_text(text)
        was = path.read_text() if path.exists() else ""
        if was != text:
            diff = difflib.unified_diff(was.splitlines(), lines, str(path.name), "screen", lineterm="", n=1)
            self.wrong.append("\n".join(diff))


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
            book.look("evidence-artifact")
            await d.press("escape", "escape", "escape")
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
            assert set(names()) == book.seen, "a screen without a grid"

    run(body())
