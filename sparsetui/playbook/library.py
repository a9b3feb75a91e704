"""Where playbooks are found: those that ship with the package, a user's or team's folders, or a file by its path."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import platformdirs

from sparsetui.playbook.spec import Playbook, PlaybookError, load, nearest

VARIABLE = "SPARSETUI_PLAYBOOKS"
MAX_FILES = 500
_PACKAGE = Path(__file__).resolve().parent.parent


class Entry(msgspec.Struct, frozen=True):
    """One playbook file: read, or the reason why it could not be."""

    path: Path
    origin: str  # "shipped", "user" or the folder named by the environment
    playbook: Playbook | None = None
    error: str = ""


def shipped() -> Path:
    """The folder of the package's own playbooks: inside an installed wheel, or beside the package in a checkout."""
    packaged = _PACKAGE / "_playbooks"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "playbooks"


def folders() -> list[tuple[str, Path]]:
    """``(origin, folder)`` in the order of search: the environment's, the user's, the shipped; the first id wins."""
    named = [(p, Path(p).expanduser()) for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    return [*named, ("user", platformdirs.user_config_path("sparsetui") / "playbooks"), ("shipped", shipped())]


def entries() -> list[Entry]:
    """Every playbook file there is; a broken one is listed with its error. The same id further back is hidden."""
    out: list[Entry] = []
    seen: set[str] = set()
    for origin, folder in folders():
        for path in files_in(folder):
            entry = _read(path, origin)
            key = entry.playbook.id if entry.playbook else str(path)
            if key not in seen:
                seen.add(key)
                out.append(entry)
    return out


def find(name: str | Path) -> Playbook:
    """A playbook by id, by file name without ending, or by path. Raises :class:`PlaybookError`."""
    path = Path(os.path.expanduser(name))
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return load(path)
    found = entries()
    for entry in found:
        if entry.playbook is not None and str(name) in (entry.playbook.id, entry.path.stem):
            return entry.playbook
        if entry.playbook is None and entry.path.stem == str(name):
            return load(entry.path)  # raises with the file and line of its mistake
    ids = [e.playbook.id for e in found if e.playbook]
    raise PlaybookError(str(name), 0, f"there is no such playbook; {nearest(str(name), ids)}")


def files_in(folder: Path) -> list[Path]:
    """The YAML files directly in ``folder``, by name; none where it does not exist or may not be read."""
    try:
        found = sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and p.is_file())
    except OSError:
        return []
    return found[:MAX_FILES]


def expand(paths: Iterable[Path]) -> list[Path]:
    """Files as they are, folders as the playbooks in them. Raises :class:`PlaybookError` for an empty folder."""
    out: list[Path] = []
    for path in paths:
        if os.path.isdir(path):  # unlike Path's, quiet about a name that no file can have
            inside = files_in(path)
            if not inside:
                raise PlaybookError(str(path), 0, "holds no .yaml or .yml file")
            out += inside
        else:
            out.append(path)
    return out


def _read(path: Path, origin: str) -> Entry:
    try:
        return Entry(path, origin, load(path))
    except PlaybookError as e:
        return Entry(path, origin, None, str(e))
