"""Every mechanism: evidence that makes it a suspect, and evidence that nearly does and must not.

Pure: payloads are dictionaries as the passes return them, cut down to what the rules read.
"""

from __future__ import annotations

from typing import Any

import pytest
from payloads import LARGE, Sample, held, op, operand, product, seen, tensor, weight
from samples_chosen import CHOSEN
from samples_run import RUN

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.catalogue import all_mechanisms, by_id

SAMPLES = CHOSEN + RUN


def test_no_mechanism_is_without_a_sample() -> None:
    assert {s.mechanism for s in SAMPLES} == {m.id for m in all_mechanisms()}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.mechanism}: {s.why}")
def test_what_shows_it_makes_it_a_suspect_and_a_near_miss_does_not(sample: Sample) -> None:
    suspect = by_id(sample.mechanism).suspect
    found = suspect(sample.present(), "failing")
    assert found is not None
    assert found.summary
    assert found.passes
    assert suspect(sample.near(), "failing") is None, sample.why


@pytest.mark.parametrize("mechanism", all_mechanisms(), ids=lambda m: m.id)
def test_without_evidence_nothing_is_suspected(mechanism: Any) -> None:
    assert mechanism.suspect(Case(), "failing") is None
    assert mechanism.suspect(Case(), "comparator") is None
    assert mechanism.wants is None or mechanism.wants(Case()) is False


def test_a_dtype_without_a_sparse_kernel_has_nothing_to_win_from_one() -> None:
    bf16 = weight("strided", dtype="bfloat16")
    found = by_id("lowering.dense-storage").suspect(seen(product("strided", w=bf16)), "failing")
    assert found is not None
    assert found.share == 0.0
    plain = by_id("lowering.dense-storage").suspect(seen(product("strided", w=weight("strided"))), "failing")
    assert plain is not None
    assert plain.share > 0.5


def test_coo_that_outgrows_dense_is_tried_as_csr() -> None:
    big = tensor("coo", bytes={"values": 5000, "indices": 20000, "dense": 16384})
    found = by_id("ingress.index-overhead").suspect(Case(inventory={"failing": held(big)}), "failing")
    assert found is not None
    assert found.intervention == "coo-to-csr"


def test_truth_is_asked_where_sparse_tensors_are_made_in_the_step() -> None:
    made = op("_sparse_csr_tensor_unsafe", "build", operand(), out=operand("csr"))
    wants = by_id("validation.wrong-result").wants
    assert wants is not None
    assert wants(seen(made))
    assert not wants(seen(LARGE))
