"""What unknown code holds, wherever it holds it, and that another can be put in its place."""

from __future__ import annotations

import collections
import functools

import pytest

torch = pytest.importorskip("torch")

Pair = collections.namedtuple("Pair", "a b")


class Kept:
    weight = torch.ones(2)
    several = (torch.ones(3), "name")

    @classmethod
    def run(cls, x):
        return x


class Slotted:
    __slots__ = ("pair",)

    def __init__(self):
        self.pair = (torch.ones(2), [torch.ones(3)])

    def __call__(self, x):
        return x


def closure():
    pair = (torch.ones(2), (torch.ones(3), torch.ones(4)))
    return lambda x: x + pair[0]


def named():
    pair = Pair(torch.ones(2), torch.ones(3))
    return lambda x: x + pair.a


def defaults():
    def step(x, w=torch.ones(2), *, k=(torch.ones(3),)):  # noqa: B008
        return x + w

    return step


def inherited():
    class Layer(torch.nn.Module):
        table = torch.ones(2)

        def forward(self, x):
            return x

    return Layer()


HOLDERS = {
    "tuples in a closure": (closure, 3),
    "a named tuple": (named, 2),
    "defaults": (defaults, 2),
    "slots": (Slotted, 2),
    "a bound class method": (lambda: Kept.run, 2),
    "a class attribute of a module": (inherited, 1),
    "arguments of a partial": (lambda: functools.partial(torch.add, torch.ones(2)), 1),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_found_can_be_replaced_where_it_is_held(holder):
    from sparsetui.probes.walk import held_tensors, replace_tensors

    make, n = HOLDERS[holder]
    held = make()
    before = dict(held_tensors(held))
    assert len(before) == n
    assert replace_tensors(held, lambda t: 2 * t) == n
    after = dict(held_tensors(held))
    assert after.keys() == before.keys()
    for name, t in before.items():
        assert torch.equal(after[name], 2 * t), name
    replace_tensors(held, lambda t: t / 2)
    if holder == "a named tuple":
        assert isinstance(held.__closure__[0].cell_contents, Pair)


def test_what_a_generator_holds_is_found_and_said_not_to_be_replaced():
    from sparsetui.probes.walk import held_tensors, replace_tensors

    def serving():
        weight = torch.ones(2)
        while True:
            yield weight

    running = serving()
    next(running)
    step = lambda x: next(running)  # noqa: E731
    assert [n.rpartition(".")[2] for n, _ in held_tensors(step)] == ["weight"]
    assert replace_tensors(step, lambda t: 2 * t) == 0
    assert len(held_tensors(running.send)) == 1
    assert len(held_tensors(torch.ones(2).matmul)) == 1
    assert held_tensors(torch.matmul) == []
