"""Request logs as they are found: what is read, and the one line for what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsetui.release.requests import RequestLog, RequestLogError, read_log


def _log(tmp_path: Path, text: str, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "arrivals", "sizes"),
    [
        ("time,size\n1.5,8\n2.0,16\n", (0.0, 0.5), (8.0, 16.0)),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
         (0.0, 4.314579), (374.0, 396.0)),
        ("arrival_ms\n1000\n1250\n", (0.0, 0.25), None),
        ("id,ts\na,2024-01-01T00:00:00Z\nb,2024-01-01T01:00:00+00:00\n", (0.0, 3600.0), None),
        ("\ufefftime\n1\n\n2\n", (0.0, 1.0), None),
    ],
)  # fmt: skip
def test_csv_columns_are_found_by_name(tmp_path, text, arrivals, sizes) -> None:
    log = read_log(_log(tmp_path, text))
    assert log.arrivals == pytest.approx(arrivals, abs=1e-6)
    assert log.sizes == sizes


def test_json_lines(tmp_path) -> None:
    log = read_log(_log(tmp_path, '{"arrived_at": 3, "batch": 2}\n{"arrived_at": 4.5, "batch": 1}\n', "log.jsonl"))
    assert (log.arrivals, log.sizes) == ((0.0, 1.5), (2.0, 1.0))


def test_requests_out_of_order_are_sorted_with_their_sizes_and_counted(tmp_path) -> None:
    log = read_log(_log(tmp_path, "time,size\n2,20\n1,10\n3,30\n"))
    assert (log.arrivals, log.sizes, log.reordered) == ((0.0, 1.0, 2.0), (10.0, 20.0, 30.0), 2)


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (
            "time,size\n1,2\nsoon,3\n",
            "l.csv",
            "line 3, column time: 'soon' is no time; accepted are seconds and ISO 8601",
        ),
        ("time,size\n1,-4\n", "l.csv", "line 2, column size: '-4' is no size"),
        ("time,size\n1\n", "l.csv", "line 2: has 1 columns, the header has 2"),
        ("when,size\n1,2\n", "l.csv", "line 1: no column for the time among when, size; accepted are time, timestamp"),
        ("", "l.csv", "holds no request"),
        ("time\n", "l.csv", "holds no request"),
        ("time\nnan\n", "l.csv", "line 2, column time"),
        ('{"time": 1}\n{"size": 2}\n', "l.jsonl", "line 2: has no time"),
        ('{"time": 1}\n[2]\n', "l.jsonl", "line 2: is list; expected one object a line"),
        ("{time: 1}\n", "l.jsonl", "line 1: is no JSON"),
        ('{"time": true}\n', "l.jsonl", "line 1, key time"),
        ('time\n"\x1b[2J"\n', "l.csv", r"'\x1b[2J' is no time"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_place(tmp_path, text, name, said) -> None:
    path = _log(tmp_path, text, name)
    with pytest.raises(RequestLogError) as e:
        read_log(path)
    assert said in str(e.value)
    assert str(path) in str(e.value)
    assert str(e.value).isprintable()


def test_what_never_ends_is_not_begun(tmp_path) -> None:
    os.mkfifo(tmp_path / "log.csv")
    for path in (tmp_path / "log.csv", "/dev/zero", tmp_path):
        with pytest.raises(RequestLogError, match="not a regular file"):
            read_log(path)


def test_a_missing_file_and_binary_are_one_line(tmp_path) -> None:
    with pytest.raises(RequestLogError, match="No such file"):
        read_log(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"time\n\xff\xfe\n")
    with pytest.raises(RequestLogError, match="not UTF-8"):
        read_log(tmp_path / "b.csv")


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=40), st.integers(1, 6), st.floats(0.1, 50))
def test_windows_lose_no_request_and_speed_scales_time(arrivals, count, speed) -> None:
    ordered = sorted(arrivals)
    ordered = [a - ordered[0] for a in ordered]
    log = RequestLog(Path("x"), tuple(ordered), tuple(float(i) for i in range(len(ordered))))
    cut = log.windows(count)
    assert [s for w in cut for s in w.sizes or ()] == list(log.sizes or ())
    assert all(w.arrivals[0] >= -1e-6 * log.span and list(w.arrivals) == sorted(w.arrivals) for w in cut)
    assert log.faster(speed).span == pytest.approx(log.span / speed)
