"""A :class:`Document` as GitHub-flavoured Markdown that also reads well as plain text."""

from __future__ import annotations

import re

from sparsetui.evidence.text import clean, md
from sparsetui.report import plots
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
    Strong,
    Table,
    inlines,
)

WIDTH = 96
CELL_LIMIT = 400
_CODE_SAFE = re.compile(r"[\w.:/@=+,* -]+", re.ASCII)


def to_markdown(document: Document) -> str:
    """The document's bytes are a function of its content alone: no clock, no locale, no width of a terminal."""
    parts = [f"# {md(document.title, CELL_LIMIT)}"]
    parts.extend(text for block in document.blocks if (text := _block(block)))
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {md(block.text, CELL_LIMIT)}"
    if isinstance(block, Para):
        return _cell(block.content, 4000)
    if isinstance(block, Bullets):
        return "\n".join(f"- {_cell(item, 2000)}" for item in block.items)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Bars):
        return _fenced(plots.labelled_bars(block.rows, WIDTH), block.caption)
    return _lens(block)


def _lens(block: Lens) -> str:
    return _fenced(plots.lens(block.points, block.zones, WIDTH, 14), block.caption)


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    columns = len(table.header)
    lines = [_row([md(h) for h in table.header]), _row(["---"] * columns)]
    for row in table.rows:
        cells = [_cell(c, CELL_LIMIT) for c in row[:columns]]
        lines.append(_row(cells + [""] * (columns - len(cells))))
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    """One space on each side of a cell, and one in an empty one, as linters of tables ask."""
    return "|" + "|".join(f" {text} " if (text := cell.strip()) else " " for cell in cells) + "|"


def _cell(cell: Cell, limit: int) -> str:
    return "".join(_inline(part, limit) for part in inlines(cell))


def _inline(part: Inline, limit: int) -> str:
    if isinstance(part, str):
        lead = " " if part[:1] == " " else ""
        tail = " " if part[-1:] == " " and len(part) > 1 else ""
        return lead + md(part, limit) + tail
    text = clean(part.text, limit).strip()
    if not text:
        return ""
    if isinstance(part, Code):
        # a code span knows no escapes, so only text that needs none may enter one
        return f"`{text}`" if _CODE_SAFE.fullmatch(text) else md(text)
    assert isinstance(part, Strong)
    return f"**{md(text)}**"


def _fenced(lines: list[str], caption: str) -> str:
    lines = [clean(line).rstrip() for line in lines]
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    block = "\n".join([f"{fence}text", *lines, fence])
    return f"{block}\n\n{md(caption)}" if caption else block
