"""What is in a ledger survives what happens to its bytes."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.session.ledger import Head, LedgerWriter, decode_head, encode_body, encode_head, read_head, scan
from sparsetui.session.state import Event

BODIES = [{"text": "a line"}, {"text": 'quoted "kind":"result" {"seq":1}', "n": [1.5, None]}, {"text": "grün ▲\n\t"}]


def _written(count: int = 12) -> tuple[bytes, Head, list[Event]]:
    with tempfile.TemporaryDirectory() as folder:
        path, head = Path(folder) / "ledger.jsonl", Path(folder) / "ledger.head"
        writer = LedgerWriter(path, head)
        events = [writer.append("note", encode_body("note", BODIES[i % len(BODIES)])) for i in range(count)]
        writer.write_head({"title": "t"})
        writer.close()
        found = read_head(head)
        assert found is not None
        return path.read_bytes(), found, events


DATA, HEAD, EVENTS = _written()
ENDS = [i + 1 for i, b in enumerate(DATA) if b == 0x0A]
offsets = st.integers(0, len(DATA) - 1)


def _line_of(offset: int) -> int:
    return bisect_right(ENDS, offset)


def test_a_line_names_the_hash_of_the_bytes_before_it() -> None:
    from hashlib import sha256

    lines = DATA.splitlines()
    for i, raw in enumerate(lines):
        record = msgspec.json.decode(raw)
        assert list(record) == ["seq", "time", "kind", "body", "prev"]
        assert record["seq"] == i
        assert record["prev"] == (sha256(lines[i - 1]).hexdigest() if i else "")


def test_a_whole_ledger_reads_as_it_was_written() -> None:
    found = scan(DATA, HEAD)
    assert found.events == EVENTS
    assert found.notes == ()
    assert found.next_seq == len(EVENTS)


@given(st.integers(0, len(DATA)))
def test_cut_anywhere_all_whole_lines_are_read_and_the_loss_is_told(size: int) -> None:
    found = scan(DATA[:size], HEAD)
    assert found.events == EVENTS[: _line_of(size)]
    assert bool(found.damage) == (size < len(DATA))
    if found.torn:
        assert found.torn_acknowledged is True


@given(st.integers(0, len(DATA)), st.integers(1, len(ENDS)))
def test_a_torn_line_beyond_the_head_was_promised_to_nobody(size: int, acknowledged: int) -> None:
    end = ENDS[acknowledged - 1]
    lines = DATA.splitlines()
    from hashlib import sha256

    head = Head(acknowledged - 1, sha256(lines[acknowledged - 1]).hexdigest(), end)
    if size < end:
        return
    found = scan(DATA[:size], head)
    assert found.events == EVENTS[: _line_of(size)]
    assert not found.damage
    assert found.torn_acknowledged is False


@settings(max_examples=400)
@given(offsets, st.integers(1, 255))
def test_one_flipped_byte_costs_one_event_at_most_and_is_told(offset: int, flip: int) -> None:
    data = bytearray(DATA)
    data[offset] ^= flip
    found = scan(bytes(data), HEAD)
    spared = [e for e in EVENTS if e.seq != _line_of(offset)]
    assert [e for e in found.events if e.seq != _line_of(offset)] == spared
    assert all(e in EVENTS for e in found.events), "an altered event was taken for a true one"
    assert found.notes
    assert found.damage or found.torn


@given(st.lists(st.tuples(offsets, st.integers(1, 255)), min_size=1, max_size=5, unique_by=lambda f: f[0]))
def test_many_flipped_bytes_never_cost_a_line_they_did_not_touch(flips: list[tuple[int, int]]) -> None:
    data = bytearray(DATA)
    for offset, flip in flips:
        data[offset] ^= flip
    found = scan(bytes(data), HEAD)
    hit = {_line_of(offset) for offset, _ in flips}
    assert [e for e in EVENTS if e.seq not in hit] == [e for e in found.events if e.seq not in hit and e in EVENTS]
    assert found.notes


@given(st.integers(0, len(ENDS) - 1), st.integers(1, 4))
def test_removed_lines_are_told_with_their_numbers(first: int, count: int) -> None:
    lines = DATA.splitlines(keepends=True)
    kept = lines[:first] + lines[first + count :]
    found = scan(b"".join(kept), HEAD)
    gone = range(first, min(first + count, len(lines)))
    assert [e.seq for e in found.events] == [i for i in range(len(lines)) if i not in gone]
    assert found.notes


@given(st.permutations(range(len(ENDS))))
def test_lines_in_another_order_are_told(order: list[int]) -> None:
    lines = DATA.splitlines(keepends=True)
    found = scan(b"".join(lines[i] for i in order), HEAD)
    assert bool(found.damage) == (order != list(range(len(lines))))


@given(st.binary(max_size=300), st.one_of(st.none(), st.just(HEAD)))
def test_any_bytes_are_read_without_an_error(data: bytes, head: Head | None) -> None:
    found = scan(data, head)
    assert found.size + found.torn == len(data)


@given(st.binary(max_size=1100))
def test_any_bytes_are_a_head_or_none(data: bytes) -> None:
    assert decode_head(data) is None


@given(st.integers(0, 1023), st.integers(1, 255))
def test_a_head_with_a_flipped_byte_is_not_believed(offset: int, flip: int) -> None:
    raw = bytearray(encode_head(HEAD))
    raw[offset] ^= flip
    assert decode_head(bytes(raw)) in (None, HEAD)


def test_a_head_stays_one_block_whatever_its_summary() -> None:
    big = Head(1, "a" * 64, 10, {"title": "x" * 5000})
    assert len(encode_head(big)) == 1024
    assert decode_head(encode_head(big)) == Head(1, "a" * 64, 10)


def test_deep_nesting_is_damage_not_a_crash() -> None:
    line = b'{"seq":0,"time":"","kind":"note","body":' + b"[" * 100_000 + b"]" * 100_000 + b',"prev":""}\n'
    assert scan(line, None).events == []
    assert scan(line, None).damage


@pytest.mark.usefixtures("no_sync")
def test_a_loss_stays_visible_after_the_next_writer(tmp_path: Path) -> None:
    path, head = tmp_path / "ledger.jsonl", tmp_path / "ledger.head"
    path.write_bytes(b"".join(DATA.splitlines(keepends=True)[:-3]))
    head.write_bytes(encode_head(HEAD))
    writer = LedgerWriter(path, head)
    assert writer.append("note", b'{"text":"on"}').seq == len(EVENTS)
    writer.write_head({})
    writer.close()
    found = scan(path.read_bytes(), read_head(head))
    assert [e.seq for e in found.events] == [*range(len(EVENTS) - 3), len(EVENTS)]
    assert "events 9 to 11 were lost" in str(found.damage[0])


@pytest.mark.usefixtures("no_sync")
def test_an_altered_last_line_is_not_vouched_for_by_the_next_writer(tmp_path: Path) -> None:
    path, head = tmp_path / "ledger.jsonl", tmp_path / "ledger.head"
    path.write_bytes(DATA[: ENDS[-2]] + DATA[ENDS[-2] :].replace(b"gr", b"GR"))
    head.write_bytes(encode_head(HEAD))
    writer = LedgerWriter(path, head)
    writer.append("note", b'{"text":"on"}')
    writer.write_head({})
    writer.close()
    found = scan(path.read_bytes(), read_head(head))
    assert [e.seq for e in found.events] == [*range(len(EVENTS) - 1), len(EVENTS)]
    assert "altered" in str(found.damage[0])


def test_a_body_that_json_cannot_hold_is_named() -> None:
    with pytest.raises(ValueError, match="a note event cannot be written as JSON"):
        encode_body("note", {"text": object()})


def test_undecodable_output_is_kept_as_far_as_text_can() -> None:
    assert encode_body("log", {"text": b"\xff\xfeok".decode("utf-8", "surrogateescape")}) == b'{"text":"??ok"}'
