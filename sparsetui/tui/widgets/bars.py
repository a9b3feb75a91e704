"""The bars around a screen's body: top bar, flow, tabs, message line, key bar. Each is one block of few lines."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from sparsetui.tui.look import DIM, KEY, ink
from sparsetui.tui.widgets.block import Block


class Line(Block):
    """One line of text; what does not fit is cut."""

    DEFAULT_CSS = """
    Line { height: 1; }
    """

    def say(self, text: Text | str) -> None:
        self.set_lines([text])


class Flow(Block):
    """The seven stages: a rail where there is room, else one line. Focusable: up and down choose the stage."""

    can_focus = True


class Guide(Block):
    """Question, what is run, what was found, next step."""

    can_focus = True


class Panel(Block):
    """A block of lines that can be focused and scrolled."""

    can_focus = True


class KeyBar(Block):
    """The keys that mean something here; those that cannot act now are dimmed, and the first to give way."""

    DEFAULT_CSS = """
    KeyBar { height: 1; }
    """

    def show_keys(self, keys: list[tuple[str, str, bool]]) -> None:
        """``keys``: (key, label, can act), most important first; help and quit come last and always stay."""
        if self.app.no_color:  # where dim may not show, brackets do
            keys = [(k if able else f"({k})", label, able) for k, label, able in keys]
        width = self.content_size.width or self.app.size.width
        keep, tail = keys[:-2], keys[-2:]
        room = width - sum(_width(k) for k in tail)
        chosen = set()
        for i in sorted(range(len(keep)), key=lambda i: not keep[i][2]):
            if _width(keep[i]) > room:
                break
            room -= _width(keep[i])
            chosen.add(i)
        shown = [item for i, item in enumerate(keep) if i in chosen]
        line = ink()
        for key, label, able in [*shown, *tail]:
            line.append(" ")
            line.append(key, style=KEY if able else DIM)
            line.append(" " + label, style="" if able else DIM)
        self.set_lines([line])


def _width(item: tuple[str, str, bool]) -> int:
    return cell_len(item[0]) + cell_len(item[1]) + 2
