"""``python -m tests.torture``: every driver in its long form, with counts. Exit code 1 if anything was wrong."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.torture import kills, load, storage, users


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    options.add_argument("--points", type=int, default=200, help="kill points")
    options.add_argument("--cycles", type=int, default=24, help="cycles of the soak")
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--slack", type=float, default=1.0, help="stretches the bounds in seconds on a busy host")
    options.add_argument("--only", default="", help="part of the name of a driver")
    asked = options.parse_args()
    os.environ["TORTURE_OUTPUT_MB"] = "10000"
    print(f"seed {asked.seed}", flush=True)
    began, wrong = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        for title, driver in drivers(Path(name), asked):
            if asked.only not in title:
                continue
            start = time.monotonic()
            told, problems = driver()
            wrong += problems
            state = "ok   " if not problems else "WRONG"
            print(f"{state} {title:<28} {time.monotonic() - start:6.1f} s  {told}", flush=True)
            for p in problems:
                print(f"      {p}", flush=True)
    print(f"{'all green' if not wrong else f'{len(wrong)} wrong'} in {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def drivers(root: Path, asked: argparse.Namespace) -> list[tuple[str, object]]:
    def killed() -> tuple[str, list[str]]:
        t = kills.campaign(root / "kills", asked.points, asked.seed)
        points = ", ".join(f"{k} {v}" for k, v in sorted(t.points.items()))
        return f"{sum(t.points.values())} kill points ({points}); {t.left} scratch folders swept", t.wrong

    def misbehaving() -> tuple[str, list[str]]:
        problems, longest = [], 0.0
        for b in users.BEHAVIOURS:
            wall, wrong = users.run(b, root / b.name, asked.slack)
            problems += wrong
            longest = max(longest, wall)
        return f"{len(users.BEHAVIOURS)} behaviours, longest {longest:.1f} s", problems

    def disk() -> tuple[str, list[str]]:
        skipped, problems = storage.full_disk(root / "full")
        return (skipped and f"skipped: {skipped}") or "a whole run on a disk of 96 KiB", problems

    def places() -> tuple[str, list[str]]:
        problems = [f"{n}: {p}" for n, check in storage.CHECKS.items() for p in check(root / n.replace(" ", "-"))]
        problems += storage.copied_while_written(root / "copied", 40)
        return f"{', '.join(storage.CHECKS)}, 40 copies of a live session", problems

    def hurt() -> tuple[str, list[str]]:
        n, problems = storage.damaged(root / "damaged", 400, asked.seed)
        return f"{n} damaged copies", problems

    def sizes() -> tuple[str, list[str]]:
        opened, listed = load.many_events(root / "events", 100_000), load.many_sessions(root / "many", 2_000)
        problems = [
            f"{what} took {s:.2f} s" for what, s in (("opening", opened), ("listing", listed)) if s > asked.slack
        ]
        return f"100,000 events open in {opened:.2f} s, 2,000 sessions list in {listed:.2f} s", problems

    def modules() -> tuple[str, list[str]]:
        figures, problems = load.many_modules(root / "modules", 25, asked.slack)
        return f"2,000 modules: {figures}", problems

    def soaked() -> tuple[str, list[str]]:
        figures, problems = load.soak(root / "soak", asked.cycles, fast=False)
        return str({k: round(v, 1) for k, v in figures.items()}), problems

    def abused() -> tuple[str, list[str]]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cli", "tests/torture/test_security.py"],
            env={**os.environ, "SPARSETUI_TORTURE": "long"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
        return last[0], [] if done.returncode == 0 else done.stdout.splitlines()[-30:]

    def drawn() -> tuple[str, list[str]]:
        rooms = ["report", "session", "ingest", "diagnosis", "workload", "evidence", "playbook", "release"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{r}" for r in rooms), "-k",
             "not live and not real"],
            env={**os.environ, "HYPOTHESIS_PROFILE": "random"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
        return f"inputs drawn afresh: {last[0]}", [] if done.returncode == 0 else done.stdout.splitlines()[-30:]

    return [("damage", hurt), ("places", places), ("full disk", disk), ("sizes", sizes), ("user code", misbehaving),
            ("modules", modules), ("soak", soaked), ("command line", abused), ("drawn inputs", drawn),
            ("kills", killed)]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
