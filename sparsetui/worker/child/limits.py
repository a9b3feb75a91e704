"""What Linux lets a process say about itself: limits, who dies with whom, who may look inside."""

import ctypes
import os
import resource
from typing import List, Optional

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
_MOST_THREADS_MORE = 8192  # of this user, above what already runs: stops a fork bomb long before the host suffers

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: "ctypes.c_ulong") -> bool:
    zero = ctypes.c_ulong(0)
    return int(_libc.prctl(ctypes.c_int(option), argument, zero, zero, zero)) == 0


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP, _LARGEST_HEAP_BLOCK = 512 << 20, 32 << 20  # glibc takes no larger threshold than 32 MiB for mmap


def settle_heap() -> bool:
    """Have glibc keep freed memory instead of giving it back, unless the environment says how it shall behave.

    Whether a step's large buffers are returned to the kernel and faulted in again hangs on what happens to lie above them on
    the heap. The same code was seen to run for good with 0 or with 550 page faults a step, the one 1.4 times as slow as the
    other: a lottery between processes that says nothing of the code. ``False`` where it was left alone.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ) or "LD_PRELOAD" in os.environ:
        return False
    mallopt = getattr(_libc, "mallopt", None)  # glibc only
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_BLOCK)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEEP))


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose own parent dies, daemons included."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def die_with_parent(parent: int, signal_number: int) -> None:
    """Have the kernel end this process when ``parent`` ends, however that happens."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number))
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def let_others_trace(allow: bool) -> bool:
    """Allow any process of this user to attach under Yama's ptrace scope 1; ``False`` where there is no Yama to ask."""
    return _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY if allow else ctypes.c_ulong(0))


def _lower(which: int, limit: int) -> None:
    hard = resource.getrlimit(which)[1]
    new = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    try:
        resource.setrlimit(which, (new, new))
    except (ValueError, OSError):
        pass  # the watchdog of the parent still holds


def apply(memory_bytes: Optional[int], threads_now: Optional[int]) -> None:
    """Bound this process and its children: private memory, no core dump, and a guard against fork bombs."""
    if memory_bytes:
        _lower(resource.RLIMIT_DATA, memory_bytes + _stacks())
    # 1, not 0: where core_pattern is a pipe the kernel ignores a limit of 0, and a crash handler would read gigabytes
    _lower(resource.RLIMIT_CORE, 1)
    if threads_now is not None:
        _lower(resource.RLIMIT_NPROC, threads_now + _MOST_THREADS_MORE)


def _stacks() -> int:
    """Address space that two threads a core reserve for their stacks: it counts as data, and is hardly ever used."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return 2 * (os.cpu_count() or 1) * (stack if 0 < stack < 1 << 30 else 2 << 20)


def threads_of_user() -> Optional[int]:
    """Threads that this user runs on the host, or ``None`` for root, whom the kernel does not limit."""
    uid = os.getuid()
    if uid == 0:
        return None
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat("/proc/" + name).st_uid == uid:
                    total += len(os.listdir("/proc/" + name + "/task"))
            except OSError:
                continue  # it ended meanwhile
    return total


def prefer_me_for_oom() -> None:
    """When the host runs out of memory the kernel shall end a profiling worker, not the service beside it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as f:
            f.write("900")
    except OSError:
        pass


def children(pid: int) -> List[int]:
    """Process ids of the children of ``pid``, zombies included."""
    found: List[int] = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as f:
                found += [int(p) for p in f.read().split()]
        return found
    except OSError:
        if os.path.exists("/proc/self/task/%d/children" % os.getpid()):
            return found  # the process is gone, or is ending
    for name in os.listdir("/proc"):  # a kernel without the children file
        if name.isdigit() and _parent(name) == pid:
            found.append(int(name))
    return found


def _parent(name: str) -> int:
    try:
        with open("/proc/%s/stat" % name, "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def rss_bytes() -> int:
    """Resident memory of this process in bytes."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()
