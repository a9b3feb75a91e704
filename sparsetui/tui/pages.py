"""A report's blocks as lines of a terminal: the memo preview and the sections that other tools leave in a session."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from sparsetui.evidence.text import clean
from sparsetui.report import plots
from sparsetui.report.document import Bars, Block, Bullets, Code, Heading, Para, Strong, Table, inlines, plain
from sparsetui.tui.look import ACCENT, DIM, FAILING, HEAD, ink
from sparsetui.tui.wrapping import wrap, wrap_text

LENS_HEIGHT = 12
LEAST = 6  # cells that a column keeps before its text is wrapped mid-word


def page(blocks: Sequence[Block], width: int, unicode: bool) -> list[Text]:
    """All blocks, one under the other, none wider than ``width`` cells."""
    lines: list[Text] = []
    for block in blocks:
        drawn = _draw(block, width, unicode)
        if drawn and lines and lines[-1].plain.strip():
            lines.append(ink())
        lines.extend(drawn)
    return lines


def _draw(block: Block, width: int, unicode: bool) -> list[Text]:
    if isinstance(block, Heading):
        return [ink(clean(block.text), f"{HEAD} underline" if block.level <= 2 else HEAD)]
    if isinstance(block, Para):
        return _wrapped(inlines(block.content), width)
    if isinstance(block, Bullets):
        return [
            ink("- " if i == 0 else "  ") + line
            for item in block.items
            for i, line in enumerate(_wrapped(inlines(item), width - 2))
        ]
    if isinstance(block, Table):
        return _table(block, width)
    caption = [ink(x, DIM) for x in wrap(clean(block.caption), width)] if block.caption else []
    if isinstance(block, Bars):
        return caption + [ink(x, FAILING) for x in plots.labelled_bars(block.rows, width, unicode)]
    return caption + [ink(x) for x in plots.lens(block.points, block.zones, width, LENS_HEIGHT, unicode)]


def _wrapped(parts: Sequence[object], width: int) -> list[Text]:
    """Inline parts as lines; their styles survive the wrapping."""
    text = ink()
    for part in parts:
        style = ACCENT if isinstance(part, Code) else HEAD if isinstance(part, Strong) else ""
        text.append(clean(part if isinstance(part, str) else getattr(part, "text", part)), style=style)
    return wrap_text(text, width)


def _table(table: Table, width: int) -> list[Text]:
    """Columns in their natural widths; where those do not fit, the widest give way and wrap."""
    if not table.rows:
        return []
    count = max(len(table.header), *(len(r) for r in table.rows))
    texts = [[clean(plain(c)) for c in row] + [""] * (count - len(row)) for row in table.rows]
    header = [clean(h) for h in table.header] + [""] * (count - len(table.header))
    widths = [max(cell_len(r[i]) for r in [header, *texts]) for i in range(count)]
    room = width - 2 * (count - 1)
    while sum(widths) > room and max(widths) > LEAST:
        widths[widths.index(max(widths))] -= 1
    lines = [ink("  ".join(set_cell_size(h, w) for h, w in zip(header, widths, strict=True)).rstrip(), DIM)]
    for row, cells in zip(table.rows, texts, strict=True):
        wrapped = [_cut(text, w) for text, w in zip(cells, widths, strict=True)]
        for n in range(max(len(w) for w in wrapped)):
            line = ink()
            for i, (part, w) in enumerate(zip(wrapped, widths, strict=True)):
                style = _style(row[i]) if i < len(row) else ""
                line.append(set_cell_size(part[n] if n < len(part) else "", w), style=style)
                line.append("  " if i + 1 < count else "")
            line.rstrip()
            lines.append(line)
    return lines


def _style(cell: object) -> str:
    return HEAD if isinstance(cell, Strong) else ACCENT if isinstance(cell, Code) else ""


def _cut(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return wrap(text, width, break_on_hyphens=False)
