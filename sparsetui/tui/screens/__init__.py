"""One file a screen: a module here with a ``SCREEN`` attribute is found by name; nothing else is to be edited."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsetui.tui.screens.base import Sheet


@cache
def names() -> tuple[str, ...]:
    """The modules beside this one; listing them imports none."""
    return tuple(m.name for m in pkgutil.iter_modules(__path__) if m.name not in ("base", "dialogs"))


@cache
def screen(name: str) -> type[Sheet]:
    """The screen class of module ``name``, imported when it is first wanted: the first frame pays for one screen."""
    found: type[Sheet] = importlib.import_module(f"{__name__}.{name}").SCREEN
    return found


def all_screens() -> dict[str, type[Sheet]]:
    return {name: screen(name) for name in names()}
