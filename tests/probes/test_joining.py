"""Joining inputs of a step into one call: where it can be done, what it leaves alone, and how its time is counted."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from sparsetui.probes import outputs  # noqa: E402
from sparsetui.probes.interventions import arm  # noqa: E402

NAME = "larger-calls"
WEIGHT = torch.randn(16, 5, generator=torch.Generator().manual_seed(2))
Request = namedtuple("Request", "x scale")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine joins no fewer inputs."""
    from sparsetui.probes import joining

    monkeypatch.setattr(joining, "_LONGEST", 1e9)


def rows(*sizes: int, width: int = 16) -> list[tuple[Any, ...]]:
    return [(torch.randn(n, width),) for n in sizes]


def columns(*sizes: int) -> list[tuple[Any, ...]]:
    return [(x.t().contiguous(),) for (x,) in rows(*sizes)]


BATCHED: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {
    "a module": (nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), rows(4, 4, 4)),
    "of several batch sizes": (lambda x: x @ WEIGHT, rows(1, 7, 3)),
    "one input only": (lambda x: (x @ WEIGHT).softmax(-1), rows(4)),
    "the batch in the second dimension": (lambda x: WEIGHT.t() @ x, columns(4, 2)),
    "the output's batch elsewhere than the input's": (lambda x: (x @ WEIGHT).t(), rows(4, 2)),
    "a sparse weight": ((lambda s: lambda x: (s @ x.t()).t())((WEIGHT.t() > 0.5).float().to_sparse_csr()), rows(4, 3)),
    "several outputs": (nn.LSTM(16, 6), [(torch.randn(5, n, 16),) for n in (2, 3)]),
    "an argument that all inputs share": (
        lambda x, s, k: (x * s) ** k,
        [(*i, torch.arange(16), 2) for i in rows(3, 3)],
    ),
    "arguments in dictionaries and named tuples": (
        lambda d: {"y": d["r"].x * d["r"].scale, "z": d["r"].x.sum(-1)},
        [({"r": Request(*i, 0.5)},) for i in rows(3, 2)],
    ),
    "lengths that differ": (lambda x: x.sum(1), [(torch.randn(2, n, 4),) for n in (3, 3, 5)]),
}


@pytest.mark.parametrize("name", BATCHED)
def test_answers_are_those_of_single_calls(replica: Any, name: str) -> None:
    step, inputs = BATCHED[name]
    r = replica(step, *inputs)
    plain = outputs.run_outputs(r.ctx, len(inputs))
    got = r.ask("check", intervention=NAME, count=len(inputs))
    assert (got["why"], got["equal"]) == ("", True)
    assert got["applied"] == 1
    assert got["reach"] == pytest.approx(7 / 8, abs=0.02)
    with torch.no_grad(), arm(r.ctx, "on:" + NAME) as live:
        for single, joined in zip(plain, live.outputs(r.ctx, len(inputs)), strict=True):
            assert [t.shape for t in single] == [t.shape for t in joined]
            for s, j in zip(single, joined, strict=True):
                torch.testing.assert_close(s, j)
    with torch.no_grad(), arm(r.ctx, "control:" + NAME) as live:
        for single, same in zip(plain, live.outputs(r.ctx, len(inputs)), strict=True):
            assert all(torch.equal(s, j) for s, j in zip(single, same, strict=True))


def trains() -> Any:
    layer = nn.Linear(16, 4)

    def step(x: Any) -> Any:
        layer.zero_grad()
        with torch.enable_grad():
            out = layer(x)
            out.square().sum().backward()
        return out.detach()

    return step


def keeps_a_buffer() -> Any:
    held = torch.zeros(16)

    def step(x: Any) -> Any:
        held.mul_(0.9).add_(x[0])
        return x + held

    return step


def marked_as_compiled() -> Any:
    def step(x: Any) -> Any:
        return x * 2

    step._torchdynamo_orig_callable = step  # type: ignore[attr-defined]
    return step


class Pair(tuple):  # type: ignore[type-arg]
    """A tuple that is made in a way of its own."""

    def __new__(cls, a: Any, b: Any) -> Any:
        return super().__new__(cls, (a, b))


def sees_all_rows(x: Any) -> Any:
    """Attention of rows that have no batch: over copies of them it is the same."""
    return nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]


def goes_on(x: Any, held: dict[Any, Any] = {}) -> Any:  # noqa: B006
    """A state of the batch's size, begun anew for another."""
    h = held.get("h")
    h = torch.zeros_like(x) if h is None or h.shape != x.shape else h
    held["h"] = h * 0.5
    return x + 0.0 * h


def collects(x: Any, held: list[Any] = []) -> Any:  # noqa: B006
    held.append(x + 1)
    return x * 2


def row_by_row(x: Any) -> Any:
    return torch.stack([(r - r.mean()) / (r.pow(2).mean() + 1).sqrt() for r in x])


ALONE: dict[str, tuple[Any, list[tuple[Any, ...]], str]] = {
    "an output without a batch": (lambda x: x.sum(), rows(4, 4), "no batch dimension"),
    "statistics over the batch": (lambda x: x - x.mean(), rows(4, 4), "differ"),
    "drawn answers": (lambda x: nn.functional.dropout(x, 0.5, True), rows(4, 4), "differ"),
    "a batch size in the code": (lambda x: x.view(4, 16) * 2, rows(4, 4), "raised RuntimeError"),
    "a running mean": (nn.BatchNorm1d(16), rows(4, 4), "writes to what it keeps"),
    "a buffer of its own": (keeps_a_buffer(), rows(4, 4), "writes to what it keeps"),
    "in place on the input": (lambda x: x.add_(1.0) * 1, rows(4, 4), "writes to what it keeps"),
    "a training step": (trains(), rows(4, 4), "takes gradients"),
    "a sparse input": (lambda x: x @ WEIGHT, [(torch.eye(16).to_sparse(),)], "sparse"),
    "a nested input": (
        lambda n: n.to_padded_tensor(0.0) * 2,
        [(torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)]),)],
        "nested",
    ),
    "no tensor": (lambda n: torch.ones(n, 2), [(3,)], "no tensors"),
    "a mask of each input's own": (lambda x, m: x * m, [(*i, torch.rand(16)) for i in rows(4, 4)], "differs from input"),
    "an option of each input's own": (lambda x, n: x * n, [(*i, n) for n, i in enumerate(rows(4, 4))], "differs from input"),
    "a single number": (lambda x: x * 2, [(torch.tensor(1.0),)], "no argument has a batch"),
    "large inputs": (lambda x: x + 1, rows(4096, width=600), "too large"),
    "nothing to compare": (lambda x: None, rows(4), "no tensor to compare"),
    "compiled code": (marked_as_compiled(), rows(4, 4), "compiled anew"),
    "a container of its own kind": (lambda p: p[0] + p[1], [(Pair(*i, *i),) for i in rows(4, 4)], "cannot be joined"),
    "a mean over one input": (lambda x: x - x.mean(), [(torch.randn(16, 8),)], "with what it is joined with"),
    "norms over one input": (nn.BatchNorm1d(16, track_running_stats=False), rows(6), "with what it is joined with"),
    "a mean that hardly differs": (lambda x: x - x.mean(), rows(900, 900, width=64), "with what it is joined with"),
    "attention over one input": (sees_all_rows, rows(9), "with what it is joined with"),
    "embeddings of one input": (
        lambda i: WEIGHT[i] - WEIGHT[i].mean(0), [(torch.tensor([3, 1, 4, 1]),)], "with what it is joined with"
    ),
    "a state of the batch's size": (goes_on, rows(4, 4), "goes on from what it kept"),
    "a list of all calls": (collects, rows(4, 4), "keeps something of each call"),
    "calls for each row": (row_by_row, rows(12, 12), "input by input"),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_what_cannot_be_joined_says_why_and_runs_as_it_is(replica: Any, name: str) -> None:
    step, inputs, words = ALONE[name]
    r = replica(step, *inputs)
    got = r.ask("check", intervention=NAME)
    assert (got["applied"], got["reach"]) == (0, 0.0)
    assert words in got["why"]
    blocks = r.ask("arms", arms=["on:" + NAME, "control:" + NAME], count=3)["blocks"]
    assert [len(b["times_ms"]) for b in blocks] == [3, 3]


@pytest.mark.parametrize("make", [keeps_a_buffer, trains], ids=["a buffer", "training"])
def test_a_step_that_would_keep_what_it_saw_is_never_called_with_joined_inputs(replica: Any, make: Any) -> None:
    step, seen = make(), []

    def watched(x: Any) -> Any:
        seen.append(len(x))
        return step(x)

    r = replica(watched, *rows(4, 4))
    r.ask("check", intervention=NAME)
    r.ask("arms", arms=["off", "control:" + NAME, "on:" + NAME], count=4)
    assert set(seen) == {4}


class Grows:
    """Keeps as much as the longest call needed, and scales by it from then on."""

    def __init__(self) -> None:
        self.length, self.table, self.calls = 0, None, [0]

    def __call__(self, x: Any) -> Any:
        self.calls.append(x.shape[1])
        if x.shape[1] > self.length:
            self.length = x.shape[1]
            self.table = torch.arange(self.length) / self.length
        return (x * self.table[: x.shape[1]]).sum(0)


def test_what_a_joined_call_changed_in_the_step_is_put_back(replica: Any) -> None:
    step = Grows()
    r = replica(step, (torch.randn(3, 6),), (torch.randn(3, 6),))
    got = r.ask("check", intervention=NAME)
    assert (got["applied"], got["equal"], got["error"]) == (0, True, 0.0)
    assert (step.length, len(step.table), set(step.calls)) == (6, 6, {0, 6})


def test_variables_of_a_function_are_put_back_too(replica: Any) -> None:
    longest = 0

    def step(x: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(x))
        return x.sum() * longest

    r = replica(step, *rows(4, 4))
    assert r.ask("check", intervention=NAME)["applied"] == 0
    assert longest == 4


def test_a_step_that_keeps_what_it_does_not_read_again_is_joined(replica: Any) -> None:
    layer = nn.Linear(16, 16)

    def step(x: Any) -> Any:
        layer.scores = layer(x)  # to be looked at
        return layer.scores * 2

    assert replica(step, *rows(4, 4)).ask("check", intervention=NAME)["applied"] == 1


def test_both_arms_do_the_same_inputs_and_count_their_time_by_input(replica: Any) -> None:
    calls: list[int] = []

    def step(x: Any) -> Any:
        calls.append(len(x))
        return x * 2

    r = replica(step, *rows(3, 3, 3, 3))
    r.ask("check", intervention=NAME)
    calls.clear()
    (off,) = r.ask("arms", arms=["off"], count=32, warm=2)["blocks"]
    assert (len(calls), len(off["times_ms"])) == (34, 32)
    calls.clear()
    (control,) = r.ask("arms", arms=["control:" + NAME], count=32, warm=2)["blocks"]
    assert calls == [3] * 8 * (1 + 4)  # one call of eight inputs to warm up, and four that are timed
    assert len(control["times_ms"]) == 4
    calls.clear()
    (on,) = r.ask("arms", arms=["on:" + NAME], count=32, warm=2)["blocks"]
    assert calls == [24] * (1 + 4)
    assert len(on["times_ms"]) == 4


def test_times_are_divided_by_the_inputs_of_a_call(replica: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsetui.probes import clock

    r = replica(lambda x: x * 2, *rows(3, 3))
    r.ask("check", intervention=NAME)
    ticks = iter(range(0, 10**12, 8_000_000))  # each reading of the clock is 8 ms after the one before
    monkeypatch.setattr(clock.time, "perf_counter_ns", lambda: next(ticks))
    off, control, on = r.ask("arms", arms=["off", "control:" + NAME, "on:" + NAME], count=16)["blocks"]
    assert set(off["times_ms"]) == {8.0}
    assert set(control["times_ms"]) == set(on["times_ms"]) == {1.0}


def test_slow_steps_are_joined_a_few_at_a_time(replica: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsetui.probes import joining

    monkeypatch.setattr(joining, "_LONGEST", 0.0)
    r = replica(lambda x: x * 2, *rows(3, 3))
    got = r.ask("check", intervention=NAME)
    assert got["notes"] == ["2 inputs a call, joined in dimension 0"]
    assert got["reach"] == 0.5
