"""What every screen looks like, cell by cell, at the two sizes that matter. ``SPARSETUI_GRIDS=write`` draws them anew."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from conftest import Desktop, Opener, run

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


def leave_sections(d: Desktop) -> None:
    """What the release half of the tool would leave in a session."""
    one = {"value": 0.73, "ci": [0.72, 0.74], "n": 200, "unit": "ms", "quality": "measured"}
    none = {"value": None, "unit": "J", "quality": "unavailable", "reason": "RAPL is not readable"}
    rows = [{"format": "dense", "p50": one, "energy": none, "risk": "none"},
            {"format": "csr int32", "p50": {**one, "value": 0.4}, "energy": none, "risk": "another kernel"}]  # fmt: skip
    points = [{"label": "release", "pressure": 0.4, "tail": 1.2}, {"label": "candidate", "pressure": 0.9, "tail": 2.1}]
    zones = [{"name": "baseline", "low": 0.0}, {"name": "saturation", "low": 0.8}]
    for name, body in (
        ("matrix", {"summary": "two formats on the hot signature", "rows": rows}),
        ("lens", {"points": points, "zones": zones}),
        ("replay", {"passed": False, "why": "p99 of the fixed variant is above the SLA", "misses": 12}),
    ):
        d.runner.writer.append("section", {"name": name, "body": body})
    d.app.desk.state = d.runner.state()


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_every_screen_looks_as_drawn(desktop: Opener, size: tuple[int, int]) -> None:
    async def body() -> None:
        async with desktop(size) as d:
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
            for key, name in (("m", "matrix"), ("b", "lens"), ("u", "sections")):
                await d.press(key)
                assert type(d.app.sheet).__name__ == "Investigate", f"{name} appears only with its data"
            leave_sections(d)
            for key, name in (("m", "matrix"), ("b", "lens"), ("u", "sections")):
                await d.press(key)
                book.look(name)
                await d.press("escape")
            await d.press("H")
            book.look("home")
            assert not book.wrong, "\n\n".join(book.wrong)
            assert set(names()) == book.seen, "a screen without a grid"

    run(body())
