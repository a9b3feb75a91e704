"""The memo's other forms: HTML, JSON, chat, tracker, terminal, and redaction across all of them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import unicodedata
from html.parser import HTMLParser
from types import ModuleType

import msgspec
import pytest

from sparsetui.evidence.records import Number, Result, Verdict
from sparsetui.report import html, jsonout, memo, short, table
from sparsetui.report.redact import redacted
from sparsetui.session.state import SessionState

SECRETS = ("web-17", "alice", "bob", "carol", "@kernels", "/srv/models", "/home", "10.1.2.3", "example.net")
VOID = {"meta"}


class Strict(HTMLParser):
    """Collects tags and complains about any that is not closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(tag, k, v) for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(tag, k, v) for k, v in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag


def parsed(page: str) -> Strict:
    parser = Strict()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_whole_and_holds_its_figures(sample: ModuleType) -> None:
    page = html.render_html(sample.state())
    found = parsed(page)
    assert {"svg", "table", "h1", "h2", "figure"} <= found.seen
    assert page.count("<svg") == 3  # budget, reality check, lens
    assert "3.90 [3.80, 4.00] ms (n=2000)" in page


@pytest.mark.parametrize("hostile", ["<script>x</script>", '"><img src=x onerror=1>', "</title><b>", "\x1b[2J\u202e"])
def test_no_script_no_fetch_no_style_attribute(sample: ModuleType, hostile: str) -> None:
    page = html.render_html(sample.state(lambda t: f"{hostile}{t}{hostile}"))
    found = parsed(page)
    assert not found.seen & {"script", "img", "iframe", "link", "object", "form", "a"}
    for tag, name, value in found.attributes:
        assert not name.startswith("on")
        assert name not in ("style", "href", "src"), (tag, name, value)
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in page)


def test_the_policy_allows_this_style_and_nothing_else(sample: ModuleType) -> None:
    page = html.render_html(sample.state())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy is not None
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy.group(1)
    assert "default-src 'none'" in policy.group(1)
    assert "unsafe" not in policy.group(1)


def test_json_has_every_key_of_the_contract_first(sample: ModuleType) -> None:
    out = json.loads(jsonout.session_json(sample.state()))
    assert tuple(out)[: len(jsonout.CONTRACT)] == jsonout.CONTRACT
    assert out["schema"] == 1
    assert out["verdict"]["mechanism"] == "kernel.wrong-orientation"
    assert out["metrics"]["latency_ms"]["failing"]["p50"]["n"] == 2000
    assert out["metrics"]["energy_j_per_request"]["failing"]["quality"] == "unavailable"
    assert out["paths"][0]["path"] == "sparse-csr-rhs"
    assert out["samplers"][0]["rate_hz"] == 10
    assert {g["gate"] for g in out["gates"]} >= {"lock", "replay", "rollback"}
    assert out["evidence"][0]["sha256"] == sample.SHA


def test_json_fills_what_was_not_measured_with_its_reason() -> None:
    result = Result(
        session="s", verdict=Verdict(status="no_fault", summary="even"), metrics={"real_speedup": Number(1.0)}
    )
    out = json.loads(jsonout.result_json(result))
    assert out["metrics"]["real_speedup"]["value"] == 1.0
    assert out["metrics"]["fallback_rate"] == {
        "value": None,
        "unit": "",
        "quality": "unavailable",
        "reason": "it was not measured",
    }
    assert out["verdict"]["status"] == "no_fault"


def test_json_of_an_unfinished_session_cannot_answer() -> None:
    out = json.loads(jsonout.session_json(SessionState(id="s", interrupted="SIGHUP")))
    assert out["verdict"]["status"] == "cannot_answer"
    assert "SIGHUP" in out["verdict"]["summary"]


def test_chat_is_short_and_plain(sample: ModuleType) -> None:
    text = short.chat(sample.state())
    assert len(text.splitlines()) <= 8
    assert "kernel.wrong-orientation (confirmed" in text
    assert "proved by E11" in text
    hostile = short.chat(sample.state(lambda t: f"\x1b[2J\n{t}"))
    assert len(hostile.splitlines()) <= 8
    assert "\x1b" not in hostile


def test_the_tracker_form_keeps_what_decides(sample: ModuleType) -> None:
    text = short.issue(sample.state())
    assert "## Verdict" in text
    assert "## Gates" in text
    assert "## Timeline" not in text
    assert "### Ruled out" in text
    assert "sparsetui memo 2026-11-30-ranker-7f3a" in text


def test_the_summary_names_verdict_figures_and_memo(sample: ModuleType) -> None:
    out = io.StringIO()
    table.print_summary(sample.state(), "/tmp/memo.md", stream=out)
    text = out.getvalue()
    assert "A fault was found" in text
    assert "ratio 5.34x [5.29, 5.40]" in text  # a stream that does not say it can do more gets ASCII
    assert text.isascii()
    assert "memo /tmp/memo.md" in text
    assert "NOT CLOSED" in text


def test_the_summary_reaches_a_latin_terminal(sample: ModuleType) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    table.print_summary(sample.state(lambda t: t + " é\x1b[2J"), stream=stream)
    stream.flush()
    assert b"\x1b" not in raw.getvalue()


@pytest.mark.parametrize("form", ["md", "html", "json", "chat", "issue"])
def test_redaction_reaches_every_form(sample: ModuleType, form: str) -> None:
    state = sample.state()
    text = {
        "md": lambda: memo.render(state, redact=True),
        "html": lambda: html.render_html(state, redact=True),
        "json": lambda: jsonout.session_json(state, redact=True).decode(),
        "chat": lambda: short.chat(state, redact=True),
        "issue": lambda: short.issue(state, redact=True),
    }[form]()
    for secret in SECRETS:
        assert secret not in text, secret
    assert "kernel.wrong-orientation" in text


def test_redaction_tells_people_apart_and_keeps_file_names(sample: ModuleType) -> None:
    state = redacted(sample.state())
    assert state.signoffs[0]["who"] == state.owners["runtime systems architect"]
    assert state.waivers[0]["by"] != state.signoffs[0]["who"]
    assert state.spec["path"] == "[path]/workload.toml"
    assert state.result is not None
    assert msgspec.to_builtins(state.metrics) == msgspec.to_builtins(sample.state().metrics)


def test_those_who_signed_and_closed_are_the_same_people_once_redacted(sample: ModuleType) -> None:
    signed = [{"role": r, "who": w, "time": ""} for r, w in (("ML", "@perf-team"), ("KL", "@kernels"))]
    state = msgspec.structs.replace(
        sample.state(), owners={}, waivers=[], notes=[], gates=[], signoffs=signed, closed="@perf-team, @kernels"
    )
    assert redacted(state).closed == "person 1, person 2"
    assert redacted(msgspec.structs.replace(state, closed="Doe, Jane")).closed == "person 3"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("loaded ~/models/x.pt now", "loaded [path]/x.pt now"),
        ("see https://wiki.corp/page?u=alice.", "see [url]"),
        ("mail alice@corp.example please", "mail [address] please"),
        ("src/serving/app.py:41 forward", "[path]/app.py:41 forward"),
        ("5 FLOP/B, p99/p50 of 2/3 requests", "5 FLOP/B, p99/p50 of 2/3 requests"),
        ("aten::mm layers.0.linear1", "aten::mm layers.0.linear1"),
    ],
)
def test_what_redaction_takes_and_leaves(text: str, clean: str) -> None:
    assert redacted(SessionState(title=text)).title == clean
