"""Weights that each step casts, as autocast does, and what caching the casts leaves of them."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.catalogue import all_mechanisms


def suspicion(census):
    conversion = next(m for m in all_mechanisms() if m.id == "scheduling.format-conversion")
    return conversion.suspect(Case(census={"failing": census}, evidence_ids={}), "failing")


def test_a_weight_that_autocast_casts_on_each_step_is_cast_once(replica):
    w = torch.randn(32, 16)

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w)

    r = replica(step)
    told = suspicion(r.ask("census", steps=2))
    assert told is not None
    assert told.summary.startswith("1 casts of constants a step")
    got = r.ask("check", intervention="cache-conversion")
    assert (got["equal"], got["error"]) == (True, 0.0)
    assert got["applied"] >= 1


def test_casts_of_what_the_step_makes_or_of_little_are_none(replica):
    w, bias = torch.randn(32, 16, dtype=torch.bfloat16), torch.randn(32)
    r = replica(lambda x: F.linear(x.bfloat16(), w) + bias.bfloat16())
    assert suspicion(r.ask("census", steps=2)) is None
