"""The perf sampler: leaf symbols of all threads by the kernel's cpu-clock event, without stopping any.

The event is opened with the system call itself, as the ``perf`` tool does. So it needs no tool on the host, no file in
between, and samples can be read while they come: a table within a second.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import threading
import time
from collections import Counter

from sparsetui.evidence.records import Missing
from sparsetui.ingest.samplers.base import (
    Frame,
    OnCommand,
    SamplerError,
    Stack,
    alive,
    gone,
    has_capability,
    in_container,
    owner_of,
)
from sparsetui.ingest.samplers.elf import Symbols

WHAT = "perf"
_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
_SAMPLE_IP, _SAMPLE_TID, _SAMPLE_CALLCHAIN = 1 << 0, 1 << 1, 1 << 5
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HV, _FREQ = 1 << 0, 1 << 5, 1 << 6, 1 << 10
_CONTEXT_USER, _CONTEXT_KERNEL, _CONTEXT_MAX = (1 << 64) - 512, (1 << 64) - 128, (1 << 64) - 4095
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_PAGES = 16  # of ring buffer a thread: 64 KiB hold some seconds at 99 Hz even when the reader is late
_HEAD, _TAIL, _DATA_OFFSET = 1024, 1032, 1040
_ENABLE = 0x2400


def _open(pid: int, rate_hz: float, kernel: bool) -> int:
    """``perf_event_open`` for one thread on any core; the file descriptor. Raises OSError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the perf_event_open call of {platform.machine()} is not known here")
    flags = _DISABLED | _EXCLUDE_HV | _FREQ | (0 if kernel else _EXCLUDE_KERNEL)
    sample = _SAMPLE_IP | _SAMPLE_TID | _SAMPLE_CALLCHAIN
    # struct perf_event_attr, version 5 (112 bytes); max_stack is its last used field
    attr = struct.pack(
        "<IIQQQQQIIQQQQIiQIHH",
        _TYPE_SOFTWARE, 112, _CPU_CLOCK, max(1, round(rate_hz)), sample, 0, flags, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attr.ljust(112, b"\0"), 112)
    fd = libc.syscall(number, buffer, pid, -1, -1, 8)  # 8: close on exec
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


class _Ring:
    """The ring buffer of one thread's event."""

    def __init__(self, tid: int, rate_hz: float, kernel: bool) -> None:
        self.tid = tid
        self.fd = _open(tid, rate_hz, kernel)
        self.page = mmap.PAGESIZE
        self.size = _PAGES * self.page
        try:
            self.map = mmap.mmap(self.fd, self.size + self.page)
            import fcntl

            fcntl.ioctl(self.fd, _ENABLE, 0)
        except (OSError, ValueError):
            os.close(self.fd)
            raise
        self.lost = 0

    def read(self) -> list[tuple[int, int, bool]]:
        """New samples as (thread, user-space leaf address, whether the kernel was running)."""
        head = int(struct.unpack_from("<Q", self.map, _HEAD)[0])
        tail = int(struct.unpack_from("<Q", self.map, _TAIL)[0])
        out = []
        while tail < head:
            at = tail % self.size
            kind, _, size = struct.unpack("<IHH", self._bytes(at, 8))
            if size < 8:
                break
            body = self._bytes((at + 8) % self.size, size - 8)
            if kind == _RECORD_SAMPLE and len(body) >= 24:
                out.append(_sample(body))
            elif kind == _RECORD_LOST and len(body) >= 16:
                self.lost += struct.unpack_from("<Q", body, 8)[0]
            tail += size
        struct.pack_into("<Q", self.map, _TAIL, head)
        return out

    def _bytes(self, at: int, size: int) -> bytes:
        begin = self.page + at
        end = min(begin + size, self.page + self.size)
        part = self.map[begin:end]
        return part if len(part) == size else part + self.map[self.page : self.page + size - len(part)]

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)


def _sample(body: bytes) -> tuple[int, int, bool]:
    ip, _, tid, depth = struct.unpack_from("<QIIQ", body, 0)
    chain = struct.unpack_from(f"<{min(depth, (len(body) - 24) // 8)}Q", body, 24)
    in_kernel = False
    user = 0
    context = 0
    for address in chain:
        if address >= _CONTEXT_MAX:
            context = address
            in_kernel = in_kernel or address == _CONTEXT_KERNEL
        elif context == _CONTEXT_USER:
            user = address  # the first is exact; callers would need frame pointers, which libraries lack
            break
    return int(tid), int(user or (0 if in_kernel else ip)), in_kernel


class Perf:
    """Samples every thread of ``pid``; new threads are found as they appear."""

    name = "perf"

    def __init__(self, pid: int, rate_hz: float = 99, on_command: OnCommand | None = None) -> None:
        self.pid, self.rate_hz, self.on_command = pid, rate_hz, on_command
        self._rings: dict[int, _Ring] = {}
        self._kernel = True
        self._symbols = Symbols(pid)
        self._stop = threading.Event()
        self._refused: set[int] = set()
        self.lost = 0

    def available(self) -> Missing | None:
        """The reason why perf cannot look at this process; tried for real, then closed again."""
        if not alive(self.pid):
            return gone(self.pid, WHAT)
        for kernel in (True, False):
            try:
                fd = _open(self.pid, self.rate_hz, kernel)
            except OSError as e:
                error = e
                continue
            os.close(fd)
            self._kernel = kernel
            return None
        return _why(self.pid, error)

    def forecast(self) -> float:
        """perf stops no thread; an interrupt at this rate costs about 2 µs."""
        return self.rate_hz * 2e-6

    def start(self) -> None:
        """Open the events. Raises :class:`SamplerError`."""
        missing = self.available()
        if missing:
            raise SamplerError(missing)
        self._symbols.refresh()
        self._scan()
        if not self._rings:
            raise SamplerError(gone(self.pid, WHAT))

    def read(self) -> list[Stack]:
        """What came since the last read; cheap, never blocks."""
        self._scan()
        counts: Counter[tuple[int, int, bool]] = Counter()
        for ring in self._rings.values():
            counts.update(ring.read())
        stacks = []
        for (tid, address, in_kernel), n in counts.items():
            frames = []
            if address:
                frames.append(Frame(*self._symbols.name(address)))
            if in_kernel:
                frames.append(Frame("[kernel]", "[kernel]"))
            stacks.append(Stack(tid, tuple(frames), n, self.pid))
        return stacks

    def close(self) -> None:
        for ring in self._rings.values():
            self.lost += ring.lost
            ring.close()
        self._rings.clear()

    def collect(self, seconds: float) -> list[Stack]:
        self._stop.clear()
        self.start()
        try:
            deadline = time.monotonic() + seconds
            out: list[Stack] = []
            while not self._stop.is_set() and time.monotonic() < deadline and alive(self.pid):
                self._stop.wait(min(0.5, max(0.0, deadline - time.monotonic())))
                out += self.read()
            return out
        finally:
            self.close()

    def interrupt(self) -> None:
        self._stop.set()

    def _scan(self) -> None:
        """One ring a thread; those that ended keep theirs until it is read empty."""
        try:
            tids = {int(t) for t in os.listdir(f"/proc/{self.pid}/task")}
        except OSError:
            return
        for tid in tids - self._rings.keys() - self._refused:
            try:
                self._rings[tid] = _Ring(tid, self.rate_hz, self._kernel)
            except OSError:
                self._refused.add(tid)  # it ended meanwhile, or the limit of locked memory or descriptors is reached


def _why(pid: int, error: OSError) -> Missing:
    try:
        with open("/proc/sys/kernel/perf_event_paranoid") as f:
            paranoid: int | None = int(f.read())
    except (OSError, ValueError):
        paranoid = None
    if error.errno == errno.ESRCH:
        return gone(pid, WHAT)
    if error.errno in (errno.EACCES, errno.EPERM):
        uid = owner_of(pid)
        if in_container() and not has_capability(38) and not has_capability(21):
            why = (
                "this container may not open perf events; start it with --cap-add PERFMON (or SYS_ADMIN) and a seccomp "
                "profile that allows perf_event_open, or watch from the host"
            )
        elif uid is not None and uid != os.geteuid() and os.geteuid() != 0:
            why = f"process {pid} belongs to user {uid} and we are {os.geteuid()}; run as that user or as root (sudo)"
        elif paranoid is not None and paranoid > 2:
            why = (
                f"kernel.perf_event_paranoid is {paranoid}; run as root, or lower it: "
                "sysctl kernel.perf_event_paranoid=2"
            )
        else:
            why = (
                f"the kernel refused perf events (kernel.perf_event_paranoid = {paranoid}, {error.strerror}); "
                "run as root, grant CAP_PERFMON, or use --sampler py-spy"
            )
        return Missing(WHAT, why)
    if error.errno == errno.ENOSYS:
        return Missing(WHAT, "this kernel has no perf events (perf_event_open); use --sampler py-spy")
    return Missing(WHAT, f"perf events cannot be opened: {error.strerror}; use --sampler py-spy")
