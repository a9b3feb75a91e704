"""``make screenshots``: the README's pictures, drawn by the real app on real saved sessions.

    python -m bench.screenshots [SESSION [SESSION]]

A SESSION is a session's folder or id. The first is pictured as a case: its stages, its memo, its charts; on the second, the way
down from a finding. Without any they are the two worked examples in ``sessions``. They are copied into a folder of their own, so
that home shows them and nothing else of this host, and are opened read-only: what was measured is shown, and nothing is run.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from sparsetui.flow import ORDER
from sparsetui.session.store import Store, default_root
from sparsetui.tui.app import SparseApp

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "img"
SIZE = (120, 36)
_SETTLE_S = 0.05
_FONTS = re.compile(r"\s*@font-face\s*\{.*?\}", re.DOTALL)


def folders(wanted: list[str]) -> tuple[Path, Path]:
    """The folders of the sessions to draw: of the case, and of the way down."""
    if not wanted:
        return ROOT / "sessions" / "example-wrong-orientation", ROOT / "sessions" / "example-format-conversion"
    store = Store(default_root())
    found = [Path(store.find(w)) for w in wanted]
    return found[0], found[-1]


async def draw(case: Path, down: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "sessions")
        for folder in {case, down}:
            shutil.copytree(folder, store.root / folder.name)
        home = SparseApp(store, readonly=True, depth="true")
        async with home.run_test(size=SIZE) as pilot:
            await shoot(home, pilot, "home")
        app = opened(store, case)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(_SETTLE_S)
            result = app.desk.state.result
            at = ORDER.get(result.verdict.stage or "", 6) if result else 6
            await pilot.press(str(at + 1))  # the stage of the verdict
            await shoot(app, pilot, "investigate")
            await pilot.press("M")
            await shoot(app, pilot, "memo")
            await pilot.press("escape", "V")
            await shoot(app, pilot, "charts")
        app.desk.close()
        app = opened(store, down)
        async with app.run_test(size=SIZE) as pilot:
            await settled(pilot)
            for key in (
                "v",
                "enter",
                "enter",
            ):  # the findings, the ops of the first, its stack and what is nested in it
                await pilot.press(key)
                await settled(pilot)
            await shoot(app, pilot, "evidence")
        app.desk.close()


def opened(store: Store, folder: Path) -> SparseApp:
    return SparseApp(store, start={"session": str(store.root / folder.name)}, readonly=True, depth="true")


async def settled(pilot: Pilot[int]) -> None:
    """What a screen starts on mount has come and been painted."""
    for _ in range(4):
        await pilot.pause()
        await pilot.pause(_SETTLE_S)


async def shoot(app: SparseApp, pilot: Pilot[int], name: str) -> None:
    await settled(pilot)
    if app.sheet is not None:
        app.sheet.note("")  # a remark of the moment
        await settled(pilot)
    path = TARGET / f"{name}.svg"
    # the picture must not fetch a font from elsewhere when it is looked at
    svg = _FONTS.sub("", app.export_screenshot(title="sparsetui")).replace("Fira Code", "ui-monospace, Menlo, Consolas")
    path.write_text(svg + ("" if svg.endswith("\n") else "\n"), encoding="utf-8")
    print(path.relative_to(ROOT))


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(*folders(sys.argv[1:3])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
