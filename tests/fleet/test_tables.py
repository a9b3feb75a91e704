"""The matrix over nodes as it is shown: a table for each lock, nothing pooled between them, and what is missing said."""

from __future__ import annotations

import pytest
from parts import SIGNATURES, lock, signature, survey, whole

from sparsetui.evidence.records import Number
from sparsetui.fleet import tables
from sparsetui.fleet.records import Part, lock_id

A, B, C = SIGNATURES
ODD = {"threads": "64"}


def test_nodes_of_one_lock_share_one_table() -> None:
    surveys = {h: survey(h) for h in "ab"}
    parts = [signature("a", A), signature("b", B), signature("a", C, 0.5), whole("a", 0.5), whole("b", 0.6)]
    body = tables.section(surveys, parts, {}, [], {"address": "x:1"})
    (table,) = body["tables"].values()
    assert [(r["signature"], r["node"]) for r in table["signatures"]] == [(A, "a"), (B, "b"), (C, "a")]
    assert [r["fastest"] for r in table["signatures"]] == ["csr-int32", "csr-int32", "dense"]
    assert table["signatures"][0]["dense_ms_a_step"].value == pytest.approx(1.0)
    (row,) = table["whole_steps"]
    assert row["format"] == "csr-int32"
    assert row["nodes"] == 2
    assert 0.5 < row["against_dense"].value < 0.6
    assert "unmeasured" not in body
    assert body["summary"].startswith("3 signatures on 2 nodes")


def test_another_lock_has_its_own_table_named_by_what_differs() -> None:
    surveys = {"a": survey("a"), "b": survey("b"), "c": survey("c", **ODD)}
    parts = [signature("a", A), signature("c", A, 4.0, **ODD), whole("a", 0.5), whole("b", 0.5), whole("c", 0.1, **ODD)]
    body = tables.section(surveys, parts, {}, [], {})
    first, second = body["tables"].values()
    assert "threads: 64 here, 8 elsewhere" in second["summary"]
    assert body["locks"][1]["differs"] == "threads: 64 here, 8 elsewhere"
    assert [r["node"] for r in second["whole_steps_by_node"]] == ["c", "c"]
    assert first["whole_steps"][0]["against_dense"].value == pytest.approx(0.5)
    assert second["whole_steps"][0]["against_dense"].value == pytest.approx(0.1)
    assert second["signatures"][0]["its_time_against_dense"].value == pytest.approx(0.25, rel=0.05)


def test_what_was_not_measured_is_said_with_why() -> None:
    failed = Part("a", lock_id(lock("a")), B, "the worker ran out of memory")
    parts = [signature("a", A), failed]
    missing = {"b": ("lost", "the node died")}
    body = tables.section({h: survey(h) for h in "ab"}, parts, missing, [], {})
    assert [(u["signature"], u["why"]) for u in body["unmeasured"]] == [
        (B, "the worker ran out of memory"),
        (C, "no node of this lock is left to measure it"),
    ]
    assert body["rows"][1] == {
        "host": "b", "state": "lost", "says": "the node died", "lock": lock_id(lock("b")), "seconds": 0,
    }  # fmt: skip
    assert "2 not measured" in body["summary"]


def test_a_signature_that_changed_its_node_is_told() -> None:
    moved = [{"signature": A, "from": "b", "to": "a"}]
    body = tables.section({"a": survey("a")}, [signature("a", A)], {"b": ("lost", "it died")}, moved, {})
    assert f"{A} went from b to a" in body["summary"]
    assert body["moved"] == moved


def test_no_node_is_no_table() -> None:
    body = tables.section({}, [], {"a": ("refused", "no torch")}, [], {})
    assert "tables" not in body
    assert body["summary"] == "No node could measure anything: a refused: no torch."


def test_a_format_is_called_fastest_only_beyond_its_interval() -> None:
    sure, unsure, slow = Number(0.5, (0.4, 0.6), 8), Number(0.9, (0.7, 1.1), 8), Number(3.0, (2.0, 4.0), 8)
    assert tables.best({"csr": sure, "bsr": unsure})[0] == "csr"
    assert tables.best({"bsr": unsure, "coo": slow})[0] == "bsr and dense cannot be told apart"
    assert tables.best({"coo": slow})[0] == "dense"
    assert tables.best({"coo": tables.against([0.01])})[0] == "not measured"


def test_ratios_are_taken_at_the_signatures_own_sparsity() -> None:
    found = tables.ratios(signature("a", A, 2.0))
    assert found["csr-int32"].value == pytest.approx(0.5, rel=0.03)
    assert found["csr-int32"].ci is not None
    assert found["coo"].value is None
    assert "once" in str(found["coo"].reason)
