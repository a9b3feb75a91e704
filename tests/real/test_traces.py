"""Real profiler traces: what each must give. None of them holds a weight-sparse kernel."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest

from sparsetui.ingest import traces
from sparsetui.ingest.errors import IngestError
from sparsetui.ingest.sniff import sniff

DATA = Path(os.environ.get("SPARSETUI_REAL_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")) / "traces"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not DATA.is_dir(), reason=f"no outside data in {DATA}; SPARSETUI_REAL_DATA names another folder"
    ),
]

# file: events, timed host and device events, rank, the two paths that lead, steps
TABLE = {
    "a100_test.json.gz": (105167, 68323, 1, ("collective", "dense"), 6),
    "alexnet.json.gz": (1408, 826, 0, ("copy", "conv"), 0),
    "compile_triton.json.gz": (246, 113, None, ("dense", "attention"), 0),
    "h100_bert_small.json.gz": (2551, 2058, None, ("dense", "other"), 1),
    "h100_qwen.json.gz": (18221, 12078, None, ("elementwise", "dense"), 1),
    "legacy_v100_resnet50_nw0.json.gz": (75718, 44665, None, ("conv", "other"), 6),
    "legacy_v100_resnet50_nw4.json.gz": (71424, 41905, None, ("conv", "other"), 6),
    "mi210_gpu_only.json.gz": (2443, 1193, None, ("conv", "other"), 0),
    "mi300_bert_small.json.gz": (2653, 2131, None, ("dense", "attention"), 1),
    "mi300_qwen.json.gz": (18090, 12110, None, ("dense", "elementwise"), 1),
    "multi_rank/rank-0.json.gz": (4855, 4810, 0, ("collective", "other"), 2),
    "multi_rank/rank-1.json.gz": (4720, 4675, 1, ("collective", "other"), 2),
    "no_distributed_info.json.gz": (2467, 2467, None, ("copy", "dense"), 1),
    "odd/backward_thread.json": (7, 7, 0, ("dense",), 1),
    "odd/large_integer.json.gz": (2, 2, None, ("collective",), 0),
    "odd/out_of_order_after.json": (75, 6, None, ("unknown",), 0),
    "odd/out_of_order_before.json": (75, 6, None, ("unknown",), 0),
    "rank_non_gpu.json.gz": (2467, 2467, 0, ("copy", "dense"), 1),
    "v100_control.json.gz": (109123, 74936, 3, ("collective", "other"), 6),
    "vllm_decode.json.gz": (1993, 1539, 0, ("dense", "other"), 0),
    "vllm_decode_capture.json.gz": (131243, 126859, 0, ("elementwise", "copy"), 0),
}

TOP_KERNELS = {
    "a100_test.json.gz": "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    "h100_qwen.json.gz": "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_",
    "mi300_qwen.json.gz": "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_M",
    "legacy_v100_resnet50_nw0.json.gz": "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, ",
    "vllm_decode.json.gz": "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
}


@pytest.mark.parametrize("name", TABLE)
def test_each_trace_gives_its_figures(name: str) -> None:
    events, timed, rank, leading, steps = TABLE[name]
    assert sniff(DATA / name) == "trace"
    p = traces.inspect(DATA / name)
    assert (p["events"], p["timed_events"], p["rank"], p["steps"]["n"]) == (events, timed, rank, steps)
    assert tuple(x.path for x in p["time_table"].paths[: len(leading)]) == leading
    assert sum(x.share.value for x in p["time_table"].paths) == pytest.approx(1.0)
    assert p["rates"]["sparse_rate"].value == 0.0
    assert p["rates"]["conversion_rate"].value == 0.0
    assert p["rates"]["fallback_rate"].value is None
    assert p["salvage"] is None
    assert p["cannot_answer"]
    assert sum(r["self_ms"] for r in p["ops"]) <= p["host_ms"] + 1e-6
    if p["device_time"]:
        assert sum(r["ms"] for r in p["kernels"]) == pytest.approx(p["busy_ms"])
    if name in TOP_KERNELS:
        assert p["kernels"][0]["name"][:60] == TOP_KERNELS[name][:60]


def test_the_two_ranks_of_128() -> None:
    both = [traces.inspect(DATA / f"multi_rank/rank-{i}.json.gz") for i in (0, 1)]
    assert {p["world_size"] for p in both} == {128}
    told = traces.spread(both)
    assert told is not None
    assert (told["most_compute"], told["most_collective"]) == (1, 0)


def test_the_same_model_on_two_devices() -> None:
    h100, mi300 = (traces.inspect(DATA / f"{d}_qwen.json.gz") for d in ("h100", "mi300"))
    c = traces.compare([h100], [mi300])
    assert c["unit"] == "ms per step"
    gap = c["budget"].gap_ms.value
    assert gap == pytest.approx(h100["steps"]["p50_ms"].value - mi300["steps"]["p50_ms"].value)
    assert sum(b.ms.value for b in c["budget"].lines) == pytest.approx(gap)
    assert any("Cijk" in n for n in c["only_against"])


def test_order_in_the_file_does_not_matter() -> None:
    after, before = (traces.inspect(DATA / f"odd/out_of_order_{w}.json") for w in ("after", "before"))
    assert [r["op"] for r in after["ops"]] == [r["op"] for r in before["ops"]]


@pytest.mark.parametrize("name", ["h100_bert_small.json.gz", "odd/out_of_order_after.json", "compile_triton.json.gz"])
def test_mutilated_real_traces_give_a_table_or_one_line(tmp_path: Path, name: str) -> None:
    raw = (DATA / name).read_bytes()
    text = gzip.decompress(raw) if name.endswith("gz") else raw
    dice = random.Random(name)
    for i in range(6):
        broken = bytearray(text if i % 3 else raw)
        for _ in range(dice.randint(1, 8)):
            at = dice.randrange(len(broken))
            broken[at : at + dice.randint(0, 40)] = dice.randbytes(dice.randint(0, 6))
        if i % 2:
            del broken[dice.randrange(len(broken)) :]
        path = tmp_path / f"{i}.json"
        path.write_bytes(bytes(broken))
        try:
            p = traces.inspect(path)
        except IngestError as e:
            told = str(e)
            assert "\n" not in told
            continue
        assert p["rates"]["sparse_rate"].value in (0.0, None)


def test_a_truncated_real_trace_keeps_what_came_before(tmp_path: Path) -> None:
    text = gzip.decompress((DATA / "h100_bert_small.json.gz").read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(text[: len(text) // 2])
    p = traces.inspect(path)
    assert 700 < p["events"] < 1700
    cut = p["salvage"]["cut_at"]
    assert text[: cut["byte"]].count(b"\n") + 1 == cut["line"]
    assert p["salvage"]["last_good_event"]
