"""``make bench``: how long the things that people wait for take here, as one table.

    python -m bench [NAME…] [--list] [--repeats N]

Each row says what was measured, beside what, and what is aimed at. Nothing fails on time: a figure depends on the host and on
what else it does, so its load is printed first. A row that could not be measured says why.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from bench import terminal_live
from bench.terminal import Screen, sparsetui, words

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    what: str
    value: str
    beside: str = ""
    aim: str = ""


Bench = Callable[[int], Iterator[Row]]
BENCHES: dict[str, Bench] = {}


def bench(f: Bench) -> Bench:
    BENCHES[f.__name__] = f
    return f


def times(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of ``repeats`` runs."""
    out = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        out.append(time.perf_counter() - began)
    return out


def ms(seconds: list[float]) -> str:
    return f"{1e3 * median(seconds):.1f} ms" + (
        f" ({1e3 * min(seconds):.1f}–{1e3 * max(seconds):.1f})" if len(seconds) > 1 else ""
    )


def python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


@bench
def version(repeats: int) -> Iterator[Row]:
    """The command that answers at once."""
    ours = times(lambda: subprocess.run([sparsetui(), "--version"], check=True, capture_output=True), repeats)
    bare = times(lambda: python("pass"), repeats)
    yield Row(
        "sparsetui --version", ms(ours), f"{median(ours) / median(bare):.1f} × python -c pass ({ms(bare)})", "≤ 150 ms"
    )


@bench
def spawn(repeats: int) -> Iterator[Row]:
    """A replica from the warm fork server, against an interpreter that imports torch."""
    from sparsetui.worker.handle import Launch, Server

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "serving.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(8, 8)\n")
        spec = {"entry": "serving.py:build", "inputs": {"shape": [1, 8]}}
        with Server(Launch(place, threads=1, label="bench"), place / "scratch") as server:
            bare, built = [], []
            for _ in range(max(repeats, 5)):
                began = time.perf_counter()
                replica = server.spawn(spec)
                bare.append(time.perf_counter() - began)
                replica.call("build", deadline_s=60)
                built.append(time.perf_counter() - began)
                replica.close()
    cold = times(lambda: python("import torch"), 2)
    beside = f"{median(cold) / median(bare):.0f} × faster than python -c 'import torch' ({ms(cold)})"
    yield Row("a warm replica is up", ms(bare), beside, "≤ 50 ms")
    yield Row("… and has built a tiny model", ms(built))


@bench
def frame(repeats: int) -> Iterator[Row]:
    """From the start of the process to the last byte of the first whole screen, which ends with the key bar."""
    took = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sessions").mkdir()
            screen = Screen([sparsetui()], Path(folder))
            try:
                screen.until(lambda out: b"quit" in words(out))
                took.append(time.perf_counter() - screen.began)
            finally:
                screen.close()
    code = "import textual.app"
    bare = times(lambda: python(code), repeats)
    yield Row(
        "the app's first frame, 120×36",
        ms(took),
        f"{median(took) / median(bare):.1f} × import textual.app ({ms(bare)})",
        "≤ 600 ms",
    )


@bench
def line(repeats: int) -> Iterator[Row]:
    """Bytes to the terminal, CPU of the app and answers to keys: idle, and while a drill runs; and memray's live view."""
    from sparsetui.workload.drills import catalogue

    catalogue.prepare(lambda text: print(text, file=sys.stderr))
    for cells in chain(terminal_live.ours(repeats), terminal_live.peer(repeats)):
        yield Row(*cells)


@bench
def demo(repeats: int) -> Iterator[Row]:
    """A whole default investigation of the first drill, as ``sparsetui drill --headless`` does it."""
    from sparsetui.workload.drills import catalogue

    catalogue.prepare(lambda text: print(text, file=sys.stderr))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run([sparsetui(), "drill", "--headless", "--budget", "60", "--sessions", folder],
                              capture_output=True, text=True, timeout=600)  # fmt: skip
        took = time.perf_counter() - began
    said = {0: "no fault", 1: "a fault, named", 3: "cannot answer"}.get(done.returncode, f"exit {done.returncode}")
    yield Row("a default investigation of the demo", f"{took:.1f} s", f"budget 60 s; {said}", "≤ 75 s on two cores")


@bench
def off(repeats: int) -> Iterator[Row]:
    """What interventions cost while they are off: pairs of processes, in one of which they were made ready and tried."""
    from sparsetui.diagnosis.stats import Block, Round, compare
    from sparsetui.worker.handle import Launch, Replica, Server
    from sparsetui.workload.drills import catalogue
    from sparsetui.workload.spec import load

    catalogue.prepare(lambda text: print(text, file=sys.stderr))
    w = load(catalogue.get(None).workload)
    spec: dict[str, Any] = {
        "entry": w.failing.entry.text,
        "inputs": {"entry": w.inputs.entry.text if w.inputs.entry else ""},
    }
    name, ask = "swap-sides", {"count": 8, "warm": 2}
    rounds, under = [], []

    def block(replica: Replica, side: str, order: int) -> Block:
        return Block(side, f"{side}-{replica.pid}", order, replica.call("block", ask, deadline_s=60)["times_ms"])

    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Launch(w.folder, threads=1, label="bench"), Path(folder)) as server,
    ):
        for _ in range(max(repeats, 5)):
            tried, fresh = server.spawn(spec), server.spawn(spec)
            for replica in (tried, fresh):
                replica.call("build", deadline_s=60)
                replica.call("settle", {"seconds": 1.0}, deadline_s=60)
            tried.call("check", {"intervention": name, "count": 2}, deadline_s=60)
            order = "tfft" * 3
            blocks = [block({"t": tried, "f": fresh}[side], side, i) for i, side in enumerate(order)]
            rounds.append(Round([b for b in blocks if b.variant == "t"], [b for b in blocks if b.variant == "f"]))
            arms = ["off", f"control:{name}", f"control:{name}", "off"]
            level = [median(b["times_ms"]) for b in tried.call("arms", {**ask, "arms": arms}, deadline_s=60)["blocks"]]
            under.append((level[1] + level[2]) / (level[0] + level[3]))
            tried.close()
            fresh.close()
    found = compare(rounds)
    low, high = found.ratio.ci or (float("nan"), float("nan"))
    cost = 100 * ((found.ratio.value or float("nan")) - 1)
    beside = f"processes that never saw one; {found.rounds} pairs, 95 % from {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %"
    yield Row("a step with interventions ready, all off", f"{cost:+.1f} %", beside, "0 %: nothing stays")
    beside = "the step as it is; both arms pay it, so it cancels"
    yield Row("a step under the control arm", f"{100 * (median(under) - 1):+.1f} %", beside)


@bench
def sessions(repeats: int) -> Iterator[Row]:
    """Opening a session of 100,000 events, and listing 2,000 sessions."""
    from sparsetui.session.store import Store

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "large")
        path = _large_session(store, 100_000)
        size = (path / "ledger.jsonl").stat().st_size / 1e6
        took = times(lambda: store.open(str(path)).state(), repeats)
        raw = times(lambda: [line for line in (path / "ledger.jsonl").read_bytes().split(b"\n") if line], repeats)
        beside = f"{size:.0f} MB; {median(took) / median(raw):.0f} × splitting it into lines; every hash is checked"
        yield Row("open a session of 100,000 events", f"{median(took):.2f} s", beside, "≤ 1 s")
        many = Store(Path(folder) / "many")
        for i in range(2_000):
            with many.create(f"w{i % 20}") as writer:
                writer.append("note", {"text": "made by the bench", "by": "bench"})
        took = times(lambda: list(many.list()), repeats)
        yield Row("list 2,000 sessions", f"{median(took):.2f} s", "", "≤ 1 s")


def _large_session(store: Any, events: int) -> Path:
    """A sound session of many events, made by chaining the lines that a writer would write, without an fsync each."""
    import hashlib

    import msgspec

    from sparsetui.session.ledger import Head, encode_head, now
    from sparsetui.session.state import Event

    with store.create("large") as writer:
        path = Path(writer.path)
    ledger = path / "ledger.jsonl"
    data = ledger.read_bytes()
    lines = data.split(b"\n")[:-1]
    prev, out, at = hashlib.sha256(lines[-1]).hexdigest(), [], now()
    for i in range(len(lines), events):
        body = {"stage": "execution", "name": "clock", "state": "done", "seconds": 0.25, "note": f"round {i}"}
        if i % 5 == 0:
            raw = msgspec.json.encode(
                Event(i, at, "log", {"source": "worker", "text": f"line {i} of a service's own output"}, prev)
            )
        else:
            raw = msgspec.json.encode(Event(i, at, "phase", body, prev))
        prev = hashlib.sha256(raw).hexdigest()
        out.append(raw)
    whole = data + b"\n".join(out) + b"\n"
    ledger.write_bytes(whole)
    (path / "ledger.head").write_bytes(encode_head(Head(events - 1, prev, len(whole))))
    return path


@bench
def trace(repeats: int) -> Iterator[Row]:
    """Reading a large profiler trace, beside HolisticTraceAnalysis where it is installed (see bench/trace.py)."""
    import json

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "trace.json"
        done = subprocess.run([sys.executable, str(ROOT / "bench" / "trace.py"), "--mb", "300", "--json", str(target)],
                              capture_output=True, text=True, timeout=1800)  # fmt: skip
        if done.returncode:
            yield Row(
                "read a trace of 300 MiB", "unavailable", (done.stderr.strip().splitlines() or ["it failed"])[-1][:100]
            )
            return
        got = json.loads(target.read_text())
    theirs = "HolisticTraceAnalysis is not installed (SPARSETUI_HTA names an interpreter that has it)"
    if "hta_seconds" in got:
        by_cpu = got["hta_cpu_seconds"] / got["cpu_seconds"]
        times = got["hta_seconds"] / got["seconds"]
        theirs = f"HolisticTraceAnalysis {got['hta_seconds']:.1f} s: {times:.1f} × faster, {by_cpu:.1f} by CPU"
    memory = f", peak {got['peak_bytes'] / got['bytes']:.1f} × the file"
    yield Row("read a trace of 300 MiB", f"{got['seconds']:.2f} s{memory}", theirs, "≥ 20 × faster, < 2.5 × the file")


@bench
def attach(repeats: int) -> Iterator[Row]:
    """What watching does to its target at the default rate (see bench/attach.py)."""
    from bench.attach import effect

    got = effect("csr-rhs", 2 * max(repeats, 6), 6.0, 3.0, "auto")
    for key, what, aim in (("p50", "p50 of a watched target", "< 2 %"), ("throughput", "its throughput", "< 4 %")):
        r: Any = got[key]
        interval = f"95 % from {100 * (r['low'] - 1):+.1f} to {100 * (r['high'] - 1):+.1f} %"
        yield Row(
            what, f"{100 * (r['ratio'] - 1):+.1f} %", f"blocks without a watch; {r['pairs']} pairs, {interval}", aim
        )


@bench
def fleet(repeats: int) -> Iterator[Row]:
    """A verdict over a thousand hosts, and one, two and three nodes of a local Ray cluster beside one host alone."""
    from bench.fleet import nodes, verdicts

    for figures in (verdicts(), nodes()):
        for figure in figures:
            yield Row(*figure)


def main() -> int:
    ask = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BENCHES)}")
    ask.add_argument("--list", action="store_true", help="say what each measures")
    ask.add_argument("--repeats", type=int, default=5, help="runs of the short ones (default 5)")
    told = ask.parse_args()
    if unknown := [n for n in told.names if n not in BENCHES]:
        ask.error(f"no bench is named {unknown[0]!r}; there are {', '.join(BENCHES)}")
    if told.list:
        for name, f in BENCHES.items():
            print(f"{name:<10} {(f.__doc__ or '').strip()}")
        return 0
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}; "
          "medians, and the range in brackets")  # fmt: skip
    heads = ("what", "here", "beside", "aimed at")
    print(_line(heads) + "\n" + "-" * len(_line(heads)), flush=True)
    for name in told.names or BENCHES:
        try:
            for row in BENCHES[name](told.repeats):
                print(_line((row.what, row.value, row.beside, row.aim)), flush=True)
        except KeyboardInterrupt:
            return 130
        except Exception as e:  # one that cannot be measured here must not hide the others
            print(
                _line((name, "unavailable", f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:100]}", "")),
                flush=True,
            )
    return 0


def _line(cells: tuple[str, ...]) -> str:
    widths = (40, 30, 76, 0)
    return " ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
