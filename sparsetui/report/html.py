"""The memo as one HTML file: no script, nothing fetched, a content policy that forbids both, figures as inline SVG."""

from __future__ import annotations

import base64
import hashlib
from html import escape

from sparsetui.evidence.text import clean
from sparsetui.report import svg
from sparsetui.report.document import (
    Bars,
    Block,
    Bullets,
    Cell,
    Code,
    Document,
    Heading,
    Inline,
    Lens,
    Para,
    Table,
    inlines,
)
from sparsetui.report.memo import document
from sparsetui.session.state import SessionState

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { border-bottom: 2px solid; padding-bottom: .3rem; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { border: 1px solid #8888; padding: .25rem .6rem; text-align: left; vertical-align: top; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
figcaption { font-size: 13px; opacity: .8; max-width: 60rem; }
svg { max-width: 760px; width: 100%; height: auto; }
svg text { font: 13px ui-monospace, monospace; fill: currentColor; }
.track { fill: none; stroke: #8888; }
.bar { fill: #3b6fb6; }
.slow { fill: #b3432b; }
.axis { fill: none; stroke: currentColor; }
.zone { fill: none; stroke: #888; stroke-dasharray: 5 4; }
"""
_LIMIT = 4000


def render_html(state: SessionState, *, redact: bool = False) -> str:
    """The whole memo of ``state`` in one self-contained page; the same state gives the same bytes."""
    return to_html(document(state, redact=redact))


def to_html(doc: Document) -> str:
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = _safe(doc.title)
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{title}</h1>",
        *(text for block in doc.blocks if (text := _block(block))),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_safe(block.text)}</h{block.level}>"
    if isinstance(block, Para):
        return f"<p>{_cell(block.content)}</p>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{_cell(i)}</li>" for i in block.items) + "</ul>"
    if isinstance(block, Table):
        return _table(block)
    return _figure(block)


def _figure(block: Bars | Lens) -> str:
    drawn = svg.bars(block) if isinstance(block, Bars) else svg.lens(block)
    caption = f"<figcaption>{_safe(block.caption)}</figcaption>" if block.caption else ""
    return f"<figure>{drawn}{caption}</figure>"


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(f"<th>{_safe(h)}</th>" for h in table.header)
    rows = []
    for row in table.rows:
        cells = [_cell(c) for c in row[: len(table.header)]]
        cells += [""] * (len(table.header) - len(cells))
        rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table>"


def _cell(cell: Cell) -> str:
    return "".join(_inline(part) for part in inlines(cell))


def _inline(part: Inline) -> str:
    if isinstance(part, str):
        return _safe(part)
    if not part.text:
        return ""
    tag = "code" if isinstance(part, Code) else "strong"
    return f"<{tag}>{_safe(part.text)}</{tag}>"


def _safe(text: str) -> str:
    return escape(clean(text, _LIMIT), quote=True)
