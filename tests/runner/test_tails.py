"""When the tails of a pair may be judged: enough steps, and enough pairs of processes."""

from __future__ import annotations

import pytest

from sparsetui.diagnosis.stats import Block, Round
from sparsetui.diagnosis.stats.quantiles import LEAST_FOR_TAIL
from sparsetui.runner.clocking import TAIL_STEPS, Clock, _tails_told


def taken(rounds: int, steps: int) -> Clock:
    def block(variant: str, i: int) -> Block:
        return Block(variant, f"{variant}{i}", 0, (1.0,) * steps)

    return Clock([Round([block("failing", i)], [block("comparator", i)]) for i in range(rounds)])


@pytest.mark.parametrize(
    ("rounds", "steps", "told"),
    [
        (LEAST_FOR_TAIL, TAIL_STEPS, True),
        (LEAST_FOR_TAIL - 1, TAIL_STEPS, False),  # a fault in the tail alone would pass for none
        (LEAST_FOR_TAIL, TAIL_STEPS // (LEAST_FOR_TAIL + 1), False),
    ],
)
def test_tails_need_steps_and_pairs_of_processes(rounds: int, steps: int, told: bool) -> None:
    assert _tails_told(taken(rounds, steps)) is told
