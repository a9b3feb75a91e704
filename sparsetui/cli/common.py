"""What every command shares: one-line failures, narration on stderr, and text that cannot harm the terminal."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from sparsetui.evidence.text import clean

__all__ = ["clean", "fail", "say"]


def say(message: str) -> None:
    """One line of narration on stderr; data belongs on stdout."""
    print(clean(message), file=sys.stderr, flush=True)


def fail(message: object) -> NoReturn:
    """End the command with one line on stderr and exit code 2 (bad usage or bad input)."""
    say(f"sparsetui: {message}")
    raise typer.Exit(2)


# What the options before the command say about the app's looks; the command that opens the app reads it.
tui_options: dict[str, bool] = {"mouse": False, "color": True, "unicode": True}
