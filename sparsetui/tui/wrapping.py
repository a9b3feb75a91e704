"""Wrapping that keeps a figure whole: a number is not parted from its unit, nor one end of an interval from the other."""

from __future__ import annotations

import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

# in the place of a space that must not break; not a no-break space, at which rich breaks as at any other
_GLUE = "\ue000"
_WHOLE = re.compile(
    r"(?<=\d) (?=[%×]|(?:ns|us|µs|ms|s|min|B|kB|MB|GB|KiB|MiB|GiB|GB/s|GFLOP/s|FLOP/B|Hz|J|W)(?![\w/]))"
    r"|(?<=\d,) (?=[-−]?\d[\d.,]*\])"
)


def glued(text: str) -> str:
    """``text`` of the same length, with the spaces inside figures replaced by what no wrapper breaks at."""
    return _WHOLE.sub(_GLUE, text)


def wrap(text: str, width: int, **options: object) -> list[str]:
    """:func:`textwrap.wrap`, with figures kept whole where they fit a line; no text is one empty line."""
    if text.isascii() and text.isprintable() and len(text) <= width and not options:
        return [text.rstrip()]  # most are short, and a screen has dozens
    lines = textwrap.wrap(glued(text), max(1, width), **options)  # type: ignore[arg-type]
    return [line.replace(_GLUE, " ") for line in lines] or [""]


def wrap_text(text: Text, width: int) -> list[Text]:
    """The same for styled text; the styles survive, and no line ends in blanks."""
    text = text.copy()
    text.plain = glued(text.plain)
    lines = list(text.wrap(_console(), max(1, width)))
    for line in lines:
        line.plain = line.plain.replace(_GLUE, " ")
        line.rstrip()
    return lines


@cache
def _console() -> Console:
    """What rich asks for styles; it has no part in where lines break."""
    from rich.console import Console

    return Console()
