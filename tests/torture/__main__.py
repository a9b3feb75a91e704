"""``python -m tests.torture``: every driver in its long form, with counts. Exit code 1 if anything was wrong.

What changes this process for a moment (its clock, its fsync) or is judged by seconds runs alone; all else runs two at a time.
The figures go into ``docs/promises.md``, beside the promises they belong to.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture import kills, load, promises, soak, storage, users

ROOT = promises.ROOT
LANES = 2  # of kills, side by side: most of a run is waiting


@dataclass
class Told:
    """What a driver found: a line for the terminal, what was wrong, and its figures by the keys of the page of promises."""

    line: str
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)


Driver = Callable[[], Told]


class Torture:
    """The drivers on one folder; what they say goes to the terminal as each ends."""

    def __init__(self, root: Path, asked: argparse.Namespace) -> None:
        self.root, self.asked = root, asked
        self.began = time.monotonic()
        self.until = self.began + 60 * asked.minutes
        self.wrong: list[str] = []
        self.figures: dict[str, str] = {}
        self.cases: list[promises.Case] = []
        self.tally = kills.Tally()
        self._say = threading.Lock()

    def run(self) -> None:
        for title, driver in self.wanted(self.alone()):
            self.one(title, driver)
        beside = self.wanted(self.beside())
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(self.one, title, driver) for title, driver in beside]:
                done.result()
        if any(title.startswith("kills") for title, _ in beside):
            self.one("kills", self.killed)

    def wanted(self, drivers: list[tuple[str, Driver]]) -> list[tuple[str, Driver]]:
        return [(t, d) for t, d in drivers if self.asked.only in t]

    def one(self, title: str, driver: Driver) -> None:
        start = time.monotonic()
        try:
            told = driver()
        except Exception as e:  # a driver that breaks is wrong, and the others go on
            told = Told("broke", [f"{type(e).__name__}: {e}"])
        with self._say:
            self.wrong += [f"{title}: {w}" for w in told.wrong]
            self.figures |= {k: f"WRONG: {v}" if told.wrong else v for k, v in told.figures.items()}
            state = "WRONG" if told.wrong else "ok   "
            print(f"{state} {title:<14} {time.monotonic() - start:6.1f} s  {told.line}", flush=True)
            for p in told.wrong:
                print(f"      {p}", flush=True)

    # -- one at a time -------------------------------------------------------------------------------------------

    def alone(self) -> list[tuple[str, Driver]]:
        return [("sizes", self.sizes), ("modules", self.modules), ("damage", self.damage), ("places", self.places),
                ("full disk", self.full_disk)]  # fmt: skip

    def sizes(self) -> Told:
        opened, listed = load.many_events(self.root / "events", 100_000), load.many_sessions(self.root / "many", 2_000)
        slow = [
            f"{what} took {s:.2f} s" for what, s in (("opening", opened), ("listing", listed)) if s > self.asked.slack
        ]
        figures = {"sizes.open": f"100,000 events in {opened:.2f} s", "sizes.list": f"2,000 sessions in {listed:.2f} s"}
        return Told(", ".join(figures.values()), slow, figures)

    def modules(self) -> Told:
        figures, wrong = load.many_modules(self.root / "modules", 25, self.asked.slack)
        told = ", ".join(f"{k.replace('_', ' ')} {v:.1f}" for k, v in figures.items())
        line = f"2,000 modules, a budget of 25 s, a bound of 41.25 s: {told}"
        return Told(line, wrong, {"modules": line})

    def damage(self) -> Told:
        n, wrong = storage.damaged(self.root / "damaged", 400, self.asked.seed)
        return Told(f"{n} damaged copies", wrong, {"damage": f"{n} damaged copies"})

    def places(self) -> Told:
        figures, wrong = {}, []
        for name, check in storage.CHECKS.items():
            bad = check(self.root / name.replace(" ", "-"))
            figures[f"places.{name}"] = "WRONG" if bad else storage.TOLD[name]
            wrong += [f"{name}: {b}" for b in bad]
        wrong += storage.copied_while_written(self.root / "copied", 40)
        figures["places.copies"] = "40 copies of a live session"
        return Told("; ".join(figures.values()), wrong, figures)

    def full_disk(self) -> Told:
        skipped, wrong = storage.full_disk(self.root / "full")
        line = f"skipped: {skipped}" if skipped else "a whole run on a disk of 96 KiB"
        return Told(line, wrong, {"full disk": line})

    # -- two at a time -------------------------------------------------------------------------------------------

    def beside(self) -> list[tuple[str, Driver]]:
        lanes = [(f"kills {i}", self.lane(i)) for i in range(LANES)]
        # the longest first; the kills, which share their points, fill up what is left on either side
        return [("command line", self.abused), ("user code", self.misbehaving), ("tests", self.named), ("soak", self.soaked),
                ("drawn inputs", self.drawn), *lanes]  # fmt: skip

    def soaked(self) -> Told:
        f, wrong = soak.run(self.root / "soak", self.asked.cycles)
        if not f:
            return Told("no figures", wrong)
        kinds = ", ".join(f"{f[k]:.0f} × {k}" for k in soak.KINDS if k in f)
        line = (
            f"{f['cycles']:.0f} cycles ({kinds}) in {f['seconds']:.0f} s: {f['mib_early']:.1f} → {f['mib_late']:.1f} MiB, "
            f"{f['descriptors_early']:.0f} → {f['descriptors_late']:.0f} descriptors, {f['threads_early']:.0f} → "
            f"{f['threads_late']:.0f} threads, {f['children_late']:.0f} children"
        )
        return Told(line, wrong, {"soak": line})

    def misbehaving(self) -> Told:
        wrong, longest = [], 0.0
        for b in users.BEHAVIOURS:
            wall, bad = users.run(b, self.root / b.name, self.asked.slack)
            wrong += bad
            longest = max(longest, wall)
        faulty = [b.name for b in users.BEHAVIOURS if b.words]
        tolerated = [b.name for b in users.BEHAVIOURS if not b.words]
        figures = {
            "user code.faults": f"{len(faulty)} behaviours: {', '.join(faulty)}",
            "user code.answers": f"{len(tolerated)} behaviours: {', '.join(tolerated)}",
            "user code.bounds": f"longest {longest:.1f} s of wall for a budget of {users.BUDGET_S:g} s, start and end included",
        }
        return Told(f"{len(users.BEHAVIOURS)} behaviours, longest {longest:.1f} s", wrong, figures)

    def abused(self) -> Told:
        return self.pytest(
            "command line", ["tests/cli/test_abuse.py", "tests/torture/test_security.py"], SPARSETUI_TORTURE="long"
        )

    def named(self) -> Told:
        """The tests that the page of promises names, with inputs drawn afresh."""
        return self.pytest("tests", self.files(), HYPOTHESIS_PROFILE="random")

    def drawn(self) -> Told:
        """All other tests that draw their inputs, drawn afresh."""
        done = ["tests/cli", "tests/torture", *self.files()]
        return self.pytest("drawn inputs", ["tests", "-m", "hypothesis", *(f"--ignore={f}" for f in done)],
                           HYPOTHESIS_PROFILE="random")  # fmt: skip

    def files(self) -> list[str]:
        named = promises.test_files(promises.PAGE.read_text(encoding="utf-8"))
        return [f for f in named if not f.startswith(("tests/cli/", "tests/torture/"))]

    def pytest(self, title: str, arguments: list[str], **env: str) -> Told:
        junit = self.root / f"{title}.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}", *arguments],
            env={**os.environ, **env}, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        with self._say:
            self.cases += promises.cases(junit)
        last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
        if done.returncode == 0:
            return Told(last[0])
        failed = [x for x in done.stdout.splitlines() if x.startswith(("FAILED ", "ERROR "))]
        return Told(last[0], failed or done.stdout.splitlines()[-8:] + done.stderr.splitlines()[-4:])

    def lane(self, number: int) -> Driver:
        def go() -> Told:
            before = self.tally.total()
            kills.lane(self.root / f"kills-{number}", self.asked.points, self.asked.seed + number, self.tally,
                       self.until - kills.LAST_S)  # fmt: skip
            return Told(f"{self.tally.total() - before} points in both while this one ran")

        return go

    def killed(self) -> Told:
        """What the lanes found together."""
        t = self.tally
        points = ", ".join(f"{k} {v}" for k, v in sorted(t.points.items()))
        short = [f"{t.total()} of {self.asked.points} points within {self.asked.minutes:g} minutes"]
        ends = ", ".join(f"{k} × {v}" for k, v in sorted(t.ends.items()) if k.startswith(("SIGTERM", "SIGHUP", "app")))
        figures = {
            "kills": f"{t.total()} kill points: {points}",
            "kills.ends": f"exit codes: {ends}",
            "kills.swept": f"{t.left} scratch folders of killed runs swept",
        }
        return Told(figures["kills"], t.wrong + (short if t.total() < self.asked.points else []), figures)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    options.add_argument("--points", type=int, default=200, help="kill points")
    options.add_argument("--cycles", type=int, default=24, help="cycles of the soak")
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--slack", type=float, default=1.0, help="stretches the bounds in seconds on a busy host")
    options.add_argument("--minutes", type=float, default=15, help="no kill point after that long (default 15)")
    options.add_argument("--only", default="", help="part of the name of a driver")
    options.add_argument("--no-record", action="store_true", help="leave the page of promises as it is")
    asked = options.parse_args()
    os.environ |= {"TORTURE_OUTPUT_MB": "10000", "TORTURE_BUILD_S": "120"}
    print(f"seed {asked.seed}", flush=True)
    about = promises.host()
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        torture = Torture(Path(name), asked)
        torture.run()
    took = time.monotonic() - torture.began
    state = "all green" if not torture.wrong else f"{len(torture.wrong)} wrong"
    print(f"{state} in {took:.0f} s")
    if not asked.no_record:
        text = promises.fill(promises.PAGE.read_text(encoding="utf-8"), torture.figures, torture.cases)
        if not asked.only:
            stretched = f", bounds stretched {asked.slack:g} times" if asked.slack != 1 else ""
            told = f"{time.strftime('%Y-%m-%d')}, {state} in {took:.0f} s, seed {asked.seed}{stretched}; {about}."
            text = promises.headline(text, told)
        promises.PAGE.write_text(text, encoding="utf-8")
    return 1 if torture.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
