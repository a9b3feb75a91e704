"""Entries: ``path.py:callable`` or ``package.module:callable``, and what can be known of them without running them.

An entry is checked by reading, never by importing: a workload file runs code only when it is investigated.
"""

from __future__ import annotations

import ast
import keyword
from pathlib import Path

import msgspec

from sparsetui.workload.errors import describe, nearest, printable, shown

SYNTAX = "path.py:callable (relative to this file) or package.module:callable"
_LARGEST_SOURCE = 4 * 1024 * 1024


class EntryProblem(ValueError):
    """What is wrong with an entry; ``accepted`` says what would be right."""

    def __init__(self, wrong: str, accepted: str = SYNTAX) -> None:
        super().__init__(wrong)
        self.wrong = wrong
        self.accepted = accepted


class Entry(msgspec.Struct, frozen=True):
    """A callable in a file or in a module. Exactly one of ``file`` (absolute) and ``module`` is set.

    ``attribute`` may be dotted (``Service.build``). A module is looked up in the interpreter that runs it, with the
    workload's folder first on ``sys.path``.
    """

    text: str
    attribute: str
    file: str | None = None
    module: str | None = None

    def source(self, folder: Path) -> Path | None:
        """The file that holds the callable, where it can be told without importing anything."""
        if self.file is not None:
            return Path(self.file)
        assert self.module is not None
        stem = folder.joinpath(*self.module.split("."))
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None


def _is_name(text: str) -> bool:
    return bool(text) and all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def parse_entry(text: str, folder: Path, *, check_source: bool = True) -> Entry:
    """Read one entry of a workload file in ``folder``.

    With ``check_source`` the file is also parsed by this interpreter, and a callable that it plainly does not define is
    named with the nearest one it does; leave it off when another interpreter runs the file.

    Raises :class:`EntryProblem`.
    """
    where, colon, attribute = text.rpartition(":")
    where = where.strip()
    attribute = attribute.strip()
    if not colon or not where or not attribute:
        raise EntryProblem(f"{shown(text)} is no entry")
    if not _is_name(attribute):
        raise EntryProblem(f"{shown(attribute)} is no name of a callable in {shown(text)}")
    if not (where.endswith(".py") or "/" in where):
        if not _is_name(where):
            raise EntryProblem(f"{shown(where)} is no module name in {shown(text)}")
        return Entry(text=text, attribute=attribute, module=where)
    if not where.endswith(".py"):
        raise EntryProblem(f"{shown(where)} is no Python file in {shown(text)}")
    try:
        path = Path(where).expanduser()
    except RuntimeError as why:  # ~nobody
        raise EntryProblem(f"{shown(where)}: {why}") from None
    path = folder / path
    if trouble := describe(path):
        raise EntryProblem(f"{printable(str(path), 160)} {trouble}", "a Python file that exists, as " + SYNTAX)
    if check_source:
        _check_defines(path, attribute.split(".")[0])
    return Entry(text=text, attribute=attribute, file=str(path.absolute()))


def _check_defines(path: Path, name: str) -> None:
    if path.stat().st_size > _LARGEST_SOURCE:
        return
    try:
        source = path.read_bytes()
        tree = ast.parse(source, filename=str(path))
    except SyntaxError as why:
        place = f" in line {why.lineno}" if why.lineno else ""
        raise EntryProblem(
            f"{printable(str(path), 160)} does not parse{place}: {printable(why.msg or 'syntax error')}",
            "a file that this interpreter can read (or give the variant its own python)",
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise EntryProblem(f"{printable(str(path), 160)} is no Python source", "a Python file") from None
    except OSError as why:
        raise EntryProblem(f"{printable(str(path), 160)}: {why.strerror}", "a readable Python file") from None
    names = _top_level_names(tree)
    if names is None or name in names:
        return
    near = nearest(name, names)
    hint = f"; did you mean {shown(near)}?" if near else ""
    raise EntryProblem(f"{printable(str(path), 160)} defines no {shown(name)}{hint}", "a callable of that file")


def _top_level_names(tree: ast.Module) -> set[str] | None:
    """Names that running the module binds, or ``None`` when that cannot be told by reading."""
    names: set[str] = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == "__getattr__":
                return None
            names.add(node.name)
            continue  # what is bound inside it is not the module's
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    return None
                names.add((alias.asname or alias.name).split(".")[0])
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif node.id in {"globals", "vars", "exec", "eval", "setattr", "locals"}:
                return None
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
        todo.extend(ast.iter_child_nodes(node))
    return names
