"""Energy counters of the host, read beside timed blocks: RAPL packages through the powercap files, GPUs through NVML.

Both count whole devices, whoever uses them. A counter that cannot be read is named with what would make it readable.
"""

from __future__ import annotations

import ctypes
import glob
import os
from typing import Any, Dict, List, Optional, Tuple

from .context import Context

POWERCAP = "/sys/class/powercap"


class Meter:
    """``read()`` gives joules since the meter was made, by source; ``missing`` says why other sources are not there."""

    def __init__(self, root: str = POWERCAP) -> None:
        self.missing: List[str] = []
        self._rapl = _packages(root, self.missing)
        self._last = [_number(path) for path, _ in self._rapl]
        self._sum = 0.0
        self._nvml = _nvml(self.missing)
        self._nvml_start = self._nvml() if self._nvml else 0.0

    @property
    def sources(self) -> List[str]:
        return (["rapl"] if self._rapl else []) + (["nvml"] if self._nvml else [])

    def read(self) -> Dict[str, float]:
        out: Dict[str, float] = {}
        if self._rapl:
            for i, (path, span) in enumerate(self._rapl):
                now = _number(path)
                step = now - self._last[i]
                self._sum += (step + span if step < 0 else step) / 1e6  # the counter wraps
                self._last[i] = now
            out["rapl"] = self._sum
        if self._nvml:
            out["nvml"] = self._nvml() - self._nvml_start
        return out

    def since(self, before: Dict[str, float]) -> Dict[str, float]:
        """Joules by source since an earlier reading."""
        now = self.read()
        return {k: now[k] - before[k] for k in now if k in before}


def _packages(root: str, missing: List[str]) -> List[Tuple[str, float]]:
    """(counter file, range in µJ) of every package; subdomains and psys would be counted twice."""
    folders = sorted(glob.glob(os.path.join(root, "intel-rapl:*")))
    found: List[Tuple[str, float]] = []
    for folder in folders:
        if os.path.basename(folder).count(":") != 1:
            continue
        try:
            with open(os.path.join(folder, "name")) as f:
                if not f.read().startswith("package"):
                    continue
            span = _number(os.path.join(folder, "max_energy_range_uj"))
            path = os.path.join(folder, "energy_uj")
            _number(path)
            found.append((path, span))
        except (OSError, ValueError):
            continue
    if not folders:
        missing.append("this host shows no RAPL counters (%s)" % root)
    elif not found:
        missing.append("RAPL is not readable: run as root, or chmod a+r energy_uj")
    return found


def _number(path: str) -> float:
    with open(path) as f:
        return float(f.read())


def _nvml(missing: List[str]) -> Any:
    """A function that gives the joules of the GPUs that torch uses here, or None."""
    import torch

    if not torch.cuda.is_available():
        missing.append("no CUDA device is in use, so NVML has nothing to count")
        return None
    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        missing.append("no NVIDIA driver library (libnvidia-ml.so.1)")
        return None
    handle = ctypes.c_void_p()
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if lib.nvmlInit_v2() != 0:
        missing.append("NVML cannot start; check the driver with nvidia-smi")
        return None
    name = ("GPU-%s" % uuid).encode() if uuid is not None else b""
    code = lib.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) if name else 1
    if code != 0:
        code = lib.nvmlDeviceGetHandleByIndex_v2(torch.cuda.current_device(), ctypes.byref(handle))
    if code != 0 or _millijoules(lib, handle) is None:
        missing.append("NVML has no energy counter for this device (Volta and later have one)")
        return None

    def joules() -> float:
        torch.cuda.synchronize()
        return (_millijoules(lib, handle) or 0) / 1e3

    return joules


def _millijoules(lib: Any, handle: Any) -> Optional[int]:
    value = ctypes.c_ulonglong()
    if lib.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(value)) != 0:
        return None
    return int(value.value)


def meter(ctx: Context) -> Meter:
    """The replica's one meter."""
    m = ctx.state.get("meter")
    if m is None:
        m = ctx.state["meter"] = Meter()
    return m


def energy(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Which counters can be read here: ``sources`` (rapl, nvml) and ``missing``, one reason each."""
    m = meter(ctx)
    text = "energy from %s" % ", ".join(m.sources) if m.sources else "; ".join(m.missing)
    return {"sources": m.sources, "missing": m.missing, "summary": text}
