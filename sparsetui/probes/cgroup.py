"""The CPU quota that this process runs under: that of its own cgroup or of one above it, in either version of cgroups."""

from __future__ import annotations

import functools
import os
from typing import Dict, List, Optional, Tuple

ROOT = "/sys/fs/cgroup"
OWN = "/proc/self/cgroup"


@functools.lru_cache(maxsize=4)
def _folders(root: str, own: str) -> Tuple[Tuple[str, str], ...]:
    """(version, folder) of the cgroups that may hold a quota, nearest first. In a container its own stands at the root."""
    out: List[Tuple[str, str]] = []
    for line in _read(own).splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            places = [("v2", root)]
        elif "cpu" in controllers.split(","):
            places = [("v1", os.path.join(root, name)) for name in ("cpu", "cpu,cpuacct")]
        else:
            continue
        steps = [s for s in path.split("/") if s and s != ".."]
        for n in range(len(steps), -1, -1):
            out += [(version, os.path.join(place, *steps[:n])) for version, place in places]
    return tuple(out)


def quota() -> Tuple[Optional[float], str, str]:
    """(cores, text, version): what the tightest quota grants, as it is written there; ``None`` for no limit, and ``""`` for
    text and version where no cgroup tells of quotas."""
    tightest: Optional[float] = None
    text = version = ""
    for v, folder in _folders(ROOT, OWN):
        said = _read(os.path.join(folder, "cpu.max"))
        if v == "v1":
            said = " ".join(_read(os.path.join(folder, "cpu.cfs_%s_us" % k)) for k in ("quota", "period"))
        most, _, period = said.strip().partition(" ")
        granted = int(most) / int(period) if most.isdigit() and period.isdigit() and int(period) > 0 else None
        if said.strip() and (not text or (granted is not None and (tightest is None or granted < tightest))):
            tightest, text, version = granted, said.strip(), v
    return tightest, text, version


def throttled() -> Optional[int]:
    """How often a CPU quota has stopped this process' cgroup or one above it so far, or ``None`` where none tells."""
    return stops()[0]


def stops() -> Tuple[Optional[int], Optional[float]]:
    """``(times, seconds)`` that a CPU quota has stopped this process' cgroup or one above it so far, ``None`` for what
    none tells."""
    found: Dict[str, int] = {}
    for _, folder in _folders(ROOT, OWN):
        for line in _read(os.path.join(folder, "cpu.stat")).splitlines():
            name, _, value = line.partition(" ")
            if value.isdigit():
                found[name] = found.get(name, 0) + int(value)
    told = [found[name] * unit for name, unit in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)) if name in found]
    return found.get("nr_throttled"), sum(told) if told else None


def _read(path: str) -> str:
    try:
        with open(path) as f:
            return f.read().strip()
    except (OSError, ValueError):
        return ""
