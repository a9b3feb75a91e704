from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsetui.worker.capture import Capture
from sparsetui.worker.child.wire import Decoder, WireError, encode

leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
messages = st.dictionaries(st.text(), values, max_size=5)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(messages, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_messages_arrive_however_the_stream_is_cut(sent: list[dict[str, object]], places: list[int]) -> None:
    decoder = Decoder()
    stream = b"".join(encode(m) for m in sent)
    heard = [m for piece in cut(stream, places) for m in decoder.feed(piece)]
    assert heard == sent
    assert not decoder.partial


@given(st.binary(max_size=200))
def test_garbage_is_waited_for_or_refused_but_never_breaks_otherwise(data: bytes) -> None:
    decoder = Decoder(limit=100)
    try:
        decoder.feed(data)
    except WireError:
        return


def test_an_announced_size_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="announces 101 bytes"):
        Decoder(limit=100).feed(struct.pack(">I", 101))


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff\xfe", b"[" * 5000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        Decoder().feed(struct.pack(">I", len(body)) + body)


def test_a_message_too_large_to_send_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsetui.worker.child.wire.LIMIT", 10)
    with pytest.raises(WireError, match="larger than the limit"):
        encode({"text": "long enough"})


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_capture_keeps_both_ends_and_counts_the_rest(chunks: list[bytes]) -> None:
    capture = Capture(head=16, tail=8)
    for chunk in chunks:
        capture.feed(memoryview(chunk))
    data = b"".join(chunks)
    assert capture.total == len(data)
    if len(data) <= 24:
        assert capture.text() == data.decode("utf-8", "replace")
    else:
        head, tail = data[:16].decode("utf-8", "replace"), data[-8:].decode("utf-8", "replace")
        assert capture.text() == f"{head}\n[… {len(data) - 24} bytes not kept …]\n{tail}"
    assert capture.tail(4) == data[-4:].decode("utf-8", "replace")
