"""The live screen through a pseudo-terminal, beside memray's live view through the same one.

Both are shown at 120×36 and asked the same: bytes and CPU while idle or live, seconds until a whole first frame, and until a
key is answered. memray comes from the interpreter that ``SPARSETUI_BENCH_MEMRAY`` names, else from this one; where it
is not installed the rows say so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil

from bench.terminal import Screen, sparsetui, words

Cells = tuple[str, str, str, str]  # what, value, beside, aim

LIVE_S = 12.0
KEYS = 40  # of which the slowest counts
ENGINE = "engine/child.py"

# What memray looks at: a program that allocates and frees in a loop from a few places, as a step of a service does.
PROGRAM = """\
import time

def embed(n): return [bytes(512 + i % 64) for i in range(n)]
def attend(rows): return {i: list(row[:32]) for i, row in enumerate(rows)}
def answer(table): return b"".join(bytes(v) for v in table.values())

print("stepping", flush=True)
while True:
    answer(attend(embed(400)))
    time.sleep(0.004)
"""


def reached(folder: Path, phase: str) -> bool:
    """Whether a run that writes below ``folder`` has begun that phase."""
    ledgers = [p.read_bytes() for p in folder.glob("sessions/*/ledger.jsonl")]
    return any(re.search(rb'"name":"%s[^{}]*"state":"started"' % phase.encode(), data) for data in ledgers)


def ended(folder: Path) -> bool:
    """Whether a run that writes below ``folder`` has come to its result."""
    return any(b'"kind":"result"' in p.read_bytes() for p in folder.glob("sessions/*/ledger.jsonl"))


def engine_of(app: psutil.Process) -> psutil.Process | None:
    """The process in which the app's investigation runs."""
    return next((p for p in app.children() if any(ENGINE in a for a in p.cmdline())), None)


def used(process: psutil.Process | None) -> float:
    """Seconds of CPU so far."""
    if process is None:
        return 0.0
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def ours(repeats: int) -> Iterator[Cells]:
    """The app: idle, while the first drill's clock runs, and its keys from the first phase of another run on."""
    for truecolour in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sessions").mkdir()
            screen = Screen([sparsetui(), "drill"], Path(folder), truecolour=truecolour)
            try:
                screen.until(lambda out: b"quit" in words(out))
                screen.read(1.5)
                if not truecolour:
                    rate, cpu = screen.over(6.0)
                    yield "idle, bytes to the terminal", f"{rate / 1e3:.2f} kB/s", "a still screen", "≤ 0.2 kB/s"
                    yield "idle, CPU of the app", percent(cpu), "", "≤ 1 %"
                screen.press("R")
                # the screen repaints changed cells only, so a word on it cannot be waited for: the ledger tells the phase
                screen.until(lambda out, place=Path(folder): reached(place, "clock"))
                yield from _live(screen, truecolour)
            finally:
                screen.close()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sessions").mkdir()
        screen = Screen([sparsetui(), "drill"], Path(folder))
        try:
            screen.until(lambda out: b"quit" in words(out))
            screen.read(1.5)
            screen.press("R")
            screen.until(lambda out: reached(Path(folder), "lock"))
            yield _keys(screen, Path(folder), max(KEYS, repeats))
        finally:
            screen.close()


def _live(screen: Screen, truecolour: bool) -> Iterator[Cells]:
    colours = "truecolour" if truecolour else "16 colours"
    engine, began = engine_of(screen.process), time.perf_counter()
    before = used(engine)
    rate, cpu = screen.over(LIVE_S)
    behind = (used(engine) - before) / (time.perf_counter() - began)
    aim = "≤ 12 kB/s" if truecolour else "≤ 6 kB/s"
    yield f"live, bytes to the terminal, {colours}", f"{rate / 1e3:.2f} kB/s", "the clock of the drill, 120×36", aim
    yield f"live, CPU of the app, {colours}", percent(cpu), "what draws, and follows the ledger", "≤ 5 %"
    if not truecolour:
        said = "statistics and disk, between blocks; a process of its own"
        yield "live, CPU of the engine behind it", percent(behind), said, ""


def _keys(screen: Screen, folder: Path, most: int) -> Cells:
    """Into the help and back, again and again, as long as the run lasts: two screens that are drawn whole."""
    took: list[float] = []
    while len(took) < most and not ended(folder):
        took.append(screen.answer("?", b"A key that cannot act"))
        screen.read(0.25)
        took.append(screen.answer("\x1b", b"dense-fallback"))
        screen.read(0.25)
    said = f"{len(took)} keys: ? until the help is there, Esc until it is gone; the range in brackets"
    return "live, a key is answered", spread(took), said, "≤ 100 ms"


def peer(repeats: int) -> Iterator[Cells]:
    """memray's live view of a small program that allocates in a loop."""
    python = os.environ.get("SPARSETUI_BENCH_MEMRAY", sys.executable)
    found = subprocess.run([python, "-m", "memray", "--version"], capture_output=True, text=True, check=False)
    if found.returncode:
        why = "not installed here; SPARSETUI_BENCH_MEMRAY=PYTHON names an interpreter that has it"
        yield "memray's live view", "unavailable", why, ""
        return
    name = f"memray {found.stdout.strip()} live"
    for truecolour in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.py").write_text(PROGRAM)
            argv = [python, "-m", "memray", "run", "--live", "program.py"]
            screen = Screen(argv, Path(folder), truecolour=truecolour)
            try:
                screen.until(lambda out: b"Pause" in words(out) and b"program.py" in words(out))
                first = time.perf_counter() - screen.began
                screen.read(2.0)
                rate, cpu = screen.over(LIVE_S)
                colours = "truecolour" if truecolour else "16 colours"
                yield (
                    f"{name}, bytes, {colours}",
                    f"{rate / 1e3:.2f} kB/s",
                    "a program that allocates in a loop, 120×36",
                    "",
                )
                yield f"{name}, CPU, {colours}", percent(cpu), "its screen's process alone", ""
                if not truecolour:
                    yield f"{name}, first frame", f"{1e3 * first:.0f} ms", "until its table and its keys are there", ""
                    yield _pauses(screen, name, max(4, repeats))
            finally:
                _end(screen)


def _pauses(screen: Screen, name: str, count: int) -> Cells:
    took = []
    for i in range(count):
        took.append(screen.answer(" ", b"Unpause" if i % 2 == 0 else b"Pause"))
        screen.read(0.6)
    return f"{name}, a key is answered", spread(took), "space until the key bar has changed", ""


def _end(screen: Screen) -> None:
    """Memray leaves the program that it looks at running when it is told to end; it was started here."""
    behind = screen.process.children(recursive=True)
    screen.close()
    for process in behind:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass


def percent(share: float) -> str:
    return f"{100 * share:.1f} % of a core"


def spread(seconds: list[float]) -> str:
    return f"{1e3 * median(seconds):.0f} ms ({1e3 * min(seconds):.0f} to {1e3 * max(seconds):.0f})"
