"""The one error a workload file can give: one line that names file, place, what is wrong and what is accepted."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path


class WorkloadError(ValueError):
    """A workload that cannot be used.

    ``str()`` is one printable line. ``file`` is the path as given, ``key`` the key path (``failing.threads``, or ``""``
    when the file as a whole is meant), ``line`` the 1-based line where it could be found.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        wrong: str,
        *,
        key: str = "",
        line: int | None = None,
        column: int | None = None,
        accepted: str = "",
    ) -> None:
        self.file = str(file)
        self.key = key
        self.line = line
        self.column = column
        self.wrong = wrong
        self.accepted = accepted
        where = printable(self.file, 200)
        if line is not None:
            where += f":{line}" + (f":{column}" if column is not None else "")
        parts = [where] + ([printable(key, 120)] if key else []) + [printable(wrong, 400)]
        text = ": ".join(parts)
        if accepted:
            text += f"; accepted: {printable(accepted, 600)}"
        super().__init__(text)


def printable(text: str, limit: int = 80) -> str:
    """``text`` on one line, without control, bidi or other invisible characters, at most ``limit`` characters long."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def shown(value: object) -> str:
    """A value of the file as it may be quoted in an error: short and printable."""
    text = value if isinstance(value, str) else None
    try:
        return printable(f'"{text}"' if text is not None else str(value), 60)
    except (ValueError, RecursionError):  # an int with more digits than Python will print; absurd nesting
        return f"a {type(value).__name__} too large to show"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` most likely meant, or ``None`` when nothing is near."""
    by_fold = {k.casefold(): k for k in known}
    hit = difflib.get_close_matches(name[:200].casefold(), by_fold, n=1, cutoff=0.5)
    return by_fold[hit[0]] if hit else None


def describe(path: Path) -> str:
    """What stands in the way of reading ``path`` as a regular file, to be said after its name, or ``""``."""
    try:
        if not path.exists():
            return "is a link to nothing" if path.is_symlink() else "does not exist"
        if path.is_dir():
            return "is a directory"
        if not path.is_file():
            return "is no regular file"
        if not os.access(path, os.R_OK):
            return "may not be read by this user"
    except (OSError, ValueError) as why:  # a name too long, an embedded NUL, a folder that may not be entered
        return f"cannot be read ({getattr(why, 'strerror', None) or why})"
    return ""
