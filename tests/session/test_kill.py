"""kill -9 in the midst of writing: all that was acknowledged is there, and ``verify`` says so."""

from __future__ import annotations

import random
import signal
from typing import Any

from sparsetui.session.store import Store

POINTS = 20

# acknowledges on stdout what the session has acknowledged to it
WRITE = """
import os, sys
from pathlib import Path
from sparsetui.session.store import Store
store = Store(Path(sys.argv[1]))
w = store.writer(sys.argv[2])
os.write(1, b"go\\n")
i = 0
while True:
    e = w.append("note", {"text": f"n{i} " + "x" * (i * 37 % 3000)})
    os.write(1, b"%d\\n" % e.seq)
    if i % 3 == 0:
        ev = w.evidence("kernel", "census", {"i": i, "pad": "y" * 2000})
        os.write(1, b"%s %s\\n" % (ev.id.encode(), ev.sha256.encode()))
    i += 1
"""


def test_nothing_acknowledged_is_lost_at_any_kill_point(store: Store, python: Any) -> None:
    moments = random.Random(11)
    with store.create("victim") as w:
        pass
    for _ in range(POINTS):
        process = python(WRITE, store.root, w.id)
        assert process.stdout.readline() == b"go\n"
        lines = [process.stdout.readline() for _ in range(moments.randrange(1, 12))]
        signal.sigtimedwait([], moments.random() * 0.01)  # land anywhere inside an append
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
        process.wait()

        report = store.verify(w.id)
        assert report.ok, report.lines()
        reader = store.open(w.id)
        seqs = {e.seq for e in reader.events()}
        evidence = {e.id: e.sha256 for e in reader.state().evidence}
        for line in lines:
            if not line.endswith(b"\n"):
                continue
            first, *sha = line.decode().split()
            if sha:
                assert evidence[first] == sha[0]
                reader.artifact(sha[0])
            else:
                assert int(first) in seqs

        with store.writer(w.id) as again:  # the lock is free at once, and writing goes on
            again.append("note", {"text": "resumed"})
            assert again.state().faults[-1]["what"]
    report = store.verify(w.id)
    assert report.ok
    assert report.whole == report.events > POINTS * 3
    assert not list(store.root.rglob(".tmp-*"))


def test_a_stopped_writer_keeps_its_lock_and_goes_on(store: Store, python: Any) -> None:
    with store.create("stopped") as w:
        pass
    process = python(WRITE, store.root, w.id)
    assert process.stdout.readline() == b"go\n"
    process.send_signal(signal.SIGSTOP)
    try:
        assert str(process.pid) in store.open(w.id).writing
        assert store.verify(w.id).ok
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.stdout.readline()
