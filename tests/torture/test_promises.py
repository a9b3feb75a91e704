"""The page of promises and THREATS.md: whatever they name as a test exists, and the drivers write the figures in place."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.torture import promises
from tests.torture.__main__ import Torture
from tests.torture.promises import PAGE, THREATS, Case

ROWS = [(page, row) for page in (PAGE, THREATS) for row in promises.rows(page.read_text(encoding="utf-8"))]
SMALL = """\
Last run: none yet.

| promise | test | last run |
|---|---|---|
| kept | `kills.lane` | `kills` not run yet |
| tested | `tests/torture/test_promises.py` | `tests` not run yet |
| one of them | `test_two`, `tests/torture/test_promises.py` | `tests` 2026-01-01: 1 tests |
"""


@pytest.mark.parametrize(("page", "row"), ROWS, ids=lambda x: x.name if isinstance(x, Path) else x.promise[:40])
def test_every_promise_names_tests_that_exist(page: Path, row: promises.Row) -> None:
    assert promises.unheld(row) == []


def test_there_are_promises_of_every_part() -> None:
    assert len([1 for page, _ in ROWS if page == PAGE]) > 30
    assert len([1 for page, _ in ROWS if page == THREATS]) > 15


def test_a_test_that_is_not_there_is_noticed() -> None:
    held = (
        "tests/session/test_nowhere.py",
        "test_that_nobody_wrote",
        "kills.nothing",
        "nothing.lane",
        "bench/attach.py dream",
    )
    assert promises.unheld(promises.Row(0, "x", held)) == list(held)
    assert promises.unheld(promises.Row(0, "x", ())) == ["nothing"]
    assert (
        promises.unheld(promises.Row(0, "x", ("kills.lane", "bench/attach.py effect", "tests/session/test_kill.py")))
        == []
    )


def test_figures_are_written_in_place() -> None:
    cases = [Case("tests/torture/test_promises.py", f, f != "test_one") for f in ("test_one", "test_two", "test_two")]
    text = promises.fill(SMALL, {"kills": "200 |\npoints", "unknown": "x"}, cases, "2026-02-03")
    assert [(r.key, r.date, r.figure) for r in promises.rows(text)] == [
        ("kills", "2026-02-03", "200 points"),
        ("tests", "2026-02-03", "1 of 3 tests FAILED"),
        ("tests", "2026-02-03", "2 tests"),
    ]
    assert promises.headline(text, "now").startswith("Last run: now\n")
    assert promises.fill(text, {}, [], "2027-01-01") == text, "what was not run keeps its figure and its day"


def test_a_cell_without_a_key_is_told() -> None:
    with pytest.raises(ValueError, match="line 5"):
        promises.rows(SMALL.replace("`kills` not run yet", "about two hundred"))


def test_the_results_of_a_run_are_counted(tmp_path: Path) -> None:
    junit = tmp_path / "x.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase classname="tests.torture.test_promises" name="test_two[a]"/>'
        '<testcase classname="tests.torture.test_promises.TestMore" name="test_x"><failure>no</failure></testcase>'
        '<testcase classname="tests.torture.test_promises" name="test_s"><skipped/></testcase></testsuite></testsuites>'
    )
    assert list(promises.cases(junit)) == [
        Case("tests/torture/test_promises.py", "test_two", True),
        Case("tests/torture/test_promises.py", "test_x", False),
    ]
    assert list(promises.cases(tmp_path / "none.xml")) == []


def test_every_figure_of_the_page_has_a_driver_that_writes_it(tmp_path: Path) -> None:
    asked = argparse.Namespace(only="", minutes=1.0, points=1, seed=1, slack=1.0, cycles=1)
    torture = Torture(tmp_path, asked)
    parts = {title.split(" 0")[0].split(" 1")[0] for title, _ in (*torture.alone(), *torture.beside())}
    benches = {"trace", "paths", "effect"}
    keys = {row.key.partition(".")[0] for page, row in ROWS if page == PAGE}
    assert keys <= parts | benches
    assert {"kills", "soak", "user code", "sizes", "damage", "tests"} <= keys


def test_a_driver_that_breaks_is_wrong_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torture = Torture(tmp_path, argparse.Namespace(only="", minutes=1.0))

    def breaks() -> None:
        raise OSError("no room")

    torture.one("broken", breaks)
    assert torture.wrong == ["broken: OSError: no room"]
    assert capsys.readouterr().out.startswith("WRONG broken")


def test_what_the_benches_wrote_becomes_figures() -> None:
    trace = {"bytes": 2**20, "events": 1000, "seconds": 2.0, "peak_bytes": 2**20, "cpu_seconds": 1.0, "hta_seconds": 50.0,
             "hta_cpu_seconds": 20.0}  # fmt: skip
    side = {"ratio": 1.01, "low": 1.0, "high": 1.02, "pairs": 20}
    paths = [{"case": "coo", "sampler": "perf", "path": "", "right": False}, {"right": True}]
    got = promises.of_benches(trace, {"p50": side, "throughput": side, "block_s": 6.0}, paths)
    assert got["trace"].endswith("25.0 times as long (20.0 times by CPU)")
    assert "trace.large" not in got
    assert got["effect"].startswith("on/off p50 1.0100 [1.0000, 1.0200] and throughput")
    assert got["paths"] == "1 of 2 right, not coo by perf (no path)"
