"""What stacks mean, what is said when nothing may be seen, and real processes seen by each sampler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparsetui.evidence.records import Missing
from sparsetui.ingest.samplers import Perf, PySpy, SamplerError, Tally, blend, sample_native, table
from sparsetui.ingest.samplers import base as base_module
from sparsetui.ingest.samplers import perf as perf_module
from sparsetui.ingest.samplers.base import Frame, Stack, ptrace_missing
from sparsetui.ingest.samplers.elf import Symbols, demangle
from sparsetui.ingest.samplers.fold import read, wilson
from sparsetui.ingest.samplers.proc import children, thread_states, who
from sparsetui.ingest.samplers.pyspy import parse

CPU, OMP = "libtorch_cpu.so", "libgomp.so.1"


def py(file, line, name):
    return Frame(name, "", file, line, True)


USER = (py("/srv/app/serving.py", 90, "<module>"), py("/srv/app/serving.py", 41, "forward"))
TORCH = py("/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward")


def native(*symbols, module=CPU):
    return tuple(Frame(s, module) for s in symbols)


@pytest.mark.parametrize(
    ("frames", "path"),
    [
        (native("at::native::linear", "mkl_blas_def_sgemm_kernel_0_zen"), "dense"),
        (native("at::native::_sparse_csr_mm", "mkl_sparse_s_csr_ng_n_mm_f_ker_i4_def"), "sparse-csr-rhs"),
        (native("at::native::_sparse_csr_mm", "mkl_sparse_s_csr_ng_n_mm_c_ker_i4_def"), "sparse-csr"),
        (native("at::native::dense_to_sparse_csr", "at::native::copy_", "__memcpy_avx_unaligned_erms"), "conversion"),
        (native("at::native::copy_", "__memcpy_avx_unaligned_erms"), "copy"),
        (native("at::native::linear", "mkl_blas_def_sgemm_kernel_0_zen", "[kernel]"), "dense"),
        (native("at::native::_coalesce_sparse_cpu", "malloc"), "sort"),
        (native("at::native::s_addmm_out_sparse_dense_worker", "at::native::cpublas::cpublas_axpy_impl"), "sparse-coo"),
        (native("at::native::mul", "at::native::cpublas::cpublas_axpy_impl"), "elementwise"),
        (native("made_up_symbol", module="libmystery.so"), "unknown"),
        ((TORCH,), "python"),
        ((), "python"),
        (native("GOMP_parallel", module=CPU) + native("0x7f00de62", module=OMP), "barrier"),
    ],
)
def test_path_of_a_stack(frames, path):
    assert read(USER + frames).path == path


def test_the_users_own_frame_is_the_caller():
    seen = read((*USER, TORCH, *native("mkl_blas_sgemm")))
    assert seen.caller == "serving.py:41 forward"
    assert read((TORCH, *native("mkl_blas_sgemm"))).caller == "linear.py:125 forward"
    assert read(native("mkl_blas_sgemm")).caller == ""


def test_a_bare_address_is_told_by_its_library():
    assert read(native("0x7f00de62", module=OMP)).symbol == "libgomp.so.1 (no symbol)"


def test_parse_of_py_spys_raw_format():
    text = (
        'process 7:"python x";thread (9481): a;<module> (/s/mt.py:9);at::f(int, std::vector<a> const&) (libtorch_cpu.so) 3\n'
        "thread (0x7F01): MainThread;BaseProcess.run (/s/p.py:108);0x7fbd48f76ef8 (?) 2\n"
        "no count here\n"
        "\n"
    )
    first, second = parse(text, pid=1)
    assert (first.pid, first.thread, first.count) == (7, 9481, 3)
    assert first.frames == (
        Frame("<module>", "", "/s/mt.py", 9, True),
        Frame("at::f(int, std::vector<a> const&)", "libtorch_cpu.so"),
    )
    assert (second.pid, second.thread) == (1, 0x7F01)
    assert second.frames[0].symbol == "BaseProcess.run"


@given(st.text(max_size=200))
def test_parse_takes_any_text(text):
    for stack in parse(text):
        assert stack.frames


@given(st.integers(0, 400), st.integers(1, 400))
@example(0, 303)
@example(400, 400)
def test_interval_holds_the_share(hits, n):
    hits = min(hits, n)
    low, high = wilson(hits, n)
    assert 0 <= low <= hits / n <= high + 1e-12 <= 1 + 2e-12
    assert wilson(hits * 4, n * 4)[1] - wilson(hits * 4, n * 4)[0] <= high - low + 1e-12  # more samples, narrower


def tally(*stacks):
    out = Tally()
    out.add(stacks)
    return out


def test_table_is_sorted_and_counts_threads():
    got = table(
        tally(
            Stack(1, (*USER, *native("mkl_blas_sgemm")), 3),
            Stack(2, (*USER, *native("mkl_blas_sgemm")), 4),
            Stack(1, USER, 1),
        )
    )
    assert [(r.path, r.share.n, r.threads) for r in got.paths] == [("dense", 8, 2), ("python", 8, 1)]
    assert got.paths[0].share.value == 7 / 8
    assert got.paths[0].callers == ("serving.py:41 forward",)


def test_two_samplers_are_blended_by_stratum():
    """perf saw 60 samples in Python's thread and 40 in a worker that spins: the worker keeps its 40 %."""
    stacks = tally(Stack(1, (*USER, *native("mkl_blas_sgemm")), 10))
    leaves = tally(Stack(1, native("mkl_blas_sgemm"), 60), Stack(2, native("0x1", module=OMP), 40))
    got = {r.path: r for r in blend(stacks, leaves).paths}
    assert got["dense"].share.value == pytest.approx(0.6)
    assert got["barrier"].share.value == pytest.approx(0.4)
    assert got["dense"].callers == ("serving.py:41 forward",)
    assert all(r.share.ci[0] <= r.share.value <= r.share.ci[1] for r in got.values())


# what is said when nothing may be seen


@pytest.mark.parametrize(
    ("scope", "capable", "container", "uid", "words"),
    [
        ("1", False, False, None, "kernel.yama.ptrace_scope = 1); run as root (sudo), or set it to 0"),
        ("2", False, False, None, "kernel.yama.ptrace_scope = 2); run as root"),
        ("3", True, False, None, "off until the next boot"),
        ("0", False, True, None, "--cap-add SYS_PTRACE"),
        ("0", False, False, 12345, "belongs to user 12345"),
        ("0", True, False, None, "traced already by a debugger"),
    ],
)
def test_refused_ptrace_names_the_way_out(monkeypatch, tmp_path, scope, capable, container, uid, words):
    file = tmp_path / "ptrace_scope"
    file.write_text(scope)
    real = open
    monkeypatch.setattr(base_module, "has_capability", lambda bit: capable)
    monkeypatch.setattr(base_module, "in_container", lambda: container)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(base_module, "owner_of", lambda pid: uid or 1000)
    monkeypatch.setattr(base_module, "_memory_owner", lambda pid: uid or 1000)
    monkeypatch.setattr(
        "builtins.open", lambda f, *a, **k: real(file if str(f).endswith("ptrace_scope") else f, *a, **k)
    )
    line = ptrace_missing(os.getpid(), "py-spy").why
    monkeypatch.undo()
    assert words in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("number", "container", "words"),
    [
        (1, True, "--cap-add PERFMON"),
        (13, False, "perf_event_paranoid"),
        (38, False, "no perf_event_open"),
        (3, False, "has ended"),
        (24, False, "Too many open files"),
    ],
)
def test_refused_perf_names_the_way_out(monkeypatch, number, container, words):
    monkeypatch.setattr(perf_module, "in_container", lambda: container)
    monkeypatch.setattr(perf_module, "has_capability", lambda bit: False)

    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(perf_module, "_open", refuse)
    missing = Perf(os.getpid()).available()
    assert words in missing.why


def test_a_process_that_ended():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    for sampler in (PySpy(child.pid), Perf(child.pid)):
        assert "has ended" in sampler.available().why
    got = sample_native(child.pid, 1, prefer="both")
    assert got.paths == ()
    assert {m.what for m in got.unavailable} >= {"py-spy", "perf"}


def test_no_py_spy(monkeypatch):
    monkeypatch.setattr("sparsetui.ingest.samplers.pyspy.binary", lambda: None)
    assert PySpy(os.getpid()).available() == Missing("py-spy", "py-spy is not installed; pip install py-spy")


# real processes


@pytest.fixture
def start():
    """Starts Python code in a process of its own and waits for its first line."""
    running = []

    def go(code, *, python=sys.executable):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        child = subprocess.Popen(
            [python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=env
        )
        running.append(child)
        if not child.stdout.readline():
            pytest.skip(f"the target did not start: {child.stderr.read().decode()[-200:]}")
        return child.pid

    yield go
    for child in running:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        child.stdout.close()
        child.stderr.close()


LOOP = "print('ready', flush=True)\ndef loop():\n    n = 0\n    while True: n += 1\nloop()"
CSR = """
import torch, torch.nn.functional as F
w = torch.randn(1024, 1024); w[torch.rand(1024, 1024) < 0.9] = 0
w, x = w.to_sparse_csr(), torch.randn(64, 1024)
def serve():
    while True: F.linear(x, w)
with torch.no_grad():
    F.linear(x, w)
    print('ready', flush=True)
    serve()
"""
CONVERT = """
import torch
w = torch.randn(1024, 1024); w[torch.rand(1024, 1024) < 0.9] = 0
with torch.no_grad():
    w.to_sparse_csr()
    print('ready', flush=True)
    while True: w.to_sparse_csr()
"""


def seen_by(pid, name, seconds):
    sampler = PySpy(pid, 10) if name == "py-spy" else Perf(pid)
    missing = sampler.available()
    if missing:
        pytest.skip(f"{missing.what}: {missing.why}")
    return tally(*sampler.collect(seconds))


@pytest.mark.parametrize("name", ["py-spy", "perf"])
def test_a_python_loop_is_python(start, name):
    got = table(seen_by(start(LOOP), name, 2))
    assert got.paths[0].path == "python"
    assert got.paths[0].share.value > 0.8
    if name == "py-spy":
        assert got.paths[0].callers[0].endswith("loop")


@pytest.mark.parametrize(("code", "path"), [(CSR, "sparse-csr-rhs"), (CONVERT, "conversion")], ids=["csr", "convert"])
def test_the_right_path_leads_with_either_sampler(start, code, path):
    pid = start(code)
    for name in ("perf", "py-spy"):
        got = table(seen_by(pid, name, 2))
        assert got.paths[0].path == path, (name, got)


def test_interrupt_ends_a_long_watch_with_what_was_seen(start):
    spy = PySpy(start(LOOP), 20)
    if spy.available():
        pytest.skip(spy.available().why)
    timer = threading.Timer(4, spy.interrupt)
    timer.start()
    begin = time.monotonic()
    stacks = spy.collect(60)
    assert time.monotonic() - begin < 40
    assert sum(s.count for s in stacks) > 0


def test_interrupt_before_py_spy_is_ready_is_no_failure(start):
    spy = PySpy(start(LOOP))
    if spy.available():
        pytest.skip(spy.available().why)
    threading.Timer(0.05, spy.interrupt).start()
    assert isinstance(spy.collect(30), list)


def test_not_python_is_told(start):
    child = subprocess.Popen(["sleep", "30"], start_new_session=True)
    try:
        with pytest.raises(SamplerError) as e:
            PySpy(child.pid).collect(1)
        assert "interpreter" in e.value.missing.why or "ptrace" in e.value.missing.why
    finally:
        child.kill()
        child.wait()


def test_commands_are_told_and_nothing_is_left_behind(start):
    commands = []
    spy = PySpy(start(LOOP), on_command=lambda argv, why, pid: commands.append((argv, pid)))
    if spy.available():
        pytest.skip(spy.available().why)
    spy.collect(1)
    ((argv, pid),) = commands
    assert argv[1] == "record"
    assert "--native" in argv
    assert who(pid) is None


def test_proc_sees_threads_and_children(start):
    pid = start("import subprocess; c = subprocess.Popen(['sleep', '30']); print(c.pid, flush=True)\nwhile True: pass")
    states = thread_states(pid)
    assert list(states) == [pid]
    assert len(children(pid)) == 1
    assert pid in children(os.getpid())
    assert children(os.getpid(), without=os.getpid()) == [], "a watch of oneself does not watch what the watch started"
    assert children(os.getpid(), without=pid) == [c for c in children(os.getpid()) if c not in (pid, *children(pid))]
    assert "sleep 30" in who(children(pid)[0]).cmdline
    assert who(pid).uid == os.geteuid()


def test_symbols_of_this_process():
    import ctypes

    libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.malloc, ctypes.c_void_p).value
    symbols = Symbols(os.getpid())
    symbols.refresh()
    name, module = symbols.name(address)
    assert "malloc" in name
    assert "libc" in module or "malloc" in module
    assert symbols.name(0x10)[0] == "0x10"


def test_demangling():
    assert demangle("_ZN2at6native6linearEv").startswith("at::native::linear")
    assert demangle("cblas_sgemm") == "cblas_sgemm"
