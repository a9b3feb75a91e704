from __future__ import annotations

from pathlib import Path

import pytest

from sparsetui.playbook.check import check
from sparsetui.playbook.spec import PlaybookError, load, parse

GOOD = """\
id: one
title: One step
question: regression
symptoms: [slow]
steps:
  - id: a
    stage: kernel
    ask: which?
    run: [census]
    owner: KL
    branches:
      - when: {fact: latency_ratio.p50, op: ">", value: 1.1}
        because: slower
        go: b
    unknown: {end: {kind: cannot_answer, say: no figure, owner: PR, settle: run it}}
    otherwise: {end: {kind: no_fault, say: fine, owner: production reliability owner}}
  - id: b
    stage: kernel
    ask: and?
    owner: ML
    branches:
      - when: {all: [{fact: conversions, op: ">", value: 0}, {not: {fact: lock.match, op: "==", value: false}}]}
        end: {kind: mechanism, mechanism: kernel.generic, say: generic, owner: KL}
    otherwise: {end: {kind: no_fault, say: fine, owner: ML}}
"""
MECHANISMS = {"kernel.generic", "kernel.wrong-orientation"}


def test_a_good_playbook_is_typed_and_right() -> None:
    book = parse(GOOD, "good.yaml")
    assert book.steps[0].owner == "sparse kernel library owner"
    assert book.steps[0].branches[0].when.value == 1.1
    assert book.steps[1].branches[0].when.parts[1].combine == "not"
    assert check(book, MECHANISMS) == []


# what is changed in the good file -> the line that is named, and what is said
BROKEN = [
    ("question: regression", "question: regresion", 3, "did you mean 'regression'?"),
    ("title: One step", "titel: One step", 2, "did you mean 'title'?"),
    ("title: One step\n", "", 1, "needs the key title"),
    ("stage: kernel\n    ask: which?", "stage: kernal\n    ask: which?", 7, "did you mean 'kernel'?"),
    ("run: [census]", "run: [cencus]", 9, "did you mean 'census'?"),
    ("run: [census]", "run: census", 9, "run must be a list"),
    ("owner: KL\n    branches", "owner: nobody\n    branches", 10, "owner is 'nobody'"),
    ("    owner: ML\n", "", 17, "needs the key owner"),
    ('op: ">", value: 1.1', 'op: "=>", value: 1.1', 12, "op is '=>'"),
    ('op: ">", value: 1.1', 'op: ">", value: fast', 12, "compares numbers"),
    ('op: ">", value: 1.1', "op: known, value: 1.1", 12, "takes no value"),
    ('op: ">", value: 1.1', 'op: ">"', 12, "needs a value"),
    ('op: ">", value: 1.1', 'op: ">", value: null', 12, "is empty"),
    ('op: ">", value: 1.1', 'op: ">", valu: 1.1', 12, "did you mean 'value'?"),
    ("        go: b\n", "        go: b\n        end: {}\n", 12, "either go (a step's id) or end"),
    ("        go: b\n", "", 12, "either go (a step's id) or end"),
    ("say: no figure, owner: PR, settle: run it", "say: no figure, owner: PR", 15, "needs the key settle"),
    ("mechanism: kernel.generic, say", "say", 23, "needs the key mechanism"),
    ("kind: no_fault, say: fine, owner: ML", "kind: fine, say: x, owner: ML", 24, "kind is 'fine'"),
    (
        "kind: no_fault, say: fine, owner: ML",
        "kind: no_fault, mechanism: x, say: x, owner: ML",
        24,
        "names no mechanism",
    ),
    ("id: a\n", "id: a\n    id: c\n", 7, "has the key 'id' twice"),
    ("id: a\n", "id: [a]\n", 6, "id must be a text"),
    ("ask: which?", "ask: ''", 8, "ask must be a text"),
    ("{fact: conversions", "{fact: conversions, all: []", 22, "holds nothing else beside it"),
    ("steps:\n", "steps: &x\n", 5, "anchors and aliases"),
    ("symptoms: [slow]", "symptoms: [slow", 5, "is not YAML"),
]


@pytest.mark.parametrize(("old", "new", "line", "what"), BROKEN)
def test_a_mistake_is_told_with_its_line(old: str, new: str, line: int, what: str) -> None:
    assert old in GOOD
    with pytest.raises(PlaybookError) as told:
        parse(GOOD.replace(old, new, 1), "team.yaml")
    assert told.value.line == line
    assert what in str(told.value)
    assert str(told.value).startswith(f"team.yaml:{line}: ")
    assert "\n" not in str(told.value)


# mistakes that only show when ids are resolved
UNRESOLVED = [
    ("go: b", "go: bb", 14, "there is no step 'bb'; did you mean 'b'?"),
    ("go: b", "go: a", 14, "leads back to the step 'a'"),
    ("go: b", "end: {kind: no_fault, say: x, owner: ML}", 17, "the step 'b' is never reached"),
    ("id: b", "id: a", 17, "a step 'a' was already given in line 6"),
    ("fact: conversions", "fact: conversion", 22, "did you mean 'conversions'?"),
    ("fact: conversions", "fact: mechanism.kernel.generik", 22, "did you mean 'kernel.generic'?"),
    ("fact: conversions", "fact: path.dens", 22, "did you mean 'dense'?"),
    ("fact: conversions", "fact: gate.tail", 22, "did you mean 'tails'?"),
    ('fact: lock.match, op: "==", value: false', 'fact: question, op: "==", value: speed', 22, "is never 'speed'"),
    ("mechanism: kernel.generic", "mechanism: kernel.orientation", 23, "there is no mechanism 'kernel.orientation'"),
    ("value: 1.1}", "value: {fact: noise}}", 12, "there is no fact 'noise'"),
]


@pytest.mark.parametrize(("old", "new", "line", "what"), UNRESOLVED)
def test_what_cannot_be_resolved_is_told_with_its_line(old: str, new: str, line: int, what: str) -> None:
    assert old in GOOD
    problems = check(parse(GOOD.replace(old, new, 1), "team.yaml"), MECHANISMS)
    assert any(p.line == line and what in p.what for p in problems), [str(p) for p in problems]
    assert all(str(p).startswith("team.yaml:") for p in problems)


def test_a_cycle_over_several_steps_is_found() -> None:
    step = """\
  - id: {id}
    stage: kernel
    ask: q
    owner: ML
    branches:
      - when: {{fact: lock.match, op: known}}
        go: {to}
    otherwise: {{end: {{kind: no_fault, say: x, owner: ML}}}}
"""
    text = "id: x\ntitle: x\nquestion: live\nsteps:\n" + "".join(
        step.format(id=a, to=b) for a, b in (("a", "b"), ("b", "c"), ("c", "b"))
    )
    assert [p.what for p in check(parse(text), ())] == ["leads back to the step 'b': a playbook has no cycles"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"\x00\x01", "is not YAML"),
        (b"- a\n- b\n", "a playbook must be a mapping"),
        (b"steps: []\nid: a\ntitle: b\nquestion: live\n", "steps is empty"),
        (b"{" * 5000, "nested deeper"),
        (b"a: !!python/object/apply:os.system ['true']\n", "has no key 'a'"),
        (b"id: !!python/name:os.system x\ntitle: b\nquestion: live\nsteps: [1]\n", "a step must be a mapping"),
        (b"x" * (1 << 20 | 1), "is larger than"),
    ],
)
def test_files_that_are_no_playbook(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(data)
    with pytest.raises(PlaybookError) as told:
        load(path)
    assert what in str(told.value)
    assert "\n" not in str(told.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "no.yaml", tmp_path):
        with pytest.raises(PlaybookError, match="cannot be read"):
            load(path)


def test_hostile_text_in_an_error_is_harmless() -> None:
    with pytest.raises(PlaybookError) as told:
        parse(GOOD.replace("question: regression", 'question: "\\e[2J\\u202e"'), "a\nb.yaml")
    assert str(told.value).isprintable()
