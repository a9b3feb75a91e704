"""Products at the memory roof: which form would move fewer bytes, whose bytes they are, and when there is none."""

from __future__ import annotations

from typing import Any

import pytest
from payloads import Payload, copied_in_product, held, operand, product, profile, seen, tensor, timed, trial, weight

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.catalogue import by_id
from sparsetui.diagnosis.mechanism import Suspicion
from sparsetui.diagnosis.verdict import judge

ID = "execution.bandwidth-bound"
SIDE = 1024
# as measured: 1024 x 1024 in float64, a tenth of its 16 x 16 blocks kept, under a vector, on one thread of an EPYC
NNZ = 104_448
ROOFS = {"stream_gbs": 17.0, "cache_gbs": 65.0, "threads": 1}
CSR_NS, BSR_NS = 110_000, 70_000
BLOCKS = {"2": [0.0996, 1.0], "4": [0.0996, 1.0], "8": [0.0996, 1.0], "16": [0.0996, 1.0], "32": [0.33, 0.3]}


def entries(index: int = 4, **more: Any) -> Payload:
    return weight(nnz=NNZ, shape=[SIDE, SIDE], index_dtype="int32" if index == 4 else "int64", dtype="float64",
                  bytes={"values": 8 * NNZ, "indices": index * (NNZ + SIDE + 1), "dense": 8 * SIDE * SIDE}, **more)  # fmt: skip


def kept(index: int = 4, blocks: Payload = BLOCKS, **more: Any) -> Payload:
    w = entries(index)
    made = tensor(
        nnz=NNZ, shape=[SIDE, SIDE], numel=SIDE * SIDE, index_dtype=w["index_dtype"], bytes=w["bytes"], blocks=blocks
    )
    return {**made, **more}


def run(index: int = 4, ns: int = CSR_NS, sides: tuple[str, str] = ("csr", "strided"), **more: Any) -> Payload:
    vector = operand(shape=(SIDE, 1), dtype="float64")
    row = product(*sides, w=entries(index, **more), ns=ns, out=vector)
    return dict(row, operands=[operand("csr", (SIDE, SIDE), "float64"), vector])


def at_roof(*rows: Payload, inventory: Payload | None = None, **more: Any) -> Case:
    extra = {("roofs", "failing"): ROOFS}
    return seen(*(rows or (run(),)), **{"inventory": {"failing": held(inventory or kept())}, "extra": extra, **more})


def suspicion(case: Case) -> Suspicion | None:
    return by_id(ID).suspect(case, "failing")


def test_zeros_in_blocks_are_tried_as_blocks() -> None:
    found = suspicion(at_roof())
    assert found is not None
    assert found.intervention == "to-blocks"
    assert "blocks of 16 x 16 would move 33 % fewer" in found.summary  # 12 bytes an entry become 8 and a little
    assert found.untried == ""
    assert 0.3 < found.ms / 0.11 < 0.34


def test_zeros_that_lie_anywhere_have_no_form_and_say_so() -> None:
    anywhere = {"2": [0.34, 0.29], "4": [0.81, 0.12], "8": [1.0, 0.1], "16": [1.0, 0.1]}
    found = suspicion(at_roof(inventory=kept(blocks=anywhere)))
    assert found is not None
    assert found.intervention is None
    assert "no fewer bytes" in found.untried
    assert found.passes == (("roofs", "failing"), ("census", "failing"))


def test_fill_is_weighed_against_indices() -> None:
    most = {"2": [0.0249 * 4 / 0.9, 0.9], "4": [0.5, 0.2]}
    some = {"2": [0.0249 * 4 / 0.6, 0.6]}
    assert suspicion(at_roof(inventory=kept(blocks=most))).intervention == "to-blocks"  # type: ignore[union-attr]
    assert suspicion(at_roof(inventory=kept(blocks=some))).intervention is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("layout", "at", "form"), [("csr", ("csr", "strided"), "to-blocks"), ("csc", ("strided", "csc"), "to-blocks"),
                               ("csc", ("csc", "strided"), None)]
)  # fmt: skip
def test_blocks_stand_where_the_entries_stood(layout: str, at: tuple[str, str], form: str | None) -> None:
    found = suspicion(at_roof(run(sides=at, layout=layout)))
    assert found is not None
    assert found.intervention == form


def test_a_weight_without_a_name_is_known_by_its_non_zeros() -> None:
    loose = at_roof(run(name=""), inventory=kept(name="constant@0"))
    assert suspicion(loose).intervention == "to-blocks"  # type: ignore[union-attr]
    other = at_roof(run(name=""), inventory=kept(name="constant@0", nnz=NNZ + 1))
    assert suspicion(other).intervention is None  # type: ignore[union-attr]


def test_wide_indices_are_narrowed_first() -> None:
    case = at_roof(run(8), inventory=kept(8), profile={"failing": profile()})
    found = suspicion(case)
    assert found is not None
    assert found.intervention == "narrow-index"
    assert "int32 indices would move 24.9 % fewer" in found.summary  # 16 bytes an entry become 12


def test_bytes_that_are_copied_on_each_call_are_the_copys() -> None:
    copied = copied_in_product(NNZ)
    case = at_roof(run(8), inventory=kept(8), profile=copied.profile)
    assert by_id("execution.index-copy").suspect(case, "failing") is not None
    assert suspicion(case) is None


def test_below_the_roof_nothing_is_said() -> None:
    assert suspicion(at_roof(run(ns=2 * CSR_NS))) is None
    assert suspicion(at_roof(dict(run(ns=2 * CSR_NS), min_ns=CSR_NS))) is not None, (
        "its fastest call is held against the roof"
    )


def test_the_roof_is_what_either_process_reached_at_as_many_threads() -> None:
    low = {("roofs", "failing"): dict(ROOFS, stream_gbs=6.0), ("roofs", "comparator"): dict(ROOFS, stream_gbs=40.0)}
    assert suspicion(at_roof(extra=low)) is None
    low[("roofs", "comparator")]["threads"] = 8
    assert suspicion(at_roof(extra=low)) is not None


def test_roofs_are_measured_before_the_trials_where_one_could_follow() -> None:
    m = by_id(ID)
    assert not m.waits(at_roof())
    assert m.arguments is not None
    assert m.arguments(at_roof())["seconds"] < 1
    anywhere = at_roof(inventory=kept(blocks={}))
    assert m.waits(anywhere)
    assert m.arguments(anywhere) == {}


def slower(closed: float | None) -> Case:
    case = timed(1.4, census=at_roof().census, inventory=at_roof().inventory, extra={("roofs", "failing"): ROOFS})
    trials = trial("to-blocks", closed, case) if closed else {}
    return timed(
        1.4,
        census=case.census,
        inventory=case.inventory,
        extra=case.extra,
        trials={**trials, **trial("dense-twin", 1.5, case)},
    )


def test_blocks_that_gain_confirm_it_and_blocks_that_do_not_clear_it() -> None:
    """BSR took 0.64 of CSR's time under one column, and 1.07 of it under ``mv``, whose BSR kernel is the slower one here."""
    v = judge(slower(BSR_NS / CSR_NS)).verdict
    assert (v.mechanism, v.confidence, v.intervention) == (ID, "confirmed", "E-to-blocks")
    cleared = next(f for f in judge(slower(1.07)).findings if f.mechanism == ID)
    assert not cleared.material


def test_two_passes_that_can_try_nothing_say_why() -> None:
    case = timed(1.4, census=at_roof(run(ns=900_000)).census, inventory={"failing": held(kept(blocks={}))},
                 extra={("roofs", "failing"): {"stream_gbs": 2.0, "cache_gbs": 2.0}})  # fmt: skip
    found = next(f for f in judge(case).findings if f.mechanism == ID)
    assert (found.material, found.confidence) == (True, "supported")
    assert "in blocks its zeros would move no fewer bytes" in found.reason
    assert found.share_of_regression is not None
    assert "in blocks" in (found.share_of_regression.reason or "")
