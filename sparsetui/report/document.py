"""What a memo is made of, before it becomes Markdown or HTML.

Sections build blocks of plain text; only a renderer escapes. So text from outside cannot slip past in one form and
not in the other, and every form says the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparsetui.report.plots import LensPoint, Zone


@dataclass(frozen=True)
class Code:
    """An identifier to be shown in fixed width: a hash, an id, a command."""

    text: str


@dataclass(frozen=True)
class Strong:
    text: str


Inline = str | Code | Strong
Cell = Inline | tuple[Inline, ...]


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Para:
    content: Cell


@dataclass(frozen=True)
class Bullets:
    items: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """``rows`` may be short: missing cells stay empty. A table without rows is not drawn."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Bars:
    """Labelled shares on one scale: ``(label, share or None, text)``; see :func:`sparsetui.report.plots.bar`."""

    rows: tuple[tuple[str, float | None, str], ...]
    caption: str = ""


@dataclass(frozen=True)
class Lens:
    """The bandwidth lens: pressure over iterations, with its zones."""

    points: tuple[LensPoint, ...]
    zones: tuple[Zone, ...]
    caption: str = ""


Block = Heading | Para | Bullets | Table | Bars | Lens


@dataclass(frozen=True)
class Document:
    title: str
    blocks: tuple[Block, ...] = field(default_factory=tuple)


def inlines(cell: Cell) -> tuple[Inline, ...]:
    return cell if isinstance(cell, tuple) else (cell,)


def plain(cell: Cell) -> str:
    """The words of a cell without their dress."""
    return "".join(part if isinstance(part, str) else part.text for part in inlines(cell))
