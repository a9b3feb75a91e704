"""Whole investigations of a pruned family without a sparse path, as the cause and as a bystander, and of products at the roof."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

CODE = Path(__file__).with_name("layers.py")


def investigate(folder: Path, failing: str, comparator: str, inputs: str, more: str = "") -> dict[str, Any]:
    path = folder / f"{failing}.toml"
    path.write_text(
        f'[failing]\nentry = "{CODE}:{failing}"\nthreads = 1\n[comparator]\nentry = "{CODE}:{comparator}"\nthreads = 1\n'
        f'[inputs]\nentry = "{CODE}:{inputs}"\n{more}'
    )
    argv = [sys.executable, "-m", "sparsetui", "investigate", path, "--headless", "--budget", "20", "--json", "-"]
    done = subprocess.run([*map(str, argv), "--sessions", str(folder / "sessions")], capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def of(result: dict[str, Any], mechanism: str) -> dict[str, Any]:
    found: dict[str, Any] = next(f for f in (*result["findings"], *result["ruled_out"]) if f["mechanism"] == mechanism)
    return found


def test_a_pruned_convolution_beside_sparse_products_is_proved_by_unfolding_it(tmp_path: Path) -> None:
    result = investigate(tmp_path, "pruned_convolution", "whole_convolution", "images", "[declared]\nspeedup = 2.0\n")
    verdict, seen = result["verdict"], {e["id"]: e for e in result["evidence"]}
    assert (verdict["status"], verdict["mechanism"]) == ("fault", "lowering.unsupported-family"), verdict["summary"]
    assert verdict["confidence"] == "confirmed"
    assert seen[verdict["intervention"]]["summary"].startswith("family-twin")
    (twin,) = [e for e in result["evidence"] if e["probe"] == "families" and e["variant"] == "failing"]
    assert twin["id"] in verdict["evidence"]
    assert all(form in verdict["summary"] for form in ("dense ", "unfold + CSR ", "channels "))
    assert of(result, verdict["mechanism"])["figure"]["unit"].startswith("share of the step that ")


def test_a_pruned_convolution_that_costs_what_it_cost_before_is_not_blamed(tmp_path: Path) -> None:
    result = investigate(tmp_path, "wrong_side_after_a_convolution", "dense_after_a_convolution", "patches")
    verdict = result["verdict"]
    assert (verdict["status"], verdict["mechanism"]) == ("fault", "kernel.wrong-orientation"), verdict["summary"]
    family = of(result, "lowering.unsupported-family")
    assert family in result["ruled_out"]
    assert "runs these ops dense as well" in family["reason"]
    assert not any(e["summary"].startswith("family-twin") for e in result["evidence"])


def test_products_at_the_memory_roof_are_tried_in_blocks(tmp_path: Path) -> None:
    """The roofs are measured before the clock, so that the trial can still follow; whether blocks gain is this host's matter."""
    result = investigate(tmp_path, "eight_matrices", "four_matrices", "vectors")
    order = [e["probe"] for e in result["evidence"]]
    assert order.index("roofs") < order.index("clock")
    named = [f["mechanism"] for f in (*result["findings"], *result["ruled_out"])]
    if "execution.bandwidth-bound" not in named:
        pytest.skip("the products stay below the roof on this host")
    assert "blocks of 16 x 16 would move" in of(result, "execution.bandwidth-bound")["summary"]
    tried = {e["variant"] for e in result["evidence"] if e["summary"].startswith("to-blocks: the step takes")}
    assert tried == {"failing", "comparator"}
