"""Kill the tool, its workers, its fork servers and py-spy at random points, and look at what is left each time."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.torture.rig import Rig, running, sound, workload

WHOLE_S = 9.0  # how far into a run of 5 s of budget, on two quiet cores, a random point may lie
OVER_S = 60.0  # on a busy host
LAST_S = 45.0  # what a lane needs at its end: the run that was begun, ten seconds of grace, and the last run


@dataclass
class Tally:
    """Points by kind, and each thing that was wrong. Lanes that run side by side share one."""

    points: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    left: int = 0  # scratch folders that the killed left, before the last run
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hit(self, kind: str) -> None:
        with self.lock:
            self.points[kind] += 1

    def end(self, how: str) -> None:
        with self.lock:
            self.ends[how] += 1

    def total(self) -> int:
        with self.lock:
            return sum(self.points.values())

    def check(self, kind: str, problems: list[str]) -> None:
        self.wrong += [f"{kind}: {p}" for p in problems]


def tool(folder: Path, tmp: Path, sent: int, moment: float, tally: Tally, *, stops: int = 0) -> None:
    """``sent`` to the tool ``moment`` seconds after its start, after ``stops`` times of being stopped and going on."""
    name = signal.Signals(sent).name
    with running(Rig(folder, tmp)) as rig:
        process = rig.start(workload(folder, "fine"))
        for _ in range(stops):
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment / (stops + 1))
            if process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.3)
                tally.hit("tool SIGSTOP")
                process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment / (stops + 1))
        if process.poll() is None:
            process.send_signal(sent)
            tally.hit(f"tool {name}")
        else:
            tally.end("over before its moment")
        try:
            code = rig.wait(OVER_S)
        except subprocess.TimeoutExpired:
            tally.check(f"tool {name} at {moment:.2f} s", [f"still running {OVER_S:.0f} s later"])
            return
        tally.end(f"{name}: {code}")
        problems = rig.gone()
        if sent != signal.SIGKILL:
            allowed = {130, -sent, 0, 1, 3}
            problems += [] if code in allowed else [f"exit code {code}: {rig.err[-300:]}"]
            if "Traceback" in rig.err or "a bug in" in rig.err:
                problems.append(rig.err[-600:])
        litter = rig.new_litter()
        if code != -sent and litter:  # a signal that ends it at once leaves its folder to the next run
            problems.append(f"left in TMPDIR: {litter[:5]}")
        problems += sound(rig.sessions)
        tally.check(f"tool {name} at {moment:.2f} s", problems)


def app(folder: Path, tmp: Path, how: str, moment: float, tally: Tally) -> None:
    """The app itself on a terminal, in a run that it was told to begin. ``how`` is a signal, or ``window`` for one that closes."""
    name = f"app {how}"
    with running(Rig(folder, tmp)) as rig:
        screen = rig.start_app(workload(folder, "fine"))
        try:
            if not screen.shows(b"quit", OVER_S):
                tally.check(name, [f"no first screen: {screen.out[-200:]!r}"])
                return
            screen.press("R")
            if not screen.shows(b"this runs code", OVER_S):
                tally.check(name, [f"it does not ask before it runs code: {screen.out[-200:]!r}"])
                return
            screen.press("\r")
            time.sleep(moment)
            if how == "window":
                screen.close()
            else:
                rig.kill(signal.Signals[how])
            tally.hit(name)
            code = rig.wait(OVER_S)
        except subprocess.TimeoutExpired:
            tally.check(f"{name} at {moment:.2f} s", [f"still running {OVER_S:.0f} s later"])
            return
        finally:
            screen.close()
        tally.end(f"{name}: {code}")
        problems = rig.gone() + sound(rig.sessions)
        if how != "SIGKILL":
            problems += [] if code == 130 else [f"exit code {code}, not 130: {screen.out[-300:]!r}"]
            problems += [f"left in TMPDIR: {rig.new_litter()[:5]}"] if rig.new_litter() else []
        if how in ("SIGTERM", "SIGHUP") and not screen.restored:
            problems.append(f"the terminal is not given back: {screen.out[-200:]!r}")
        if b"Traceback" in screen.out:
            problems.append(f"a traceback on the screen: {screen.out[-600:]!r}")
        tally.check(f"{name} at {moment:.2f} s", problems)


def part(folder: Path, tmp: Path, what: str, sent: int, dice: random.Random, tally: Tally, times: int = 2) -> None:
    """``sent`` to a replica, a fork server or py-spy, ``times`` in one run; the tool itself must come to an end."""
    name = f"{what} {signal.Signals(sent).name}"
    finders: dict[str, Callable[[Rig], list[psutil.Process]]] = {
        "replica": Rig.replicas,
        "server": Rig.servers,
        "py-spy": Rig.py_spies,
    }
    with running(Rig(folder, tmp)) as rig:
        began = time.monotonic()
        process = rig.start(workload(folder, "fine"), 15 if what == "py-spy" else 6)
        for _ in range(times):
            found: list[psutil.Process] = []
            while process.poll() is None and not found:
                found = finders[what](rig)
                time.sleep(0.01)
            time.sleep(dice.random() * (0.1 if what == "py-spy" else 2.0))
            found = finders[what](rig) or found
            if not found:
                break
            with suppress(psutil.Error, ProcessLookupError):
                os.kill(dice.choice(found).pid, sent)
                tally.hit(name)
                if sent == signal.SIGSTOP:
                    time.sleep(0.4)
                    for p in found:
                        with suppress(psutil.Error):
                            p.resume()
        try:
            code = rig.wait(OVER_S)
        except subprocess.TimeoutExpired:
            tally.check(name, [f"still running after {time.monotonic() - began:.0f} s"])
            return
        tally.end(f"{name}: {code}")
        problems = rig.gone() + sound(rig.sessions)
        problems += [f"left in TMPDIR: {rig.new_litter()[:5]}"] if rig.new_litter() else []
        if code not in (0, 1, 3):
            problems.append(f"exit code {code}: {rig.err[-300:]}")
        if "Traceback" in rig.err or "a bug in" in rig.err:
            problems.append(rig.err[-600:])
        tally.check(name, problems)


def lane(folder: Path, points: int, seed: int, tally: Tally, until: float = math.inf) -> None:
    """One run after the other, spread over all parts and half of them on the tool itself, until ``tally`` holds ``points``.

    None begins after ``until`` (monotonic seconds). Lanes may run side by side on one tally.
    """
    dice, n = random.Random(seed), 0
    tmp = folder / "tmp"  # one for all, as on a host: each run finds what the killed one before it left
    tmp.mkdir(parents=True)
    plan: list[Callable[[Path], None]] = [
        lambda f: tool(f, tmp, signal.SIGKILL, dice.uniform(0.2, WHOLE_S), tally, stops=1),
        lambda f: part(f, tmp, "replica", signal.SIGKILL, dice, tally, 3),
        lambda f: tool(f, tmp, signal.SIGTERM, dice.uniform(0.5, WHOLE_S), tally, stops=2),
        lambda f: app(f, tmp, "SIGKILL", dice.uniform(0.1, 6.0), tally),
        lambda f: tool(f, tmp, signal.SIGKILL, dice.uniform(0.2, 5.0), tally),
        lambda f: part(f, tmp, "server", signal.SIGKILL, dice, tally, 1),
        lambda f: tool(f, tmp, signal.SIGHUP, dice.uniform(0.5, 8.0), tally, stops=2),
        lambda f: part(f, tmp, "replica", signal.SIGSTOP, dice, tally, 6),
        lambda f: app(f, tmp, dice.choice(("SIGTERM", "SIGHUP", "window")), dice.uniform(0.1, 6.0), tally),
        lambda f: tool(f, tmp, signal.SIGKILL, dice.uniform(1.0, 8.0), tally, stops=2),
        lambda f: part(f, tmp, "py-spy", dice.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)), dice, tally, 3),
        lambda f: tool(f, tmp, signal.SIGTERM, dice.uniform(0.5, 5.0), tally, stops=2),
        lambda f: part(f, tmp, "server", signal.SIGSTOP, dice, tally, 5),
        lambda f: part(f, tmp, "replica", signal.SIGTERM, dice, tally, 2),
    ]
    while tally.total() < points and time.monotonic() < until:
        plan[(n + seed) % len(plan)](folder / f"run-{n}")
        n += 1
    last(folder / "last", tmp, tally)


def last(folder: Path, tmp: Path, tally: Tally) -> None:
    """A run that nobody disturbs: it ends as ever, and takes away what all the killed ones left."""
    left = len(list(tmp.iterdir()))
    tally.left += left
    time.sleep(10.0 if left else 0.0)  # an empty folder is left alone so long: its maker may be about to use it
    with running(Rig(folder, tmp)) as rig:
        rig.start(workload(folder, "fine"))
        code = rig.wait(OVER_S)
        problems = rig.gone() + sound(rig.sessions)
        problems += [f"never swept: {rig.litter()}"] if rig.litter() else []
        tally.check(f"the last run (exit code {code})", problems)
