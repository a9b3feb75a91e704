"""The page of promises, ``docs/promises.md``: what its rows name, and the figures of the last run, written in place.

    python -m tests.torture.promises [--trace FILE] [--effect FILE] [--paths FILE]

A row is ``| promise | tests | `key` date: figure |``. ``make torture`` fills in its figures by their keys; the benches are run by
themselves and write JSON, which this command reads. The key ``tests`` counts the tests that the row itself names.
"""

from __future__ import annotations

import argparse
import ast
import json
import platform
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"
THREATS = ROOT / "THREATS.md"
NOT_RUN = "not run yet"
_LAST_RUN = re.compile(r"^Last run: .*$", re.MULTILINE)
_CELL = re.compile(r"^`(?P<key>[a-z -]+(?:\.[a-z -]+)?)` (?:(?P<date>\d{4}-\d\d-\d\d): )?(?P<figure>.+)$", re.S)


@dataclass(frozen=True)
class Row:
    """One promise. ``line`` counts from 0; ``held`` is what its second cell names; ``key`` whose figure stands in the third."""

    line: int
    promise: str
    held: tuple[str, ...]
    key: str = ""
    date: str = ""
    figure: str = ""


@dataclass(frozen=True)
class Case:
    """One test that was run: its file from the root of the repository, its function, and whether it passed."""

    file: str
    function: str
    passed: bool


def rows(text: str) -> list[Row]:
    """The rows of all tables of a page. Raises ValueError for a third cell that is no key with a figure."""
    out = []
    for number, line in enumerate(text.splitlines()):
        if not line.startswith("| ") or line.startswith("| promise "):
            continue
        promise, held, *last = (c.strip() for c in line.strip("| ").split(" | "))
        told = _CELL.match(last[0]) if last else None
        if last and told is None:
            raise ValueError(f"line {number + 1}: {last[0]!r} is no `key` with a figure")
        key, date, figure = (told["key"], told["date"] or "", told["figure"]) if told else ("", "", "")
        out.append(Row(number, promise, tuple(re.findall("`([^`]+)`", held)), key, date, figure))
    return out


def fill(text: str, figures: Mapping[str, str], cases: Iterable[Case] = (), date: str | None = None) -> str:
    """The page with new figures in the rows that have one in ``figures``, or whose own tests are among ``cases``."""
    lines, cases, date = text.splitlines(), list(cases), date or time.strftime("%Y-%m-%d")
    for row in rows(text):
        figure = counted(row, cases) if row.key == "tests" else figures.get(row.key)
        if figure:
            head = lines[row.line].rsplit(" | ", 1)[0]
            lines[row.line] = f"{head} | `{row.key}` {date}: {_plain(figure)} |"
    return "\n".join(lines) + "\n"


def headline(text: str, told: str) -> str:
    return _LAST_RUN.sub(lambda _: _plain(f"Last run: {told}"), text)


def _plain(figure: str) -> str:
    return re.sub(r"[|`\s]+", " ", figure)


def counted(row: Row, cases: Iterable[Case]) -> str:
    """``12 tests``, or how many of them failed; empty where none was run."""
    functions = {h for h in row.held if h.startswith("test_")}
    files = {h for h in row.held if h.endswith(".py")}
    mine = [c for c in cases if (c.function in functions if functions else c.file in files)]
    failed = sum(not c.passed for c in mine)
    what = f"{len(mine)} test{'s' if len(mine) != 1 else ''}"
    return "" if not mine else f"{failed} of {what} FAILED" if failed else what


def test_files(text: str) -> list[str]:
    """The files whose tests a row with the key ``tests`` names, and those in which its named functions lie."""
    found = {h for row in rows(text) if row.key == "tests" for h in row.held if h.endswith(".py")}
    for row in rows(text):
        if row.key == "tests":
            found |= {where for h in row.held if h.startswith("test_") for where in defined(h)}
    return sorted(found)


def unheld(row: Row) -> list[str]:
    """What the row names as its test and what is not there."""
    return [h for h in row.held if not _there(h)] if row.held else ["nothing"]


def _there(held: str) -> bool:
    file, _, more = held.partition(" ")
    if "/" in file:
        path = ROOT / file
        return path.is_file() and (not more or re.search(rf"^def {more}\(", path.read_text(), re.MULTILINE) is not None)
    if held.startswith("test_"):
        return bool(defined(held))
    module, _, function = held.partition(".")
    path = ROOT / "tests" / "torture" / f"{module}.py"
    return path.is_file() and function in _functions(path)


@cache
def defined(function: str) -> tuple[str, ...]:
    """The test files that define ``function``."""
    files = (p for p in sorted((ROOT / "tests").rglob("test_*.py")) if function in _functions(p))
    return tuple(str(p.relative_to(ROOT)) for p in files)


@cache
def _functions(path: Path) -> frozenset[str]:
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(n.name for n in found if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def cases(junit: Path) -> Iterator[Case]:
    """The tests that pytest wrote to ``junit`` with ``--junitxml``; those that were skipped are none."""
    if not junit.exists():
        return
    for case in ET.parse(junit).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if "skipped" in outcomes:
            continue
        module = case.get("classname", "")
        path = Path(*module.split("."))
        while path.parts and not (ROOT / path.with_suffix(".py")).is_file():
            path = path.parent  # a class in it
        function = case.get("name", "").partition("[")[0]
        yield Case(str(path.with_suffix(".py")), function, not outcomes & {"failure", "error"})


def of_benches(trace: Any = None, effect: Any = None, paths: Any = None) -> dict[str, str]:
    """Figures from what the benches wrote as JSON."""
    out = {}
    if trace:
        mib, seconds = trace["bytes"] / 2**20, trace["seconds"]
        told = f"{mib:.0f} MiB, {trace['events']:,} events: {seconds:.2f} s, peak {trace['peak_bytes'] / 2**20:.0f} MiB"
        if "hta_seconds" in trace:
            told += (
                f"; HolisticTraceAnalysis {trace['hta_seconds']:.1f} s, {trace['hta_seconds'] / seconds:.1f} times as long"
                f" ({trace['hta_cpu_seconds'] / trace['cpu_seconds']:.1f} times by CPU)"
            )
        out["trace"] = told
        if "large_seconds" in trace:
            out["trace.large"] = (
                f"{trace['large_bytes'] / 2**20:.0f} MiB: peak {trace['large_peak_bytes'] / 2**20:.0f} MiB, "
                f"{trace['large_seconds']:.1f} s"
            )
    if effect:
        parts = [
            f"{k} {effect[k]['ratio']:.4f} [{effect[k]['low']:.4f}, {effect[k]['high']:.4f}]"
            for k in ("p50", "throughput")
        ]
        out["effect"] = (
            f"on/off {' and '.join(parts)} over {effect['p50']['pairs']} pairs of blocks of {effect['block_s']:g} s"
        )
    if paths:
        right = sum(bool(r["right"]) for r in paths)
        wrong = "".join(
            f", not {r['case']} by {r['sampler']} ({r['path'] or 'no path'})" for r in paths if not r["right"]
        )
        out["paths"] = f"{right} of {len(paths)} right{wrong}"
    return out


def host() -> str:
    """This host in a few words."""
    import psutil

    return f"{platform.machine()}, {psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f} at the start"


def main() -> None:
    ask = argparse.ArgumentParser(prog="python -m tests.torture.promises", description=__doc__)
    for name in ("trace", "effect", "paths"):
        ask.add_argument(f"--{name}", metavar="FILE", type=Path, help=f"what bench wrote with --json ({name})")
    told = {k: json.loads(v.read_bytes()) for k, v in vars(ask.parse_args()).items() if v is not None}
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), of_benches(**told)), encoding="utf-8")


if __name__ == "__main__":
    main()
