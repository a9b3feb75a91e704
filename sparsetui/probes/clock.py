"""The clock: latency alone, nothing attached. The only pass whose times are reported as latency."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from . import cgroup, tensors, walk
from .context import Context
from .energy import Meter, meter
from .step import stepper


def settle(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Step until minor faults a step have settled and times stopped falling, at most ``seconds``.

    Returns the first calls apart (cold), the settled step time, and how many steps it took.
    """
    limit = time.perf_counter() + float(args.get("seconds", 2.0))
    least = int(args.get("least", 3))
    run = stepper(ctx)
    gc.collect()
    getattr(gc, "freeze", lambda: None)()  # what the builder left is not walked again by every collection
    times: List[float] = []
    faults: List[int] = []
    with run.mode():
        while True:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            t0 = time.perf_counter()
            run(len(times))
            times.append((time.perf_counter() - t0) * 1e3)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            if len(times) >= least and time.perf_counter() > limit:
                break
            if len(times) >= max(least, 8) and _calm(times, faults):
                break
    half = sorted(times[len(times) // 2 :])
    return {"steps": len(times), "cold_ms": run.first_ms, "first_ms": times[0], "step_ms": half[len(half) // 2],
            "faults_first": faults[0], "faults_last": faults[-1],
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}  # fmt: skip


def _calm(times: List[float], faults: List[int]) -> bool:
    """The last quarter is no faster than the one before, and both fault alike."""
    q = max(2, len(times) // 4)
    last, prev = sorted(times[-q:]), sorted(times[-2 * q : -q])
    f_last, f_prev = sum(faults[-q:]), sum(faults[-2 * q : -q])
    return last[q // 2] >= 0.97 * prev[q // 2] and abs(f_last - f_prev) <= max(2 * q, 0.1 * f_prev)


def block(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """``count`` timed steps from input ``start`` on, after ``warm`` untimed ones; times in ms.

    ``arm`` names an intervention's arm ("off", "control:ID", "on:ID"); without it nothing at all is attached. Where a call of
    an arm counts as several inputs, ``count`` and ``start`` still count inputs, and so do the times: one a call, by input.
    """
    run = stepper(ctx)
    start, count, warm = int(args.get("start", 0)), int(args["count"]), int(args.get("warm", 1))
    name = str(args.get("arm", "off"))
    with run.mode():
        if name == "off":
            times, cond = _timed(run, start, count, warm, None, meter(ctx))
        else:
            from .interventions import arm

            with arm(ctx, name) as live:
                call, per = live.calls(run)
                if per > 1:
                    start, count, warm = start // per, max(2, round(count / per)), min(1, warm)
                live.seen = live.skipped = 0
                times, cond = _timed(call, start, count, warm, live.begin, meter(ctx), per)
                if live.seen:
                    cond["skipped"] = round(live.skipped / live.seen, 4)
    return {"times_ms": [round(t, 6) for t in times], "conditions": cond, "arm": name, "start": start}


def _timed(
    run: Callable[[int], Any],
    start: int,
    count: int,
    warm: int,
    begin: Optional[Callable[[], None]],
    energy: Meter,
    per: int = 1,
) -> Tuple[List[float], Dict[str, Any]]:
    times: List[float] = []
    clock = time.perf_counter_ns
    for i in range(start - warm, start):
        if begin is not None:
            begin()
        run(i)
    cond, before = Conditions(), energy.read()
    for i in range(start, start + count):
        if begin is not None:
            begin()
        t0 = clock()
        run(i)
        times.append((clock() - t0) / 1e6 / per)
    return times, dict(cond.since(), joules=energy.since(before))


def arms(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """One block of each arm in the order given, in one message: ``{"blocks": [block, …]}``."""
    blocks = []
    for name in args["arms"]:
        blocks.append(block(ctx, dict(args, arm=name)))
        ctx.emit({"arm": name})
    return {"blocks": blocks}


class Conditions:
    """What this process and the host lived through during a block.

    ``delay_s`` is how long the thread that fared worst was ready to run and had no CPU, while its cores were not this process's;
    ``stopped_s`` is how long a quota kept the cgroup stopped. Both are missing where the kernel does not tell.
    """

    def __init__(self) -> None:
        self._u = resource.getrusage(resource.RUSAGE_SELF)
        self._t = time.perf_counter()
        self._steal = _steal()
        self._stops = cgroup.stops()
        self._delays = _delays()

    def since(self) -> Dict[str, Any]:
        u, s = resource.getrusage(resource.RUSAGE_SELF), _steal()
        wall = time.perf_counter() - self._t
        out = {"wall_s": wall, "cpu_s": u.ru_utime + u.ru_stime - self._u.ru_utime - self._u.ru_stime,
               "minflt": u.ru_minflt - self._u.ru_minflt, "nvcsw": u.ru_nvcsw - self._u.ru_nvcsw,
               "nivcsw": u.ru_nivcsw - self._u.ru_nivcsw, "load1": os.getloadavg()[0]}  # fmt: skip
        if s is not None and self._steal is not None and s[1] > self._steal[1]:
            out["steal"] = (s[0] - self._steal[0]) / (s[1] - self._steal[1])
            out["busy"] = (s[2] - self._steal[2]) / (s[1] - self._steal[1])
        for name, now, before in zip(("throttled", "stopped_s"), cgroup.stops(), self._stops):
            if now is not None and before is not None:
                out[name] = now - before
        waited = [ns - self._delays.get(task, ns) for task, ns in _delays().items()]
        if waited:
            # what its own other threads had of the cores was not taken from it
            width = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
            out["delay_s"] = min(max(waited) / 1e9, max(0.0, width * wall - out["cpu_s"]))
        out.update(_hardware())
        return out


def _delays() -> Dict[str, int]:
    """Nanoseconds that each thread of this process has waited for a CPU so far, where the kernel keeps that."""
    out: Dict[str, int] = {}
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/%s/schedstat" % task) as f:
                out[task] = int(f.read().split()[1])
    except (OSError, ValueError, IndexError):
        return out  # not kept here, or a thread has just ended
    return out


def _number(path: str) -> Optional[float]:
    try:
        with open(path) as f:
            return float(f.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _hardware() -> Dict[str, float]:
    """Clock of the first CPU in MHz and its zone's temperature in degrees Celsius, where the host tells them."""
    out = {}
    khz = _number("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if khz is not None:
        out["freq_mhz"] = khz / 1e3
    milli = _number("/sys/class/thermal/thermal_zone0/temp")
    if milli is not None:
        out["temp_c"] = milli / 1e3
    return out


def _steal() -> Any:
    """(steal, total, busy) jiffies of all CPUs, or None where /proc does not tell."""
    try:
        with open("/proc/stat") as f:
            v = [int(x) for x in f.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return v[7], sum(v), sum(v) - v[3] - v[4]


def loop(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Step for ``seconds``, or until the file ``stop`` exists, without keeping times: something for a sampler to watch."""
    run = stepper(ctx)
    end, stop = time.perf_counter() + float(args["seconds"]), args.get("stop")
    n = 0
    t0 = time.perf_counter()
    with run.mode():
        looked = 0.0
        while time.perf_counter() < end:
            run(n)
            n += 1
            if stop and time.perf_counter() - looked > 0.05:
                looked = time.perf_counter()
                if os.path.exists(stop):
                    break
    return {"steps": n, "step_ms": (time.perf_counter() - t0) / max(1, n) * 1e3}


def growth(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Resident memory, bytes in use on the heap and the non-zeros of gradients over ``steps`` steps, as series.

    Resident memory hides a leak for as long as the heap still has room from before; what is in use does not. ``heap`` is
    empty where the C library cannot tell. Where gradients are kept from step to step, ``dropped`` has the same series
    with them dropped before each step.
    """
    steps, seconds = int(args.get("steps", 48)), float(args.get("seconds", 3.0))
    held = [t for _, t in walk.held_tensors(ctx.fn) if isinstance(t, torch.Tensor)]
    series = _memory(ctx, steps, seconds)
    rss, heap, nnz = series["rss"], series["heap"], series["grad_nnz"]
    half = len(rss) // 2
    rose = nnz[-1] > nnz[half] or (heap or rss)[-1] > (heap or rss)[half]
    if rose and any(t.grad is not None for t in held):
        series["dropped"] = _memory(ctx, steps, seconds, drop=held)
    text = "resident memory %+.3g MiB" % ((rss[-1] - rss[0]) / 2**20)
    if heap:
        text += ", heap in use %+.3g MiB" % ((heap[-1] - heap[0]) / 2**20)
    series["summary"] = "%s over %d steps" % (text, len(rss))
    return series


def _memory(ctx: Context, steps: int, seconds: float, drop: Sequence[torch.Tensor] = ()) -> Dict[str, Any]:
    """The series of :func:`growth`; the gradients of ``drop`` are dropped before each step."""
    run, limit = stepper(ctx), time.perf_counter() + seconds
    held = [t for _, t in walk.held_tensors(ctx.fn) if isinstance(t, torch.Tensor)]
    rss: List[int] = []
    heap: List[int] = []
    nnz: List[int] = []
    in_use = _heap_meter()
    page = os.sysconf("SC_PAGE_SIZE")
    with run.mode():
        for i in range(steps):
            for t in drop:
                t.grad = None
            run(i)
            with open("/proc/self/statm") as f:
                rss.append(int(f.read().split()[1]) * page)
            if in_use is not None:
                heap.append(in_use())
            nnz.append(sum(int(t.grad._nnz()) for t in held if t.grad is not None and tensors.is_sparse(t.grad)))
            if time.perf_counter() > limit and i >= 8:
                break
    return {"rss": rss, "heap": heap, "grad_nnz": nnz}


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


def _heap_meter() -> Optional[Callable[[], int]]:
    """A function that tells how many bytes malloc has handed out (glibc 2.33 and later), or None."""
    call = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if call is None:
        return None
    call.restype = _Mallinfo

    def in_use() -> int:
        info = call()
        return int(info.uordblks) + int(info.hblkhd)

    return in_use if in_use() > 0 else None  # zero where another allocator stands in for malloc
