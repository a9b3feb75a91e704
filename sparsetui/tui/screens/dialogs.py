"""Small boxes over a screen: a question, a form of one or two lines, the command palette."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from sparsetui.evidence.text import clean
from sparsetui.tui.actions import ACTIONS, Action, keys_of
from sparsetui.tui.look import DIM, HEAD, KEY, WARN, ink
from sparsetui.tui.widgets.bars import Line
from sparsetui.tui.widgets.block import Block
from sparsetui.tui.widgets.table import Column, Row, Table
from sparsetui.tui.wrapping import wrap

if TYPE_CHECKING:
    from sparsetui.tui.screens.base import Sheet

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """A framed box in the middle; Esc leaves it without an answer."""

    BINDINGS = [Binding("escape", "leave", "back", show=False)]
    TITLE_TEXT = ""

    def on_mount(self) -> None:
        if not getattr(self.app, "unicode", True):
            self.add_class("-ascii")
        box = self.query_one(".box")
        box.border_title = self.title_text().replace("[", r"\[")

    def title_text(self) -> str:
        return self.TITLE_TEXT

    def action_leave(self) -> None:
        self.dismiss(None)


class Ask(Dialog[bool]):
    """A question with lines of explanation: Enter agrees, Esc does not."""

    def __init__(self, title: str, lines: Sequence[str], yes: str, no: str = "back") -> None:
        super().__init__()
        self._title, self._says, self._yes, self._no = title, [clean(x) for x in lines], clean(yes), clean(no)

    BINDINGS = [
        Binding("enter,y", "agree", "yes", show=False),
        Binding("n,q", "leave", "no", show=False),
        Binding("down,j", "move('down')", show=False),
        Binding("up,k", "move('up')", show=False),
    ]

    def title_text(self) -> str:
        return clean(self._title, 60)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Block(id="says")
            yield Line(id="answer")

    def on_mount(self) -> None:
        super().on_mount()
        says = self.query_one("#says", Block)
        width = max(20, min(76, self.app.size.width - 4) - 4)
        lines: list[Text] = []
        for line in self._says:
            lines.extend(ink(x) for x in _wrapped(line, width))
        says.styles.height = min(len(lines), max(1, self.app.size.height - 6))
        says.set_lines(lines)
        answer = ink("Enter ", style=KEY) + ink(self._yes + "   ", style="") + ink("Esc ", style=KEY) + ink(self._no)
        self.query_one("#answer", Line).say(answer)
        self.call_after_refresh(self._repaint)

    def _repaint(self) -> None:
        for block in self.query(Block):
            block.repaint()

    def action_agree(self) -> None:
        self.dismiss(True)

    def action_leave(self) -> None:
        self.dismiss(False)

    def action_move(self, where: str) -> None:
        self.query_one("#says", Block).move(where)


class Form(Dialog[dict[str, str]]):
    """One line an input; Enter goes to the next one and after the last gives them all.

    ``fields`` are (name, label, value); ``check`` returns what is wrong with the values, or ``None``.
    """

    def __init__(
        self,
        title: str,
        fields: Sequence[tuple[str, str, str]],
        check: Callable[[dict[str, str]], str | None] | None = None,
    ) -> None:
        super().__init__()
        self._title, self._fields, self._check = title, fields, check

    def title_text(self) -> str:
        return clean(self._title, 60)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            for name, _, value in self._fields:
                yield Line(id=f"label-{name}")
                yield Input(value, id=f"in-{name}", compact=True)
            yield Line(id="answer")

    def on_mount(self) -> None:
        super().on_mount()
        for name, label, _ in self._fields:
            self.query_one(f"#label-{name}", Line).say(ink(clean(label), style=HEAD))
        self._say("")
        self.query(Input).first().focus()

    def _say(self, problem: str) -> None:
        text = (
            ink(problem, style=WARN)
            if problem
            else ink("Enter ", KEY) + ink("goes on   ") + ink("Esc ", KEY) + ink("back")
        )
        self.query_one("#answer", Line).say(text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        inputs = list(self.query(Input))
        at = inputs.index(event.input)
        if at + 1 < len(inputs):
            inputs[at + 1].focus()
            return
        values = {name: self.query_one(f"#in-{name}", Input).value.strip() for name, _, _ in self._fields}
        problem = self._check(values) if self._check else None
        if problem:
            self._say(problem)
            return
        self.dismiss(values)


class Palette(Dialog[str]):
    """Every action of the screen below by its name; typing narrows, Enter does it."""

    TITLE_TEXT = "command"
    BINDINGS = [
        Binding("down", "move('down')", show=False, priority=True),
        Binding("up", "move('up')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
    ]

    def __init__(self, below: Sheet, extra: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__()
        self._below = below
        self._extra = extra  # (id, name, tells)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Input(id="wanted", placeholder="type a command", compact=True)
            yield Table(
                [Column("command", 12, 26), Column("key", 5, 12), Column("what it does", 10, 80)],
                id="commands",
                empty="no such command",
            )

    def on_mount(self) -> None:
        super().on_mount()
        table = self.query_one(Table)
        table.can_focus = False
        table.styles.height = max(5, min(20, self.app.size.height - 8))
        table.always_cursor = True
        table.set_rows(list(self._rows()))
        self.query_one(Input).focus()
        self.call_after_refresh(table.repaint)

    def _rows(self) -> Any:
        for action in ACTIONS:
            if action.group == "move" or action.id in ("enter", "palette"):
                continue
            why = self._below.refusal(action)
            if why == "":
                continue
            yield self._row(action, why)
        for id, name, tells in self._extra:
            yield Row("+" + id, (name, "", tells))

    def _row(self, action: Action, why: str | None) -> Row:
        style = DIM if why else ""
        tells = f"not now: {clean(why)}" if why else action.tells
        return Row(action.id, (ink(action.label, style), ink(keys_of(action), style), ink(tells, style)))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one(Table).set_filter(event.value)

    def on_input_submitted(self) -> None:
        self.dismiss(self.query_one(Table).key)

    def action_move(self, where: str) -> None:
        self.query_one(Table).move(where)


def _wrapped(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(line, width, subsequent_indent=indent)
