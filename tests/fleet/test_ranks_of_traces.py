"""Traces of several ranks land in one session, with the rank that waits and the one that is waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sparsetui.session.store import Store


def rank(folder: Path, number: int, work: float, wait: float) -> Path:
    """A trace of one rank: a product for ``work`` µs, then a collective for ``wait`` µs."""

    def kernel(name: str, ts: float, dur: float) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": ts,
            "dur": dur,
            "args": {"device": 0, "stream": 7},
        }

    path = folder / f"rank{number}.json"
    events = [kernel("ampere_sgemm_128x64_tn", 0, work), kernel("ncclDevKernel_AllReduce_Sum_f32", work, wait)]
    header = {"distributedInfo": {"backend": "nccl", "rank": number, "world_size": 3}}
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


def test_one_session_tells_who_waits_for_whom(tmp_path: Path) -> None:
    files = [rank(tmp_path, 0, 600, 400), rank(tmp_path, 1, 950, 50), rank(tmp_path, 2, 610, 390)]
    argv = [sys.executable, "-m", "sparsetui", "import", *map(str, files), "--sessions", str(tmp_path / "s")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert "the others wait for rank 1" in " ".join(done.stdout.split()), done.stderr
    (session,) = (tmp_path / "s").iterdir()
    state = Store(tmp_path / "s").open(session.name).state()
    body = state.sections["ranks"]
    assert (body["waits"], body["waited_for"], body["stragglers"]) == ("rank 0", "rank 1", "rank 1")
    assert [r["role"] for r in body["rows"]] == ["waits", "waited for", ""]
    assert len([e for e in state.evidence if e.probe == "trace"]) == 3
