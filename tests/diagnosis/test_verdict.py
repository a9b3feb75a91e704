"""The verdict: materiality, confidence, stage order, and when it says that it cannot tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from sparsetui.diagnosis.case import Case, Declared, Trial
from sparsetui.diagnosis.stats import ArmRound, Block, Round, closure, compare
from sparsetui.diagnosis.suspects import gap
from sparsetui.diagnosis.verdict import judge
from sparsetui.evidence.records import Difference, Lock, Number


def blocks(rng: np.random.Generator, variant: str, replica: str, ms: float, n: int = 4) -> list[Block]:
    return [Block(variant, replica, i, tuple(ms * rng.lognormal(0, 0.01, 30))) for i in range(n)]


def rounds(ratio: float, n: int = 8, ms: float = 1.0, sd: float = 0.01) -> list[Round]:
    """``n`` process pairs whose failing variant takes ``ratio`` times the comparator, with process offsets of ``sd``."""
    rng = np.random.default_rng(7)
    return [
        Round(blocks(rng, "failing", f"f{i}", ms * ratio * rng.lognormal(0, sd)),
              blocks(rng, "comparator", f"c{i}", ms * rng.lognormal(0, sd)))
        for i in range(n)
    ]  # fmt: skip


def arms(closed: float, ms: float = 1.0, n: int = 6, mode: float = 1.02) -> list[ArmRound]:
    """Cycles of one process in which the intervention takes ``closed`` of the control's time, and that ``mode`` of the plain
    step's."""
    rng = np.random.default_rng(11)
    return [
        ArmRound(blocks(rng, "off", "r", ms, 2), blocks(rng, "control", "r", ms * mode, 2),
                 blocks(rng, "on", "r", ms * mode * closed, 2))
        for _ in range(n)
    ]  # fmt: skip


def product(
    layouts: tuple[str, str] = ("strided", "csc"), ns: int = 900_000, zeros: float = 0.9, **more: Any
) -> dict[str, Any]:
    at = next((i for i, x in enumerate(layouts) if x != "strided"), None)
    path = "dense" if at is None else {"csr": "sparse-csr", "csc": "sparse-csr-rhs", "coo": "sparse-coo"}[layouts[at]]
    weight = {"name": "w", "derived": "", "zeros": zeros, "nnz": 100, "layout": layouts[1 if at is None else at],
              "dtype": "float32", "shape": [64, 64], "index_dtype": "int64" if at is not None else None,
              "bytes": {"values": 400, "indices": 800, "dense": 16384}, "eligible": True, "const": True}  # fmt: skip
    operands = [{"layout": x, "dtype": "float32", "shape": [64, 64], "const": i == 1, "name": "", "derived": ""}
                for i, x in enumerate(layouts)]  # fmt: skip
    return {"op": "aten::mm", "family": "product", "module": "layer", "place": "m.py:1 f", "backward": False, "calls": 1,
            "ns": ns, "max_ns": ns, "operands": operands, "outputs": [{"layout": "strided", "dtype": "float32", "shape": [64, 64]}],
            "out_bytes": 16384, "constant": False, "origin": "", "sparse_at": at, "weight": weight, "path": path,
            "sides": [dict(o, strides=[64, 1]) for o in operands], **more}  # fmt: skip


def census(*rows: dict[str, Any], plain_ms: float = 1.0) -> dict[str, Any]:
    return {
        "rows": list(rows),
        "steps": 1,
        "calls": len(rows),
        "observer": {"plain_ms": plain_ms, "traced_ms": 1.2},
        "failed": [],
    }


def tensor(name: str = "w", zeros: float = 0.9, layout: str = "strided", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "layout": layout,
        "dtype": "float32",
        "shape": [64, 64],
        "numel": 4096,
        "zeros": zeros,
        **more,
    }


CHECK = {"applied": 3, "equal": True, "error": 1e-6}
IDS = {
    (p, v): f"E-{p}-{v}"
    for p in ("census", "profile", "inventory", "native", "lock")
    for v in ("failing", "comparator")
}


def case(
    ratio: float,
    *,
    trials: Mapping[tuple[str, str], tuple[float, Mapping[str, Any]]] | None = None,
    mode: float = 1.02,
    **more: Any,
) -> Case:
    taken = rounds(ratio)
    compared = compare(taken)
    declared = more.get("declared", Declared())
    made = {}
    for (name, variant), (closed, check) in (trials or {}).items():
        c = closure(arms(closed, ms=ratio, mode=mode), compared, question="missing-speedup" if declared.speedup else "regression",
                    ideal_ratio=1 / declared.speedup if declared.speedup else None)  # fmt: skip
        made[(name, variant)] = Trial(name, c, check, (f"E-{name}",))
    return Case(comparison=compared, trials=made, evidence_ids=IDS, **more)


ORIENTED = {"failing": census(product()), "comparator": census(product(("csr", "strided"), ns=200_000))}


def test_a_gap_that_an_intervention_closes_is_a_confirmed_fault() -> None:
    v = judge(case(4.0, census=ORIENTED, trials={("swap-sides", "failing"): (0.25, CHECK)})).verdict
    assert (v.status, v.mechanism, v.confidence) == ("fault", "kernel.wrong-orientation", "confirmed")
    assert v.stage == "kernel"
    assert v.owner == "sparse kernel library owner"
    assert v.intervention == "E-swap-sides"
    assert v.share_of_regression is not None
    assert v.share_of_regression.value == pytest.approx(1.0, abs=0.1)
    assert v.share_of_regression.ci is not None
    assert v.share_of_regression.ci[0] > 0.8


def test_more_than_the_gap_is_claimed_only_where_the_plain_step_bears_it_out() -> None:
    """The mode's own cost for the ops that are gone is no gain."""
    trial = {("swap-sides", "failing"): (0.25, CHECK)}
    # control 3.0, on 0.75: 2.25 of a gap of 1.0, yet the plain step at 2.0 leaves 1.25
    v = judge(case(2.0, census=ORIENTED, trials=trial, mode=1.5)).verdict
    assert v.share_of_regression is not None
    assert v.share_of_regression.value == pytest.approx(1.25, abs=0.1)
    # control 3.0, on 1.2: 1.8 of the gap by the control, 0.8 by the plain step
    found = judge(case(2.0, census=ORIENTED, trials={("swap-sides", "failing"): (0.4, CHECK)}, mode=1.5))
    share = found.verdict.share_of_regression
    assert share is not None
    assert share.ci is not None
    assert share.value == pytest.approx(1.0, abs=0.02)
    assert share.ci[0] < 0.85 < 1.7 < share.ci[1]
    assert "more than the gap" not in found.verdict.summary
    assert found.budget is not None
    assert sum(line.ms.value or 0.0 for line in found.budget.lines) == pytest.approx(
        found.budget.gap_ms.value, rel=0.05
    )


def test_ops_that_all_still_run_keep_the_cost_of_the_mode() -> None:
    """Then control less intervened is the gain, however much the mode costs."""
    taken = compare(rounds(2.0))
    told = [
        msgspec.structs.replace(arm, intervened=[msgspec.structs.replace(b, conditions={"skipped": left}) for b in arm.intervened])
        for left, arm in [(0.0, a) for a in arms(0.4, ms=2.0, mode=1.5)]
    ]  # fmt: skip
    whole = closure(told, taken, question="regression")
    assert whole.skipped == 0.0
    made = {("swap-sides", "failing"): Trial("swap-sides", whole, CHECK, ("E-swap-sides",))}
    share = judge(Case(comparison=taken, trials=made, evidence_ids=IDS, census=ORIENTED)).verdict.share_of_regression
    assert share is not None
    assert share.value == pytest.approx(1.8, abs=0.1)


def test_a_pair_that_does_not_differ_is_no_fault_and_says_what_was_ruled_out() -> None:
    j = judge(case(1.0, census={"failing": ORIENTED["failing"], "comparator": ORIENTED["failing"]}))
    assert j.verdict.status == "no_fault"
    assert [f.mechanism for f in j.findings if not f.material] == ["kernel.wrong-orientation", "execution.index-copy"]


def test_an_intervention_that_changes_outputs_proves_nothing() -> None:
    wrong = {**CHECK, "equal": False, "error": 0.4}
    j = judge(case(4.0, census=ORIENTED, trials={("swap-sides", "failing"): (0.25, wrong)}))
    assert j.verdict.status == "cannot_answer"
    assert "changed the outputs" in j.findings[0].reason


def test_what_the_comparator_pays_too_is_not_the_cause() -> None:
    both = {"failing": census(product()), "comparator": census(product())}
    taken = {("swap-sides", "failing"): (0.5, CHECK), ("swap-sides", "comparator"): (0.25, CHECK)}
    # failing 2 ms gains 1 ms, comparator 1 ms gains 0.75 ms: a quarter of the 1 ms gap is the mechanism's
    f = judge(case(2.0, census=both, trials=taken)).findings[0]
    assert f.share_of_regression is not None
    assert f.share_of_regression.value == pytest.approx(0.25, abs=0.08)


def test_what_was_measured_in_one_of_two_that_have_it_is_not_blamed() -> None:
    both = {"failing": census(product()), "comparator": census(product())}
    j = judge(case(2.0, census=both, trials={("swap-sides", "failing"): (0.5, CHECK)}))
    assert j.verdict.status == "cannot_answer"
    f = j.findings[0]
    assert (f.mechanism, f.material) == ("kernel.wrong-orientation", False)
    assert f.reason.startswith("not settled: it is present in both variants")


def test_what_the_comparator_pays_and_nothing_can_rewrite_there_is_not_the_cause() -> None:
    both = {"failing": census(product(ns=400_000)), "comparator": census(product(ns=500_000))}
    nothing = {**CHECK, "applied": 0}
    taken = {("swap-sides", "failing"): (0.5, CHECK), ("swap-sides", "comparator"): (1.0, nothing)}
    j = judge(case(2.0, census=both, trials=taken))
    assert j.verdict.status == "cannot_answer"
    assert not j.findings[0].material


def test_a_missing_speedup_counts_what_both_pay() -> None:
    both = {"failing": census(product()), "comparator": census(product())}
    j = judge(case(1.0, census=both, declared=Declared(speedup=2.0), trials={("swap-sides", "failing"): (0.5, CHECK)}))
    assert j.verdict.mechanism == "kernel.wrong-orientation"


def test_the_earlier_stage_is_the_verdict_and_the_later_one_is_listed() -> None:
    dense = product(("strided", "strided"), ns=500_000)
    seen = {"failing": census(product(), dense), "comparator": census(product(("csr", "strided"), ns=100_000))}
    j = judge(
        case(4.0, census=seen, trials={("swap-sides", "failing"): (0.6, CHECK), ("csr-twin", "failing"): (0.7, CHECK)})
    )
    assert j.verdict.mechanism == "lowering.dense-storage"
    assert [f.mechanism for f in j.findings if f.material] == ["lowering.dense-storage", "kernel.wrong-orientation"]
    assert "kernel.wrong-orientation" in j.verdict.summary


def test_a_broken_claim_needs_no_slowdown() -> None:
    weights = {"failing": {"tensors": [tensor("a.weight", 0.0), tensor("b.weight", 0.9)], "modules": ["a", "b"]}}
    used = dict(product()["weight"], eligible=False)
    rows = [
        product(("strided", "strided"), weight=dict(used, name=name, zeros=z))
        for name, z in (("a.weight", 0.0), ("b.weight", 0.9))
    ]
    seen = {"failing": census(*rows)}
    j = judge(case(1.0, census=seen, inventory=weights, declared=Declared(sparsity=0.9, targets=("*",))))
    assert (j.verdict.status, j.verdict.mechanism) == ("fault", "ingress.coverage-gap")
    assert [p.module for p in j.verdict.where] == ["a"]


def test_an_undeclared_difference_of_the_lock_comes_first() -> None:
    lock = Lock(match=False, differs=(Difference("threads", "1", "2", declared=False),))
    v = judge(case(4.0, census=ORIENTED, lock=lock, trials={("swap-sides", "failing"): (0.25, CHECK)})).verdict
    assert v.mechanism == "ingress.lock-mismatch"
    declared = Lock(match=True, differs=(Difference("threads", "1", "2", declared=True),))
    v = judge(case(4.0, census=ORIENTED, lock=declared, trials={("swap-sides", "failing"): (0.25, CHECK)})).verdict
    assert v.mechanism == "kernel.wrong-orientation"


def test_a_difference_of_the_lock_that_costs_nothing_gives_way_to_what_costs() -> None:
    lock = Lock(match=False, differs=(Difference("env.OMP_WAIT_POLICY", "PASSIVE", "unset", declared=False),))
    trials = {("swap-sides", "failing"): (0.25, CHECK), ("relock", "failing"): (1.0, CHECK)}
    j = judge(case(4.0, census=ORIENTED, lock=lock, trials=trials))
    assert j.verdict.mechanism == "kernel.wrong-orientation"
    out = {f.mechanism: f for f in j.findings}["ingress.lock-mismatch"]
    assert not out.material
    assert "the gap stays where that is put right" in out.reason
    costly = judge(case(4.0, census=ORIENTED, lock=lock, trials={**trials, ("relock", "failing"): (0.4, CHECK)}))
    assert costly.verdict.mechanism == "ingress.lock-mismatch"


def test_a_real_gap_without_a_mechanism_is_not_guessed_at() -> None:
    j = judge(case(1.5))
    assert j.verdict.status == "cannot_answer"
    assert j.verdict.mechanism is None
    assert j.unanswered
    assert "doctor" in j.unanswered[0].settle


def test_too_little_evidence_cannot_answer() -> None:
    j = judge(Case(comparison=compare(rounds(1.5, n=1)), evidence_ids=IDS))
    assert j.verdict.status == "cannot_answer"
    assert "--budget" in j.unanswered[0].settle


def test_below_crossover_gives_way_to_a_rival_that_gains_as_much() -> None:
    seen = {
        "failing": census(product(("csr", "strided"))),
        "comparator": census(product(("strided", "strided"), eligible=False)),
    }
    only = judge(case(2.0, census=seen, trials={("dense-twin", "failing"): (0.5, CHECK)}))
    assert only.verdict.mechanism == "kernel.below-crossover"
    rival = judge(
        case(
            2.0,
            census=seen,
            trials={("dense-twin", "failing"): (0.5, CHECK), ("narrow-index", "failing"): (0.5, CHECK)},
        )
    )
    assert rival.verdict.mechanism != "kernel.below-crossover"
    untried = judge(case(2.0, census=seen))
    assert untried.verdict.status == "cannot_answer", "whether dense would be faster is known only by trying it"
    assert "not measured" in untried.verdict.summary


def test_a_missing_speedup_is_measured_from_the_ideal() -> None:
    dense = {
        "failing": census(product(("strided", "strided"))),
        "comparator": census(product(("strided", "strided"), zeros=0.0)),
    }
    c = case(1.0, census=dense, declared=Declared(speedup=2.0), trials={("csr-twin", "failing"): (0.6, CHECK)})
    assert gap(c)[0] == "open"
    j = judge(c)
    assert j.verdict.mechanism == "lowering.dense-storage"
    assert j.budget is not None
    assert j.budget.question == "missing-speedup"
    assert j.verdict.share_of_regression is not None
    assert j.verdict.share_of_regression.value == pytest.approx(0.82, abs=0.1)  # (1 - 0.6) * 1.02 ms of a 0.5 ms gap


def test_a_speedup_that_is_there_is_no_fault() -> None:
    c = case(0.4, census=ORIENTED, declared=Declared(speedup=2.0))
    assert judge(c).verdict.status == "no_fault"


def test_quality_over_its_gate_is_blamed_only_where_execution_is_clean() -> None:
    drift = Number(value=0.2, n=1)
    j = judge(case(1.0, declared=Declared(max_drift=0.01), drift=drift, drift_metric="accuracy"))
    assert (j.verdict.mechanism, j.verdict.owner) == ("validation.quality-drift", "ML performance engineer")
    fine = judge(case(1.0, declared=Declared(max_drift=0.3), drift=drift))
    assert fine.verdict.status == "no_fault"


def test_a_mechanism_that_costs_nothing_is_ruled_out_with_its_figure() -> None:
    j = judge(
        case(
            4.0,
            census=ORIENTED,
            trials={
                ("swap-sides", "failing"): (0.25, CHECK),
                ("narrow-index", "failing"): (0.999, CHECK),
                ("narrow-index", "comparator"): (0.999, CHECK),
            },
        )
    )
    out = {f.mechanism: f for f in j.findings}["execution.index-copy"]
    assert not out.material
    assert out.share_of_regression is not None
    assert out.share_of_regression.value == pytest.approx(0.0, abs=0.05)


def test_the_budget_always_shows_the_unexplained_rest() -> None:
    j = judge(case(4.0, census=ORIENTED, trials={("swap-sides", "failing"): (0.5, CHECK)}))
    assert j.budget is not None
    assert j.budget.lines[-1].mechanism == "unexplained"
    shares = [line.share.value or 0.0 for line in j.budget.lines]
    assert sum(shares) == pytest.approx(1.0, abs=1e-6)


def test_judging_is_deterministic() -> None:
    c = case(4.0, census=ORIENTED, trials={("swap-sides", "failing"): (0.25, CHECK)})
    assert judge(c) == judge(dataclasses.replace(c))


# -- a mechanism whose intervention does not always apply, beside a twin that is timed apart ----------------------


def attention(gain_ms: float = 0.4) -> dict[str, Any]:
    """What the passes see of a failing variant that masks its scores in ops of their own, and what its twin gains."""
    square = {"layout": "strided", "dtype": "float32", "shape": [4, 64, 64], "const": False, "name": "", "derived": ""}

    def row(name: str, family: str, **more: Any) -> dict[str, Any]:
        return {**product(("strided", "strided"), ns=300_000), "op": f"aten::{name}", "family": family, "weight": None,
                "operands": [square], "outputs": [square], **more}  # fmt: skip

    rows = (row("bmm", "product", weight=product(("strided", "strided"), zeros=0.0)["weight"] | {"eligible": False}),
            row("where", "pointwise", hides=True), row("_softmax", "other"))  # fmt: skip
    twin = {"rows": [{"shape": [4, 64, 64, 16], "unfused_ms": gain_ms + 0.1, "fused_ms": 0.1}]}
    return {"census": {"failing": census(*rows), "comparator": census()}, "extra": {("attention", "failing"): twin}}


def unfused(j: Any) -> Any:
    return next(f for f in j.findings if f.mechanism == "lowering.unfused-mask")


def test_a_fused_attention_that_closes_the_gap_confirms_its_mask() -> None:
    j = judge(case(2.0, **attention(), trials={("fuse-attention", "failing"): (0.5, CHECK)}))
    assert (j.verdict.mechanism, j.verdict.confidence) == ("lowering.unfused-mask", "confirmed")
    assert j.verdict.share_of_regression is not None
    assert j.verdict.share_of_regression.value == pytest.approx(1.0, abs=0.1)
    assert "twin" not in j.verdict.summary, "what was gained in the step itself is told instead"
    assert j.budget is not None
    assert next(b.mechanism for b in j.budget.lines) == "lowering.unfused-mask"


def test_where_it_does_not_apply_the_twin_speaks_and_the_reason_is_told() -> None:
    found = attention()
    ids = {**IDS, ("attention", "failing"): "E-twin"}
    why = "it found nothing to rewrite: a mask or bias that follows the input"
    tried = Trial("fuse-attention", None, {"applied": 0, "equal": True}, ("E-tried",), why)
    c = dataclasses.replace(case(2.0, **found), evidence_ids=ids, trials={("fuse-attention", "failing"): tried})
    j = judge(c)
    assert (j.verdict.mechanism, j.verdict.confidence) == ("lowering.unfused-mask", "supported")
    assert "the fused twin saves 0.4 ms" in unfused(j).summary
    assert unfused(j).reason.endswith(f"no intervention could be measured ({why})")


def test_where_it_gains_nothing_the_mask_is_ruled_out_whatever_the_twin_gains() -> None:
    j = judge(case(2.0, **attention(gain_ms=0.9), trials={("fuse-attention", "failing"): (1.0, CHECK)}))
    assert j.verdict.mechanism is None
    assert not unfused(j).material
    assert unfused(j).reason.startswith("it accounts for too little: its intervention closes")
