"""What the charts and the comparison say of a session: only what was measured, and a difference only where it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SESSION, Opener, run
from scripted import number
from test_grids import another_session

from sparsetui.evidence.records import unavailable
from sparsetui.report.plots import RoofPoint
from sparsetui.session.state import SessionState
from sparsetui.tui import artifacts
from sparsetui.tui.screens.compare import _against, rows


def block(variant: str, *times: float) -> dict[str, object]:
    return {"variant": variant, "replica": f"{variant}-0", "order": 0, "times_ms": list(times), "conditions": {}}


CLOCK = {
    "rounds": [
        {"failing": [block("failing", 4.0, 4.1), block("failing", 9.5)], "comparator": [block("comparator", 0.7)]},
        {"failing": [block("failing", 3.9)], "comparator": [block("comparator", 0.8, 0.72)]},
    ]
}
ROW = {
    "op": "aten::mm", "family": "product", "module": "hidden", "backward": False, "calls": 2, "ns": 2_000_000,
    "path": "sparse-csr",
    "operands": [{"layout": "csr", "dtype": "float32", "shape": [1024, 512], "name": "w"},
                 {"layout": "strided", "dtype": "float32", "shape": [512, 16], "name": ""}],
    "outputs": [{"layout": "strided", "dtype": "float32", "shape": [1024, 16]}],
    "weight": {"name": "w", "nnz": 50_000, "layout": "csr", "shape": [1024, 512],
               "bytes": {"values": 200_000, "indices": 204_100, "dense": 2_097_152}},
}  # fmt: skip


def test_step_times_are_all_of_the_clock_by_variant() -> None:
    times = artifacts.step_times(CLOCK)
    assert times == {"failing": [4.0, 4.1, 9.5, 3.9], "comparator": [0.7, 0.8, 0.72]}
    for broken in (None, [], {"rounds": 3}, {"rounds": [{"failing": [{"times_ms": "x"}]}]}):
        assert not any(artifacts.step_times(broken).values())


def test_a_product_stands_where_its_bytes_and_its_time_put_it() -> None:
    found = artifacts.products({"rows": [ROW, {"family": "product"}, None]})
    flops, moved = 2 * 50_000 * 16, 200_000 + 204_100 + 4 * (512 * 16 + 1024 * 16)
    assert found["cache"] == [RoofPoint("hidden sparse-csr", flops / moved, flops / 1_000_000)]
    assert found["memory"] == []


def test_a_dense_weight_counts_with_all_its_values() -> None:
    weight = {**ROW["weight"], "layout": "strided"}  # type: ignore[dict-item]
    (point,) = artifacts.products({"rows": [{**ROW, "weight": weight}]})["memory"]
    assert point.gflops == pytest.approx(2 * 1024 * 512 * 16 / 1_000_000)


def test_roofs_without_a_peak_are_no_roofs() -> None:
    assert artifacts.roofs_of({"stream_gbs": 9.0}) == {}
    whole = artifacts.roofs_of({"stream_gbs": 9.0, "cache_gbs": None, "gemm_gflops": {"float32": 40.0}})
    assert list(whole) == ["memory"]


def test_charts_are_drawn_from_the_artifacts_of_the_session(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("V")
            assert "nothing has been measured" in d.note
            await d.press("enter", "enter")
            writer = d.runner.writer
            writer.evidence("execution", "clock", CLOCK, summary="rounds")
            roofs = {"stream_gbs": 9.0, "cache_gbs": 60.0, "gemm_gflops": {"float32": 40.0}}
            writer.evidence("execution", "roofs", roofs, summary="roofs", variant="failing")
            writer.evidence("lowering", "census", {"rows": [ROW]}, summary="ops", variant="failing")
            busy = [
                {"tid": 7, "name": "omp", "busy": {"value": 0.9, "quality": "measured"}, "paths": [["barrier", 0.8]]}
            ]
            writer.evidence("kernel", "attach", {"threads": busy}, summary="watched")
            writer.append("metrics", {"nominal_sparsity": number(0.9)})
            d.app.desk.state = writer.state()
            await d.press("V")
            text = d.app.sheet.query_one("#charts").text()
            assert "failing  n=4" in text
            assert "comparator  n=3" in text
            assert "a hidden sparse-csr" in text
            assert "60 GB/s" in text
            assert "barrier 80%" in text

    run(body())


def test_a_damaged_artifact_leaves_its_chart_out(desktop: Opener, tmp_path: Path) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.press("enter", "enter")
            writer = d.runner.writer
            kept = writer.evidence("execution", "clock", CLOCK, summary="rounds")
            writer.append("metrics", {"nominal_sparsity": number(0.9)})
            d.app.desk.state = writer.state()
            (found,) = (p for p in (tmp_path / "store").rglob("*") if kept.sha256 and kept.sha256[4:] in p.name)
            found.chmod(0o600)
            found.write_bytes(b"not gzip")
            await d.press("V")
            shown = d.text()
            assert "sparse reality check" in shown
            assert "latency of one step" not in shown

    run(body())


@pytest.mark.parametrize(
    ("left", "right", "told"),
    [
        (number(2.0, 1.9, 2.1), number(4.0, 3.9, 4.1), "▲ ×2.00"),
        (number(2.0, 1.5, 2.5), number(2.2, 1.8, 2.6), "×1.10 overlap"),
        (number(2.0), number(1.0), "×0.50"),
        (unavailable("no clock"), number(1.0, 0.9, 1.1), ""),
        (number(0.0, -0.1, 0.1), number(0.5, 0.4, 0.6), "▲"),
    ],
)
def test_only_intervals_that_keep_apart_are_a_difference(left: object, right: object, told: str) -> None:
    assert _against(left, right) == told  # type: ignore[arg-type]


def test_two_empty_sessions_compare_without_a_row_of_figures() -> None:
    keys = [r.key for r in rows(SessionState(id="a"), SessionState(id="b"))]
    assert not [k for k in keys if k.startswith(("figure", "mechanism", "tag"))]


def test_two_marked_sessions_are_compared_and_found_by_what_the_list_does_not_show(
    desktop: Opener, tmp_path: Path
) -> None:
    async def body() -> None:
        async with desktop() as d:
            await d.investigate()
        another_session(tmp_path / "store")
        async with desktop(start=None) as d:
            await d.press("c")
            assert "mark two" in d.note
            for word, count in (("@kernels", 2), ("web-17", 2), ("2026-11-30", 2), ("9999", 1), ("@nobody", 0)):
                await d.press("slash", *word, "enter")
                assert len(d.app.sheet.table.rows) == count, word
                await d.press("slash", "escape")
            await d.press("g", "space", "space", "c")
            assert set(d.app.sheet.refs) == {SESSION, f"{SESSION[:-4]}9999"}
            assert "▲ ×" in d.text(), "the ratios keep apart"
            await d.press("enter")
            assert type(d.app.sheet).__name__ == "Investigate"

    run(body())
