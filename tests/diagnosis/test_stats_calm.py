"""The undisturbed steps: they may end a search for a slowdown, and never claim one."""

from __future__ import annotations

import numpy as np
import pytest

from sparsetui.diagnosis.stats import Block, Round, calm, compare, settle_by_calm


def rounds(ratio: float, n: int = 16, disturbed: float = 0.5, inputs: int = 3, seed: int = 0) -> list[Round]:
    """Pairs whose steps a neighbour makes 1.5 to 2 times as long at random, for whole stretches."""
    rng = np.random.default_rng(seed)
    cost = 1.0 + np.arange(inputs)

    def blocks(variant: str, k: int, level: float) -> list[Block]:
        out = []
        for i in range(4):
            slow = 1.0 + rng.uniform(0.5, 1.0) * (rng.random() < disturbed)
            part = np.where(rng.random(60) < 0.7, slow, 1.0)
            out.append(
                Block(
                    variant,
                    f"{variant}{k}",
                    i,
                    tuple(level * cost[np.arange(60) % inputs] * part * rng.lognormal(0, 0.01, 60)),
                )
            )
        return out

    return [Round(blocks("failing", k, ratio * rng.lognormal(0, 0.008)), blocks("comparator", k, rng.lognormal(0, 0.008)))
            for k in range(n)]  # fmt: skip


def test_a_disturbed_identical_pair_is_the_same() -> None:
    taken = rounds(1.0)
    plain = compare(taken)
    assert plain.verdict == "undecided"
    settled = settle_by_calm(plain, taken, 3, 0.02)
    assert settled.verdict == "same"
    assert "undisturbed" in settled.reason
    assert settled.ratio == plain.ratio


@pytest.mark.parametrize("seed", range(5))
def test_a_real_slowdown_is_never_called_the_same(seed: int) -> None:
    taken = rounds(1.08, seed=seed)
    assert settle_by_calm(compare(taken), taken, 3, 0.02).verdict != "same"


@pytest.mark.parametrize("seed", range(5))
def test_it_claims_nothing(seed: int) -> None:
    taken = rounds(1.0, n=6, seed=seed)
    plain = compare(taken)
    assert settle_by_calm(plain, taken, 3, 0.02).verdict in (plain.verdict, "same")


def test_a_decided_comparison_stays_as_it_is() -> None:
    taken = rounds(2.0, disturbed=0.0)
    plain = compare(taken)
    assert plain.verdict == "slower"
    assert settle_by_calm(plain, taken, 3, 0.02) is plain


def test_levels_are_taken_per_input_and_with_as_many_repeats() -> None:
    many = Block("failing", "f", 0, tuple([1.0, 4.0] * 40))
    few = Block("comparator", "c", 0, tuple([1.0, 4.0] * 6))
    still = calm(Round([many], [few]), 2)
    assert still is not None
    assert still.failing[0].times_ms == pytest.approx([2.0])  # the geometric mean of 1 and 4
    assert still.comparator[0].times_ms == pytest.approx([2.0])


def test_too_few_repeats_say_nothing() -> None:
    block = [Block("failing", "f", 0, (1.0, 2.0, 3.0))]
    assert calm(Round(block, block), 3) is None
