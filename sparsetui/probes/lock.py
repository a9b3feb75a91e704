"""The lock: under what a variant runs. Two variants are comparable where every tag agrees, or differs by declaration."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from typing import Any, Callable, Dict, List, Optional

import torch

from . import cgroup, tensors, walk
from .context import Context
from .step import stepper

ENV = re.compile(r"^(OMP_|MKL_|KMP_|OPENBLAS_|GOMP_|ATEN_|BLIS_|VECLIB_|NUMEXPR_|CUDA_VISIBLE_DEVICES$|CUBLAS_|NVIDIA_TF32|"
                 r"DNNL_|ONEDNN_|TORCH_|TORCHINDUCTOR_|PYTORCH_|MALLOC_|LD_PRELOAD$|PYTHONOPTIMIZE$|PYTHONHASHSEED$)")  # fmt: skip


def lock(ctx: Context, args: Dict[str, Any]) -> Dict[str, Any]:
    """Tags by group. ``{"tags": {tag: text}}``; a tag that cannot be had is left out, never guessed."""
    tags: Dict[str, str] = {}
    tags["torch"] = torch.__version__
    tags["python"] = platform.python_version()
    tags["interpreter"] = sys.executable
    build = torch.__config__.show()
    tags["build"] = _digest(build)
    for word in ("BLAS_INFO", "LAPACK_INFO"):
        m = re.search(word + r"=([\w-]+)", build)
        if m:
            tags[word.split("_")[0].lower()] = m.group(1)
    m = re.search(r"Intel\(R\) (?:oneAPI )?Math Kernel Library Version ([\w. -]+)", build)
    if m:
        tags["mkl"] = m.group(1).strip()
    tags["isa"] = torch.backends.cpu.get_cpu_capability()
    tags["threads"] = str(torch.get_num_threads())
    tags["interop_threads"] = str(torch.get_num_interop_threads())
    tags["deterministic"] = str(torch.are_deterministic_algorithms_enabled())
    tags["matmul_precision"] = torch.get_float32_matmul_precision()
    tags["invariant_checks"] = str(torch.sparse.check_sparse_tensor_invariants.is_enabled())  # type: ignore[no-untyped-call]
    tags["usable_cores"] = "%.3g" % min(len(os.sched_getaffinity(0)), quota_cores() or float("inf"))
    tags["affinity"] = _ranges(sorted(os.sched_getaffinity(0)))
    tags["cpu"] = _cpu_model()
    for k, v in sorted(os.environ.items()):
        if ENV.match(k):
            tags["env." + k] = v
    tags.update(_cgroup())
    tags.update(_governor())
    tags.update(_numa())
    if torch.cuda.is_available():
        d = torch.cuda.get_device_properties(0)
        tags["gpu"] = "%s sm_%d%d ×%d" % (d.name, d.major, d.minor, torch.cuda.device_count())
        tags["cuda"] = str(torch.version.cuda)
    tags.update(_numbers(ctx))
    tags.update(_switches())  # after the step, which may have set them
    return {"tags": tags}


def _switches() -> Dict[str, str]:
    """Which libraries and fast paths torch may use, as far as this build tells."""
    back = torch.backends
    asked: Dict[str, Callable[[], Any]] = {
        "switch.mkldnn": lambda: torch._C._get_mkldnn_enabled(),
        "switch.nnpack": lambda: torch._C._get_nnpack_enabled(),
        "switch.fused_attention": lambda: torch._C._get_flash_sdp_enabled(),
        "switch.attention_layers": lambda: back.mha.get_fastpath_enabled(),
        "switch.default_dtype": torch.get_default_dtype,
    }
    if torch.cuda.is_available():
        asked["switch.tf32"] = lambda: (back.cuda.matmul.allow_tf32, back.cudnn.allow_tf32)
        asked["switch.cudnn"] = lambda: (back.cudnn.enabled, back.cudnn.benchmark, back.cudnn.deterministic)
    out: Dict[str, str] = {}
    for tag, ask in asked.items():
        with contextlib.suppress(AttributeError, RuntimeError):
            out[tag] = str(ask())
    return out


def _numbers(ctx: Context) -> Dict[str, str]:
    """dtypes the model computes in, and the shapes it is fed."""
    run = stepper(ctx)
    with run.mode():
        out = list(tensors.flatten(run(0)))
    held = [t for _, t in walk.held_tensors(ctx.fn) if t.is_floating_point() and t.dim() >= 2]
    by: Dict[str, int] = {}
    for t in held:
        by[tensors.dtype(t)] = by.get(tensors.dtype(t), 0) + int(t.numel())
    main = max(by, key=lambda k: by[k]) if by else ""
    tags = {"dtype.output": ",".join(sorted({tensors.dtype(t) for t in out})),
            "shapes.inputs": _digest(repr([[(list(t.shape), tensors.dtype(t)) for t in tensors.flatten(i)] for i in ctx.inputs])),
            "shapes.outputs": str([list(t.shape) for t in out][:4])}  # fmt: skip
    if main:
        tags["dtype.weights"] = main
    return tags


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _ranges(cpus: List[int]) -> str:
    out: List[str] = []
    for c in cpus:
        if out and int(out[-1].split("-")[-1]) == c - 1:
            out[-1] = out[-1].split("-")[0] + "-" + str(c)
        else:
            out.append(str(c))
    return ",".join(out)


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.lower().startswith(("model name", "cpu model", "hardware")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def _read(path: str) -> str:
    try:
        with open(path) as f:
            return f.read().strip()
    except OSError:
        return ""


def quota_cores() -> Optional[float]:
    """Cores that the cgroup's quota allows, or None without a quota."""
    return cgroup.quota()[0]


def _cgroup() -> Dict[str, str]:
    text = cgroup.quota()[1]
    return {"quota": text} if text else {}


def _governor() -> Dict[str, str]:
    base = "/sys/devices/system/cpu/cpu0/cpufreq/"
    out = {"governor": _read(base + "scaling_governor"), "max_freq": _read(base + "scaling_max_freq")}
    return {k: v for k, v in out.items() if v}


def _numa() -> Dict[str, str]:
    nodes = _read("/sys/devices/system/node/online")
    return {"numa": nodes} if nodes else {}
