from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from types import ModuleType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsetui.evidence.records import Evidence, Lock, Result, Verdict
from sparsetui.flow import CLOSURE_ARTIFACTS
from sparsetui.report.memo import render
from sparsetui.session.closure import TITLES
from sparsetui.session.state import SessionState

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "a | b | c",
    "line\nbreak\r\n| forged | row |",
    "\u202egnp.exe\u2066",
    "<script>alert(1)</script>",
    "](javascript:alert(1)) ![x](http://e.vil/p.png)",
    "```\n# heading\n```",
    "# NOT A HEADING",
    "`code` *b* _i_ ~~s~~ \\",
    "[bold red]markup[/]",
    "&lt;b&gt; &#x1f;",
    "--- ",
    "",
]
SECTIONS = (
    "Verdict",
    "Incident facts",
    "Lock",
    "Evidence",
    "First failing mechanism",
    "Regression budget",
    "Sparse reality check",
    "Trade-off matrix",
    "Bandwidth lens",
    "Replay",
    "Owners",
    "Validation matrix",
    "Rollback criteria and rehearsal",
    "Gates",
    "Playbook",
    "Timeline",
    "What could not be answered",
)


def headings(text: str, level: int = 2) -> list[str]:
    return list(re.findall(rf"^{'#' * level} (.+)$", outside_fences(text), re.MULTILINE))


def outside_fences(text: str) -> str:
    return re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def tables(text: str) -> list[list[str]]:
    found, current = [], []
    for line in outside_fences(text).splitlines():
        if line.startswith("|"):
            current.append(line)
        elif current:
            found.append(current)
            current = []
    return [*found, current] if current else found


def pipes(row: str) -> int:
    """Pipes that divide cells: GFM splits at every pipe that has no backslash before it, in code spans too."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", row))


def assert_well_formed(text: str) -> None:
    assert tables(text)
    for table in tables(text):
        assert re.fullmatch(r"\|( --- \|)+", table[1]), table[:2]
        assert {pipes(row) for row in table} == {pipes(table[0])}, table


def test_every_section_is_there_in_the_order_of_a_review(sample: ModuleType) -> None:
    found = headings(render(sample.state()))
    assert [h for h in found if h in SECTIONS] == list(SECTIONS)
    assert "Import" in found  # a section nobody foresaw is not lost


@pytest.mark.parametrize("name", ["matrix", "lens", "replay"])
def test_a_release_section_appears_only_when_it_was_measured(sample: ModuleType, name: str) -> None:
    state = sample.state()
    title = {"matrix": "Trade-off matrix", "lens": "Bandwidth lens", "replay": "Replay"}[name]
    without = msgspec.structs.replace(state, sections={k: v for k, v in state.sections.items() if k != name})
    assert title in headings(render(state))
    assert title not in headings(render(without))


def test_figures_carry_interval_count_quality_and_hash(sample: ModuleType) -> None:
    text = render(sample.state())
    assert r"3.90 \[3.80, 4.00\] ms (n=2000)" in text
    assert r"0.19× \[0.18, 0.20\] derived" in text
    assert "unavailable: RAPL is not readable" in text
    row = next(line for line in text.splitlines() if line.startswith("| `E02` | kernel"))
    assert "estimated" in row
    assert sample.SHA in row


def test_a_claim_names_its_proving_artifact(sample: ModuleType) -> None:
    text = render(sample.state())
    assert "| proved by | `E11` |" in text
    ruled = next(line for line in text.splitlines() if line.startswith("| `execution.index-copy`"))
    assert ruled.endswith("| `E02` |")


def test_a_claim_without_evidence_says_so(sample: ModuleType) -> None:
    state = sample.state()
    bare = msgspec.structs.replace(state.findings[1], evidence=())
    text = render(msgspec.structs.replace(state, findings=(state.findings[0], bare)))
    ruled = next(line for line in text.splitlines() if line.startswith("| `execution.index-copy`"))
    assert ruled.endswith("| `no artifact` |")


def test_not_closed_until_every_gate_holds(sample: ModuleType) -> None:
    text = render(sample.state())
    assert text.startswith("# NOT CLOSED: ranker\n")
    assert "**Gates that do not hold:**" in text
    waivers = tuple({"gate": g, "why": "agreed in review", "by": "carol", "time": "t"} for g in TITLES)
    waived = msgspec.structs.replace(sample.state(), waivers=waivers)
    closed = render(waived)
    assert closed.startswith("# CLOSED: ranker\n")
    assert "NOT CLOSED" not in closed
    assert "carol" in closed
    assert "agreed in review" in closed
    assert render(msgspec.structs.replace(waived, closed=None)).startswith("# READY TO CLOSE")


def test_gates_are_computed_and_never_believed(sample: ModuleType) -> None:
    state = sample.state()
    lying = tuple(msgspec.structs.replace(state.gates[0], gate=g, state="passed") for g in TITLES)
    assert render(msgspec.structs.replace(state, gates=lying)).startswith("# NOT CLOSED")


def test_owners_are_shown_with_what_they_owe(sample: ModuleType) -> None:
    text = render(sample.state())
    for role, artifact in CLOSURE_ARTIFACTS.items():
        assert any(role in line and artifact in line for line in text.splitlines())
    assert "unassigned" in text
    assert "bob at 2026-11-30T10:00:17Z: fine at /srv/models/ranker" in text


def test_a_limit_inside_the_interval_is_not_called_held(sample: ModuleType) -> None:
    state = sample.state()
    spec = {**state.spec, "spec": {**state.spec["spec"], "sla": {"p50_ms": 3.9}}}
    row = next(
        line
        for line in render(msgspec.structs.replace(state, spec=spec)).splitlines()
        if line.startswith("| latency p50")
    )
    assert row.endswith("| cannot tell |")


def test_an_empty_session_has_a_memo_too() -> None:
    text = render(SessionState(id="s", interrupted="SIGTERM"))
    assert text.startswith("# NOT CLOSED")
    assert "No verdict yet." in text
    assert "SIGTERM" in text
    assert_well_formed(text)


@pytest.mark.parametrize("status", ["no_fault", "cannot_answer"])
def test_no_fault_and_cannot_answer_name_no_mechanism(status: str) -> None:
    result = Result(session="s", verdict=Verdict(status=status, summary="the pair is even"))  # type: ignore[arg-type]
    text = render(SessionState(id="s", result=result))
    assert "the pair is even" in text
    assert "None is material." in text
    assert "proved by" not in text.split("## Incident facts")[0]


def test_tables_are_well_formed(sample: ModuleType) -> None:
    assert_well_formed(render(sample.state()))


def test_the_same_state_gives_the_same_bytes(sample: ModuleType) -> None:
    first, again = render(sample.state()), render(sample.state())
    assert first == again
    decoded = msgspec.json.decode(msgspec.json.encode(sample.state()), type=SessionState)
    assert render(decoded) == first
    assert first.endswith("\n")
    assert not re.search(r"[ \t]$", first, re.MULTILINE)


def spoil(hostile: str) -> Callable[[str], str]:
    return lambda text: f"{hostile}{text}{hostile}"


def assert_harmless(text: str) -> None:
    for char in text:
        assert char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"), repr(char)
    body = outside_fences(text)
    assert "<script" not in body
    assert "http://" not in body
    assert not re.search(r"(?<!\\)\]\(", body)
    assert set(headings(text)) <= {*SECTIONS, "Import"}
    assert_well_formed(text)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("redact", [False, True])
def test_hostile_text_in_every_field_stays_text(sample: ModuleType, hostile: str, redact: bool) -> None:
    assert_harmless(render(sample.state(spoil(hostile)), redact=redact))


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_any_text_stays_text(sample: ModuleType, hostile: str) -> None:
    assert_harmless(render(sample.state(spoil(hostile))))


def test_a_long_session_is_cut_and_says_so(sample: ModuleType) -> None:
    state = sample.state()
    timeline = tuple((f"t{i}", "note", f"entry {i}") for i in range(5000))
    text = render(msgspec.structs.replace(state, timeline=timeline))
    assert "entry 0 |" in text
    assert "entry 4999 |" in text
    assert "4850 entries are in the session only" in text


def test_a_phase_that_never_ended_is_told(sample: ModuleType) -> None:
    timeline = (("t0", "phase", "census started"), ("t1", "phase", "census done"), ("t2", "phase", "clock started"))
    text = render(msgspec.structs.replace(sample.state(), timeline=timeline))
    assert "census started" not in text
    assert "| t2 | phase | clock started |" in text


def test_a_lock_that_was_never_taken_is_no_mismatch(sample: ModuleType) -> None:
    state = sample.state()
    assert state.result is not None
    result = msgspec.structs.replace(state.result, lock=Lock(match=False))
    text = render(msgspec.structs.replace(state, lock=None, result=result))
    assert "Not recorded: under which tags" in text
    assert "No match." not in text


def test_figures_beyond_three_are_counted(sample: ModuleType) -> None:
    figures = {
        f"f{i}": msgspec.convert({"value": i}, type(sample.state().evidence[2].figures["closed"])) for i in range(9)
    }
    evidence = Evidence(id="E99", stage="kernel", probe="p", figures=figures)
    text = render(SessionState(id="s", evidence=(evidence,)))
    assert "and 6 more" in text
