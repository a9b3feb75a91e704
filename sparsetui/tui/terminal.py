"""The terminal itself: is there one, how many colours it has, and how text leaves it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal

Depth = Literal["none", "16", "256", "true"]

RESTORE = "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[<u\x1b[?1049l\x1b[?25h\x1b[0m\r\n"


def why_no_terminal(env: Mapping[str, str] = os.environ) -> str | None:
    """``None`` where the app can run, else why not: Textual would paint into a closed stdin or a dumb terminal."""
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout")):
        try:
            if stream is None or not stream.isatty():
                return f"{name} is not a terminal"
        except ValueError:
            return f"{name} is closed"
    if env.get("TERM", "") in ("", "dumb", "unknown"):
        return f"TERM is {env.get('TERM') or 'not set'}"
    return None


def colour_depth(env: Mapping[str, str] = os.environ) -> Depth:
    """What the environment promises; an unknown terminal gets sixteen colours, never none."""
    if env.get("NO_COLOR") is not None:
        return "none"
    if env.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "true"
    term = env.get("TERM", "")
    if "256" in term or "direct" in term or "kitty" in term or "alacritty" in term:
        return "256"
    if term in ("vt100", "vt220", "vt102"):
        return "none"
    return "16"


def light_background(env: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal says that its background is light (``COLORFGBG``, set by rxvt, konsole and others)."""
    last = env.get("COLORFGBG", "").rsplit(";", 1)[-1]
    return last in ("7", "15")
