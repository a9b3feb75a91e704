"""The catalogue: every mechanism, in stage order and, within a stage, in the order its file lists them."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from sparsetui.diagnosis import mechanisms
from sparsetui.diagnosis.mechanism import Mechanism
from sparsetui.flow import ORDER


@functools.cache
def all_mechanisms() -> tuple[Mechanism, ...]:
    """All mechanisms; a module under ``mechanisms/`` contributes its ``MECHANISMS``. Duplicate ids raise ValueError."""
    found: list[Mechanism] = []
    for info in sorted(pkgutil.iter_modules(mechanisms.__path__), key=lambda m: m.name):
        if info.name.startswith("_"):
            continue
        found += importlib.import_module(f"{mechanisms.__name__}.{info.name}").MECHANISMS
    ids = [m.id for m in found]
    if len(set(ids)) != len(ids):
        raise ValueError(f"a mechanism id is used twice: {sorted(i for i in ids if ids.count(i) > 1)[0]}")
    return tuple(sorted(found, key=lambda m: ORDER[m.stage]))


def by_id(mechanism: str) -> Mechanism:
    """Raises KeyError for an unknown id."""
    return _index()[mechanism]


@functools.cache
def _index() -> dict[str, Mechanism]:
    return {m.id: m for m in all_mechanisms()}
