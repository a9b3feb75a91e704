"""The worked examples in ``sessions``: whole, closed, small, and of no house."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparsetui.report import memo
from sparsetui.session.closure import TITLES, gates
from sparsetui.session.store import Store
from sparsetui.workload.drills.catalogue import all_drills

ROOT = Path(__file__).parents[2] / "sessions"
EXAMPLES = sorted(ROOT.glob("example-*"))
# a folder of any machine, or a host that a header or a tag names
PLACE = re.compile(r"(?<![\w\].])/(?:home|root|work|tmp|usr|opt|srv|var|etc|proc|dev)/|~/")


def _texts(folder: Path) -> list[str]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    return [(gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes()).decode() for p in files]


def _values(node: Any, key: str) -> list[Any]:
    if isinstance(node, dict):
        return [v for k, v in node.items() if k == key] + [x for v in node.values() for x in _values(v, key)]
    return [x for v in node for x in _values(v, key)] if isinstance(node, list) else []


def test_two_are_kept() -> None:
    assert len(EXAMPLES) == 2
    assert {s.id for s in Store(ROOT).list()} >= {p.name for p in EXAMPLES}


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda p: p.name)
def test_an_example_is_whole_and_closed_without_a_waiver(folder: Path) -> None:
    store = Store(ROOT)
    assert store.verify(folder.name).ok
    state = store.open(folder.name).state()
    assert state.workload in {f"drill-{d.name}" for d in all_drills()}
    found = gates(state)
    assert [g.gate for g in found] == list(TITLES)
    assert {g.state for g in found} == {"passed"}
    assert not state.waivers
    assert state.closed
    assert state.playbook["trail"]
    for text in ((folder / "memo.md").read_text(), memo.render(state)):
        assert text.startswith("# CLOSED: ")


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda p: p.name)
def test_an_example_names_no_folder_and_no_host(folder: Path) -> None:
    texts = _texts(folder)
    assert [m.group() for text in texts for m in PLACE.finditer(text)] == []
    events = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert set(_values(events, "host")) <= {"[host]", ""}
    assert json.loads((folder / "session.json").read_text())["host"] == "[host]"
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 1_000_000


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda p: p.name)
def test_in_the_matrix_of_the_digits_classifier_no_mix_is_slower_than_the_best_single_format(folder: Path) -> None:
    body = Store(ROOT).open(folder.name).state().sections["matrix"]
    rows = {r["name"]: r for r in body["rows"]}
    mixed, best = (1.0 if r == "dense" else rows[r]["against_dense"]["value"] for r in ("mixed", body["best_single"]))
    assert mixed <= best * (1 + body["noise_floor"]["value"]) * 1.001
