"""The kernel catalogue: what a symbol, a GPU kernel, a library or an op name means, as a path of the time table.

The knowledge is data (``kernels.toml`` beside this file), in order: the first rule that matches wins. Users add rules
of their own in ``kernels.toml`` in the configuration folder, or in files named by ``SPARSETUI_KERNELS``; those
go first.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

PATHS: tuple[str, ...] = (
    "dense", "sparse-csr", "sparse-csr-rhs", "sparse-csc", "sparse-coo", "sparse-bsr", "sparse-nm",
    "conversion", "sort", "elementwise", "copy", "alloc", "attention", "conv", "collective",
    "python", "barrier", "wait", "other", "unknown",
)  # fmt: skip
SPARSE: frozenset[str] = frozenset(p for p in PATHS if p.startswith("sparse-"))
PRODUCTS: frozenset[str] = SPARSE | {"dense"}

# Template arguments of a kernel can run to many kilobytes; what names it comes early.
_LONGEST = 400
_KEYS = {"family", "path", "symbol", "module", "op", "unsure", "note"}


class CatalogueError(ValueError):
    """A rule file that cannot be used: file, rule and what is wrong, in one line."""


@dataclass(frozen=True)
class Match:
    """What a name means. ``rule`` names the rule (``file:number``), ``unsure`` that operands could still change it."""

    path: str
    family: str
    rule: str
    unsure: bool = False
    note: str = ""


NOTHING = Match("unknown", "", "")


@dataclass(frozen=True)
class Rule:
    match: Match
    symbol: re.Pattern[str] | None = None
    module: re.Pattern[str] | None = None
    op: re.Pattern[str] | None = None


@dataclass
class Catalogue:
    """Rules in the order in which they are tried, with answers remembered."""

    rules: tuple[Rule, ...]
    _symbols: dict[tuple[str, str], Match] = field(default_factory=dict, repr=False)
    _ops: dict[str, Match] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, user_files: Iterable[str | Path] | None = None) -> Catalogue:
        """The built-in rules, behind those of ``user_files`` (default: the files that :func:`user_rule_files` finds).

        Raises :class:`CatalogueError` for a file that cannot be read or holds a rule that makes no sense.
        """
        rules: list[Rule] = []
        for file in user_rule_files() if user_files is None else [Path(f) for f in user_files]:
            rules += _read(file, str(file))
        builtin = resources.files("sparsetui.evidence").joinpath("kernels.toml")
        rules += _rules(tomllib.loads(builtin.read_text("utf-8")), "kernels.toml")
        return cls(tuple(rules))

    def classify(self, symbol: str, module: str = "") -> Match:
        """The path of a native symbol or GPU kernel, seen in library ``module`` (a path or a file name; may be "").

        An unknown name is ``unknown``, never a guess.
        """
        key = (symbol, module)
        found = self._symbols.get(key)
        if found is None:
            if len(self._symbols) > 200_000:  # a hostile file of unique names must not fill memory
                self._symbols.clear()
            found = self._symbols[key] = self._classify(readable(symbol), module.replace("\\", "/").rsplit("/", 1)[-1])
        return found

    def annotate(self, op: str) -> Match:
        """The path of a framework op such as ``aten::addmm`` or ``aten::mm.out``; ``unsure`` if its operands decide."""
        found = self._ops.get(op)
        if found is None:
            if len(self._ops) > 200_000:
                self._ops.clear()
            found = self._ops[op] = self._annotate(op[:_LONGEST])
        return found

    def _classify(self, symbol: str, module: str) -> Match:
        for rule in self.rules:
            if rule.symbol is not None:
                if rule.symbol.search(symbol) and (rule.module is None or rule.module.search(module)):
                    return rule.match
            elif rule.module is not None and module and rule.module.search(module):
                return rule.match
        return NOTHING

    def _annotate(self, op: str) -> Match:
        names = [op]
        if "::" in op and "." in op:  # aten::mm.out -> aten::mm
            names.append(op.rsplit(".", 1)[0])
        for rule in self.rules:
            if rule.op is not None and any(rule.op.fullmatch(name) for name in names):
                return rule.match
        return NOTHING


def user_rule_files() -> list[Path]:
    """Files of rules that users added: ``SPARSETUI_KERNELS`` (must exist), then the configuration folder's (may)."""
    named = [Path(p) for p in os.environ.get("SPARSETUI_KERNELS", "").split(os.pathsep) if p]
    import platformdirs

    own = Path(platformdirs.user_config_dir("sparsetui", appauthor=False)) / "kernels.toml"
    try:
        present = own.is_file()
    except OSError:  # a home that may not be entered
        present = False
    return [*named, own] if present else named


def _read(file: Path, name: str) -> list[Rule]:
    try:
        if file.exists() and not file.is_file():
            raise CatalogueError(f"{name}: not a regular file; a TOML file is accepted")
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as e:
        raise CatalogueError(f"{name}: cannot be read ({e.strerror or e})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise CatalogueError(f"{name}: not TOML ({e})") from None
    return _rules(document, name)


def _rules(document: dict[str, Any], name: str) -> list[Rule]:
    entries = document.get("rule", [])
    if set(document) - {"rule"} or not isinstance(entries, list):
        odd = ", ".join(sorted(set(document) - {"rule"})) or "rule"
        raise CatalogueError(f"{name}: unexpected key {odd}; accepted are [[rule]] tables only")
    return [_rule(entry, f"{name}:{i}") for i, entry in enumerate(entries, 1)]


def _rule(entry: Any, name: str) -> Rule:
    if not isinstance(entry, dict):
        raise CatalogueError(f"{name}: a rule is a table with {', '.join(sorted(_KEYS))}")
    for key in entry:
        if key not in _KEYS:
            raise CatalogueError(f"{name}: unknown key {key!r}; accepted are {', '.join(sorted(_KEYS))}")
    path = entry.get("path")
    if path not in PATHS:
        raise CatalogueError(f"{name}: path {path!r} is none of {', '.join(PATHS)}")
    patterns: dict[str, re.Pattern[str]] = {}
    for key in ("symbol", "module", "op"):
        if key in entry:
            try:
                patterns[key] = re.compile(entry[key])
            except (re.error, TypeError) as e:
                raise CatalogueError(f"{name}: {key} is no regular expression ({e})") from None
    if not patterns:
        raise CatalogueError(f"{name}: a rule needs symbol, module or op")
    unsure, note = bool(entry.get("unsure", False)), str(entry.get("note", ""))
    return Rule(Match(path, str(entry.get("family", "user")), name, unsure, note), **patterns)


def readable(symbol: str) -> str:
    """A symbol as the rules see it: cut to what matters, a mangled C++ name opened up to its identifiers.

    ``_ZN2at6native31s_addmm_out_sparse_dense_workerIfEEvll`` → ``at::native::s_addmm_out_sparse_dense_worker``. No full
    demangler: the identifiers in order are what rules ask for.
    """
    symbol = symbol[: 4 * _LONGEST].strip()
    if symbol.startswith("void "):
        symbol = symbol[5:]
    if symbol.startswith(("_Z", "__Z", "_R")):
        names = _identifiers(symbol)
        if names:
            symbol = "::".join(names)
    return symbol[:_LONGEST]


def _identifiers(mangled: str) -> list[str]:
    names, i, end = [], 2, len(mangled)
    while i < end:
        if mangled[i].isdecimal() and mangled[i].isascii():
            j = i
            while j < end and j - i < 4 and mangled[j].isdecimal() and mangled[j].isascii():
                j += 1
            length = int(mangled[i:j])
            word = mangled[j : j + length]
            if 0 < length == len(word) and (word[0].isalpha() or word[0] == "_"):
                names.append("(anonymous namespace)" if word.startswith("_GLOBAL__N") else word)
                i = j + length
                continue
            i = j
        else:
            i += 1
    return names
