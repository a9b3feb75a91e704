"""``sparsetui doctor``: what this host allows, tried for real, and what each missing thing costs."""

from __future__ import annotations

import ctypes
import json as jsonlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from sparsetui.cli.common import check_store, clean, fail, say

State = Literal["ok", "limited", "missing"]
_MARK = {"ok": "+", "limited": "~", "missing": "-"}


class Check(msgspec.Struct, frozen=True):
    """One thing that was tried. ``costs`` and ``way`` are empty when nothing is missing."""

    name: str
    state: State
    found: str
    costs: str = ""
    way: str = ""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Write the checks as JSON to stdout.")] = False,
    sessions: Annotated[Path | None, typer.Option(metavar="DIR", help="Where sessions would be kept.")] = None,
) -> None:
    """What this host allows: ptrace, perf, energy, GPU, torch, cores, terminal, disk; and what each gap costs.

    Always exits 0: a host that allows little is no error.
    """
    check_store(sessions)
    say("trying what this host allows (some seconds, most of them torch's import)")
    checks = run(sessions)
    if json:
        from sparsetui.evidence.records import to_json

        document = {"host": platform.node(), "checks": checks}
        sys.stdout.write(to_json(document, indent=2).decode() + "\n")
        return
    sys.stdout.write("\n".join(render(checks)) + "\n")


def run(sessions: Path | None = None) -> list[Check]:
    """All checks, in the order in which they matter."""
    with _busy_child() as pid:
        seeing = [_py_spy(pid), _perf(pid)]
    parts: list[Callable[[], Check]] = [_torch, _cores, _threads, _governor, _scheduler, _rapl, _nvml, _terminal, _catalogue]
    return [*seeing, *(part() for part in parts), *_storage(sessions)]


def render(checks: list[Check]) -> list[str]:
    """Plain lines, no wider than the words need; state is a sign and a word, never a colour."""
    lines = []
    for c in checks:
        lines.append(f"{_MARK[c.state]} {c.name:<10} {'' if c.state == 'ok' else c.state + ': '}{clean(c.found)}")
        if c.costs:
            lines.append(f"             costs: {c.costs}")
        if c.way:
            lines.append(f"             way out: {c.way}")
    return lines


@contextmanager
def _busy_child() -> Iterator[int]:
    """A Python process of our own that computes, to try the samplers on. It ends by itself after 30 s."""
    code = "import time\nend = time.monotonic() + 30\ndef busy():\n    while time.monotonic() < end: pass\nbusy()"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield child.pid
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return None


def _py_spy(pid: int) -> Check:
    from sparsetui.ingest.samplers import PySpy, SamplerError
    from sparsetui.ingest.samplers.base import has_capability
    from sparsetui.ingest.samplers.pyspy import binary

    costs = "no Python callers of a live process, no native stacks: attach and the native pass rest on perf alone"
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if binary() is None:
        return Check("py-spy", "missing", "py-spy is not installed", costs, "pip install py-spy")
    try:
        seen = sum(s.count for s in PySpy(pid, rate_hz=20).collect(1))
    except SamplerError as e:
        return Check("py-spy", "missing", e.missing.why, costs, "the line above names it")
    except OSError as e:
        return Check("py-spy", "missing", f"it cannot be started: {e.strerror}", costs, "reinstall py-spy")
    yama = f"kernel.yama.ptrace_scope = {scope}" if scope is not None else "no Yama"
    if not seen:
        return Check(
            "py-spy", "limited", f"it ran on a child and saw nothing ({yama})", costs, "try again on a calmer host"
        )
    found = f"native stacks of a child were read, {seen} samples ({yama})"
    if scope not in (None, "0") and not has_capability(19):
        return Check(
            "py-spy", "limited", found, "processes we did not start cannot be attached to", "sudo sparsetui attach PID"
        )
    return Check("py-spy", "ok", found)


def _perf(pid: int) -> Check:
    from sparsetui.ingest.samplers import Perf, SamplerError

    paranoid = _read("/proc/sys/kernel/perf_event_paranoid")
    level = f"kernel.perf_event_paranoid = {paranoid}" if paranoid is not None else "no perf events in this kernel"
    costs = "OpenMP's worker threads and time spinning at barriers stay unseen"
    try:
        seen = sum(s.count for s in Perf(pid).collect(0.5))
    except SamplerError as e:
        return Check(
            "perf", "missing", f"{e.missing.why} ({level})", costs, "sysctl kernel.perf_event_paranoid=2, or root"
        )
    if not seen:
        return Check("perf", "limited", f"the event opened and gave no samples ({level})", costs)
    return Check("perf", "ok", f"cpu-clock event: {seen} samples of a child in 0.5 s, no pause ({level})")


_TORCH = """
import json, torch
out = {"version": torch.__version__, "threads": torch.get_num_threads(), "mkl": torch.backends.mkl.is_available(),
       "onednn": torch.backends.mkldnn.is_available(), "cuda": torch.cuda.is_available()}
cpu = getattr(torch.backends, "cpu", None)  # since torch 2.1
out["capability"] = cpu.get_cpu_capability() if cpu else "not told by this torch"
info = torch.__config__.show()
out["blas"] = next((p.split("=")[1] for p in info.replace(",", " ").split() if p.startswith("BLAS_INFO=")), "unknown")
print(json.dumps(out))
"""


def _torch() -> Check:
    costs = "nothing can be run here; saved sessions, traces, stacks, matrices and attach still work"
    way = "pip install 'sparsetui[torch]', or name the service's own interpreter as python = … in the workload"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            start_new_session=True,
        )
        facts = jsonlib.loads(done.stdout.decode().strip().splitlines()[-1]) if not done.returncode else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        facts, done = None, None
    if facts is None:
        tail = (
            done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            if done
            else ["it could not be imported in 120 s"]
        )
        return Check("torch", "missing", clean(tail[0] if tail else "no reason given", 160), costs, way)
    found = (
        f"{facts['version']}, {facts['threads']} threads, BLAS {facts['blas']}, MKL {'yes' if facts['mkl'] else 'no'}, "
        f"oneDNN {'yes' if facts['onednn'] else 'no'}, CPU capability {facts['capability']}, "
        f"CUDA {'yes' if facts['cuda'] else 'no'}"
    )
    if not facts["mkl"]:
        return Check(
            "torch", "limited", found, "without MKL, CSR products take torch's own generic loops or are refused"
        )
    return Check("torch", "ok", found)


def quota() -> tuple[float | None, str]:
    """Cores that the cgroup grants (the tightest limit on the way up; ``None``: no limit), and which version told."""
    from sparsetui.probes import cgroup

    granted, _, version = cgroup.quota()
    return granted, version or "none"


def _usable() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _cores() -> Check:
    total, usable = os.cpu_count() or 1, _usable()
    granted, version = quota()
    limit = {"none": "no cgroup limit", "v1": "cgroup v1", "v2": "cgroup v2"}[version]
    found = f"{total} cores, {usable} usable, {limit}" + (f": {granted:g} cores granted" if granted is not None else "")
    if granted is not None and granted < usable:
        return Check(
            "cores",
            "limited",
            found,
            f"more than {max(1, int(granted))} busy threads are throttled: long tails that no kernel explains",
            f"threads = {max(1, int(granted))} in the workload",
        )
    if usable < 2:
        return Check("cores", "limited", found, "the tool and the workload share one core: intervals widen")
    return Check("cores", "ok", found)


def _threads() -> Check:
    names = (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "KMP_BLOCKTIME",
        "KMP_AFFINITY",
    )
    here = {n: os.environ[n] for n in names if n in os.environ}
    granted, _ = quota()
    room = min(_usable(), granted or 1e9)
    found = ", ".join(f"{n}={clean(v, 30)}" for n, v in here.items()) or "no thread settings in the environment"
    greedy = [n for n, v in here.items() if n.endswith("NUM_THREADS") and v.isdigit() and int(v) > room]
    if greedy:
        return Check(
            "threads", "limited", found, f"{greedy[0]} asks for more than the {room:g} cores here: oversubscription"
        )
    return Check("threads", "ok", found)


def _governor() -> Check:
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor is None:
        return Check("governor", "limited", "the CPU frequency is not visible (a virtual machine?)",
                     "a change of clock between runs shows only as noise; interleaving still guards the comparison")  # fmt: skip
    if governor != "performance":
        return Check("governor", "limited", governor, "clocks may rise and fall within a run; intervals widen",
                     "cpupower frequency-set -g performance")  # fmt: skip
    return Check("governor", "ok", governor)


def _scheduler() -> Check:
    grouped = _read("/proc/sys/kernel/sched_autogroup_enabled")
    if grouped == "1":
        return Check("scheduler", "limited", "autogroups are on: nice counts within one login session only",
                     "a neighbour that was niced elsewhere still takes its full share of the cores",
                     "sysctl kernel.sched_autogroup_enabled=0 while measuring")  # fmt: skip
    return Check("scheduler", "ok", "nice counts for every process" if grouped == "0" else "it has no autogroups")


def _rapl() -> Check:
    files = sorted(Path("/sys/class/powercap").glob("intel-rapl:*/energy_uj"))
    costs = "energy per request is unavailable, or estimated from CPU time if the workload names watts per core"
    if not files:
        return Check(
            "RAPL", "missing", "this host shows no RAPL counters (/sys/class/powercap)", costs, "run on bare metal"
        )
    readable = [f for f in files if _read(str(f)) is not None]
    if not readable:
        return Check("RAPL", "missing", f"{len(files)} counters, none readable", costs, "root, or chmod a+r energy_uj")
    return Check("RAPL", "ok", f"{len(readable)} of {len(files)} counters readable")


def _nvml() -> Check:
    costs = "no GPU energy, clocks or temperature; CPU evidence is complete without it"
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return Check("NVML", "missing", "no NVIDIA driver library (libnvidia-ml.so.1)", costs)
    code = library.nvmlInit_v2()
    if code:
        return Check("NVML", "missing", f"NVML cannot start (code {code})", costs, "check the driver: nvidia-smi")
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    library.nvmlShutdown()
    return Check("NVML", "ok" if count.value else "missing", f"{count.value} devices", "" if count.value else costs)


def _terminal() -> Check:
    term = os.environ.get("TERM", "")
    size = shutil.get_terminal_size((0, 0))
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "")
    unicode = "utf8" in encoding
    deep = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    colours = "none (NO_COLOR)" if os.environ.get("NO_COLOR") else (
        "none" if term in ("", "dumb") else "truecolour" if deep else "256" if "256" in term else "16"
    )  # fmt: skip
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    mux = "tmux" if os.environ.get("TMUX") else "screen" if term.startswith("screen") else "no multiplexer"
    where = f"{size.columns}×{size.lines}" if size.columns else "no size"
    found = (
        f"TERM={clean(term, 30) or '(unset)'}, {where}, colours {colours}, unicode {'yes' if unicode else 'no'}, {mux}"
    )
    if not tty:
        return Check(
            "terminal", "limited", found + ", no TTY", "the app does not start", "use --headless, --json or --memo"
        )
    if term in ("", "dumb"):
        return Check("terminal", "missing", found, "the app cannot draw", "set TERM, or use --headless")
    if size.columns and (size.columns < 80 or size.lines < 24):
        return Check("terminal", "limited", found, "below 80×24 parts of the app are cut off", "enlarge the pane")
    return Check("terminal", "ok", found)


def _catalogue() -> Check:
    from sparsetui.evidence.kernels import Catalogue, CatalogueError, user_rule_files

    try:
        rules = len(Catalogue.load().rules)
    except CatalogueError as e:
        return Check(
            "kernels", "missing", clean(e, 200), "no symbol can be named until the rule file is right", "correct it"
        )
    own = ", ".join(clean(f, 80) for f in user_rule_files()) or "none of your own"
    return Check("kernels", "ok", f"{rules} rules in the catalogue; rule files: {own}")


def _storage(sessions: Path | None) -> list[Check]:
    from sparsetui.session.store import default_root

    root = (sessions or default_root()).absolute()
    there = root
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        fail(f"{there}: not a folder; --sessions takes the folder that sessions are kept in")
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".sparsetui-"):
            pass
        folder = Check("sessions", "ok", f"{clean(root)}" + ("" if there == root else " (will be made)"))
    except OSError as e:
        folder = Check(
            "sessions", "missing", f"{clean(there)}: {e.strerror}", "no session can be saved", "--sessions DIR"
        )
    free = shutil.disk_usage(there).free
    found = f"{free / 2**30:.1f} GiB free"
    if free < 200 << 20:
        return [
            folder,
            Check("disk", "limited", found, "a session takes 1–20 MiB; a full disk ends a run", "free some space"),
        ]
    return [folder, Check("disk", "ok", found)]
