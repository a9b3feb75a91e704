"""Investigations of one step against itself, where a CPU quota stops the processes of one variant, of both, or of none."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sparsetui.diagnosis.case import Trial  # noqa: E402
from sparsetui.evidence.records import Finding, Result  # noqa: E402
from sparsetui.runner.api import Update  # noqa: E402
from sparsetui.runner.investigation import Investigation  # noqa: E402
from sparsetui.session.store import Store  # noqa: E402
from sparsetui.workload.spec import load  # noqa: E402

CODE = Path(__file__).with_name("steps.py")
ID = "execution.throttled"
PERIOD_US = 20_000


class Quota:
    """A cgroup whose quota can be set, under that of this process."""

    def __init__(self, folder: Path, procs: str) -> None:
        self.folder, self.procs = folder, folder / procs

    def grant(self, us: int | None) -> None:
        if (self.folder / "cpu.max").exists():
            (self.folder / "cpu.max").write_text(f"{us or 'max'} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(us or -1))


def own_folder() -> Path | None:
    """The folder of this process's cgroup with the CPU controller, where it may have children of its own."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        roots = (
            [Path("/sys/fs/cgroup")] if not controllers else [Path("/sys/fs/cgroup", c) for c in ("cpu", "cpu,cpuacct")]
        )
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in roots:
            folder = root / path.lstrip("/")
            if (folder / "cpu.cfs_quota_us").exists() or "cpu" in _text(folder / "cgroup.subtree_control").split():
                return folder
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.fixture
def quota() -> Iterator[Quota]:
    parent = own_folder()
    if parent is None:
        pytest.skip("no cgroup here can be given a CPU quota")
    folder = parent / f"sparsetui-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as e:
        pytest.skip(f"no cgroup can be made here: {e}")
    try:
        yield Quota(folder, "cgroup.procs")
    finally:
        for _ in range(100):  # its processes are ending
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def step_us() -> int:
    """What a step takes here, in microseconds of processor time."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("steps", CODE)
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(steps)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step, ((x,),) = steps.build(), steps.requests()
        times = []
        with torch.no_grad():
            for _ in range(12):
                began = time.process_time_ns()
                step(x)
                times.append((time.process_time_ns() - began) // 1000)
    finally:
        torch.set_num_threads(threads)
    return sorted(times)[len(times) // 2]


def run(
    folder: Path, quota: Quota, inside: tuple[str, ...], grant_us: int, budget_s: float = 25
) -> tuple[Result, Investigation]:
    """The quota holds from the clock on: builds are quick, and nothing of the launch differs."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\necho $$ > "{quota.procs}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    text = ""
    for variant in ("failing", "comparator"):
        text += f'[{variant}]\nentry = "{CODE}:build"\nthreads = 1\n'
        text += f'python = "{python}"\n' if variant in inside else ""
    path = folder / "w.toml"
    path.write_text(text + f'[inputs]\nentry = "{CODE}:requests"\n')
    granted = []

    def hear(update: Update) -> None:
        if update.live.phase == "clock" and not granted:
            granted.append(grant_us)
            quota.grant(grant_us)

    investigation = Investigation(load(path), Store(folder / "sessions"), budget_s=budget_s, listener=hear)
    try:
        return investigation.run_all(), investigation
    finally:
        investigation.close()
        quota.grant(None)


def tried(investigation: Investigation) -> Trial:
    """The trial in calm; there has to be one wherever the clock could tell that there is a gap."""
    compared = investigation.lab.comparison
    if compared is None or compared.verdict != "slower":
        pytest.skip(f"this host is too busy to see a gap: {compared.reason if compared else 'no round was taken'}")
    return investigation.lab.trials[("calm", "failing")]


def found(result: Result) -> Finding | None:
    return next((f for f in (*result.findings, *result.ruled_out) if f.mechanism == ID), None)


@pytest.mark.slow
def test_a_quota_on_one_variant_is_proved_by_the_gap_that_is_gone_while_it_rests(tmp_path: Path, quota: Quota) -> None:
    result, investigation = run(tmp_path, quota, ("failing",), int(1.45 * step_us()))
    trial = tried(investigation)
    if trial.failed:
        pytest.skip(f"this host is not calm enough: {trial.failed}")
    v = result.verdict
    here = found(result)
    if v.status == "cannot_answer" and here is not None and "not settled" in here.reason:
        pytest.skip(f"this host is not calm enough: {here.reason}")
    assert (v.status, v.mechanism, v.confidence) == ("fault", ID, "confirmed"), v.summary
    assert "stopped by a CPU quota" in v.summary
    assert "in calm the ratio is" in v.summary
    assert all(not b.conditions.get("throttled") for r in investigation.lab.calm for b in (*r.failing, *r.comparator))
    assert v.intervention == trial.evidence[-1]
    again = Investigation(investigation.workload, Store(tmp_path / "sessions"), budget_s=5, session=result.session)
    try:
        recorded = again.conclude().verdict
    finally:
        again.close()
    assert (recorded.mechanism, recorded.summary) == (v.mechanism, v.summary)


@pytest.mark.slow
def test_a_quota_below_a_single_step_never_lets_calm_come_and_says_so(tmp_path: Path, quota: Quota) -> None:
    result, investigation = run(tmp_path, quota, ("failing",), int(0.4 * step_us()))
    trial = tried(investigation)
    assert result.verdict.status == "cannot_answer"
    assert trial.failed.startswith("not settled: calm never came")
    assert "a CPU quota stopped the cgroup" in trial.failed
    assert trial.failed.endswith(
        "of the failing variant; settled by the same quota for both, with room for more than a step"
    )
    assert "\n" not in trial.failed
    assert any(ID in a.question and "calm never came" in a.why for a in result.cannot_answer)


@pytest.mark.slow
def test_a_quota_on_both_is_no_fault_of_either(tmp_path: Path, quota: Quota) -> None:
    result, investigation = run(tmp_path, quota, ("failing", "comparator"), int(1.45 * step_us()))
    assert result.verdict.status in ("no_fault", "cannot_answer"), result.verdict.summary
    assert result.verdict.mechanism is None
    f = found(result)
    assert f is None or not f.material
    assert any(b.get("throttled") for b in investigation.lab.clock.conditions)
