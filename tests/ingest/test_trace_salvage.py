"""Broken traces: what is whole is kept, the cut is named, and nothing else happens."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsetui.ingest import traces
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.events import source
from sparsetui.ingest.sniff import sniff


def event(name: str, ts: float, dur: float = 5.0, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def document(n: int = 20) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "traceEvents": [event("aten::add", 10.0 * i) for i in range(n)],
        "traceName": "x]y}.json",
    }


def kineto(n: int = 20) -> str:
    """The layout that the profiler writes: an event over several lines."""
    return json.dumps(document(n), indent=2)


def read(path: Path) -> dict[str, Any]:
    return traces.inspect(path)


def write(tmp_path: Path, text: str | bytes, name: str = "t.json") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_sound_file_is_not_called_damaged(tmp_path: Path) -> None:
    for text in (kineto(), json.dumps(document()), json.dumps(document(), separators=(",", ":"))):
        p = read(write(tmp_path, text))
        assert (p["events"], p["salvage"]) == (20, None)


def test_a_truncated_file_keeps_its_whole_events_and_names_the_cut(tmp_path: Path) -> None:
    text = kineto()
    at = text.index('"ts": 150') + 4
    p = read(write(tmp_path, text[:at]))
    assert p["events"] == 15
    start = text.rindex("{", 0, at)
    assert p["salvage"]["cut_at"] == {"byte": start, "line": text.count("\n", 0, start) + 1}
    assert p["salvage"]["last_good_event"] == "aten::add at 140.0"


def test_a_truncated_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    packed = gzip.compress(kineto(2000).encode())
    p = read(write(tmp_path, packed[: len(packed) // 2], "t.json.gz"))
    assert 200 < p["events"] < 2000
    assert "gzip stream ends early" in p["salvage"]["cut"]


def test_a_damaged_gzip_is_read_up_to_the_damage(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(kineto(3000).encode()))
    packed[len(packed) // 2] ^= 0xFF
    p = read(write(tmp_path, bytes(packed), "t.json.gz"))
    assert p["salvage"] is not None
    assert p["events"] > 100


def test_members_of_gzip_may_end_anywhere_and_be_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = kineto(300).encode()
    packed = [gzip.compress(text[i : i + 100]) for i in range(0, len(text), 100)]
    ends = [len(b"".join(packed[:n])) for n in range(1, len(packed))]
    for size in (next(n for n in range(500, 9000) if any((e + 1) % n == 0 for e in ends)), 1, 100):
        monkeypatch.setattr(source, "_PIECE", size)  # what is read ends one byte into a member
        for padding in (b"", bytes(3), bytes(20_000), b"junk" * 5000):
            p = read(write(tmp_path, b"".join(packed) + padding, "t.json.gz"))
            assert (p["events"], p["salvage"]) == (300, None)
        p = read(write(tmp_path, packed[0] + bytes(700) + b"".join(packed[1:]), "t.json.gz"))
        assert (p["events"], p["salvage"]) == (300, None)


BROKEN = {
    "backslashes": ('"name": "torch\\cuda\\__init__.py(219): _lazy_init"', "torch\\cuda\\__init__.py(219): _lazy_init"),
    "inner quotes and a newline": (
        '"name": "x = torch.library.Library("_inductor_test", "IMPL")\n(1): <module>"',
        'x = torch.library.Library("_inductor_test", "IMPL")\n(1): <module>',
    ),
    "control bytes": ('"name": "config.py(0): \x01\x1b[31m"', "config.py(0): \x01\x1b[31m"),
    "a comma lost": ('"name": "aten::mul"', "aten::mul"),
    "a quote lost": ('"name": "aten::mul"', "aten::mul"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_faults_that_profilers_are_known_for_are_mended(tmp_path: Path, kind: str) -> None:
    fault, name = BROKEN[kind]
    text = kineto().replace('"name": "aten::add"', fault, 7).replace(fault, '"name": "aten::add"', 6)
    broken_at = text.index(fault)
    if kind == "a comma lost":
        text = text[: broken_at + len(fault)] + text[broken_at + len(fault) + 1 :]
    if kind == "a quote lost":
        at = text.index('"tid": 1', broken_at)
        text = text[:at] + '"tid": stream 7"' + text[at + 8 :]
    p = read(write(tmp_path, text))
    assert p["events"] == 20
    assert name in {row["op"] for row in p["ops"]}


def test_escapes_beside_damage_say_what_they_say_elsewhere(tmp_path: Path) -> None:
    """Text is mended byte by byte; a character that an escape names is none of them."""
    names = ["\u4e2d\u6587", "\u00e9t\u00e9", "\U0001f600"]
    events = [event(n, 10.0 * i, note=n) for i, n in enumerate(names)]
    text = json.dumps({"traceEvents": [event("aten::add", 1), *events]}, indent=1)
    for note in (json.dumps(names[0]), '"' + names[0] + '"'):
        broken = text.replace('"aten::add"', '"a "quoted" word"').replace(json.dumps(names[2]), '"\U0001f600"', 1)
        p = read(write(tmp_path, broken.replace('"note": ' + json.dumps(names[0]), '"note": ' + note)))
        assert (p["events"], p["salvage"]["repaired_events"]) == (4, 1)
        assert {row["op"] for row in p["ops"]} == {'a "quoted" word', *names}


def test_invalid_utf8_costs_a_character_not_an_event(tmp_path: Path) -> None:
    raw = kineto().encode().replace(b"aten::add", b"op\xff\xfe", 1)
    p = read(write(tmp_path, raw))
    assert p["events"] == 20
    assert any(row["op"].startswith("op\ufffd") for row in p["ops"])


def test_nan_and_infinity_are_no_times(tmp_path: Path) -> None:
    text = kineto().replace('"dur": 5.0', '"dur": NaN', 1).replace('"ts": 100.0', '"ts": Infinity', 1)
    p = read(write(tmp_path, text))
    assert (p["events"], p["timed_events"], p["oddities"]["incomplete"]) == (20, 18, 2)


def test_huge_integers_are_no_trouble(tmp_path: Path) -> None:
    text = kineto().replace('"pid": 1', f'"pid": {10**30}', 1).replace('"ts": 100.0', '"ts": ' + "9" * 5000, 1)
    p = read(write(tmp_path, text))
    assert (p["events"], p["timed_events"]) == (20, 19)


def test_an_event_beyond_repair_is_counted_and_placed(tmp_path: Path) -> None:
    text = kineto()
    at = text.index('"ts": 70.0')
    broken = text[:at] + '"ts": [[[{{' + text[at + 10 :]
    p = read(write(tmp_path, broken))
    assert p["events"] == 19
    assert p["salvage"]["lost_events"] == 1
    start = text.rindex("{", 0, at)
    assert p["salvage"]["first_lost"] == {"byte": start, "line": text.count("\n", 0, start) + 1}


def test_bare_lists_and_their_old_categories(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": "aten::mm", "pid": "CPU functions", "tid": 3, "ts": 1, "dur": 10, "args": {}},
        {"ph": "X", "name": "volta_sgemm_32x128_tn", "pid": "CUDA functions", "tid": "stream 7", "ts": 5, "dur": 4},
    ]
    path = write(tmp_path, json.dumps(events))
    assert sniff(path) == "trace"
    p = read(path)
    assert (p["events"], p["device_time"], p["kernels"][0]["path"]) == (2, True, "dense")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    assert read(write(tmp_path, kineto().encode(encoding)))["events"] == 20


def test_missing_fields_are_counted(tmp_path: Path) -> None:
    events = document(6)["traceEvents"]
    del events[1]["dur"], events[2]["ts"], events[3]["name"]
    events[4]["dur"], events[5]["args"] = -1, "not an object"
    p = read(write(tmp_path, json.dumps({"traceEvents": events})))
    assert (p["timed_events"], p["oddities"]["incomplete"]) == (2, 4)


def test_overlaps_disorder_and_orphans_are_counted_and_survived(tmp_path: Path) -> None:
    events = [
        event("aten::b", 100, 50),
        event("aten::a", 0, 120),  # ends inside b, and stands behind it in the file
        {**event("k", 10, 5), "cat": "kernel", "args": {"correlation": 9}},
        {**event("cudaLaunchKernel", 3, 1), "cat": "cuda_runtime", "args": {"correlation": 8}},
    ]
    p = read(write(tmp_path, json.dumps({"traceEvents": events})))
    assert p["oddities"]["overlapping"] == 1
    assert p["oddities"]["out_of_order"] >= 1
    assert p["oddities"]["orphan_kernels"] == 1
    own = {r["op"]: r["self_ms"] for r in p["ops"]}
    assert own["aten::a"] == pytest.approx(0.099)  # 120 less the 20 that b shares and the 1 of the launch
    assert own["aten::b"] == pytest.approx(0.05)


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "RATIO_FROM", 1 << 20)
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20))
    with pytest.raises(IngestError, match="like a bomb"):
        read(write(tmp_path, bomb, "bomb.json.gz"))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("t.json", b'{"traceEvents": [' + b" " * (8 << 20))
    with pytest.raises(IngestError, match="like a bomb"):
        read(tmp_path / "bomb.zip")


def test_an_endless_event_is_refused_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsetui.ingest.events import reader as events

    monkeypatch.setattr(events, "_LONGEST_BLOCK", 1 << 20)
    text = '{"traceEvents": [{"ph": "X", "name": "' + "a" * (6 << 20)
    with pytest.raises(IngestError):
        read(write(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"{}", "no traceEvents"),
        (b'{"traceEvents": 3}', "no traceEvents"),
        (b"\x00\x01\x02binary", "no traceEvents"),
        (b'{"traceEvents": [{"ph"', "no event could be read"),
    ],
)
def test_what_is_no_trace_gets_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    with pytest.raises(IngestError) as e:
        read(write(tmp_path, content))
    assert told in str(e.value)
    assert "\n" not in str(e.value)


def test_deep_nesting_is_survived(tmp_path: Path) -> None:
    deep = '{"ph": "X", "args": {"a": ' + "[" * 100_000 + "}"
    text = '{"traceEvents": [' + json.dumps(event("aten::add", 1)) + ", " + deep + "]}"
    p = read(write(tmp_path, text))
    assert p["events"] == 1


def test_chunk_borders_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = kineto(3000)
    whole = read(write(tmp_path, text))
    monkeypatch.setattr(source, "CHUNK", 70_001)
    pieces = read(write(tmp_path, text))
    assert pieces["events"] == whole["events"] == 3000
    assert pieces["ops"] == whole["ops"]
    torn = read(write(tmp_path, text[: text.index('"ts": 29950') + 2]))
    at = text.rindex("{", 0, text.index('"ts": 29950'))
    assert torn["salvage"]["cut_at"]["byte"] == at


def test_lists_of_objects_inside_of_events_are_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What divides them may be what divides events; a chunk that ends behind it must not make a sound file damaged."""
    inner = [{"ph": "p", "id": n} for n in range(40)]
    path = write(
        tmp_path, json.dumps({"traceEvents": [event("aten::add", 10.0 * i, args={"x": inner}) for i in range(300)]})
    )
    for chunk in (100_001, 70_000, 90_007):
        monkeypatch.setattr(source, "CHUNK", chunk)
        for helpers in (0, 1):
            p = traces.inspect(path, helpers=helpers)
            assert (p["events"], p["salvage"]) == (300, None)


SOUND = kineto(30).encode()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 12), st.binary(max_size=6)), min_size=1, max_size=6
    ),
    cut=st.integers(0, len(SOUND)),
)
def test_mutated_files_never_raise_anything_else(tmp_path: Path, edits: list[tuple[int, int, bytes]], cut: int) -> None:
    raw = bytearray(SOUND)
    for at, length, put in edits:
        raw[at : at + length] = put
    path = write(tmp_path, bytes(raw[: max(cut, 60)]))
    try:
        p = read(path)
    except IngestError:
        return
    assert p["events"] <= 40
    assert p["rates"]["sparse_rate"].value in (0.0, None)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]),
            st.one_of(
                st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
                st.sampled_from(["X", "kernel", "cpu_op", "aten::mm", "user_annotation", "ProfilerStep#3"]),
                st.dictionaries(st.sampled_from(["correlation", "Input Dims", "stream"]), st.integers() | st.text(max_size=3)),
            ),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_events_of_any_shape_are_survived(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    p = read(write(tmp_path, json.dumps({"traceEvents": events})))
    assert p["events"] == len(events)


def test_events_behind_the_end_of_their_list_are_told_of(tmp_path: Path) -> None:
    text = json.dumps(document())
    at = text.index('}, {"ph"', text.index('"ts": 90')) + 1
    p = read(write(tmp_path, text[:at] + "]}" + text[at:]))
    assert p["events"] == 10
    assert p["salvage"]["cut"] == "the list of events is closed, but more follow, which are not read"
    assert abs(p["salvage"]["cut_at"]["byte"] - at) < 200
