"""Stacks of every kind that samplers write: time by path, callers, threads; and what is broken in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsetui.ingest import stacks
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.sniff import sniff

PY_SPY = """\
process 7:"python serve.py";thread (0x7F1): MainThread;<module> (serve.py:90);forward (serve.py:41);linear (torch/nn/functional.py:2290);at::native::mm (libtorch_cpu.so);mkl_sparse_s_csr_ng_n_mm_f_ker_i4_avx2 (libtorch_cpu.so) 60
process 7:"python serve.py";thread (0x7F1): MainThread;<module> (serve.py:90);forward (serve.py:42);at::native::sparse_compressed_to_dense (libtorch_cpu.so);__memmove_avx_unaligned_erms (libc.so.6) 20
process 7:"python serve.py";thread (0x7F1): MainThread;<module> (serve.py:90);decode (serve.py:12) 10
process 7:"python serve.py";thread (0x7F2): worker;run (serve.py:70);poll (libc.so.6) 10
"""  # noqa: E501


def inspect(tmp_path: Path, text: str | bytes, name: str = "stacks.txt") -> dict[str, Any]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert sniff(path) == "stacks"
    return stacks.inspect(path)


def shares(p: dict[str, Any]) -> dict[str, float]:
    return {x.path: round(x.share.value, 6) for x in p["time_table"].paths}


def test_py_spy_stacks_with_native_frames(tmp_path: Path) -> None:
    p = inspect(tmp_path, PY_SPY)
    assert shares(p) == {"sparse-csr-rhs": 0.6, "conversion": 0.2, "python": 0.1, "wait": 0.1}
    first = p["time_table"].paths[0]
    assert first.symbols == ("mkl_sparse_s_csr_ng_n_mm_f_ker_i4_avx2",)
    assert first.callers == ("serve.py:41 forward",)
    assert first.share.n == 100
    low, high = first.share.ci
    assert 0.49 < low < 0.6 < high < 0.70
    assert len(p["threads"]) == 2
    assert p["threads"][0]["share"] == pytest.approx(0.9)
    assert p["rates"]["sparse_rate"].value == 1.0


@pytest.mark.parametrize("variant", ["crlf", "utf-16", "utf-16-le", "blank lines", "comment", "mac"])
def test_the_same_in_other_clothes(tmp_path: Path, variant: str) -> None:
    text = PY_SPY
    raw: bytes | str = {
        "crlf": text.replace("\n", "\r\n"),
        "utf-16": text.encode("utf-16"),
        "utf-16-le": text.encode("utf-16-le"),
        "blank lines": text.replace("\n", "\n\n"),
        "comment": "# py-spy record\n" + text,
        "mac": text.rstrip("\n"),
    }[variant]
    assert shares(inspect(tmp_path, raw)) == shares(inspect(tmp_path, text, "plain.txt"))


def test_perf_marks_are_taken_off(tmp_path: Path) -> None:
    p = inspect(tmp_path, "python;main;clear_page_erms_[k] 3\npython;gomp_team_barrier_wait_end 7\n")
    assert shares(p) == {"barrier": 0.7, "alloc": 0.3}


def test_lines_that_are_no_stacks_are_counted_and_named(tmp_path: Path) -> None:
    p = inspect(tmp_path, "a;b 1\nnot a stack\na;c 2\n")
    assert (p["lines"], p["bad_lines"], p["first_bad_line"]) == (2, 1, 2)


SCOPE: dict[str, Any] = {
    "$schema": "https://www.speedscope.app/file-format-schema.json",
    "shared": {"frames": [
        {"name": "forward", "file": "serve.py", "line": 41},
        {"name": "ampere_sgemm_128x64_nn", "file": "libcublas.so.12"},
        {"name": "gc_collect_main", "file": "libpython3.11.so"},
    ]},
}  # fmt: skip


def test_speedscope_sampled(tmp_path: Path) -> None:
    profile = {
        "type": "sampled",
        "name": "t1",
        "unit": "seconds",
        "samples": [[0, 1], [0, 1], [0], [0, 2]],
        "weights": [0.5, 0.2, 0.2, 0.1],
    }
    p = inspect(tmp_path, json.dumps({**SCOPE, "profiles": [profile, {**profile, "name": "t2"}]}), "s.speedscope.json")
    assert shares(p) == {"dense": 0.7, "python": 0.3}
    assert p["time_table"].paths[0].callers == ("serve.py:41 forward",)
    assert (p["samples"], len(p["threads"])) == (8, 2)


def test_speedscope_evented_in_disorder_and_unbalanced(tmp_path: Path) -> None:
    events = [
        {"type": "C", "frame": 1, "at": 3}, {"type": "O", "frame": 0, "at": 0}, {"type": "O", "frame": 1, "at": 1},
        {"type": "C", "frame": 0, "at": 4}, {"type": "C", "frame": 2, "at": 4}, {"type": "O", "frame": 99, "at": 1},
    ]  # fmt: skip
    p = inspect(tmp_path, json.dumps({**SCOPE, "profiles": [{"type": "evented", "unit": "none", "events": events}]}))
    assert shares(p) == {"python": 0.5, "dense": 0.5}
    assert p["skipped"] == 2
    assert p["time_table"].paths[0].share.ci is None  # a traced duration was not sampled


def test_chrome_events_with_unmatched_ends(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "name": "forward (serve.py:1)", "ts": 0, "pid": 1, "tid": 1},
        {"ph": "X", "name": "malloc", "ts": 2, "dur": 4, "pid": 1, "tid": 1},
        {"ph": "E", "name": "nobody", "ts": 5, "pid": 1, "tid": 1},
        {"ph": "B", "name": "memcpy", "ts": 8, "pid": 1, "tid": 1},
        {"ph": "E", "name": "forward (serve.py:1)", "ts": 10, "pid": 1, "tid": 1},
    ]
    p = inspect(tmp_path, json.dumps(events), "c.json")
    assert shares(p) == pytest.approx({"python": 0.4, "alloc": 0.4, "copy": 0.2})
    assert p["unbalanced"] == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"profiles": [], "shared": {"frames": []}}', "took any time"),
        ('{"profiles": 3, "frames": 1}', "no profiles"),
        ('{"speedscope": 1, "profiles": [', "not whole JSON"),
        ("[]", "no B, E or X events"),
        ('[{"ph": "B"}]', "no B, E or X events"),
        ("a;b 0\n", "took any time"),
    ],
)
def test_what_holds_no_stack_gets_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(IngestError) as e:
        stacks.inspect(path)
    assert told in str(e.value)
    assert "\n" not in str(e.value)


def test_chrome_samples_name_their_frames(tmp_path: Path) -> None:
    document = {
        "traceEvents": [{"ph": "M", "name": "thread_name", "ts": "5", "pid": 7, "tid": "1"}],
        "samples": [
            {"ts": "10", "pid": 7, "tid": "1", "weight": "3", "sf": 2},
            {"ts": "11", "pid": 7, "tid": "2", "weight": "1", "sf": "9"},
            {"ts": "12", "pid": 7, "tid": "2", "sf": 404},
        ],
        "stackFrames": {
            "1": {"name": "forward (serve.py:41)"},
            "2": {"name": "mkl_blas_avx2_sgemm_kernel_0", "parent": "1"},
            "9": {"name": "malloc", "parent": "9"},
        },
    }
    p = inspect(tmp_path, json.dumps(document), "c.json")
    assert shares(p) == {"dense": 0.75, "alloc": 0.25}
    assert p["time_table"].paths[0].callers == ("serve.py:41 forward",)
    assert (p["skipped"], len(p["threads"]), p["format"]) == (1, 2, "chrome samples")


def test_times_in_quotes_are_times(tmp_path: Path) -> None:
    events = [{"ph": ph, "name": "malloc", "ts": ts, "pid": 1, "tid": 1} for ph, ts in (("B", "5"), ("E", "9"))]
    assert inspect(tmp_path, json.dumps(events), "c.json")["total"] == 4


def test_a_file_that_is_mostly_no_stacks_is_none(tmp_path: Path) -> None:
    path = tmp_path / "callgrind.txt"
    path.write_text("events: Instructions\nfl=file1.c\nfn=main\n16 20\ncfn=func1\ncalls=1 50\n16 400\n")
    with pytest.raises(IngestError, match="line 1: no stack, and so are 6 of 7 lines"):
        stacks.inspect(path)


def test_an_unknown_function_under_the_dispatcher_stays_unknown(tmp_path: Path) -> None:
    under = "f (a.py:1);c10::Dispatcher::call (libtorch_cpu.so);{} (x.so) 1\n"
    p = inspect(
        tmp_path, under.format("mystery") + under.format("[kernel]") + "f (a.py:1);mkl_sparse_s_mm_i4;mystery 2\n"
    )
    assert shares(p) == {"sparse-csr": 0.5, "unknown": 0.25, "other": 0.25}


@pytest.mark.parametrize("kind", ["begins", "ends", "circle", "evented"])
def test_hostile_depth_takes_no_time_worth_naming(tmp_path: Path, kind: str) -> None:
    """Deep or unmatched calls: work stays in proportion to the file (the suite's own time limit is the judge)."""
    n = 10_000
    if kind == "evented":
        events = [{"type": "O", "frame": i % 2, "at": i} for i in range(n)] + [{"type": "C", "frame": 2, "at": n}] * n
        inspect(tmp_path, json.dumps({**SCOPE, "profiles": [{"type": "evented", "unit": "none", "events": events}]}))
        return
    if kind == "circle":
        frames = {str(i): {"name": f"f{i}", "parent": str((i + 1) % n)} for i in range(n)}
        text = json.dumps({"traceEvents": [], "samples": [{"sf": i} for i in range(50)], "stackFrames": frames})
    else:
        calls = [{"ph": "B", "name": "a", "ts": i, "pid": 1, "tid": 1} for i in range(n)]
        ends = [{"ph": "E", "name": "b" if kind == "ends" else "a", "ts": n + i, "pid": 1, "tid": 1} for i in range(n)]
        text = json.dumps(calls + ends)
    assert inspect(tmp_path, text, "deep.json")["samples"] > 0


SOUND = [
    PY_SPY.encode(),
    json.dumps({**SCOPE, "profiles": [{"type": "sampled", "samples": [[0, 1]], "weights": [1]}]}).encode(),
]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.sampled_from(SOUND),
    edits=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 9), st.binary(max_size=5)), max_size=5),
)
def test_mutated_stacks_never_raise_anything_else(
    tmp_path: Path, which: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    raw = bytearray(which)
    for at, length, put in edits:
        raw[at : at + length] = put
    path = tmp_path / "m.txt"
    path.write_bytes(bytes(raw))
    try:
        p = stacks.inspect(path)
    except IngestError:
        return
    assert sum(x.share.value for x in p["time_table"].paths) == pytest.approx(1.0)
