from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsetui.session import state as state_module
from sparsetui.session.state import Event, Folder, fold

KINDS = [*state_module._KEYS, *state_module._RECORDS, "from-the-future"]
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["stage", "name", "state", "gate", "why", "by", "role", "who", "text", "body", "mechanism", "rows"]
            )
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)
events = st.lists(st.tuples(st.sampled_from(KINDS), json), max_size=12)


def _events(bodies: list[tuple[str, Any]]) -> list[Event]:
    return [Event(i, f"2026-01-01T00:00:{i:02d}Z", kind, body, "") for i, (kind, body) in enumerate(bodies)]


@given(events)
def test_any_body_of_any_kind_is_folded_or_becomes_a_fault(bodies: list[tuple[str, Any]]) -> None:
    state = fold(_events(bodies))
    assert state.events == len(bodies)
    assert len(state.timeline) == len(bodies)


@given(events, st.integers(0, 12))
def test_folding_on_is_folding_at_once(bodies: list[tuple[str, Any]], cut: int) -> None:
    found = _events(bodies)
    folder = Folder("s")
    folder.feed_all(found[:cut])
    folder.state()
    for event in found[cut:]:
        folder.feed(event)
    assert folder.state() == fold(found, "s")


def test_a_state_is_the_same_object_until_the_next_event() -> None:
    folder = Folder("s")
    folder.feed(Event(0, "t", "session", {"title": "x"}, ""))
    first = folder.state()
    assert folder.state() is first
    folder.feed(Event(1, "t", "note", {"text": "y"}, ""))
    assert folder.state() is not first
    assert first.notes == ()


def test_the_newest_wins_where_there_can_be_one() -> None:
    gate = {"gate": "lock", "why": ""}
    state = fold(
        _events(
            [
                ("session", {"title": "t", "workload": "w"}),
                ("metrics", {"a": 1, "b": 1}),
                ("metrics", {"b": 2}),
                ("gate", {**gate, "state": "failed"}),
                ("gate", {**gate, "state": "passed"}),
                ("owner", {"role": "r", "who": "@a"}),
                ("owner", {"role": "r", "who": "@b"}),
                ("section", {"name": "matrix", "body": 1}),
                ("section", {"name": "matrix", "body": 2}),
            ]
        )
    )
    assert state.metrics == {"a": 1, "b": 2}
    assert [g.state for g in state.gates] == ["passed"]
    assert state.owners == {"r": "@b"}
    assert state.sections == {"matrix": 2}


def test_a_body_that_cannot_be_read_is_a_fault_and_the_rest_is_kept() -> None:
    state = fold(_events([("evidence", {"id": "E01"}), ("note", {"text": "kept"})]))
    assert state.evidence == ()
    assert state.notes[0]["text"] == "kept"
    assert state.faults[0]["what"] == "event 0 could not be read"
    assert "stage" in state.faults[0]["why"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_docstring_names_every_kind(kind: str) -> None:
    assert kind == "from-the-future" or f"\n{kind} " in str(state_module.__doc__)
