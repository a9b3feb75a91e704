"""Keys: one registry, dimmed where they cannot act, and a reason when they are pressed all the same."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from conftest import Opener, run

from sparsetui.tui.actions import ACTIONS, BY_ID
from sparsetui.tui.driver import LOOK_S, PromptDriver, patience
from sparsetui.tui.screens import all_screens
from sparsetui.tui.screens.base import Sheet, bindings_for


def test_no_screen_gives_a_key_to_two_actions() -> None:
    for name, cls in all_screens().items():
        keys = [b.key for b in bindings_for(cls)]
        twice = {k for k in keys if keys.count(k) > 1}
        assert not twice, f"{name}: {twice}"


def test_every_action_has_a_screen_that_does_it_and_every_footer_names_known_ones() -> None:
    classes = [Sheet, *all_screens().values()]
    for action in ACTIONS:
        assert any(hasattr(cls, f"do_{action.id}") for cls in classes), action.id
    for cls in classes:
        for id in cls.FOOTER:
            assert hasattr(cls, f"do_{id}"), f"{cls.__name__} shows {id} and cannot do it"


def test_help_and_palette_are_read_from_the_registry(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((200, 60)) as d:
            await d.press("question_mark")
            shown = d.app.sheet.query_one("#help").text()
            for action in ACTIONS:
                assert action.tells in shown, action.id
            await d.press("escape", "colon")
            offered = {r.key for r in d.app.screen.query_one("#commands").rows}
            assert {"run", "run_all", "owners", "memo", "quit", "help"} <= offered
            await d.press(*"run all", "enter")
            assert type(d.app.screen).__name__ == "Ask", "the palette did it: the first run asks"

    run(body())


@pytest.mark.parametrize(
    ("key", "why"), [("x", "nothing is running"), ("i", "has to be run first"), ("e", "nothing has been recorded")]
)
def test_a_key_that_cannot_act_says_why(desktop: Opener, key: str, why: str) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.press(key)
            assert why in d.note

    run(body())


def test_readonly_runs_and_changes_nothing(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(readonly=True) as d:
            for key in ("enter", "r", "R", "i"):
                await d.press(key)
                assert "read-only" in d.note, key
            assert not d.made.runners
            assert "read-only" in d.text()

    run(body())


def test_moving_by_letters_and_by_arrows_is_the_same(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop() as d:
            places = []
            for keys in (("down", "down", "up"), ("j", "j", "k")):
                d.app.sheet.go_to("ingress")
                await d.press(*keys)
                places.append(d.app.sheet.stage)
            assert places == ["lowering", "lowering"]
            await d.press("G")
            assert d.app.sheet.stage == "release"
            await d.press("3")
            assert d.app.sheet.stage == "kernel"

    run(body())


def test_quit_asks_only_when_a_run_is_live(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop(runner={"hold": "inventory"}) as d:
            await d.pilot.press("enter")
            await d.pilot.pause(0.1)
            await d.pilot.press("enter")
            await d.until(lambda: d.app.desk.live.phase == "inventory")
            await d.pilot.press("q")
            await d.pilot.pause(0.2)
            assert type(d.app.screen).__name__ == "Ask"
            await d.pilot.press("escape")
            await d.pilot.pause(0.2)
            assert d.app.desk.busy
            await d.pilot.press("x")
            await d.settle()
            assert "cancelled" in d.note
            await d.pilot.press("q")
            await d.pilot.pause(0.2)
            assert d.app.ending

    run(body())


def test_keys_typed_behind_the_one_that_quits_do_nothing(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.press("enter", "enter")
            close = d.app.desk.close
            d.app.desk.close = lambda: (time.sleep(0.3), close())
            for key in "qov":
                await d.pilot.press(key)
            await d.until(lambda: d.app.ending)
            assert len(d.app.screen_stack) <= 2, "no screen was opened on the way out"

    run(body())


def test_shown_key_names_are_those_of_the_registry() -> None:
    assert BY_ID["run"].keys == ("r",)
    assert all(a.tells and a.label for a in ACTIONS)


def test_a_lone_escape_is_waited_for_no_longer_than_it_takes_to_tell_it_from_a_sequence() -> None:
    assert patience(None, 5.0) == LOOK_S
    assert patience(5.03, 5.0) == pytest.approx(0.03)
    assert patience(4.9, 5.0) == 0.0
    assert patience(99.0, 5.0) == LOOK_S


def test_keys_are_heard_whole_whatever_the_pieces_they_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCDELAY", "30000")
    monkeypatch.setattr("textual.constants.ESCAPE_DELAY", 30.0)
    heard: list[str] = []
    ours, terminal = os.pipe()

    class Ear(PromptDriver):
        def __init__(self) -> None:
            self._debug, self.fileno, self.exit_event = False, ours, threading.Event()

        def process_message(self, message: Any) -> None:
            heard.append(getattr(message, "key", type(message).__name__))
            if heard[-1] == "down":
                self.exit_event.set()

    ear = Ear()
    thread = threading.Thread(target=ear.run_input_thread, daemon=True)
    thread.start()
    for piece in (b"a\xff", b"\xc3", b"\xa4", b"\x1b", b"[", b"B"):
        os.write(terminal, piece)
        time.sleep(0.02)
    thread.join(30)
    os.close(ours)
    os.close(terminal)
    assert not thread.is_alive()
    assert (heard[0], heard[-1], len(heard)) == ("a", "down", 4), heard


@pytest.mark.parametrize("width", [40, 60, 80])
def test_keys_that_can_act_are_shown_before_those_that_cannot(desktop: Opener, width: int) -> None:
    async def body() -> None:
        async with desktop((width, 24)) as d:
            bar = d.app.sheet.query_one("#keys")
            keys = [("r", "run stage", False), ("R", "run all", False), ("v", "evidence", True), ("m", "memo", True)]
            keys += [("c", "charts", True), ("?", "help", True), ("q", "quit", True)]
            bar.show_keys(keys)
            shown = bar.text()
            assert "v evidence m memo" in shown
            assert shown.endswith("? help q quit")
            assert ("R run all" in shown) == (width >= 80), "in its own place, where there is room"
            assert len(shown) <= width

    run(body())
