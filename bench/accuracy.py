"""``make accuracy``: every drill and every field case, A/A pairs with and without a neighbour on one core, and pairs that
truly differ by 3 %.

Prints a table as it goes and writes ``docs/ACCURACY.md`` with the date and the lock. Names narrow it down:
``python -m bench.accuracy r10 r14`` runs the cases whose name holds one of them, and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsetui.diagnosis.stats import Comparison
from sparsetui.evidence.records import Result
from sparsetui.runner.investigation import Investigation
from sparsetui.session.store import Store
from sparsetui.workload.drills import catalogue
from sparsetui.workload.spec import load

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "ACCURACY.md"


@dataclass(frozen=True)
class Row:
    kind: str
    name: str
    expected: str
    got: str
    right: bool
    confidence: str
    share: str
    seconds: float
    note: str = ""

    def line(self) -> str:
        mark = "right" if self.right else "WRONG"
        got = f"{self.got:<30} {self.confidence:<10} {self.share:<6} {self.seconds:5.1f} s"
        return f"{mark:<6} {self.kind:<6} {self.name:<34} {got}  {self.note}"


def investigate(workload: Path, budget: float, store: Store) -> tuple[Result, float]:
    """One whole investigation, headless, in this process, and how many seconds it took."""
    result, seconds, _ = compared(workload, budget, store)
    return result, seconds


def compared(workload: Path, budget: float, store: Store) -> tuple[Result, float, Comparison | None]:
    """The same, with what the clock made of the pair."""
    began = time.monotonic()
    run = Investigation(load(workload), store, budget_s=budget)
    try:
        result = run.run_all()
        return result, time.monotonic() - began, run.lab.comparison
    finally:
        run.close()


def row(kind: str, name: str, expected: str, right: Any, result: Result, seconds: float) -> Row:
    v = result.verdict
    share = v.share_of_regression.value if v.share_of_regression else None
    ok = right(v.status, v.mechanism)
    closed = f"{100 * share:.0f} %" if share is not None else "-"
    note = "" if ok else v.summary[:160]
    return Row(kind, name, expected, v.mechanism or v.status, ok, v.confidence or "", closed, seconds, note)


def cases(names: list[str], budget: float | None, store: Store) -> Iterator[Row]:
    sys.path.insert(0, str(ROOT))
    from tests.cases.cases import CATALOGUE, DOUBLES, FIELD, TRAPS

    for c in FIELD + TRAPS + DOUBLES + CATALOGUE:
        if names and not any(n in c.name for n in names):
            continue
        result, seconds = investigate(c.workload, budget or c.budget, store)
        right = c.right
        if c.second:
            got = [f.mechanism for f in result.findings]
            right = lambda status, mechanism, c=c, got=got: c.right(status, mechanism) and c.second in got  # noqa: E731
        expected = (c.mechanism or "no_fault") + (f" + {c.second}" if c.second else "")
        yield row("case", c.name, expected, right, result, seconds)


def drills(names: list[str], budget: float | None, store: Store) -> Iterator[Row]:
    chosen = [d for d in catalogue.all_drills() if not names or any(n in d.name for n in names)]
    if chosen:
        catalogue.prepare()
    for d in chosen:
        result, seconds = investigate(d.workload, budget or d.budget_s, store)
        yield row("drill", d.name, d.mechanism or "no_fault", d.right, result, seconds)


def same_pairs(names: list[str], repeats: int, store: Store) -> Iterator[Row]:
    """A/A pairs at 20 s each; every fourth with another process burning one core."""
    sys.path.insert(0, str(ROOT))
    from tests.cases.cases import SAME

    quiet = {"no_fault", "cannot_answer"}
    for i in range(repeats):
        c = SAME[i % len(SAME)]
        if names and not any(n in c.name for n in names):
            continue
        noisy = i % 4 == 3
        with burning(noisy):
            result, seconds = investigate(c.workload, 20.0, store)
        yield row("A/A", c.name + (" + noise" if noisy else ""), "no alarm", lambda s, m: s in quiet, result, seconds)


def slower_pairs(repeats: int, store: Store) -> Iterator[Row]:
    """A true regression of 3 % at 60 s each: right is that it is reported as slower, whatever the cause."""
    for _ in range(repeats):
        result, seconds, c = compared(ROOT / "tests" / "cases" / "slower_pair.toml", 60.0, store)
        assert c is not None
        got = f"{c.verdict} {c.ratio.value:.3f} [{c.ratio.ci[0]:.3f}, {c.ratio.ci[1]:.3f}]" if c.ratio.ci else c.verdict
        found = row("3 %", "slower_pair", "slower", lambda s, m, c=c: c.verdict == "slower", result, seconds)
        yield dataclasses.replace(found, got=got)


def _burn() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def burning(on: bool) -> Iterator[None]:
    """Another process that keeps one core busy."""
    if not on:
        yield
        return
    p = multiprocessing.get_context("spawn").Process(target=_burn, daemon=True)
    p.start()
    try:
        yield
    finally:
        p.kill()
        p.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", type=float, help="seconds for each drill and case (default: their own)")
    parser.add_argument("--same", type=int, default=40, help="how many A/A runs")
    parser.add_argument("--slower", type=int, default=10, help="how many runs of a pair that differs by 3 %%")
    parser.add_argument("--only", choices=("drill", "case", "same", "slower"))
    parser.add_argument("--write", action="store_true", help="keep the table of a partial run too")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        parts = {"drill": drills(args.names, args.budget, store), "case": cases(args.names, args.budget, store),
                 "same": same_pairs(args.names, args.same, store),
                 "slower": slower_pairs(0 if args.names else args.slower, store)}  # fmt: skip
        for kind, part in parts.items():
            if args.only in (None, kind):
                for r in part:
                    rows.append(r)
                    print(r.line(), flush=True)
                    if args.write:
                        TARGET.write_text(report(rows), encoding="utf-8")
    wrong = sum(not r.right for r in rows)
    print(f"{len(rows) - wrong} of {len(rows)} right")
    if args.write or (not args.names and args.only is None):
        TARGET.write_text(report(rows), encoding="utf-8")
        print(f"written to {TARGET.relative_to(ROOT)}")
    return 1 if wrong else 0


def report(rows: list[Row]) -> str:
    """The kept table, by kind."""
    import os
    import platform

    lines = [
        "# How often it is right",
        "",
        f"Made by `make accuracy` on {datetime.date.today().isoformat()}, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}.",
    ]
    for kind, title in (
        ("drill", "Drills"),
        ("case", "Field cases, traps and double faults"),
        ("A/A", "A/A pairs (no alarm is right)"),
        ("3 %", "A true regression of 3 % (slower is right, whatever the cause)"),
    ):
        part = [r for r in rows if r.kind == kind]
        if not part:
            continue
        good = sum(r.right for r in part)
        lines += ["", f"## {title}: {good} of {len(part)} right", "",
                  "| name | right answer | verdict | right | confidence | share closed | seconds |",
                  "|---|---|---|---|---|---|---|"]  # fmt: skip
        for r in part:
            right = "yes" if r.right else "no"
            lines.append(
                f"| {r.name} | {r.expected} | {r.got} | {right} | {r.confidence or '-'} | {r.share} | {r.seconds:.1f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
