"""Real stack files of speedscope's own tests: each gives its total, or one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsetui.ingest import stacks
from sparsetui.ingest.sniff import sniff

DATA = Path(os.environ.get("SPARSETUI_REAL_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")) / "stacks"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not DATA.is_dir(), reason=f"no outside data in {DATA}; SPARSETUI_REAL_DATA names another folder"
    ),
]

# file: format, weight in all, threads, own time of some functions, events that did not fit together
TABLE = {
    "bex-interaction.json": ("chrome", 12, 1, {}, 0),
    "end-non-top-of-stack.json": ("chrome", 11, 1, {"A": 1, "B": 9, "Z": 1}, 2),
    "hermes-multiple-frames.json": ("chrome", 14, 1, {}, 0),
    "matching-x.json": ("chrome", 10, 1, {"alpha": 8, "beta": 1, "gamma": 1}, 0),
    "mismatched-name.json": ("chrome", 10, 1, {"alpha": 10}, 2),
    "multiprocess.json": ("chrome", 8, 8, {"alpha": 1, "delta": 1}, 0),
    "not-enough-end-events.json": ("chrome", 11, 1, {"A": 11}, 2),
    "out-of-order-events.json": ("speedscope", 4, 1, {"A": 4}, 0),
    "out-of-order-unbalanced-name.json": ("chrome", 10, 1, {"alpha": 1, "beta": 9}, 1),
    "simple-crlf.txt": ("collapsed", 14, 1, {"c": 5, "d": 4, "b": 5}, 0),
    "simple-hermes.json": ("chrome", 14, 1, {}, 0),
    "simple-partial-trailing-comma.json": ("chrome", 14, 1, {"gamma": 5, "epsilon": 4, "beta": 3, "alpha": 2}, 0),
    "simple-partial.json": ("chrome", 14, 1, {"gamma": 5, "epsilon": 4, "beta": 3, "alpha": 2}, 0),
    "simple-utf16-le.txt": ("collapsed", 14, 1, {"c": 5, "d": 4, "b": 5}, 0),
    "simple.json": ("chrome", 14, 1, {"gamma": 5, "epsilon": 4, "beta": 3, "alpha": 2}, 0),
    "simple.speedscope.json": ("speedscope", 14, 1, {"c": 5, "d": 4, "b": 5}, 0),
    "simple.txt": ("collapsed", 14, 1, {"c": 5, "d": 4, "b": 5}, 0),
    "too-many-end-events.json": ("chrome", 14, 1, {"alpha": 2, "beta": 12}, 2),
    "two-sampled.speedscope.json": ("speedscope", 28, 2, {"c": 10, "d": 8, "b": 10}, 0),
    "unbalanced-name.json": ("chrome", 10, 1, {"alpha": 1, "beta": 9}, 1),
    "x-events-matching-start.json": ("chrome", 20, 1, {}, 0),
}


def test_no_file_is_left_out() -> None:
    assert {p.name for p in DATA.iterdir()} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_each_file_gives_its_figures(name: str) -> None:
    form, total, threads, own, unbalanced = TABLE[name]
    assert sniff(DATA / name) == "stacks"
    p = stacks.inspect(DATA / name)
    assert (p["format"], p["total"], len(p["threads"])) == (form, total, threads)
    assert (p.get("unbalanced") or 0) == unbalanced
    found = {r["name"]: r["share"] * p["total"] for r in p["functions"]}
    assert {k: found[k] for k in own} == pytest.approx(own)
    assert p["rates"]["sparse_rate"].value is None


def test_a_partial_file_says_so() -> None:
    for name in ("simple-partial.json", "simple-partial-trailing-comma.json"):
        assert stacks.inspect(DATA / name)["salvage"]["cut"] == "the list of events is not closed"
