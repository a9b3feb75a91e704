"""A host-bound step and the calls that were joined: what is credited to the host, what is not, and what stands untried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sparsetui.diagnosis.case import Case, Trial
from sparsetui.diagnosis.stats import ArmRound, Block, Round, closure, compare
from sparsetui.diagnosis.verdict import Judgement, judge
from sparsetui.evidence.records import Finding

NAME, ID = "larger-calls", "scheduling.host-bound"
CHECK = {"applied": 1, "equal": True, "error": 0.0, "why": "", "reach": 0.875}
NOT_JOINED = {"applied": 0, "equal": True, "error": 0.0, "why": "an output has no batch dimension", "reach": 0.0}
IDS = {(p, v): f"E-{p}-{v}" for p in ("census", "profile") for v in ("failing", "comparator")}


def blocks(rng: np.random.Generator, variant: str, replica: str, ms: float, n: int) -> list[Block]:
    return [Block(variant, replica, i, tuple(ms * rng.lognormal(0, 0.01, 30))) for i in range(n)]


def rounds(failing: float, comparator: float) -> list[Round]:
    rng = np.random.default_rng(7)
    return [
        Round(blocks(rng, "failing", f"f{i}", failing * rng.lognormal(0, 0.008), 4),
              blocks(rng, "comparator", f"c{i}", comparator * rng.lognormal(0, 0.008), 4))
        for i in range(8)
    ]  # fmt: skip


def arms(ms: float, joined: float) -> list[ArmRound]:
    rng = np.random.default_rng(11)
    return [ArmRound(blocks(rng, "off", "r", ms, 2), blocks(rng, "control", "r", ms, 2), blocks(rng, "on", "r", joined, 2))
            for _ in range(6)]  # fmt: skip


def op(numel: int, calls: int, ms: float) -> dict[str, Any]:
    side = {"layout": "strided", "dtype": "float32", "shape": [numel], "const": False, "name": "", "derived": ""}
    return {"op": "aten::add", "family": "pointwise", "module": "layer", "place": "m.py:1 f", "backward": False,
            "calls": calls, "ns": int(ms * 1e6), "max_ns": int(ms * 1e6 / calls), "operands": [side], "outputs": [side],
            "out_bytes": 4 * numel, "constant": False, "origin": "", "sparse_at": None, "weight": None,
            "path": "elementwise"}  # fmt: skip


def variant(small: float, large: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Census and profile of a step that takes ``small`` ms in hundreds of tiny ops and ``large`` ms in one large one."""
    rows = [op(8, max(1, round(small / 0.002)), small)] + ([op(1 << 20, 1, large)] if large else [])
    plain = small + large
    census = {"rows": rows, "steps": 1, "calls": len(rows), "failed": [], "observer": {"plain_ms": plain}}
    return census, {"steps": 1, "rows": [], "hidden": [], "copies_in_products": [], "op_us": 1.0, "best_ms": plain}


def judged(
    failing: tuple[float, float],
    comparator: tuple[float, float],
    joined: Mapping[str, float],
    checks: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Judgement, Finding]:
    """``(small, large)`` ms of each variant, and what an input takes in a joined call; ``checks`` of those that were tried."""
    parts = {"failing": variant(*failing), "comparator": variant(*comparator)}
    compared = compare(rounds(sum(failing), sum(comparator)))
    trials = {}
    for v, check in (checks if checks is not None else dict.fromkeys(joined, CHECK)).items():
        ms = sum(failing if v == "failing" else comparator)
        closed = closure(arms(ms, joined[v]), compared) if check["applied"] else None
        trials[(NAME, v)] = Trial(NAME, closed, check, (f"E-{v}",), str(check["why"]))
    j = judge(Case(comparison=compared, trials=trials, evidence_ids=IDS,
                   census={v: p[0] for v, p in parts.items()}, profile={v: p[1] for v, p in parts.items()}))  # fmt: skip
    (found,) = [f for f in j.findings if f.mechanism == ID]
    return j, found


def test_time_by_input_that_falls_confirms_it() -> None:
    j, f = judged((4.0, 0.2), (0.3, 0.2), {"failing": 0.7, "comparator": 0.2})
    assert (j.verdict.mechanism, j.verdict.confidence) == (ID, "confirmed")
    assert f.share_of_regression is not None
    assert f.share_of_regression.value == pytest.approx((3.5 - 0.3) / 3.7, abs=0.05)


def test_what_large_ops_gain_is_not_credited_to_the_host() -> None:
    """Half of the step is one large product: joined, the whole of it is read once for eight inputs."""
    _, f = judged((1.0, 1.0), (0.1, 0.1), {"failing": 0.3, "comparator": 0.15})
    assert f.share_of_regression is not None
    assert f.share_of_regression.value == pytest.approx((0.875 - 0.05) / 1.8, abs=0.05)
    assert f.share_of_regression.value < (1.7 - 0.05) / 1.8 - 0.3


def test_a_gap_in_a_large_op_is_not_the_hosts_though_joining_helps() -> None:
    j, f = judged((1.0, 0.8), (1.0, 0.2), {"failing": 0.3, "comparator": 0.2})
    assert not f.material
    assert j.verdict.mechanism is None
    assert f.share_of_regression is not None
    assert f.share_of_regression.value is not None
    assert f.share_of_regression.value <= 0.05


def test_the_budget_credits_no_more_than_the_finding_does() -> None:
    j, f = judged((1.0, 1.0), (0.1, 0.1), {"failing": 0.3, "comparator": 0.15})
    assert j.budget is not None
    line = next(x for x in j.budget.lines if x.mechanism == ID)
    assert f.share_of_regression is not None
    assert line.share.value == pytest.approx(f.share_of_regression.value, abs=0.01)


def test_what_both_gain_cancels_only_as_well_as_processes_agree() -> None:
    """Equal steps but for 5 %, of which the large op holds all: a common gain of most of the step is no proof."""
    _, f = judged((4.0, 0.4), (4.0, 0.2), {"failing": 0.85, "comparator": 0.76})
    assert not f.material
    assert f.share_of_regression is not None
    assert f.share_of_regression.ci is not None
    low, high = f.share_of_regression.ci
    assert high - low > 1.0


def test_joined_calls_that_gain_nothing_rule_it_out() -> None:
    j, f = judged((4.0, 0.2), (0.3, 0.2), {"failing": 4.19, "comparator": 0.45})
    assert not f.material
    assert f.reason.startswith("it accounts for too little")
    assert j.verdict.status == "cannot_answer"


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ({"failing": NOT_JOINED}, "an output has no batch dimension"),
        ({"failing": CHECK, "comparator": NOT_JOINED}, "in the comparator, an output has no batch dimension"),
        ({"failing": {**CHECK, "equal": False, "why": "it changed the outputs"}}, "it changed the outputs"),
    ],
    ids=["the failing one cannot be joined", "the comparator cannot be joined", "the outputs differ"],
)
def test_where_inputs_cannot_be_joined_two_passes_blame_it_as_before(checks: Any, words: str) -> None:
    j, f = judged((4.0, 0.2), (0.1, 0.4), {"failing": 0.7, "comparator": 0.2}, checks)
    assert (j.verdict.mechanism, j.verdict.confidence) == (ID, "supported")
    assert f.share_of_regression is not None
    assert f.share_of_regression.value is None
    assert f.reason.endswith(f"({words})")


def test_where_inputs_cannot_be_joined_and_both_are_alike_nothing_is_blamed() -> None:
    j, f = judged((2.0, 1.0), (2.0, 0.8), {"failing": 0.0}, {"failing": NOT_JOINED})
    assert not f.material
    assert f.reason == "an output has no batch dimension"
    assert j.verdict.mechanism is None
