"""Which weights a variant has, and how many of their entries are zero, as its products use them."""

from __future__ import annotations

from typing import Any

from sparsetui.diagnosis.case import Case


def used(name: str, zeros: float, shape: tuple[int, ...], derived: str = "", place: str = "") -> dict[str, Any]:
    weight = {"name": name, "zeros": zeros, "shape": list(shape), "derived": derived, "const": True}
    return {"family": "product", "weight": weight, "place": place, "calls": 1, "ns": 1}


def held(name: str, zeros: float, shape: tuple[int, ...]) -> dict[str, Any]:
    n = 1
    for s in shape:
        n *= s
    return {"name": name, "zeros": zeros, "shape": list(shape), "numel": n, "dtype": "float32"}


def weights(rows: list[dict[str, Any]], tensors: list[dict[str, Any]]) -> dict[str, float]:
    case = Case(census={"failing": {"rows": rows, "steps": 1}}, inventory={"failing": {"tensors": tensors}})
    return {name: zeros for name, zeros, _ in case.weights("failing")}


def test_a_pruned_slice_does_not_speak_for_the_whole_of_a_stacked_weight() -> None:
    rows = [used("qkv", 0.9, (16, 16)), used("qkv", 0.0, (16, 16))]
    assert weights(rows, [held("qkv", 0.6, (48, 16))]) == {"qkv": 0.6}


def test_a_weight_that_is_masked_in_the_step_has_the_zeros_of_its_masked_form() -> None:
    assert weights([used("w", 0.9, (16, 16), "aten::mul")], [held("w", 0.0, (16, 16))]) == {"w": 0.9}


def test_a_weight_that_no_walk_finds_is_known_by_where_it_is_used() -> None:
    rows = [used("a", 0.9, (16, 16)), used("", 0.0, (32, 16), place="serving.py:41 run")]
    found = weights(rows, [held("a", 0.9, (16, 16)), held("constant@3", 0.0, (32, 16))])
    assert found == {"a": 0.9, "serving.py:41 run #0": 0.0}


def test_a_table_that_is_masked_before_it_is_looked_up_has_the_zeros_of_its_masked_form() -> None:
    table = {"family": "copy", "lookup": used("table", 0.8, (64, 16), "aten::mul")["weight"], "calls": 1, "ns": 1}
    assert weights([table], [held("table", 0.0, (64, 16))]) == {"table": 0.8}


def test_a_table_that_was_never_pruned_is_no_gap_of_the_products_weights() -> None:
    table = {"family": "copy", "lookup": used("table", 0.0, (64, 16))["weight"], "calls": 1, "ns": 1}
    rows = [table, used("w", 0.9, (16, 16))]
    assert weights(rows, [held("table", 0.0, (64, 16)), held("w", 0.9, (16, 16))]) == {"w": 0.9}


def test_weights_without_a_name_count_once() -> None:
    rows = [used("", 0.9, (16, 16), place="serving.py:41 run"), used("", 0.0, (16, 16), place="serving.py:42 run")]
    found = weights(rows, [held("constant@0", 0.9, (16, 16)), held("constant@1", 0.0, (16, 16))])
    assert found == {"serving.py:41 run #0": 0.9, "serving.py:42 run #0": 0.0}
