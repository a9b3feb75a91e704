"""Help: every action with its keys, from the registry; what cannot act now says why."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui.actions import ACTIONS, GROUPS, keys_of
from sparsetui.tui.look import DIM, HEAD, KEY, ink
from sparsetui.tui.screens.base import Sheet
from sparsetui.tui.widgets.bars import Panel


class Help(Sheet):
    TITLE_TEXT = "help"
    FOOTER = ("back",)

    def body(self) -> Iterable[Widget]:
        yield Panel(id="help", classes="frame half", title="keys")

    def show(self) -> None:
        below = next((s for s in reversed(self.app.screen_stack[:-1]) if isinstance(s, Sheet)), self)
        lines = [
            ink("Enter does the next best step. Pressed again and again it goes through the whole investigation."),
            ink(
                "A key that cannot act now is dimmed; pressing it says why. Marks: ✓ done  ▲ fault  » running  · to do"
            ),
        ]
        for group, title in GROUPS.items():
            lines += [ink(), ink(title, style=HEAD)]
            for action in (a for a in ACTIONS if a.group == group):
                why = below.refusal(action)
                line = ink(f"  {keys_of(action):<14}", style=KEY if why is None else DIM)
                line.append(f" {action.label:<12} ", style="" if why is None else DIM)
                line.append(action.tells, style="" if why is None else DIM)
                if why:
                    line.append(f"  (not now: {clean(why)})", style=DIM)
                lines.append(line)
        self.query_one("#help", Panel).set_lines(lines)

    def do_help(self) -> None:
        self.app.back()


SCREEN = Help
