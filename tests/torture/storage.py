"""What disks, clocks, copies and other writers do to sessions."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import sparsetui.session.ledger as ledger
from sparsetui.session.errors import LockedError, SessionError, StorageError
from sparsetui.session.folder import LEDGER
from sparsetui.session.store import Store
from tests.torture.rig import Rig, running, sound, workload


def full_disk(folder: Path) -> tuple[str, list[str]]:
    """A whole investigation whose sessions lie on a disk of 96 KiB. Returns a reason for skipping, and what was wrong."""
    mount = folder / "disk"
    mount.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(mount)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        return f"a small tmpfs cannot be mounted: {made.stderr.strip()}", []
    try:
        with running(Rig(folder / "run")) as rig:
            rig.sessions = mount / "sessions"
            rig.start(workload(folder, "fine"))
            code = rig.wait(90)
            problems = rig.gone() + [f"left: {x}" for x in rig.litter()]
            if code != 3 or "the disk is full" not in rig.err:
                problems.append(f"exit code {code}: {rig.err[-400:]}")
            if "Traceback" in rig.err or "a bug in" in rig.err:
                problems.append(rig.err[-600:])
            store = Store(rig.sessions)
            for s in store.list():
                report = store.verify(s.id)
                problems += [] if report.ok and s.events > 3 else [f"{s.events} events; {report.lines()}"]
                store.open(s.id).state()
            return "", problems
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


def no_place(folder: Path) -> list[str]:
    """No home, a folder that may not be written, a read-only one: one line, exit code 2, and nothing is started."""
    problems = []
    closed = folder / "closed"
    closed.mkdir(parents=True, mode=0o555)
    path = workload(folder, "fine")
    cases: list[tuple[str, list[str], dict[str, str]]] = [
        ("no home", [], {"HOME": "/proc/nowhere", "XDG_DATA_HOME": "/proc/nowhere"}),
        ("read-only", ["--sessions", "/proc/sys/x"], {}),
    ]
    if os.geteuid():
        cases.append(("not permitted", ["--sessions", str(closed / "s")], {}))
    for what, more, env in cases:
        done = subprocess.run(
            [sys.executable, "-m", "sparsetui", "investigate", str(path), "--headless", "--budget", "5", *more],
            capture_output=True, text=True, cwd=folder, stdin=subprocess.DEVNULL, env={**os.environ, **env}, timeout=60,
        )  # fmt: skip
        said = [x for x in done.stderr.splitlines() if x.startswith("sparsetui: ")]
        if done.returncode != 2 or len(said) != 1 or "Traceback" in done.stderr:
            problems.append(f"{what}: exit code {done.returncode}: {done.stderr[-300:]}")
    return problems


def clock_jumps(folder: Path) -> list[str]:
    """The ledger's clock goes back by years and forward by decades between events."""
    times = iter(["2026-11-30T10:00:00Z", "1970-01-01T00:00:00Z", "2099-12-31T23:59:59Z", "2001-01-01T00:00:00Z"] * 50)
    real = ledger.now
    store = Store(folder / "sessions")
    try:
        ledger.now = lambda: next(times)
        with store.create("clock") as w:
            for i in range(40):
                w.append("note", {"text": str(i)})
    finally:
        ledger.now = real
    report, state = store.verify(w.id), store.open(w.id).state()
    notes = [e for e in store.open(w.id).events() if e.kind == "note"]
    problems = [] if report.ok and state.events == 41 else report.lines()
    if [e.seq for e in notes] != sorted(e.seq for e in notes):
        problems.append("the order is that of the clock, not that of the ledger")
    return problems + sound(store.root)


def two_writers(folder: Path) -> list[str]:
    """A second writer is refused with the name of the first, and nothing of either is lost."""
    store, problems = Store(folder / "sessions"), []
    with store.create("two") as first:
        try:
            store.writer(first.id)
            problems.append("a second writer was let in")
        except LockedError as e:
            problems += [] if str(os.getpid()) in str(e) else [f"the first is not named: {e}"]
        threads = [
            threading.Thread(target=lambda: [first.append("note", {"text": "x"}) for _ in range(20)]) for _ in range(4)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    events = store.open(first.id).state().events
    return problems + ([] if events == 81 else [f"{events} events, not 81"]) + sound(store.root)


def copied_while_written(folder: Path, copies: int) -> list[str]:
    """A copy made at any moment opens, and holds all that was acknowledged before the copying began."""
    store, problems, stop = Store(folder / "sessions"), [], threading.Event()
    with store.create("live") as w:

        def write() -> None:
            i = 0
            while not stop.is_set():
                w.append("log", {"source": "t", "text": "y" * (i * 31 % 2000)})
                if i % 4 == 0:
                    w.evidence("kernel", "census", {"i": i})
                i += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for n in range(copies):
                before = w.state().events
                there = folder / "copies" / f"{n}" / w.id
                shutil.copytree(w.path, there, ignore=shutil.ignore_patterns(".tmp-*"))
                copy = Store(there.parent)
                got = copy.open(w.id).state().events
                problems += [] if got >= before else [f"copy {n}: {got} of {before} events"]
                with copy.writer(w.id) as again:
                    again.append("note", {"text": "gone on"})
        finally:
            stop.set()
            writer.join()
    return problems + sound(store.root)


def _says_the_same(artifact: Path, data: bytes) -> bool:
    """gzip has bits that carry nothing: its time and system, and what pads the last byte. A flip there damages nothing."""
    if artifact.suffix != ".gz":
        return False
    try:
        return hashlib.sha256(gzip.decompress(data)).hexdigest() == artifact.name.partition(".")[0]
    except (OSError, EOFError, zlib.error):
        return False


def damaged(folder: Path, times: int, seed: int) -> tuple[int, list[str]]:
    """Flip or tear bytes of ledger and artifacts: each is told by ``verify``, and the rest still opens."""
    dice, problems, done = random.Random(seed), [], 0
    store = Store(folder / "sessions")
    with store.create("victim") as w:
        for i in range(30):
            w.append("note", {"text": f"n{i}"})
            w.evidence("kernel", "census", {"i": i, "pad": "z" * 50})
    files = [w.path / LEDGER, *sorted(w.path.glob("artifacts/*/*.gz"))]
    for n in range(times):
        there = folder / "hurt" / str(n) / w.id
        shutil.copytree(w.path, there)
        target = there / dice.choice(files[:1] * 20 + files[1:]).relative_to(w.path)
        data = bytearray(target.read_bytes())
        act = dice.choice(("flip", "tear", "zero"))
        at = dice.randrange(len(data))
        if act == "flip":
            data[at] ^= 1 << dice.randrange(8)
        elif act == "tear":
            del data[at:]
        else:
            data[at : at + 16] = bytes(len(data[at : at + 16]))
        if bytes(data) == target.read_bytes() or _says_the_same(target, bytes(data)):
            continue
        target.write_bytes(data)
        done += 1
        hurt = Store(there.parent)
        try:
            report = hurt.verify(w.id)
            if report.ok:
                problems.append(f"{act} at {at} of {target.name}: verify says that it is whole")
            hurt.list()
            hurt.open(w.id).state()
            with hurt.writer(w.id) as again:
                again.append("note", {"text": "gone on"})
        except SessionError as e:
            if "\n" in str(e):
                problems.append(f"{act} at {at} of {target.name}: {e}")
            if not isinstance(e, StorageError):
                problems.append(f"{act} at {at} of {target.name}: does not open: {e}")
        except Exception as e:
            problems.append(f"{act} at {at} of {target.name}: {type(e).__name__}: {e}")
        shutil.rmtree(there.parent)
    return done, problems


CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "no place to save": no_place,
    "clock jumps": clock_jumps,
    "two writers": two_writers,
}
TOLD = {
    "no place to save": "no home, a read-only place, and one that is not permitted where the user is not root",
    "clock jumps": "40 events over 129 years",
    "two writers": "81 of 81 events of 4 threads",
}
