"""What every sampler gives: stacks of threads, and the reason when it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import msgspec

from sparsetui.evidence.records import Missing

#: Called with (argv, why, pid) for every process that a sampler starts, so that the command log can show it.
OnCommand = Callable[[list[str], str, int | None], None]


class Frame(msgspec.Struct, frozen=True):
    """One frame. ``python`` frames have a file and a line; native ones a symbol and the shared object it lies in."""

    symbol: str
    module: str = ""  # base name of the shared object; "" for a Python frame
    file: str = ""
    line: int = 0
    python: bool = False


class Stack(msgspec.Struct, frozen=True):
    """``count`` samples of one thread in one stack, frames from root to leaf."""

    thread: int  # the kernel's thread id where the sampler knows it
    frames: tuple[Frame, ...]
    count: int = 1
    pid: int = 0


class SamplerError(Exception):
    """A sampler cannot run or ended badly; ``missing`` is the line to show."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.why)
        self.missing = missing


class Sampler(Protocol):
    """Looks at one process from outside.

    ``collect`` blocks for about ``seconds``; ``interrupt`` may be called from another thread and makes it return early
    with what was seen. It raises :class:`SamplerError` when nothing can be seen at all.
    """

    name: str
    pid: int
    rate_hz: float
    on_command: OnCommand | None

    def available(self) -> Missing | None: ...

    def collect(self, seconds: float) -> list[Stack]: ...

    def interrupt(self) -> None: ...


def alive(pid: int) -> bool:
    """Whether ``pid`` is a process that still runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def gone(pid: int, what: str) -> Missing:
    return Missing(what, f"process {pid} has ended; give the PID of one that runs (pgrep -af python)")


def owner_of(pid: int) -> int | None:
    """The effective user of ``pid``; ``None`` where it is gone."""
    uids = status(pid).get("Uid", "").split()
    return int(uids[1]) if len(uids) > 1 and uids[1].isdigit() else None


def status(pid: int | str) -> dict[str, str]:
    """The fields of ``/proc/PID/status``; empty where the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as f:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in f)}
    except OSError:
        return {}


def capabilities(pid: int | str, which: str = "CapEff") -> int:
    """A set of capabilities of ``pid`` as bits; 0 where it cannot be read."""
    try:
        return int(status(pid).get(which, "0"), 16)
    except ValueError:
        return 0


def has_capability(bit: int) -> bool:
    """Whether this process holds capability ``bit`` (19 is SYS_PTRACE, 38 PERFMON, 21 SYS_ADMIN)."""
    return bool(capabilities("self") >> bit & 1)


def filtered() -> bool:
    """Whether a seccomp filter decides which system calls this process may make, as in most containers."""
    return status("self").get("Seccomp") == "2"


def in_container() -> bool:
    """Whether this looks like a container: the usual marker files, or an init that is not the host's."""
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    try:
        with open("/proc/1/cgroup") as f:
            text = f.read()
    except OSError:
        return False
    return any(word in text for word in ("docker", "kubepods", "containerd", "libpod", "lxc"))


def ptrace_missing(pid: int, what: str, detail: str = "") -> Missing:
    """Why the kernel refused to let us look into ``pid``, with the way out that fits this host."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as f:
            scope: int | None = int(f.read().strip())
    except (OSError, ValueError):
        scope = None
    capable = has_capability(19)
    uid = owner_of(pid)
    ours = "run as root (sudo)" if os.geteuid() else "run with the SYS_PTRACE capability"
    if tracer := _tracer(pid):
        why = (
            f"process {pid} is traced already, by process {tracer}, and only one may; end that tracer, "
            "or use --gentle or --sampler perf"
        )
    elif not capable and uid not in (None, os.geteuid()) and not (in_container() and os.geteuid() == 0):
        why = f"process {pid} belongs to user {uid} and we are {os.geteuid()}; run as that user or as root (sudo)"
    elif not capable and uid is not None and _memory_owner(pid) not in (uid, None):
        why = f"process {pid} has made itself undumpable (prctl, or a set-user-ID program); {ours}"
    elif not capable and in_container():
        why = (
            "this container has no SYS_PTRACE capability; start it with --cap-add SYS_PTRACE "
            "(Kubernetes: securityContext.capabilities.add), or attach from the host"
        )
    elif scope == 3:
        why = "ptrace is off until the next boot (kernel.yama.ptrace_scope = 3); use --sampler perf"
    elif scope and not capable:
        way = ours if scope == 2 else f"{ours}, or set it to 0: sysctl kernel.yama.ptrace_scope=0"
        why = f"ptrace is restricted (kernel.yama.ptrace_scope = {scope}); {way}"
    elif not capable and capabilities(pid, "CapPrm") & ~capabilities("self", "CapPrm"):
        why = f"process {pid} holds capabilities that we lack; {ours}, or use --sampler perf"
    elif filtered():
        why = (
            "the seccomp profile that we run under forbids ptrace; start the container with --cap-add SYS_PTRACE or "
            "another profile (--security-opt seccomp=…), or use --sampler perf"
        )
    else:
        tail = f" ({detail})" if detail else ""
        why = (
            f"the kernel refused ptrace of process {pid}{tail}; it may be traced already by a debugger, be undumpable, "
            "or a seccomp profile forbids it; end the other tracer or use --sampler perf"
        )
    return Missing(what, why)


def _tracer(pid: int) -> str:
    """``PID (name)`` of the process that traces ``pid`` now; empty for none."""
    tracer = status(pid).get("TracerPid", "0")
    name = status(tracer).get("Name", "") if tracer.isdigit() and tracer != "0" else ""
    return "" if tracer in ("0", "") else f"{tracer} ({name})" if name else tracer


def _memory_owner(pid: int) -> int | None:
    """Root where the process has made itself undumpable, else its user."""
    try:
        return os.stat(f"/proc/{pid}/mem").st_uid
    except OSError:
        return None
