"""The short form of each driver; ``make torture`` runs the long one."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.torture import kills, soak, storage, users

SLACK = 4.0  # a shared host


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda s: signal.Signals(s).name)
def test_the_tool_is_ended_in_the_midst_of_a_run(sent: signal.Signals, tmp_path: Path) -> None:
    tally, moment = kills.Tally(), random.Random(int(sent)).uniform(1.0, 5.0)
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    kills.tool(tmp_path / "run", tmp, sent, moment, tally, stops=int(sent == signal.SIGTERM))
    if sent == signal.SIGKILL:
        kills.last(tmp_path / "last", tmp, tally)
    assert not tally.wrong, tally.wrong


def test_the_terminal_of_the_app_closes_in_the_midst_of_a_run(tmp_path: Path) -> None:
    """The signal takes the engine along, and the app must not trip over that."""
    tally, tmp = kills.Tally(), tmp_path / "tmp"
    tmp.mkdir()
    kills.app(tmp_path / "run", tmp, "window", 0.3, tally)
    assert not tally.wrong, tally.wrong


@pytest.mark.parametrize(
    ("what", "sent"), [("replica", signal.SIGKILL), ("server", signal.SIGSTOP), ("py-spy", signal.SIGKILL)]
)
def test_a_part_is_ended_in_the_midst_of_a_run(what: str, sent: signal.Signals, tmp_path: Path) -> None:
    tally = kills.Tally()
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    kills.part(tmp_path / "run", tmp, what, sent, random.Random(5), tally, 1)
    assert not tally.wrong, tally.wrong


@pytest.mark.parametrize("name", users.SHORT)
def test_code_that_misbehaves(name: str, tmp_path: Path) -> None:
    (behaviour,) = [b for b in users.BEHAVIOURS if b.name == name]
    _, wrong = users.run(behaviour, tmp_path, SLACK, budget=12)
    assert not wrong, wrong


def test_every_behaviour_is_a_builder() -> None:
    text = Path(users.__file__).with_name("hostile.py").read_text()
    assert all(f"def {b.name}(" in text for b in users.BEHAVIOURS)


def test_a_full_disk_under_a_whole_run(tmp_path: Path) -> None:
    skipped, wrong = storage.full_disk(tmp_path)
    if skipped:
        pytest.skip(skipped)
    assert not wrong, wrong


@pytest.mark.parametrize("name", list(storage.CHECKS))
def test_places_clocks_and_writers(name: str, tmp_path: Path) -> None:
    assert storage.CHECKS[name](tmp_path / "x") == []


def test_a_session_is_copied_while_it_is_written(tmp_path: Path) -> None:
    assert storage.copied_while_written(tmp_path, 5) == []


def test_damage_is_told_and_the_rest_opens(tmp_path: Path) -> None:
    done, wrong = storage.damaged(tmp_path, 40, 7)
    assert done > 30
    assert not wrong, wrong


def test_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    figures, wrong = soak.run(tmp_path, 3, ("workers",))
    assert not wrong, (wrong, figures)
