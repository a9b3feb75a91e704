"""The app, driven by keys alone on real workers: from an unknown workload to a closed session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sparsetui.flow import OWNERS
from sparsetui.session.closure import gates
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.tui.app import SparseApp
from sparsetui.workload.spec import load

_TRIES = 3  # a busy host may fail a gate once; who sits there measures again


class Keys:
    """Keys pressed one after the other, each once the one before has done its work."""

    def __init__(self, app: SparseApp, pilot: Any, patience_s: float) -> None:
        self.app, self.pilot, self.patience = app, pilot, patience_s

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def settle(self) -> None:
        """Until no job runs and what it told has been painted."""
        for _ in range(int(self.patience / 0.02)):
            await self.pilot.pause(0.02)
            if not (self.app.desk.busy or self.app._paint_due):
                break
        else:
            raise AssertionError(f"still busy: {self.app.desk.busy}")
        await self.pilot.pause()

    @property
    def state(self) -> SessionState:
        return self.app.desk.state

    def open_gates(self) -> dict[str, str]:
        return {g.gate: g.why for g in gates(self.state) if g.state not in ("passed", "waived")}


async def close_by_keys(workload: Path, store: Store, budget_s: float, owner: str, measured: Path) -> SessionState:
    """Investigate ``workload``, measure what its gates ask for, name owners, attach, sign and close: all by keys.

    Once only the owners are missing, the session is exported to ``measured``. Raises ``AssertionError`` with the open gates
    where a gate cannot be brought to hold. Nothing is waived.
    """
    app = SparseApp(store, start={"workload": load(workload)}, budget=budget_s)
    async with app.run_test(size=(120, 36)) as pilot:
        keys = Keys(app, pilot, 8 * budget_s)
        await keys.settle()
        for _ in range(_TRIES):
            await keys.press("R")
            if type(app.screen).__name__ == "Ask":  # the first run of unknown code asks
                await keys.press("enter")
            if not {"lock", "reproduced", "stable", "mechanism", "quality"} & keys.open_gates().keys():
                break
        await keys.press("m", "r", "escape", "b", "r", "escape", "o")
        await _measure(keys, ("replay", "rollback"))
        store.export(keys.state.id, measured)
        await keys.press("tab")  # back to the roles
        for _ in OWNERS:
            role = app.sheet.query_one("#roles").key
            if not keys.state.owners.get(role):
                await keys.press("enter", *owner, "enter")
            await keys.press("enter", "enter", "enter")  # attach the evidence that is offered, without a reason
            await keys.press("enter", "enter", "enter")  # sign off as the owner, without a note
            await keys.press("down")
        assert not keys.open_gates(), keys.open_gates()
        await keys.press("c", *owner, "enter")
        state = keys.state
    app.desk.close()
    return state


async def _measure(keys: Keys, wanted: tuple[str, ...]) -> None:
    """On the table of gates: Enter on each gate that a run of ours settles, again where it did not hold."""
    table = keys.app.sheet.query_one("#gates")
    await keys.press("tab")
    for _ in range(_TRIES):
        if not set(wanted) & keys.open_gates().keys():
            return
        await keys.press("g")
        for gate in gates(keys.state):
            assert table.key == gate.gate
            if gate.gate in wanted and gate.gate in keys.open_gates():
                await keys.press("enter")
            await keys.press("down")


def closed_in_app(workload: Path, store: Store, budget_s: float, measured: Path, owner: str = "@ann") -> SessionState:
    return asyncio.run(asyncio.wait_for(close_by_keys(workload, store, budget_s, owner, measured), 400))
