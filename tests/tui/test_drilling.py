"""From a finding to the op, to what is nested in it, to the stack, to the artifact: Enter goes deeper, Esc back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conftest import Desktop, Opener, run
from scripted import PAYLOADS, WRONG

from sparsetui.evidence.records import Evidence, Place
from sparsetui.session.state import SessionState
from sparsetui.tui.drilling import Drill, line_of

EVIDENCE = tuple(
    Evidence(id=f"E{i:02d}", stage="kernel", probe=probe, sha256=probe, variant="failing")
    for i, probe in enumerate(("census", "profile", "native"), 1)
)
STATE = SessionState(id="s", evidence=EVIDENCE)


def listed(d: Desktop) -> dict[str, str]:
    return {r.plain()[0].strip(): r.plain()[1] for r in d.app.sheet.query_one("#list").rows}


def shown(d: Desktop) -> str:
    """The detail panel as one line: where it breaks depends on its width."""
    return " ".join(" ".join(x.plain for x in d.app.sheet.query_one("#detail").lines).split())


def test_enter_goes_down_to_the_place_in_the_artifact_and_esc_comes_back(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.investigate()
            await d.press("v", "enter")
            assert listed(d)["layers.0.linear1 aten::mm"] == "op", "the finding names its op"
            assert "csc float32 [1024,1024] layers.0.linear1.weight" in shown(d)
            assert "90.0 % zeros, 104,857 stored" in shown(d)
            await d.press("enter")
            below = listed(d)
            assert below["sparse-csr-rhs"] == "stack"
            assert below["aten::copy_"] == "nested", "what the same outermost op holds beside it"
            ids = {e.probe: e.id for e in d.app.desk.state.evidence}
            wanted = {ids["census"], ids["profile"], ids["native"]}
            assert {k for k, v in below.items() if v == "artifact"} == wanted
            await d.press("enter")
            assert listed(d)["serving.py:41 forward"] == "frame"
            assert listed(d)["mkl_sparse_s_csr_ng_n_mm_f_ker_i4_def"] == "symbol"
            await d.press("down", "enter")
            assert f"artifact of {ids['native']}" in d.text()
            assert "mkl_sparse_s_csr" in d.app.sheet.yank_text()
            places = []
            for _ in range(4):
                await d.press("escape")
                places.append((len(d.app.sheet.trail), d.app.sheet.query_one("#list").key))
            assert [p[0] for p in places] == [3, 2, 1, 0]
            assert places[-1][1] == "F:kernel.wrong-orientation"
            await d.press("escape")
            assert type(d.app.sheet).__name__ == "Investigate"

    run(body())


def test_the_filter_of_a_level_stays_with_it(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((120, 36)) as d:
            await d.investigate()
            await d.press("v", "slash", *"orient", "enter", "enter")
            assert d.app.sheet.query_one("#list").needle == ""
            assert len(listed(d)) > 3, "below it everything is listed again"

    run(body())


def test_an_artifact_is_opened_at_the_op(desktop: Opener) -> None:
    async def body() -> None:
        async with desktop((80, 24)) as d:
            await d.investigate()
            await d.press("v", "enter", "enter")
            table = d.app.sheet.query_one("#list")
            table.go_to("A:E03")
            await d.settle()
            await d.press("enter")
            assert '"module": "layers.0.linear1"' in d.text(), "scrolled to it: the second row of the census"

    run(body())


@pytest.mark.parametrize(
    "payload", [None, [], {"rows": 3}, {"rows": [None, {"op": None, "operands": "x", "weight": 7, "calls": "many"}]}]
)
def test_what_an_artifact_lacks_is_left_out(payload: Any) -> None:
    drill = Drill(STATE, lambda _: payload)
    for evidence in EVIDENCE:
        assert all(item.below or item.needle or item.kind == "artifact" for item in drill.of_evidence(evidence))
    assert drill.of_finding(WRONG) == []


def test_an_artifact_that_cannot_be_read_lists_nothing() -> None:
    def broken(_: Evidence) -> Any:
        raise ValueError("damaged")

    assert Drill(STATE, broken).of_evidence(EVIDENCE[0]) == []


def test_figures_are_a_step_not_of_the_whole_pass() -> None:
    drill = Drill(STATE, lambda e: PAYLOADS[e.probe])
    costly, cheap = drill.of_evidence(EVIDENCE[0])
    assert costly.what == "sparse-csr-rhs  3.81 ms a step"
    assert dict(costly.details)["calls"] == "1 a step"
    assert cheap.what == "dense  0.10 ms a step"
    outer = drill.of_evidence(EVIDENCE[1])
    assert [i.name for i in outer] == ["aten::linear"], "the outermost ops first"
    assert [i.name for i in outer[0].below if i.kind == "nested"] == ["aten::mm", "aten::copy_"]


def test_a_conversion_hidden_in_a_product_leads_to_what_the_product_holds() -> None:
    where = (Place("inside aten::linear", "aten::to_sparse_csr"), Place("inside aten::bmm", "aten::to_sparse_csr"))
    hidden = [{"product": "aten::linear", "op": "aten::to_sparse_csr", "calls": 10, "total_ms": 159.0}]
    payloads = {**PAYLOADS, "profile": {**PAYLOADS["profile"], "hidden": hidden}}
    found = Drill(STATE, lambda e: payloads[e.probe]).of_finding(msgspec.structs.replace(WRONG, where=where))
    assert [(i.kind, i.name, i.what) for i in found] == [
        ("hidden", "aten::to_sparse_csr inside aten::linear", "15.9 ms a step")
    ], "the other product holds none"
    assert [i.name for i in found[0].below if i.kind == "nested"] == ["aten::mm", "aten::copy_"]


def test_the_line_is_where_all_words_stand_together() -> None:
    text = ['"op": "mm"', '"module": "a"', *[""] * 20, '"op": "mm"', '"module": "b"']
    assert line_of(text, ('"op": "mm"', '"module": "b"')) == 22
    assert line_of(text, ('"op": "add"',)) == 0
