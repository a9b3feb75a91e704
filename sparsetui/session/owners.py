"""Owners from a file in the manner of CODEOWNERS.

::

    # whom to call                            (comment)
    *                          @platform      (every role that no other line names)
    ML performance engineer    @perf-team @lea
    KL                         @kernels       (the short name of a role)
    serving/*.py               @serving       (who owns a file, for findings that name one)

As in CODEOWNERS the last line that matches wins, and a pattern without an owner has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from sparsetui.flow import OWNERS
from sparsetui.session.errors import SessionError, storage
from sparsetui.session.files import read_regular

_OWNER = re.compile(r"@[\w.-]+(/[\w.-]+)?|[^\s@]+@[^\s@]+\.[^\s@]+")
_MAX_BYTES = 3 << 20  # GitHub's own limit for CODEOWNERS


@dataclass(frozen=True)
class OwnerFile:
    """``roles`` maps a role's full name to its owners; ``paths`` holds patterns with theirs, in the file's order."""

    roles: dict[str, str] = field(default_factory=dict)
    paths: tuple[tuple[str, str], ...] = ()

    def of_path(self, path: str) -> str:
        """Who owns a file, by the last pattern that matches; an empty text when nobody does."""
        return next((who for pattern, who in reversed(self.paths) if _matches(pattern, path.lstrip("/"))), "")


def read_owners(path: Path) -> OwnerFile:
    """The owner file at ``path``. Raises :class:`SessionError` that names file, line and what is accepted."""
    with storage("read the owners", path):
        data = read_regular(path, _MAX_BYTES)
    try:
        return parse_owners(data.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise SessionError(f"{path}: byte {e.start} is not UTF-8 text") from None
    except ValueError as e:
        raise SessionError(f"{path}: {e}") from None


def parse_owners(text: str) -> OwnerFile:
    """Roles and path patterns with their owners. Raises ``ValueError`` that names the line."""
    by_name = {name.casefold(): role for code, role in OWNERS.items() for name in (code, role, role.replace(" ", "-"))}
    roles: dict[str, str] = {}
    default = ""
    paths: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        tokens = line.split("#", 1)[0].split()
        if not tokens:
            continue
        names = len(tokens)
        while names and _OWNER.fullmatch(tokens[names - 1]):
            names -= 1
        subject, who = " ".join(tokens[:names]).strip("\"'[]"), " ".join(tokens[names:])
        if not subject:
            raise ValueError(f"line {number}: owners without a role or pattern before them")
        role = by_name.get(subject.casefold())
        if role is not None:
            roles[role] = who
        elif len(subject.split()) > 1:
            raise ValueError(
                f"line {number}: {subject!r} is neither a role nor one pattern followed by @owners; "
                f"the roles are {', '.join(OWNERS.values())}"
            )
        else:
            paths.append((subject, who))
            if subject == "*":
                default = who
    return OwnerFile({r: w for r in OWNERS.values() if (w := roles.get(r, default))}, tuple(paths))


def _matches(pattern: str, path: str) -> bool:
    """CODEOWNERS matching as far as an owner lookup needs it: rooted and floating names, folders, ``*`` and ``**``."""
    rooted = pattern.startswith("/") or "/" in pattern.rstrip("/")
    pattern = pattern.strip("/")
    candidates = [path] if rooted else [path, *("/".join(path.split("/")[i:]) for i in range(1, path.count("/") + 1))]
    regex = re.compile("".join(_translated(pattern)) + "(/.*)?", re.DOTALL)
    return any(regex.fullmatch(c) for c in candidates)


def _translated(pattern: str) -> list[str]:
    wild = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return [wild.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern)]
