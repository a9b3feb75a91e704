"""Fixtures of the app's tests: a real store in a temporary folder, a scripted runner, and steady names and times."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted import Made, workload_file

from sparsetui.session.store import Store
from sparsetui.tui.app import SparseApp
from sparsetui.workload.spec import load

SESSION = "2026-11-30-ranker-7f3a"


@dataclass(frozen=True)
class Page:
    """A drill as home lists it; none of these is ever run."""

    name: str
    title: str
    story: str
    mechanism: str | None = None
    budget_s: float = 30.0
    workload: str = ""


DRILLS = (
    Page(
        "wrong-orientation", "Pruned, and several times slower", "A canary answers in several times the release's time."
    ),
    Page("clean-pair", "A page without a cause", "A dashboard flagged the rollout. It is the same release twice."),
)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same host, time and session id in every run, and no file outside the test's folder."""
    monkeypatch.setattr("sparsetui.session.folder.socket.gethostname", lambda: "web-17")
    for module in ("ledger", "folder", "writer"):
        monkeypatch.setattr(f"sparsetui.session.{module}.now", lambda: "2026-11-30T03:14:15.926Z")
    monkeypatch.setattr("sparsetui.session.store.new_id", lambda workload, created: SESSION)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.chdir(tmp_path)


PLAYBOOK = """\
id: slower-after-pruning
title: Slower after pruning
question: regression
symptoms: [p50 rose with the pruned release.]
steps:
  - id: lock
    stage: ingress
    ask: Did both variants run under one lock?
    run: [lock]
    owner: production reliability owner
    otherwise:
      end:
        kind: cannot_answer
        say: Nothing stands out.
        owner: production reliability owner
        settle: measure longer
"""


@pytest.fixture(autouse=True)
def own_playbooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One playbook and a broken one, whatever this host has."""
    folder = tmp_path / "playbooks"
    folder.mkdir()
    (folder / "slower.yaml").write_text(PLAYBOOK)
    (folder / "torn.yaml").write_text("id: [")
    monkeypatch.setattr("sparsetui.playbook.library.folders", lambda: [("user", Path("playbooks"))])


class Desktop:
    """The app under a pilot, and what tests need of it."""

    def __init__(self, app: SparseApp, pilot: Any, made: Made) -> None:
        self.app, self.pilot, self.made = app, pilot, made

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def settle(self) -> None:
        """Until no job runs and everything told has been painted."""
        for _ in range(500):
            await self.pilot.pause(0.01)
            if not (self.app.desk.busy or self.app._paint_due):
                break
        else:
            raise AssertionError(f"still busy: {self.app.desk.busy}")
        await self.pilot.pause()
        await self.pilot.pause()

    async def until(self, true: Callable[[], object]) -> None:
        for _ in range(500):
            await self.pilot.pause(0.01)
            if true():
                return
        raise AssertionError("it never came true")

    def text(self, *, notes: bool = True) -> str:
        if not notes and self.app.sheet is not None:
            self.app.sheet._unnote()
        return self.app.screen_text()

    @property
    def note(self) -> str:
        sheet = self.app.sheet
        return sheet._note[0] if sheet is not None and sheet._note else ""

    @property
    def runner(self) -> Any:
        return self.made.runners[-1]

    async def investigate(self) -> None:
        """All of it, by the one key that does it."""
        await self.press("R")
        if type(self.app.screen).__name__ == "Ask":
            await self.press("enter")


Opener = Callable[..., Any]


@pytest.fixture
def desktop(tmp_path: Path) -> Opener:
    """``async with desktop(size=(80, 24), runner={...}, app={...}) as d`` opens the app on a workload."""

    @asynccontextmanager
    async def opened(
        size: tuple[int, int] = (80, 24), *, start: Any = "workload", runner: Any = None, **options: Any
    ) -> Any:
        made = Made(**(runner or {}))
        root = tmp_path / "store"
        begin = {"workload": load(workload_file(tmp_path))} if start == "workload" else start
        app = SparseApp(Store(root), start=begin, runner_factory=made, **options)
        app.shelf._drills = list(DRILLS)
        async with app.run_test(size=size) as pilot:
            d = Desktop(app, pilot, made)
            await d.settle()
            yield d
        app.desk.close()

    return opened


def run(test: Awaitable[None]) -> None:
    """Run an async test body; the suite needs no plugin for it."""
    asyncio.run(_timed(test))


async def _timed(test: Awaitable[None]) -> None:
    await asyncio.wait_for(test, 300)  # a guard against one that hangs, not a measure of how busy the host is
