"""The figures of a trace: own times, paths, rates, gaps, steps, ranks, comparison, on traces whose answer is known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsetui.evidence.records import TimeTable
from sparsetui.ingest import traces

CSRMM = "void cusparse::csrmm_v2_kernel<float>"
SGEMM = "ampere_sgemm_128x64_nn"
TENSOR = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_tn_align8>"


def op(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def call(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return {**op(name, ts, dur, correlation=correlation), "cat": "cuda_runtime"}


def kernel(name: str, ts: float, dur: float, correlation: int, occupancy: float | None = None) -> dict[str, Any]:
    args: dict[str, Any] = {"correlation": correlation, "stream": 7, "device": 0}
    if occupancy is not None:
        args["est. achieved occupancy %"] = occupancy
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def step(n: int, ts: float, dur: float) -> dict[str, Any]:
    return {**op(f"ProfilerStep#{n}", ts, dur), "cat": "user_annotation"}


def trace(tmp_path: Path, events: list[dict[str, Any]], name: str = "t.json", **header: Any) -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return traces.inspect(path)


def shares(table: TimeTable) -> dict[str, float]:
    return {p.path: round(p.share.value or 0.0, 6) for p in table.paths}


@pytest.mark.parametrize("indent", [None, 1, 8, "\t"])
def test_shapes_are_read_however_a_file_is_laid_out(tmp_path: Path, indent: int | str | None) -> None:
    dims, strides = (
        [[8, 128, 256], [8, 128, 64], [8, 64, 256], [], []],
        [[32768, 256, 1], [8192, 64, 1], [16384, 256, 1], [], []],
    )
    event = op("aten::baddbmm", 0, 5, **{"Input Dims": dims, "Input Strides": strides})
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [event] * 3}, indent=indent))
    asked = {u.question for u in traces.inspect(path)["cannot_answer"]}
    assert "Which layouts did the operands of the products have?" not in asked


def test_own_time_is_time_less_what_lies_within(tmp_path: Path) -> None:
    p = trace(tmp_path, [op("aten::linear", 0, 100), op("aten::addmm", 10, 80), op("aten::copy_", 20, 30)])
    assert {r["op"]: r["self_ms"] for r in p["ops"]} == pytest.approx(
        {"aten::linear": 0.02, "aten::addmm": 0.05, "aten::copy_": 0.03}
    )
    assert p["host_ms"] == pytest.approx(0.1)


def test_threads_do_not_nest_in_each_other(tmp_path: Path) -> None:
    other = {**op("aten::mul", 10, 50), "tid": 2}
    p = trace(tmp_path, [op("aten::mm", 0, 100), other])
    assert {r["op"]: r["self_ms"] for r in p["ops"]} == pytest.approx({"aten::mm": 0.1, "aten::mul": 0.05})


def test_kernel_time_by_path_with_occupancy_and_matrix_units(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 40), call(5, 2, 1), call(10, 2, 2), call(15, 2, 3),
        kernel(TENSOR, 20, 60, 1, 50), kernel(SGEMM, 80, 20, 2, 100), kernel(CSRMM, 120, 20, 3),
    ]  # fmt: skip
    p = trace(tmp_path, events, deviceProperties=[{"id": 0, "name": "NVIDIA X1"}])
    assert p["devices"] == ["NVIDIA X1"]
    assert shares(p["time_table"]) == {"dense": 0.8, "sparse-csr": 0.2}
    assert p["rates"]["sparse_rate"].value == pytest.approx(0.2)
    assert p["rates"]["fallback_rate"].value == pytest.approx(0.8)
    assert p["rates"]["fallback_rate"].quality == "derived"
    assert p["gaps"]["device_idle"].value == pytest.approx(20 / 120)
    assert p["occupancy_percent"].value == pytest.approx((60 * 50 + 20 * 100) / 80)
    assert p["tensor_core_share"].value == pytest.approx(0.75)
    assert p["tensor_core_share"].ci == pytest.approx((0.6, 0.8))
    assert p["launches"] == {"device_events": 3, "correlated": 3, "orphans": 0}


def test_a_kernel_launched_by_a_conversion_is_conversion(tmp_path: Path) -> None:
    events = [
        op("aten::to_sparse_csr", 0, 50), op("aten::nonzero", 5, 20), call(6, 2, 1),
        kernel("void elementwise_kernel<4>", 10, 30, 1),
        op("aten::mul", 60, 10), call(61, 2, 2), kernel("void elementwise_kernel<4>", 70, 10, 2),
    ]  # fmt: skip
    p = trace(tmp_path, events)
    assert shares(p["time_table"]) == {"conversion": 0.75, "elementwise": 0.25}
    assert p["rates"]["conversion_rate"].value == pytest.approx(0.75)


def test_unknown_kernels_stay_unknown_and_their_share_is_shown(tmp_path: Path) -> None:
    p = trace(tmp_path, [kernel("frobnicate_v7", 0, 30, 1), kernel(SGEMM, 30, 70, 2)])
    assert shares(p["time_table"]) == {"dense": 0.7, "unknown": 0.3}


def test_recommender_sparsity_is_no_weight_sparsity(tmp_path: Path) -> None:
    events = [
        {**op("## sparse_data_dist ##", 0, 100), "cat": "user_annotation"},
        op("fbgemm::permute_sparse_features", 0, 30), op("aten::embedding_bag", 30, 20), op("aten::mm", 60, 10),
    ]  # fmt: skip
    p = trace(tmp_path, events)
    assert p["rates"]["sparse_rate"].value == 0.0
    assert p["rates"]["fallback_rate"].value is None
    assert "not recorded" in p["rates"]["fallback_rate"].reason


def test_step_percentiles_only_where_there_are_enough(tmp_path: Path) -> None:
    few = trace(tmp_path, [step(i, i * 100.0, 50.0 + i) for i in range(9)])
    assert few["steps"]["n"] == 9
    assert few["steps"]["p50_ms"].value == pytest.approx(0.054)
    assert few["steps"]["p50_ms"].ci is not None
    assert few["steps"]["p95_ms"].value is None
    assert "200" in few["steps"]["p95_ms"].reason
    many = trace(tmp_path, [step(i, i * 100.0, 50.0 + i % 10) for i in range(250)])
    assert many["steps"]["p95_ms"].value is not None
    assert many["steps"]["p99_ms"].value is None
    none = trace(tmp_path, [op("aten::mm", 0, 1)])
    assert none["steps"]["p50_ms"].value is None
    assert any("step marks" in u.why for u in none["cannot_answer"])


def test_a_host_trace_cannot_say_which_kernels_ran(tmp_path: Path) -> None:
    p = trace(tmp_path, [op("aten::mm", 0, 10)])
    asked = {u.question for u in p["cannot_answer"]}
    assert "Which kernels ran?" in asked
    assert "Which layouts did the operands of the products have?" in asked
    assert all(u.why and u.settle for u in p["cannot_answer"])
    assert p["gaps"]["device_idle"].value is None


def test_strides_tell_the_layout_of_operands(tmp_path: Path) -> None:
    def product(name: str, ts: float, dims: list[Any], strides: list[Any]) -> dict[str, Any]:
        return op(name, ts, 10, **{"Input Dims": dims, "Input Strides": strides})

    dense = product("aten::mm", 0, [[8, 256], [256, 256]], [[256, 1], [1, 256]])
    right = product("aten::mm", 20, [[8, 256], [256, 256]], [[256, 1], []])
    left = product("aten::mm", 40, [[256, 256], [256, 8]], [[], [1, 256]])
    parts = [op("aten::ccol_indices", 21, 1), op("aten::crow_indices", 41, 1)]
    p = trace(tmp_path, [dense, right, left, *parts])
    assert {(r["op"], r["path"]) for r in p["ops"] if r["op"] == "aten::mm"} == {
        ("aten::mm", "dense"), ("aten::mm", "sparse-csr-rhs"), ("aten::mm", "sparse-csr"),
    }  # fmt: skip
    assert "Which layouts did the operands of the products have?" not in {u.question for u in p["cannot_answer"]}


def test_without_strides_the_side_of_the_sparse_operand_is_not_guessed(tmp_path: Path) -> None:
    p = trace(tmp_path, [op("aten::mm", 0, 100), op("aten::crow_indices", 10, 1)])
    assert {r["path"] for r in p["ops"] if r["op"] == "aten::mm"} == {"sparse-csr"}


def test_python_frames_lead_to_paths(tmp_path: Path) -> None:
    frames = [
        {**op("serving.py(41): forward", 0, 100), "cat": "python_function"},
        {**op("torch/nn/modules/linear.py(114): forward", 5, 90), "cat": "python_function"},
    ]
    p = trace(tmp_path, [*frames, op("aten::mm", 10, 80)])
    dense = next(x for x in p["time_table"].paths if x.path == "dense")
    assert dense.callers == ("serving.py(41): forward",)
    assert shares(p["time_table"])["python"] == pytest.approx(0.2)


def test_old_categories_mean_the_same(tmp_path: Path) -> None:
    old = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    new = [op("aten::mm", 0, 40), call(5, 2, 1), kernel(SGEMM, 20, 60, 1)]
    first = trace(tmp_path, new)
    second = trace(tmp_path, [{**e, "cat": old[e["cat"]]} for e in new])
    for key in ("time_table", "ops", "kernels", "launches", "gaps"):
        assert first[key] == second[key]


def test_ranks_and_their_spread(tmp_path: Path) -> None:
    def rank(n: int, work: float, wait: float) -> dict[str, Any]:
        events = [kernel(SGEMM, 0, work, 1), kernel("ncclDevKernel_AllReduce_Sum", work, wait, 2)]
        return trace(tmp_path, events, f"r{n}.json", distributedInfo={"backend": "nccl", "rank": n, "world_size": 2})

    both = [rank(0, 50, 150), rank(1, 200, 5)]
    assert [(p["rank"], p["world_size"]) for p in both] == [(0, 2), (1, 2)]
    told = traces.spread(both)
    assert told is not None
    assert (told["most_compute"], told["most_collective"]) == (1, 0)
    assert told["compute_ms_max_over_min"] == pytest.approx(4.0)
    assert traces.spread(both[:1]) is None


def test_the_difference_of_two_is_split_and_its_rest_named(tmp_path: Path) -> None:
    def run(name: str, gemm: str, work: float, length: float) -> dict[str, Any]:
        events: list[dict[str, Any]] = []
        for i in range(4):
            at = 1000.0 * i
            events += [
                step(i, at, length),
                kernel(gemm, at, work, 2 * i + 1),
                kernel("void elementwise_kernel<4>", at + work, 10, 2 * i + 2),
            ]
        return trace(tmp_path, events, name)

    slow, fast = run("slow.json", CSRMM, 300, 500), run("fast.json", SGEMM, 100, 200)
    c = traces.compare([slow], [fast])
    assert c["unit"] == "ms per step"
    assert c["budget"].gap_ms.value == pytest.approx(0.3)
    lines = {b.mechanism: b.ms.value for b in c["budget"].lines}
    assert lines == pytest.approx({"sparse-csr": 0.3, "dense": -0.1, "unexplained": 0.1})
    assert sum(b.share.value or 0 for b in c["budget"].lines) == pytest.approx(1.0)
    assert (c["only_failing"], c["only_against"]) == ([CSRMM], [SGEMM])
    assert c["kernels"][0]["name"] == CSRMM
    same = traces.compare([slow], [slow])
    assert same["budget"].gap_ms.value == 0
    assert [b.mechanism for b in same["budget"].lines] == ["unexplained"]
    assert same["budget"].lines[0].share.value is None


RECORD = """
import sys, torch, torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, schedule
torch.manual_seed(0); torch.set_num_threads(1)
w = torch.randn(512, 512) * (torch.rand(512, 512) > 0.8); x = torch.randn(64, 512)
csr, coo, bsr = w.to_sparse_csr(), w.to_sparse_coo(), w.to_sparse_bsr((4, 4))
steps = {
    "dense": lambda: F.linear(x, w), "rhs": lambda: F.linear(x, csr), "lhs": lambda: (csr @ x.t()).t(),
    "coo": lambda: F.linear(x, coo), "bsr": lambda: F.linear(x, bsr),
    "to_dense": lambda: F.linear(x, csr.to_dense()), "convert": lambda: F.linear(x, w.to_sparse_csr()),
    "mask": lambda: F.linear(x, w * w),
}
for name, f in steps.items():
    for shapes in (True, False):
        out = f"{sys.argv[1]}/{name}-{'shapes' if shapes else 'bare'}.json"
        with torch.no_grad():
            f()
            with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes, schedule=schedule(wait=0, warmup=1, active=3),
                         on_trace_ready=lambda p: p.export_chrome_trace(out)) as p:
                for _ in range(4):
                    f(); p.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of real runs of each layout, recorded by this interpreter's torch."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("recorded")
    env = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RECORD, str(folder)], check=True, capture_output=True, env=env
    )
    return folder


EXPECTED = {
    "dense": "dense", "rhs": "sparse-csr-rhs", "lhs": "sparse-csr", "coo": "sparse-coo", "bsr": "sparse-bsr",
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_real_host_traces_show_the_format_that_ran(recorded: Path, name: str) -> None:
    p = traces.inspect(recorded / f"{name}-shapes.json")
    assert p["steps"]["n"] == 3
    work = [x for x in p["time_table"].paths if x.path == "dense" or x.path.startswith("sparse-")]
    assert [x.path for x in work] == [EXPECTED[name]], shares(p["time_table"])
    sparse = p["rates"]["sparse_rate"].value
    assert sparse == (0.0 if name == "dense" else 1.0)
    assert not [u for u in p["cannot_answer"] if "layouts" in u.question]


@pytest.mark.parametrize("name", ["dense", "rhs", "lhs", "coo", "bsr"])
def test_without_shapes_a_sparse_product_is_still_told_from_a_dense_one(recorded: Path, name: str) -> None:
    p = traces.inspect(recorded / f"{name}-bare.json")
    found = {x.path for x in p["time_table"].paths if x.path.startswith("sparse") or x.path == "dense"}
    assert found == {{"dense": "dense", "coo": "sparse-coo"}.get(name, "sparse-csr")}
    assert [u for u in p["cannot_answer"] if "layouts" in u.question]


def test_a_conversion_in_the_step_shows_beside_the_product(recorded: Path) -> None:
    p = traces.inspect(recorded / "convert-shapes.json")
    assert p["rates"]["conversion_rate"].value > 0.1
    assert "sparse-csr-rhs" in shares(p["time_table"])
    densified = traces.inspect(recorded / "to_dense-shapes.json")
    assert densified["rates"]["conversion_rate"].value > 0.1
    assert densified["rates"]["sparse_rate"].value == 0.0
    assert densified["rates"]["fallback_rate"].value == 1.0


def test_a_mask_multiply_shows_as_elementwise(recorded: Path) -> None:
    p = traces.inspect(recorded / "mask-shapes.json")
    assert shares(p["time_table"])["elementwise"] > 0.02


def nested(n: int) -> list[dict[str, Any]]:
    """A frame around everything, ops in two levels, and a kernel that begins long after its launch."""
    out = [event("python_function", "serving.py(9): main", 0, 10.0 * n)]
    for i in range(n):
        at = 10.0 * i
        out.append(event("cpu_op", f"aten::{'addmm' if i % 2 else 'to_dense'}", at, 8))
        out.append(event("cpu_op", "aten::copy_", at + 2, 4))
        out.append(event("cuda_runtime", "cudaLaunchKernel", at + 3, 1, correlation=i + 1))
        out.append({**event("kernel", f"k{i % 3}", at + 25, 3, correlation=i + 1), "pid": 0, "tid": 7})
        out.append(event("user_annotation", f"ProfilerStep#{i // 10}", 100.0 * (i // 10), 100))
    return out


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


@pytest.mark.parametrize("window", [40, 171, 600])
def test_windows_of_a_large_trace_add_up_to_the_whole(tmp_path: Path, window: int) -> None:
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"traceEvents": nested(400)}))
    whole, parts = traces.inspect(path), traces.inspect(path, window=window)
    for key in ("events", "timed_events", "span_ms", "launches", "kernels", "steps"):
        assert parts[key] == whole[key], key
    for table in ("time_table", "host_table"):
        mine, theirs = ({r.path: r for r in p[table].paths} for p in (whole, parts))
        assert mine.keys() == theirs.keys()
        for path_, row in mine.items():
            assert theirs[path_].share.value == pytest.approx(row.share.value), path_
            assert (theirs[path_].share.n, theirs[path_].threads) == (row.share.n, row.threads)
            assert theirs[path_].callers == row.callers
    assert [(r["op"], r["calls"]) for r in parts["ops"]] == [(r["op"], r["calls"]) for r in whole["ops"]]
    assert parts["rates"]["conversion_rate"].value == pytest.approx(0.5)
    assert {k: v.value for k, v in parts["gaps"].items()} == pytest.approx(
        {k: v.value for k, v in whole["gaps"].items()}
    )


def test_where_disk_is_full_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsetui.ingest.traces.spill import Spill

    def full(self: Spill, records: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spill, "add", full)
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"traceEvents": nested(400)}))
    p = traces.inspect(path, window=100)
    assert p["oddities"]["beyond_limit"] > 0
    assert any("No space left" in u.why for u in p["cannot_answer"])
