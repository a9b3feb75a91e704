"""Watching live processes: tables that fill, waiting told from running, and the command's exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from sparsetui.cli.attach import _come_and_go, attach, render
from sparsetui.ingest.attach import Life, NoProcess, Snapshot, Watch
from sparsetui.ingest.samplers import Perf, PySpy, Tally, table
from sparsetui.ingest.samplers.base import Frame, Stack
from sparsetui.ingest.samplers.proc import children, who
from sparsetui.ingest.snapshots import with_waiting
from sparsetui.session.store import Store

app = typer.Typer()
app.command()(attach)


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def start():
    running = []

    def go(code):
        child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        running.append(child)
        child.stdout.readline()
        return child

    yield go
    for child in running:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        child.stdout.close()


LOOP = "print(1, flush=True)\ndef loop():\n    while True: pass\nloop()"
SLEEP = "print(1, flush=True)\nimport time\nwhile True: time.sleep(0.05)"
TIMED = "import time; print(1, flush=True); end = time.monotonic() + 2\nwhile time.monotonic() < end: pass"


def perf_only(pid, **more):
    missing = Perf(pid).available()
    if missing:
        pytest.skip(f"{missing.what}: {missing.why}")
    return Watch([pid], sampler="perf", **more)


def test_snapshots_fill_and_narrow(start):
    watch = perf_only(start(LOOP).pid)
    watch.start()
    seen: list[Snapshot] = list(watch.snapshots(3, every=0.7))
    assert seen[-1].done
    assert not seen[0].done
    with_rows = [s for s in seen if s.table.paths]
    assert with_rows[-1].table.paths[0].path == "python"
    counts = [s.table.paths[0].share.n for s in with_rows]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    widths = [s.table.paths[0].share.ci[1] - s.table.paths[0].share.ci[0] for s in with_rows]
    assert widths[-1] <= widths[0]
    (thread,) = seen[-1].threads
    assert thread.busy.value > 0.3


def test_a_process_that_sleeps_waits(start):
    watch = perf_only(start(SLEEP).pid)
    watch.start()
    last = list(watch.snapshots(2))[-1]
    assert last.table.paths[0].path == "wait"
    assert last.table.paths[0].share.value > 0.5


def test_a_process_that_ends_is_told(start):
    child = start(TIMED)
    watch = perf_only(child.pid)
    watch.start()
    begin = time.monotonic()
    last = list(watch.snapshots(60, every=0.3))[-1]
    assert time.monotonic() - begin < 50
    assert last.ended == (child.pid,)
    assert last.table.paths[0].path == "python"


POOL = """
import subprocess, sys
WORK = "import time; end = time.monotonic() + 1.2\\nwhile time.monotonic() < end: pass"
print(1, flush=True)
while True:
    subprocess.run([sys.executable, "-S", "-c", WORK])
"""


def test_workers_that_a_pool_replaces_are_followed(start):
    """…and each one's end is told; what was opened for it is closed at once."""
    master = start(POOL)
    watch = perf_only(master.pid, with_children=True)
    held = len(os.listdir("/proc/self/fd"))
    watch.start()
    most, last = 0, None
    for last in watch.snapshots(20, every=0.5):
        most = max(most, len(os.listdir("/proc/self/fd")))
        if len(last.ended) >= 3:
            watch.interrupt()
    root, *workers = last.lives
    assert (root.pid, root.came_s, root.ended_s) == (master.pid, 0.0, None)
    ended = [w for w in workers if w.ended_s is not None]
    assert len(ended) >= 3
    assert all("time.monotonic" in w.cmdline for w in ended)
    assert ended[1].came_s > 0
    assert all(w.ended_s > w.came_s for w in ended)
    assert set(last.ended) == {w.pid for w in ended}
    seen = {t.pid for t in last.threads if t.paths}
    assert len(seen & {w.pid for w in workers}) >= 2, "samples of the later workers too"
    assert most <= held + 12, "an ended worker's descriptors stay open"
    assert len(os.listdir("/proc/self/fd")) <= held + 4, "the symbols of shared files are kept, and nothing else"
    told = render(last)
    assert any(line.startswith(f"{ended[-1].pid} ended after ") for line in told)


def test_who_comes_and_who_ends_is_said_once(start, capsys):
    seen = perf_only(start(LOOP).pid).snapshot()
    known = {life.pid: life for life in seen.lives}
    worker = Life(70001, "worker \x1b[31m", 2.0)
    ended = msgspec.structs.replace(worker, ended_s=3.5)
    for lives in ([worker], [worker], [ended], [ended], [Life(70001, "another of the same number", 9.0)]):
        _come_and_go(msgspec.structs.replace(seen, lives=(*seen.lives, *lives)), known)
    assert capsys.readouterr().err.splitlines() == [
        "watching 70001 too: worker \\x1b[31m",
        "70001 ended after 1.5 s: worker \\x1b[31m",
        "watching 70001 too: another of the same number",
    ]
    many = tuple(Life(80000 + i, "w", 1.0) for i in range(30))
    _come_and_go(msgspec.structs.replace(seen, lives=(*seen.lives, *many)), known)
    assert capsys.readouterr().err.splitlines()[-1] == "… and 22 more came or ended"


def test_a_pool_whose_master_ends_is_watched_until_the_last_worker_has(start):
    work = "import time; time.sleep(2.5)"
    watch = perf_only(
        start(
            f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-S', '-c', {work!r}])\nprint(1, flush=True)\n"
            "time.sleep(0.7)"
        ).pid,
        with_children=True,
    )
    watch.start()
    last = list(watch.snapshots(60, every=0.3))[-1]
    assert len(last.lives) == 2
    assert len(last.ended) == 2
    assert last.lives[1].ended_s > last.lives[0].ended_s + 0.5
    assert last.elapsed_s < 40


def test_the_watch_does_not_watch_itself(start):
    """Its own samplers are children too, where the watched process is the one that started it."""
    code = (
        "import subprocess, sys, os\nprint(1, flush=True)\n"
        "run = 'import typer; from sparsetui.cli.attach import attach; a = typer.Typer(); a.command()(attach); a()'\n"
        "subprocess.run([sys.executable, '-c', run, str(os.getpid()), '--children', '--seconds', '3', '--json', '-'], "
        "stdout=open(sys.argv[1], 'wb'), stderr=subprocess.DEVNULL)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, "/dev/stdout"], stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate(timeout=60)
    result = json.loads(out.partition("\n")[2])
    assert [t["pid"] for t in result["targets"]] == [child.pid]


def test_waiting_scales_the_rest():
    tally = Tally()
    tally.add(
        [Stack(1, (Frame("f", "", "/a.py", 1, True),), 30), Stack(1, (Frame("mkl_blas_sgemm", "libmkl.so"),), 10)]
    )
    got = {r.path: r.share for r in with_waiting(table(tally), idle=20, looks=40).paths}
    assert got["wait"].value == 0.5
    assert got["python"].value == 0.375
    assert got["dense"].value == 0.125
    assert sum(s.value for s in got.values()) == pytest.approx(1)
    assert all(s.ci[0] <= s.value <= s.ci[1] for s in got.values())


def test_no_such_process():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with pytest.raises(NoProcess, match="does not exist"):
        Watch([child.pid])
    got = run(child.pid, "--seconds", 1)
    assert got.exit_code == 2
    assert got.stdout == ""
    assert len(got.stderr.strip().splitlines()) == 1


def test_bad_usage(start):
    assert run(os.getpid(), "--sampler", "magic").exit_code == 2
    assert run(os.getpid(), "--gentle", "--sampler", "perf").exit_code == 2


def test_nothing_to_see(start, monkeypatch):
    from sparsetui.evidence.records import Missing

    for name in ("PySpy", "Perf"):
        monkeypatch.setattr(
            f"sparsetui.ingest.samplers.{name}.available", lambda self: Missing(self.name, "refused here")
        )
    got = run(start(LOOP).pid, "--seconds", 1)
    assert got.exit_code == 3
    assert "py-spy: refused here" in got.stderr
    assert "perf: refused here" in got.stderr


def test_json_and_session(start, tmp_path):
    with Store(tmp_path).create("ranker") as writer:
        session = writer.id
    pid = start(LOOP).pid
    got = run(pid, "--seconds", 3, "--json", "-", "--session", session, "--sessions", tmp_path)
    assert got.exit_code in (0, 3), got.stderr
    if got.exit_code == 3:
        pytest.skip(got.stderr)
    result = json.loads(got.stdout)
    assert result["paths"][0]["path"] == "python"
    assert {"paths", "samplers", "unavailable"} <= result.keys()
    assert result["paths"][0]["share"]["n"] > 0
    state = Store(tmp_path).open(session).state()
    (evidence,) = state.evidence
    assert (evidence.stage, evidence.probe, evidence.source["pids"]) == ("kernel", "attach", [pid])
    assert state.native.paths[0].path == "python"
    assert any("record" in c["argv"] for c in state.commands) or not any(
        "py-spy" in s["name"] for s in result["samplers"]
    )


def test_gentle_never_stops_the_process(start):
    pid = start(LOOP).pid
    if PySpy(pid, gentle=True).available():
        pytest.skip("py-spy may not look here")
    got = run(pid, "--seconds", 3, "--gentle", "--json", "-")
    assert got.exit_code == 0, got.stderr
    result = json.loads(got.stdout)
    assert [s["pause_share"] for s in result["samplers"]] == [0.0] * len(result["samplers"])
    assert any(c["caller"].endswith("loop") for c in result["callers"])
    assert any(m["what"] == "native frames" for m in result["unavailable"])


def test_text_of_the_target_is_made_harmless(start):
    tally = Tally()
    tally.add([Stack(1, (Frame("f\x1b[2J", "", "/a\n.py", 1, True), Frame("k\x1b[31m", "x.so")), 3)])
    watch = perf_only(start(LOOP).pid)
    snapshot = watch.snapshot()
    drawn = render(
        Snapshot(**{f: getattr(snapshot, f) for f in Snapshot.__struct_fields__ if f != "table"}, table=table(tally))
    )
    assert all(line.isprintable() for line in drawn)


def test_ctrl_c_keeps_what_was_seen(start):
    code = "import typer\nfrom sparsetui.cli.attach import attach\na = typer.Typer(); a.command()(attach); a()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(start(LOOP).pid), "--seconds", "60", "--sampler", "perf"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert b"watching" in child.stderr.readline()
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=40)
    if child.returncode == 3:
        pytest.skip("perf may not look here")
    assert child.returncode == 130
    assert b"python" in out


def test_killed_outright_it_leaves_no_sampler_and_a_target_that_runs(start):
    """Nobody can clean up after SIGKILL, so py-spy must end by itself, and let go of its target."""
    count = "import time\nprint(1, flush=True)\nn = 0\nwhile True:\n    n += 1\n    time.sleep(0.001)\n    print(n, flush=True)"
    target = start(count)
    if PySpy(target.pid).available():
        pytest.skip(PySpy(target.pid).available().why)
    watcher = start_watch(target.pid)
    spies = []
    deadline = time.monotonic() + 30
    while not spies and time.monotonic() < deadline:
        spies = [p for p in children(watcher.pid) if (w := who(p)) and "py-spy" in w.cmdline and "record" in w.cmdline]
        time.sleep(0.05)
    assert spies
    watcher.kill()
    watcher.communicate()
    deadline = time.monotonic() + 20
    while any(who(p) for p in spies) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [p for p in spies if who(p)]
    os.set_blocking(target.stdout.fileno(), False)
    while target.stdout.read():
        pass
    time.sleep(1)
    assert target.stdout.read()


def start_watch(pid):
    code = (
        "import typer, sparsetui.ingest.attach as watching\nfrom sparsetui.cli.attach import attach\n"
        "watching._RUNS_ALONE = (90.0,)\na = typer.Typer(); a.command()(attach); a()"
    )
    argv = [sys.executable, "-c", code, str(pid), "--seconds", "60", "--sampler", "py-spy", "--headless"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_slow_start_of_py_spy_is_waited_for(start, monkeypatch):
    """On a busy host py-spy needs longer than the watch was to last; an empty table would say nothing."""
    release = threading.Event()

    def collect(self, seconds):
        while not release.wait(0.05):
            if self._stop.is_set():
                return []
        return [Stack(1, (Frame("f", "", "/a.py", 1, True),), 30)]

    monkeypatch.setattr("sparsetui.ingest.samplers.PySpy.available", lambda self: None)
    monkeypatch.setattr("sparsetui.ingest.attach.PySpy.collect", collect)
    watch = Watch([start(LOOP).pid], sampler="py-spy")
    watch.start()
    threading.Timer(2, release.set).start()
    last = list(watch.snapshots(0.5, every=0.3))[-1]
    assert last.table.paths[0].path == "python"
