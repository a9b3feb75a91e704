"""The perf sampler: what every thread runs, by the kernel's cpu-clock event, without stopping any.

The event is opened with the system call itself, as the ``perf`` tool does. So it needs no tool on the host and no file
in between, and samples can be read while they come: a table within a second.

The leaf function is exact. Its callers would need frame pointers, which MKL and libtorch lack, or an unwinder in the
target; instead the top of the stack travels with the sample and is scanned for return addresses (a word that points
behind a call instruction). These callers are probable, not certain, and only decide what a helper such as memcpy works for.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
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
    capabilities,
    filtered,
    gone,
    has_capability,
    in_container,
    owner_of,
)
from sparsetui.ingest.samplers.elf import Symbols

WHAT = "perf"
_SYSCALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
_SAMPLE_IP, _SAMPLE_TID, _SAMPLE_CALLCHAIN, _SAMPLE_STACK = 1 << 0, 1 << 1, 1 << 5, 1 << 13
_DISABLED, _EXCLUDE_KERNEL, _EXCLUDE_HV, _FREQ, _NO_KERNEL_CHAIN = 1 << 0, 1 << 5, 1 << 6, 1 << 10, 1 << 21
_CONTEXT_MAX = (1 << 64) - 4095  # addresses from here on are markers in a call chain
_KERNEL = 1 << 63
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_STACK = 8192  # bytes of user stack with each sample: a TensorIterator alone takes one or two thousand
_PAGES, _PAGES_LEAF = 128, 16  # of ring buffer a thread: with stacks 0.6 s at 99 Hz, without them minutes
_MANY = 128  # threads beyond which stacks are left out
_HEAD, _TAIL = 1024, 1032
_ENABLE = 0x2400
_DRAIN_S = 0.1


def _open(pid: int, rate_hz: float, kernel: bool, stack: int = 0) -> int:
    """``perf_event_open`` for one thread on any core; the file descriptor. Raises OSError."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the perf_event_open call of {platform.machine()} is not known here")
    flags = _DISABLED | _EXCLUDE_HV | _FREQ | _NO_KERNEL_CHAIN | (0 if kernel else _EXCLUDE_KERNEL)
    sample = _SAMPLE_IP | _SAMPLE_TID | _SAMPLE_CALLCHAIN | (_SAMPLE_STACK if stack else 0)
    # struct perf_event_attr, version 5 (112 bytes); the sixth from the end is sample_stack_user
    attr = struct.pack(
        "<IIQQQQQIIQQQQIiQIHH",
        _TYPE_SOFTWARE, 112, _CPU_CLOCK, max(1, round(rate_hz)), sample, 0, flags,
        1, 0, 0, 0, 0, 0, stack, 0, 0, 0, 0, 0,
    )  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attr, 112)
    fd = libc.syscall(number, buffer, pid, -1, -1, 8)  # 8: close on exec
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


class _Ring:
    """The event of one thread and its ring buffer."""

    def __init__(self, tid: int, rate_hz: float, kernel: bool, stack: bool) -> None:
        self.lost = 0
        self.stack = stack
        self.size = (_PAGES if stack else _PAGES_LEAF) * mmap.PAGESIZE
        self.fd = _open(tid, rate_hz, kernel, _STACK if stack else 0)
        try:
            self.map = mmap.mmap(self.fd, self.size + mmap.PAGESIZE)
            fcntl.ioctl(self.fd, _ENABLE, 0)
        except (OSError, ValueError):
            os.close(self.fd)
            raise

    def read(self) -> list[tuple[int, int, bool, bytes]]:
        """New samples: thread, user-space leaf address (0: none), whether the kernel was running, piece of stack."""
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
                out.append(_sample(body, self.stack))
            elif kind == _RECORD_LOST and len(body) >= 16:
                self.lost += struct.unpack_from("<Q", body, 8)[0]
            tail += size
        struct.pack_into("<Q", self.map, _TAIL, head)
        return out

    def _bytes(self, at: int, size: int) -> bytes:
        begin, end = mmap.PAGESIZE + at, min(mmap.PAGESIZE + at + size, mmap.PAGESIZE + self.size)
        part = self.map[begin:end]
        rest = size - len(part)
        return part + self.map[mmap.PAGESIZE : mmap.PAGESIZE + rest] if rest else part

    def close(self) -> None:
        self.map.close()
        os.close(self.fd)


def _sample(body: bytes, with_stack: bool) -> tuple[int, int, bool, bytes]:
    ip, _, tid, depth = struct.unpack_from("<QIIQ", body, 0)
    depth = min(depth, (len(body) - 24) // 8)
    chain = struct.unpack_from(f"<{depth}Q", body, 24)
    in_kernel = ip >= _KERNEL
    user = next((a for a in chain if a < _CONTEXT_MAX), 0) if in_kernel else ip
    stack = b""
    if with_stack:
        at = 24 + 8 * depth
        size = struct.unpack_from("<Q", body, at)[0] if len(body) >= at + 8 else 0
        if size and len(body) >= at + 16 + size:
            used = struct.unpack_from("<Q", body, at + 8 + size)[0]
            stack = body[at + 8 : at + 8 + min(size, used)]
    return int(tid), int(user), in_kernel, stack


_Raw = tuple[int, int, bool, tuple[int, ...]]


class Perf:
    """Samples every thread of ``pid`` at ``rate_hz`` while it runs; new threads are found as they appear."""

    name = "perf"

    def __init__(self, pid: int, rate_hz: float = 99, on_command: OnCommand | None = None) -> None:
        self.pid, self.rate_hz, self.on_command = pid, rate_hz, on_command
        self.lost = 0
        self._rings: dict[int, _Ring] = {}
        self._kernel = True
        self._symbols = Symbols(pid)
        self._stop = threading.Event()
        self._refused: set[int] = set()
        self._lock = threading.Lock()
        self._raw: list[_Raw] = []
        self._drainer: threading.Thread | None = None
        self._end = threading.Event()

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
        """The share of a thread's time that sampling takes: an interrupt with its copy of the stack, about 5 µs."""
        return self.rate_hz * 5e-6

    def start(self) -> None:
        """Open the events and begin to drain them. Raises :class:`SamplerError`."""
        missing = self.available()
        if missing:
            raise SamplerError(missing)
        self._symbols.refresh()
        self._scan()
        if not self._rings:
            raise SamplerError(gone(self.pid, WHAT))
        self._end.clear()
        self._drainer = threading.Thread(target=self._drain_forever, name="perf", daemon=True)
        self._drainer.start()

    def read(self) -> list[Stack]:
        """What came since the last read, named."""
        with self._lock:
            raw, self._raw = self._raw, []
        counts: Counter[tuple[int, tuple[Frame, ...]]] = Counter()
        for tid, address, in_kernel, words in raw:
            counts[tid, self._frames(address, in_kernel, words)] += 1
        return [Stack(tid, frames, n, self.pid) for (tid, frames), n in counts.items()]

    def close(self) -> None:
        self._end.set()
        if self._drainer:
            self._drainer.join(5)
            self._drainer = None
        for ring in self._rings.values():
            self.lost += ring.lost
            ring.close()
        self._rings.clear()

    def collect(self, seconds: float) -> list[Stack]:
        """Sample for ``seconds`` and return what every thread ran. Raises :class:`SamplerError`."""
        self._stop.clear()
        self.start()
        try:
            deadline = time.monotonic() + seconds
            out: list[Stack] = []
            while not self._stop.is_set() and time.monotonic() < deadline and alive(self.pid):
                self._stop.wait(min(0.5, max(0.0, deadline - time.monotonic())))
                out += self.read()
        finally:
            self.close()
        return out + self.read()

    def interrupt(self) -> None:
        """End the running ``collect`` early."""
        self._stop.set()

    def _drain_forever(self) -> None:
        while not self._end.wait(_DRAIN_S):
            ended = self._scan()
            self._drain()
            for (
                tid
            ) in ended:  # a descriptor and half a megabyte each: a service that starts threads all day would fill up
                ring = self._rings.pop(tid)
                self.lost += ring.lost
                ring.close()
        self._drain()

    def _drain(self) -> None:
        fresh: list[_Raw] = []
        for ring in list(self._rings.values()):
            fresh += [(tid, ip, k, self._symbols.code_words(stack)) for tid, ip, k, stack in ring.read()]
        if fresh:
            with self._lock:
                self._raw += fresh

    def _frames(self, address: int, in_kernel: bool, words: tuple[int, ...]) -> tuple[Frame, ...]:
        frames = [Frame("[kernel]", "[kernel]")] if in_kernel else []
        if address:
            frames.append(Frame(*self._symbols.name(address)))
            if not _interpreter(frames[-1]):
                for word in words:
                    found = self._symbols.caller(word)
                    if found is None:
                        continue
                    frame = Frame(*found)
                    if _interpreter(frame):
                        break  # beyond it lie the callers of the Python function, no part of this op
                    frames.append(frame)
        return tuple(reversed(frames))

    def _scan(self) -> list[int]:
        """One ring a thread; returns those that have one and have ended, whose last samples are still to be read."""
        try:
            tids = {int(t) for t in os.listdir(f"/proc/{self.pid}/task")}
        except OSError:
            return []
        for tid in sorted(tids - self._rings.keys() - self._refused):
            for stack in (True, False):  # locked memory is limited for users other than root
                if stack and len(self._rings) >= _MANY:
                    continue
                try:
                    self._rings[tid] = _Ring(tid, self.rate_hz, self._kernel, stack)
                    break
                except OSError:
                    continue
            else:
                self._refused.add(tid)  # it ended meanwhile, or a limit of memory or descriptors is reached
        return [tid for tid in self._rings if tid not in tids]


def _interpreter(frame: Frame) -> bool:
    return frame.module.startswith(("libpython", "python", "libtorch_python")) or frame.symbol.startswith("_PyEval")


def _why(pid: int, error: OSError) -> Missing:
    try:
        with open("/proc/sys/kernel/perf_event_paranoid") as f:
            paranoid: int | None = int(f.read())
    except (OSError, ValueError):
        paranoid = None
    if error.errno == errno.ESRCH:
        return gone(pid, WHAT)
    if error.errno == errno.ENOSYS:
        return Missing(WHAT, "this kernel or its seccomp filter has no perf_event_open; use --sampler py-spy")
    if error.errno not in (errno.EACCES, errno.EPERM):
        return Missing(WHAT, f"perf events cannot be opened: {error.strerror}; use --sampler py-spy")
    uid = owner_of(pid)
    if uid is not None and uid != os.geteuid() and os.geteuid() != 0:
        why = f"process {pid} belongs to user {uid} and we are {os.geteuid()}; run as that user or as root (sudo)"
    elif in_container() and not has_capability(38) and not has_capability(21):
        why = (
            "this container may not open perf events; start it with --cap-add PERFMON (or SYS_ADMIN) and a seccomp "
            "profile that allows perf_event_open, or watch from the host"
        )
    elif filtered() and has_capability(38):
        why = (
            "the seccomp profile that we run under forbids perf_event_open, as Docker's default one does; start the "
            "container with another (--security-opt seccomp=…), or use --sampler py-spy"
        )
    elif os.geteuid() == 0 and not has_capability(19) and capabilities(pid, "CapPrm") & ~capabilities("self", "CapPrm"):
        why = f"process {pid} holds capabilities that we lack; run with SYS_PTRACE and PERFMON"
    elif paranoid is not None and paranoid > 2:
        why = f"kernel.perf_event_paranoid is {paranoid}; run as root, or sysctl kernel.perf_event_paranoid=2"
    else:
        why = (
            f"the kernel refused perf events (kernel.perf_event_paranoid = {paranoid}, {error.strerror}); run as root, "
            "grant CAP_PERFMON, or use --sampler py-spy"
        )
    return Missing(WHAT, why)
