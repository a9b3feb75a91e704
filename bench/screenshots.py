"""``make screenshots``: the README's pictures, drawn by the real app on a real saved session.

    python -m bench.screenshots [SESSION]

SESSION is a session's folder or id; without one, the newest saved session of the first drill, and where there is none that drill
is investigated first. The session is copied into a folder of its own, so that home shows it and nothing else of this host, and
is opened read-only: the pictures hold what was measured and nothing is run for them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
from pathlib import Path

from sparsetui.flow import ORDER
from sparsetui.session.store import Store, default_root
from sparsetui.tui.app import SparseApp

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "img"
SIZE = (120, 36)
_SETTLE_S = 0.05
_FONTS = re.compile(r"\s*@font-face\s*\{.*?\}", re.DOTALL)


def session_folder(wanted: str | None) -> Path:
    """The folder of the session to draw."""
    store = Store(default_root())
    if wanted is not None:
        return Path(store.open(wanted).path)
    from sparsetui.workload.drills import catalogue
    from sparsetui.workload.spec import load

    drill = catalogue.get(None)
    name = load(drill.workload).name
    saved = [s for s in store.list() if s.workload == name and s.status == "fault" and not s.interrupted]
    if saved:
        return Path(max(saved, key=lambda s: s.updated).path)
    from sparsetui.runner.investigation import Investigation

    print(f"no saved session of {drill.name}: investigating it, up to {drill.budget_s:g} s", file=sys.stderr)
    catalogue.prepare(lambda text: print(text, file=sys.stderr))
    run = Investigation(load(drill.workload), store, budget_s=drill.budget_s)
    try:
        run.run_all()
        return Path(store.open(run.state().id).path)
    finally:
        run.close()


async def draw(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "sessions" / folder.name
        shutil.copytree(folder, copy)
        home = SparseApp(Store(copy.parent), readonly=True, depth="true")
        async with home.run_test(size=SIZE) as pilot:
            await shoot(home, pilot, "home")
        app = SparseApp(Store(copy.parent), start={"session": str(copy)}, readonly=True, depth="true")
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
            await pilot.press("escape", "v", "enter")
            for _ in range(4):
                await pilot.pause(_SETTLE_S)
            await pilot.press("enter")  # the finding's first op: its stack, and what is nested in it
            await shoot(app, pilot, "evidence")
        app.desk.close()


async def shoot(app: SparseApp, pilot: object, name: str) -> None:
    for _ in range(4):  # what a screen starts on mount has come and been painted
        await pilot.pause(_SETTLE_S)  # type: ignore[attr-defined]
    path = TARGET / f"{name}.svg"
    # the picture must not fetch a font from elsewhere when it is looked at
    svg = _FONTS.sub("", app.export_screenshot(title="sparsetui")).replace("Fira Code", "ui-monospace, Menlo, Consolas")
    path.write_text(svg + ("" if svg.endswith("\n") else "\n"), encoding="utf-8")
    print(path.relative_to(ROOT))


def main() -> int:
    folder = session_folder(sys.argv[1] if len(sys.argv) > 1 else None)
    TARGET.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
