"""Help: every action with its keys, from the registry; what cannot act now says why."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui.actions import ACTIONS, GROUPS, Action, keys_of
from sparsetui.tui.look import DIM, HEAD, KEY, ink
from sparsetui.tui.screens.base import Sheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.wrapping import wrap

ABOUT = (
    "Enter does the next best step. Pressed again and again it goes through the whole investigation.",
    "A key that cannot act now is dimmed; pressing it says why. Marks: ✓ done  ▲ fault  » running  · to do",
)
KEYS, LABEL = 16, 13  # cells of the two columns before what an action does


class Help(Sheet):
    TITLE_TEXT = "help"
    FOOTER = ("back",)

    def body(self) -> Iterable[Widget]:
        yield Panel(id="help", classes="frame half", title="keys")

    def show(self) -> None:
        below = next((s for s in reversed(self.app.screen_stack[:-1]) if isinstance(s, Sheet)), self)
        panel = self.query_one("#help", Panel)
        width = max(40, panel.content_size.width)
        lines = [ink(x) for text in ABOUT for x in wrap(text, width)]
        for group, title in GROUPS.items():
            lines += [ink(), ink(title, style=HEAD)]
            for action in (a for a in ACTIONS if a.group == group):
                lines += self._lines(action, below.refusal(action), width)
        panel.set_lines(lines)

    @staticmethod
    def _lines(action: Action, why: str | None, width: int) -> list[Text]:
        """Keys, label, and what it does; what does not fit goes on below it."""
        style = "" if why is None else DIM
        said = wrap(action.tells + (f" (not now: {clean(why)})" if why else ""), width - KEYS - LABEL)
        first = ink(f"  {keys_of(action):<{KEYS - 3}} ", style=KEY if why is None else DIM)
        first.append(f"{action.label:<{LABEL}}{said[0]}", style=style)
        return [first, *(ink(" " * (KEYS + LABEL) + x, style=style) for x in said[1:])]

    def do_help(self) -> None:
        self.app.back()


SCREEN = Help
