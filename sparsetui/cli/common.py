"""What every command shares: one-line failures, narration on stderr, and text that cannot harm the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from sparsetui.evidence.text import clean

__all__ = ["check_store", "check_target", "clean", "fail", "say"]


_LONGEST = 1000  # characters of a failure's line


def say(message: str) -> None:
    """One line of narration on stderr; data belongs on stdout. A terminal that is gone does not stop a run."""
    with contextlib.suppress(OSError, ValueError):
        print(clean(message), file=sys.stderr, flush=True)


def fail(message: object) -> NoReturn:
    """End the command with one line on stderr and exit code 2 (bad usage or bad input)."""
    text = str(message)
    if len(text) > _LONGEST:  # a name of 100 kB says nothing more at full length; what is wrong stands behind it
        text = f"{text[:200]}…{text[200 - _LONGEST :]}"
    say(f"sparsetui: {text}")
    import typer

    raise typer.Exit(2)


def check_target(option: str, target: str | Path | None) -> None:
    """Refuse a file that could not be written once the work is done: no folder, or not a plain file."""
    if target is None or str(target) == "-":
        return
    path = Path(target)
    try:
        if not str(target) or path.is_dir():
            fail(f"{option} {target}: is a folder; name a file, or - for stdout")
        if (path.exists() or path.is_symlink()) and not path.is_file():
            fail(f"{option} {target}: is not a plain file; name a file, or - for stdout")
        if not path.parent.is_dir():
            fail(f"{option} {target}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            fail(f"{option} {target}: permission denied")
    except (OSError, ValueError) as e:
        fail(f"{option} {str(target)[:200]}: {getattr(e, 'strerror', None) or e}")


def check_store(sessions: Path | None) -> None:
    """Refuse a place for sessions that is no folder, before any work is done."""
    if sessions is None:
        return
    try:
        there = next(p for p in (sessions, *sessions.absolute().parents) if p.exists() or p.is_symlink())
        if not there.is_dir():
            fail(f"--sessions {sessions}: {there} is not a folder; name the folder that sessions are kept in")
    except (OSError, ValueError) as e:
        fail(f"--sessions {str(sessions)[:200]}: {getattr(e, 'strerror', None) or e}")


# What the options before the command say about the app's looks; the command that opens the app reads it.
tui_options: dict[str, bool] = {"mouse": False, "color": True, "unicode": True}
