"""While a run is live: pause, cancel, failures, another writer; and what is on the screen stays true."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from conftest import SESSION, Opener, run
from textual.events import Key

from sparsetui.evidence.records import OpRow, Result, Verdict
from sparsetui.flow import STAGES
from sparsetui.runner.api import Live
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.tui.guide import verdict_of
from sparsetui.tui.live_panel import strips


def test_pause_freezes_the_table_and_not_the_live_panel(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("enter", "enter", "enter")
            ops = d.app.sheet.query_one("#ops")
            before = [r.key for r in ops.rows]
            assert before
            await d.press("p")
            d.runner.writer.append(
                "ops", {"rows": [OpRow("aten::new", "m", "dense", 1, d.app.desk.state.ops[0].self_ms_per_step)]}
            )
            await d.press("5", "r")
            assert [r.key for r in ops.rows] == before
            assert "5.34×" in d.app.sheet.query_one("#live").text()
            assert "paused" in d.text()
            await d.press("p")
            assert [r.key for r in ops.rows] != before

    run(body())


def test_cancel_keeps_what_was_measured(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(runner={"hold": "inventory"}) as d:
            await d.pilot.press("enter")
            await d.pilot.pause(0.1)
            await d.pilot.press("enter")
            await d.until(lambda: d.app.desk.live.phase == "inventory")
            assert "x cancels" in d.text()
            await d.pilot.press("escape")
            await d.settle()
            state = d.app.desk.state
            assert [e.probe for e in state.evidence] == ["lock"]
            assert state.phases[-1].state == "cancelled"
            assert d.app.desk.runner is d.runner
            assert not d.runner.closed

    run(body())


def test_a_pass_that_dies_is_shown_and_the_guide_goes_on(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(runner={"fail": "census"}) as d:
            await d.press("enter", "enter", "enter")
            assert "census failed: worker died: signal 11" in d.text()
            assert "✗lowr" in d.text()
            assert "run kernel selection" in d.text()

    run(body())


def test_a_runner_that_cannot_start_is_a_message(desktop: Opener) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no interpreter at /srv/venv/bin/python\x1b[2J")

    async def body() -> None:
        async with desktop() as d:
            d.app.desk.factory = broken
            await d.press("enter", "enter")
            assert "no interpreter" in d.note
            assert "\x1b" not in d.text()
            assert not d.app.desk.busy

    run(body())


def test_a_session_that_another_process_writes_is_followed(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        store = Store(tmp_path / "store")
        with store.create("ranker", "ranker") as writer:
            async with desktop(start={"session": SESSION}) as d:
                await d.press("r")
                assert "it is followed here" in d.note
                writer.append("phase", {"stage": "kernel", "name": "profile", "state": "started"})
                await d.until(lambda: d.app.desk.live.running)
                await d.settle()
                assert "» profile" in d.text(), "the other's phase is shown as it goes on"
                for key in ("o", "a", "M", "e"):
                    await d.press(key)
                assert d.app.desk.exported.parent == tmp_path, "a memo goes beside, not into another's session"
                await d.press("escape", "escape")
                writer.evidence("ingress", "lock", None, summary="seen by the other one")
                await d.until(lambda: d.app.desk.state.evidence)
                d.app.sheet.show_pane("evidence")
                await d.settle()
                assert "seen by the other one" in d.text()
                writer.close()
                await d.until(lambda: not d.app.desk.followed)
                assert not d.app.desk.live.running

    run(body())


def test_a_burst_of_updates_is_painted_once(desktop: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsetui.tui.shell.REPAINT_EVERY", 1000.0)

    async def body() -> None:
        async with desktop(runner={"steps": 200}) as d:
            painted: list[int] = []
            paint = d.app._paint
            d.app._paint = lambda: (painted.append(1), paint())
            await d.pilot.press("enter")
            await d.pilot.pause(0.1)
            await d.pilot.press("enter")
            await d.until(lambda: len(d.app.desk.state.evidence) == 2 and not d.app.desk.busy)
            assert len(painted) == 1, "400 updates were told within the time between two paints"

    run(body())


def test_the_strips_of_an_intervention_are_the_step_without_the_mechanism_and_its_control() -> None:
    arms = {"failing": (4.0,), "comparator": (1.0,), "off": (4.1,), "control": (4.2,), "without": (1.1,)}
    lines = [x.plain for x in strips(SessionState(), Live(latency_ms=arms), 80, True)]
    assert [line[:11].strip() for line in lines[:4]] == ["failing", "comparator", "its control", "without it"]
    assert "1.10" in lines[3], "the arm in which the mechanism was removed"
    formats = {"failing": (4.0,), "comparator": (1.0,), "csr": (1.2,), "bsr 4×4": (1.3,), "dense": (1.4,)}
    lines = [x.plain for x in strips(SessionState(), Live(latency_ms=formats), 80, True)]
    assert [line[:10].strip() for line in lines[:4]] == ["failing", "comparator", "bsr 4×4", "dense"]


def test_stage_by_stage_there_is_no_verdict_before_the_last_one() -> None:
    unsure = SessionState(result=Result("s", Verdict("cannot_answer", "nothing decides yet")))
    assert verdict_of(unsure, {"ingress"}) is None, "so far: not told as the answer"
    assert verdict_of(unsure) is unsure.result, "a session that was opened has what it has"
    assert verdict_of(unsure, {s.id for s in STAGES}) is unsure.result
    fault = SessionState(result=Result("s", Verdict("fault", "found", "kernel", "kernel.generic")))
    assert verdict_of(fault, {"ingress"}) is fault.result


def test_a_screen_that_opens_is_painted_once_and_whole(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("enter", "enter")
            painted: list[str] = []
            display = d.app._display

            def seen(screen: object, update: object) -> None:
                if update is not None:
                    painted.append(type(update).__name__)
                display(screen, update)

            d.app._display = seen
            await d.press("question_mark")
            assert painted.count("LayoutUpdate") == 1, painted
            assert len(painted) <= 2, painted

    run(body())


def test_progress_moves_the_bars_of_a_screen_and_draws_the_rest_of_it_only_where_there_is_news(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("enter", "enter", "v")
            drawn: list[int] = []
            show = d.app.sheet.show
            d.app.sheet.show = lambda: (drawn.append(1), show())
            for spent in (12.0, 13.0, 14.0):
                d.app.desk.live = msgspec.structs.replace(d.app.desk.live, spent_s=spent)
                d.app.sheet.heard()
            assert "run budget 14/60 s" in d.app.sheet.query_one("#bar").text()
            assert not drawn
            d.runner.writer.evidence("kernel", "census", None, summary="told meanwhile")
            d.app.desk.state = d.runner.writer.state()
            d.app.sheet.heard()
            assert drawn
            assert "told meanwhile" in d.app.sheet.query_one("#list").rows[-1].cells[2]

    run(body())


def test_keys_typed_ahead_go_where_the_ones_before_them_led(desktop: Opener) -> None:
    """Over a slow line a burst of keys comes at once: each acts on what the one before has brought about."""

    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("enter", "enter", "enter")
            stage = d.app.sheet.stage
            for key in ("tab", "down", "down", "space"):
                d.app.post_message(Key(key, None))
            await d.settle()
            ops = d.app.sheet.query_one("#ops")
            assert d.app.focused is ops
            assert ops.marked == {ops.rows[2].key}
            assert d.app.sheet.stage == stage, "the list was meant, not the rail"

    run(body())
