"""The memo as others read it: a GFM linter, a GFM renderer, an HTML parser that forgives nothing, and a browser."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import html5lib
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pymarkdown.api import PyMarkdownApi

from sparsetui.report import html, memo, short
from sparsetui.report.document import Table
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store

EXAMPLES = sorted((Path(__file__).parents[2] / "sessions").glob("example-*"))
HOSTILE = [
    "<script>x</script>",
    "| a | b |",
    "https://evil.example/x",
    "![i](http://x/y.png)",
    "\x1b[2J\u202e",
    "# h\n- b\n---",
]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def states(sample: ModuleType) -> Iterator[tuple[str, SessionState]]:
    yield "sample", sample.state()
    for hostile in HOSTILE:
        yield hostile, sample.state(lambda t, h=hostile: f"{h}{t}{h}")
    for path in EXAMPLES:
        yield path.name, Store(path.parent).open(path.name).state()


def gfm(text: str) -> list[Token]:
    """As GitHub parses it: tables, strike-through and autolinks; raw HTML stays visible as tokens here."""
    parser = MarkdownIt("gfm-like", {"html": True})
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False})  # GitHub takes no bare host for a link; www. and http it does
    return parser.parse(text)


def inner(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from token.children or ()


def test_a_gfm_linter_finds_nothing_but_long_lines(sample: ModuleType) -> None:
    # a table's row is one line however long it is, so the rule on line length cannot hold
    lint = PyMarkdownApi().enable_extension_by_identifier("markdown-tables").disable_rule_by_identifier("md013")
    hostile = "".join(HOSTILE)
    seen = [
        ("sample", sample.state()),
        ("hostile", sample.state(lambda t: f"{hostile}{t}")),
        *list(states(sample))[-1:],
    ]
    for name, state in seen:  # a linter in plain Python takes seconds for a long memo
        for text in (memo.render(state), short.issue(state)):
            found = [f"{x.line_number}: {x.rule_id} {x.rule_description} {x.extra_error_information}"
                     for x in lint.scan_string(text).scan_failures]  # fmt: skip
            assert found == [], name


def test_a_gfm_renderer_sees_the_tables_and_headings_that_were_meant_and_no_markup_of_others(
    sample: ModuleType,
) -> None:
    for name, state in states(sample):
        document = memo.document(state)
        tokens = gfm(memo.render(state))
        tables = [b for b in document.blocks if isinstance(b, Table)]
        assert sum(t.type == "table_open" for t in tokens) == len(tables), name
        assert sum(t.type == "heading_open" and t.tag == "h1" for t in tokens) == 1
        cells = [[]]
        for t in tokens:
            if t.type == "tr_open":
                cells.append([])
            elif t.type in ("th_open", "td_open"):
                cells[-1].append(t.type)
        assert [len(row) for row in cells[1:]] == [n for b in tables for n in [len(b.header)] * (len(b.rows) + 1)], name
        strange = {t.type for t in inner(tokens)} & {"html_block", "html_inline", "link_open", "image", "s_open", "hr"}
        assert not strange, (name, strange)


def test_the_page_is_valid_html(sample: ModuleType) -> None:
    for name, state in states(sample):
        parser = html5lib.HTMLParser()
        parser.parse(html.render_html(state))
        assert parser.errors == [], name


def _browser() -> str:
    found = next((path for b in BROWSERS if (path := shutil.which(b))), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)} is installed")
    return found


def _show(browser: str, page: Path, width: int) -> tuple[str, str, Path]:
    """The page's DOM, what the browser had to say, and a picture of it, ``width`` pixels wide."""
    shot = page.with_name(f"shot-{width}.png")
    argv = [
        browser, "--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},1200", f"--screenshot={shot}", "--dump-dom",
        *(["--no-sandbox"] if os.geteuid() == 0 else []), page.as_uri(),
    ]  # fmt: skip
    got = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    return got.stdout, got.stderr, shot


def test_a_browser_draws_the_page_and_its_policy_refuses_nothing_of_it(sample: ModuleType, tmp_path: Path) -> None:
    browser = _browser()
    source = html.render_html(Store(EXAMPLES[0].parent).open(EXAMPLES[0].name).state() if EXAMPLES else sample.state())
    page = tmp_path / "memo.html"
    page.write_text(source)
    dom, said, shot = _show(browser, page, 1280)
    for tag in ("table", "svg", "h2", "figure", "tr"):
        assert len(re.findall(f"<{tag}[ >]", dom)) == len(re.findall(f"<{tag}[ >]", source)), tag
    assert "Content Security Policy" not in said
    assert _colours(shot) >= 3, "text, background and bars"


def test_a_browser_runs_no_script_that_got_into_the_page(sample: ModuleType, tmp_path: Path) -> None:
    """The policy is a second wall: even markup that escaping had let through is refused."""
    browser = _browser()
    page = tmp_path / "memo.html"
    page.write_text(html.render_html(sample.state()).replace("</body>", "<script>document.title='x'</script></body>"))
    dom, said, _ = _show(browser, page, 800)
    assert "<title>x</title>" not in dom
    assert "Content Security Policy" in said


def _colours(png: Path) -> int:
    """Distinct bytes-per-pixel values in the picture's rows, as a floor of how much was drawn: unfiltered rows suffice."""
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    packed, at, width, depth = b"", 8, 0, 3
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, depth = struct.unpack(">I", body[:4])[0], {2: 3, 6: 4}[body[9]]
        if kind == b"IDAT":
            packed += body
        at += 12 + size
    raw, line = zlib.decompress(packed), 1 + width * depth
    return len(
        {raw[i + 1 + x : i + 1 + x + depth] for i in range(0, len(raw), line) for x in range(0, line - 1, depth)}
    )
