"""How things look: the roles that styles name, the marks of states, and the ASCII form of every glyph used.

Everything is drawn with the terminal's own sixteen colours and with attributes, so that it can be read on dark and
light backgrounds and with no colour at all. A state is always a mark or a word; its colour only repeats it.
"""

from __future__ import annotations

from rich.terminal_theme import TerminalTheme
from rich.text import Text
from textual.color import Color
from textual.theme import Theme

# roles -> rich styles
HEAD = "bold"
DIM = "dim"
OK = "green"
BAD = "bold red"
WARN = "yellow"
ACCENT = "cyan"
KEY = "bold cyan"
FAILING = "yellow"
COMPARATOR = "cyan"
CURSOR = "reverse"

# state -> mark; every mark is one cell wide and none of them has an emoji form
MARK = {
    "done": "✓",
    "found": "▲",
    "now": "►",
    "running": "»",
    "todo": "·",
    "failed": "✗",
    "cancelled": "✗",
    "skipped": "–",
    "passed": "✓",
    "waived": "~",
    "not run": "·",
}
MARK_STYLE = {
    "done": OK,
    "passed": OK,
    "found": BAD,
    "failed": BAD,
    "cancelled": WARN,
    "now": "bold",
    "running": ACCENT,
    "waived": WARN,
}


def ink(text: str = "", style: str = "") -> Text:
    """``text`` in ``style``; what is appended later does not take the style on. Never markup."""
    return Text.assemble((text, style)) if style else Text(text)


# One character each, so that no column moves when a terminal has no unicode.
_ASCII = {
    "✓": "+", "▲": "!", "►": ">", "»": ">", "·": ".", "✗": "x", "–": "-", "—": "-", "−": "-", "×": "x", "±": "~",
    "…": "~", "→": ">", "←": "<", "↑": "^", "↓": "v", "●": "*", "○": "o", "│": "|", "─": "-", "█": "#", "▶": ">",
    "◀": "<", "µ": "u", "≤": "<", "≥": ">", "▁": "_", "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "#",
    "▏": ".", "▎": ".", "▍": ":", "▌": "=", "▋": "=", "▊": "#", "▉": "#",
    "“": '"', "”": '"', "‘": "'", "’": "'",
}  # fmt: skip
_TABLE = str.maketrans(_ASCII)


def ascii_form(text: str) -> str:
    """``text`` with every glyph replaced by one ASCII character; what has no likeness becomes ``?``."""
    if text.isascii():
        return text
    return text.translate(_TABLE).encode("ascii", "replace").decode("ascii")


DARK = Theme(
    name="sparsetui-dark",
    primary="#5fafd7",
    secondary="#87afaf",
    accent="#5fd7d7",
    warning="#d7af5f",
    error="#e06c75",
    success="#87c275",
    foreground="#d0d4da",
    background="#14171c",
    surface="#14171c",
    panel="#1b2027",
    dark=True,
    variables={"frame": "#39424e", "frame-on": "#5fafd7"},
)
LIGHT = Theme(
    name="sparsetui-light",
    primary="#005f87",
    secondary="#3a6b6b",
    accent="#00707a",
    warning="#8a5a00",
    error="#af1f2d",
    success="#2f6f1f",
    foreground="#22262b",
    background="#fafaf7",
    surface="#fafaf7",
    panel="#efefea",
    dark=False,
    variables={"frame": "#b5bac0", "frame-on": "#005f87"},
)


def _sixteen(background: str, foreground: str, *eight: str) -> TerminalTheme:
    rgb = [Color.parse(c).rgb for c in (background, foreground, *eight)]
    return TerminalTheme(rgb[0], rgb[1], rgb[2:], rgb[2:])


# What the sixteen colours of the roles are in truecolour: each can be read on its background (4.5 to 1 at least).
# In order: black, red, green, yellow, blue, magenta, cyan, white.
DARK_INK = _sixteen(
    "#14171c", "#d0d4da", "#5c6773", "#f0808a", "#87c275", "#d7af5f", "#5fafd7", "#c792ea", "#5fd7d7", "#d0d4da"
)
LIGHT_INK = _sixteen(
    "#fafaf7", "#22262b", "#22262b", "#af1f2d", "#2f6f1f", "#8a5a00", "#005f87", "#7a2f8a", "#00707a", "#5c6773"
)
TERMINAL = "ansi-dark"  # the terminal's own colours, dark or light
