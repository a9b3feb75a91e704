"""One host's part: the same investigation, headless, in a session of its own in a scratch folder, and a compact report of it.

Started on a node as ``python -m sparsetui.fleet.host``, apart from Ray's own worker: Ray sets variables and keeps dozens of
threads there, and this process is what a signal must be able to end. A job comes in on stdin as a line of JSON; messages go
out on stdout, one JSON object a line: ``{"progress": {...}}`` while it runs, and last ``{"report": {...}}``.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from sparsetui.diagnosis.stats import robust_location
from sparsetui.diagnosis.stats.comparison import PRIOR_DF, PROCESS_SD
from sparsetui.diagnosis.stats.rounds import pair_noise, reduce_round
from sparsetui.evidence.records import Result, to_json
from sparsetui.evidence.text import clean
from sparsetui.fleet.records import HostReport
from sparsetui.runner.api import Cancelled, Update
from sparsetui.runner.investigation import TOOL, Investigation
from sparsetui.runner.lab import Lab
from sparsetui.session.store import Store
from sparsetui.worker import scratch
from sparsetui.worker.faults import WorkerFault

START_S = 120.0  # for interpreters to come up, beyond the budget
WARM_UP_SE = 0.25  # of a step time in logs that only the warm-up tells
_EVERY_S = 1.0  # progress is told at most this often
CANNOT_START = ("launch",)  # kinds of a worker's fault that speak of the host and not of the pair
_TEXT = 400

Tell = Callable[[dict[str, Any]], None]


class Job(msgspec.Struct, frozen=True):
    """What a host is asked to do. ``path`` is the workload file on that host."""

    host: str
    path: str
    sha256: str
    budget_s: float = 60.0
    playbook: str | None = None


def main() -> int:
    """Read the job, do it, write the report. The exit code says nothing: the report does."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not write between the messages
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    report = investigate(job, lambda message: _write(out, message))
    _write(out, {"report": report})
    return 0


def _write(out: IO[str], message: dict[str, Any]) -> None:
    out.write(to_json(message).decode() + "\n")
    out.flush()


def investigate(job: Job, tell: Tell) -> HostReport:
    """Investigate on this host. What goes wrong with the workload is the report's ``state`` and ``why``."""
    from sparsetui.playbook.library import find
    from sparsetui.workload.errors import WorkloadError
    from sparsetui.workload.spec import load

    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix=scratch.PREFIX))
    held = scratch.hold(place)  # killed with its node's task, it is swept by the next one
    try:
        workload = load(job.path)
        if workload.sha256 != job.sha256:
            return HostReport(job.host, "refused", f"{job.path} is another file here than where the fleet was started")
        playbook = find(job.playbook) if job.playbook else None
        run = Investigation(
            workload, Store(place / "sessions"), budget_s=job.budget_s, playbook=playbook, listener=Narrator(tell)
        )
        _end_with(run)
        try:
            _start(run, tell)
            result = run.run_all()
            return report(job.host, run, result, time.monotonic() - began)
        finally:
            run.close()
    except WorkloadError as e:
        return HostReport(job.host, "refused", clean(e, _TEXT))
    except Cancelled:
        return HostReport(job.host, "slow", "it was ended before it had an answer")
    finally:
        os.close(held)
        shutil.rmtree(place, ignore_errors=True)


def _start(run: Investigation, tell: Tell) -> None:
    """Interpreters come up before the budget begins: on a cold node that takes as long as a small budget.

    Where one cannot be started, the run itself says so.
    """
    tell(
        {
            "progress": {
                "stage": "ingress",
                "phase": "start",
                "spent_s": 0.0,
                "budget_s": run.lab.budget_s,
                "ratio": None,
            }
        }
    )
    budget, run.lab.budget_s = run.lab.budget_s, max(START_S, run.lab.budget_s)
    try:
        with run.lab.running(), contextlib.suppress(WorkerFault):
            run.lab.gear.start(run.lab.deadline())
    finally:
        run.lab.budget_s = budget


def _end_with(run: Investigation) -> None:
    """SIGTERM saves nothing here, but it must leave no worker behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: run.cancel())


class Narrator:
    """Tells the phase and the ratio so far, when the phase changes and at most once a second."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._phase, self._at = tell, "", 0.0

    def __call__(self, update: Update) -> None:
        live, now = update.live, time.monotonic()
        if not live.running or (live.phase == self._phase and now - self._at < _EVERY_S):
            return
        self._phase, self._at = live.phase, now
        ratio = live.ratio.value if live.ratio is not None else None
        self._tell({"progress": {"stage": live.stage, "phase": live.phase, "spent_s": round(live.spent_s, 1),
                                 "budget_s": live.budget_s, "ratio": ratio}})  # fmt: skip


def report(host: str, run: Investigation, result: Result, seconds: float) -> HostReport:
    """The compact report of an investigation that came to its end: kilobytes, whatever the passes saw."""
    lab, state = run.lab, run.state()
    dead = [f for f in lab.faults.values() if f.kind in CANNOT_START]
    if dead:
        return HostReport(host, "refused", clean(dead[0].message, _TEXT), tool=TOOL, seconds=seconds)
    compared = lab.comparison
    rounds = [r for r in map(reduce_round, lab.clock.rounds) if r is not None]
    level, pace = _level(lab, [r.comparator for r in rounds]), _pace(lab)
    locks = {
        v: dict(lab.payloads[("lock", v)]["tags"]) for v in ("failing", "comparator") if ("lock", v) in lab.payloads
    }
    timed: dict[str, Any] = {}
    if compared is not None:
        timed = {"says": compared.verdict, "ratio": compared.ratio, "failing_ms": compared.failing_ms,
                 "comparator_ms": compared.comparator_ms, "log_ratio": compared.log_ratio, "se": compared.se,
                 "df": compared.df}  # fmt: skip
        if compared.se is None and len(rounds) == 1:
            # one pair of processes: what two processes are believed to differ by. Other hosts are further pairs.
            timed["se"] = math.sqrt(2.0 * PROCESS_SD**2 + pair_noise(r.pairs for r in rounds))
            timed["df"] = PRIOR_DF
    return HostReport(
        host=host, verdict=result.verdict, findings=result.findings, ruled_out=tuple(f.mechanism for f in result.ruled_out),
        unanswered=result.cannot_answer, rounds=tuple((r.failing, r.comparator, r.log_ratio) for r in rounds),
        level=level[0], level_se=level[1], pace=pace[0], pace_se=pace[1], lock=locks, conditions=conditions(lab),
        evidence=state.evidence, metrics=result.metrics, workload=run.workload.sha256, tool=TOOL, seconds=seconds, **timed,
    )  # fmt: skip


def _level(lab: Lab, logs: Sequence[float]) -> tuple[float | None, float | None]:
    """Log ms of the comparator's typical step, and its standard error.

    A host that is too slow for one round within its budget is the one that must not go unnamed: its warm-up stands in, with
    the uncertainty that a warm-up has.
    """
    if logs:
        found = robust_location(logs, prior_sd=PROCESS_SD, prior_df=PRIOR_DF)
        return found.value, found.se
    warm = lab.payloads.get(("settle", "comparator"), {}).get("step_ms")
    return (math.log(warm), WARM_UP_SE) if warm and warm > 0 else (None, None)


def _pace(lab: Lab) -> tuple[float | None, float | None]:
    """Log ms of the comparator's *mean* step, and its standard error.

    A quota or a neighbour stops a process for whole time slices: a few steps take all of the loss, and the median none.
    """
    means = [[math.log(float(np.mean(b.times_ms))) for b in r.comparator if len(b.times_ms)] for r in lab.clock.rounds]
    logs = [float(np.mean(m)) for m in means if m]
    if not logs:
        return None, None
    found = robust_location(logs, prior_sd=PROCESS_SD, prior_df=PRIOR_DF)
    blocks = [x for m in means for x in m]
    scatter = float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks)) if len(blocks) > 1 else 0.0
    return found.value, max(found.se, scatter)


def conditions(lab: Lab) -> dict[str, float]:
    """What the host did beside the clock's blocks: medians over them, and rates over all of them together."""
    blocks = [(b.conditions, len(b.times_ms)) for r in lab.clock.rounds for b in (*r.failing, *r.comparator)]
    seen = [(c, n) for c, n in blocks if c.get("wall_s")]
    if not seen:
        return {}
    cores = os.cpu_count() or 1
    wall = sum(c["wall_s"] for c, _ in seen)
    out = {"nivcsw": sum(c.get("nivcsw", 0) for c, _ in seen) / wall,
           "minflt": sum(c.get("minflt", 0) for c, _ in seen) / max(1, sum(n for _, n in seen))}  # fmt: skip
    if any("throttled" in c for c, _ in seen):
        out["throttled"] = sum(c.get("throttled", 0) for c, _ in seen) / wall
    for name in ("steal", "freq_mhz", "temp_c"):
        _median(out, name, [c[name] for c, _ in seen if c.get(name) is not None])
    _median(out, "load_per_core", [c["load1"] / cores for c, _ in seen if "load1" in c])
    others = [c["busy"] - c.get("cpu_s", 0.0) / c["wall_s"] / cores for c, _ in seen if "busy" in c]
    _median(out, "others_busy", [max(0.0, x) for x in others])
    return {k: float(f"{v:.4g}") for k, v in out.items()}


def _median(out: dict[str, float], name: str, values: Sequence[float]) -> None:
    if values:
        out[name] = float(np.median(values))


if __name__ == "__main__":
    raise SystemExit(main())
