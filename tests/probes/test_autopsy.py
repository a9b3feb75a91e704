"""Which call raised, also where it never reached an op."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


def csr() -> torch.Tensor:
    return torch.eye(16).to_sparse_csr()


def test_a_call_that_only_inference_mode_refuses_is_named_with_its_operands(replica):
    w = csr()

    @torch.inference_mode()
    def step(x):
        return F.linear(x, w)

    with pytest.raises(RuntimeError):
        step(torch.randn(4, 16))
    told = replica(step).ask("autopsy")
    (row,) = told["failed"]
    assert row["op"] == "torch::linear"
    assert [o["layout"] for o in row["operands"]] == ["strided", "csr"]
    assert row["mode_only"] is True
    assert row["place"].endswith("step")
    assert "inference tensor" in told["error"]


def test_a_call_that_fails_in_any_mode_is_no_matter_of_the_mode(replica):
    w = csr()

    @torch.inference_mode()
    def step(x):
        return F.linear(x[:, :7], w)

    told = replica(step).ask("autopsy")
    assert told["failed"]
    assert not any(row.get("mode_only") for row in told["failed"])


def test_an_error_of_the_code_itself_names_no_call(replica):
    def step(x):
        torch.relu(x)
        raise RuntimeError("out of patience")

    told = replica(step).ask("autopsy")
    assert told["failed"] == []
    assert told["error"] == "RuntimeError: out of patience"


def test_a_training_step_is_gone_through_with_gradients(replica):
    w, p = csr(), torch.nn.Parameter(torch.randn(16))

    def step(x):
        (x * p).sum().backward()
        return w @ x[:, :7]

    told = replica(step).ask("autopsy")
    assert told["failed"]
    assert all("backward" not in row["op"] for row in told["failed"])
    assert "require grad" not in told["error"]


def test_what_the_code_caught_is_not_what_it_ended_of(replica):
    w = csr()

    def step(x):
        try:
            w @ x[:, :7]
        except RuntimeError:
            pass
        raise IndexError("list index out of range")

    told = replica(step).ask("autopsy")
    assert (told["failed"], told["summary"]) == ([], "IndexError: list index out of range")


def test_an_exception_that_the_code_raises_of_another_names_the_call(replica):
    w = csr()

    def step(x):
        try:
            return w @ x[:, :7]
        except RuntimeError as e:
            raise ValueError("this layer cannot run") from e

    told = replica(step).ask("autopsy")
    assert told["error"] == "ValueError: this layer cannot run"
    assert any(o["layout"] == "csr" for row in told["failed"] for o in row["operands"])
