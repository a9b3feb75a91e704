"""What every screen has: a top bar, a body, a message line, a key bar, and actions from the registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import Size
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.tui import topline
from sparsetui.tui.actions import ACTIONS, BY_ID, Action, key_name
from sparsetui.tui.look import WARN
from sparsetui.tui.moving import Moving
from sparsetui.tui.widgets.bars import KeyBar, Line
from sparsetui.tui.widgets.block import Block

if TYPE_CHECKING:
    from sparsetui.tui.app import SparseApp
    from sparsetui.tui.desk import Desk

NOTE_SECONDS = 8.0
PAINT_S = 1 / 120


def bindings_for(cls: type) -> list[Binding]:
    """The keys of every action that ``cls`` can do."""
    found = []
    for action in ACTIONS:
        if not hasattr(cls, f"do_{action.id}"):
            continue
        for key in action.keys:
            argument = f", '{key}'" if action.id == "stage" else ""
            found.append(Binding(key, f"act('{action.id}'{argument})", action.label, tooltip=action.tells, show=False))
    return found


class Sheet(Moving, Screen[None], inherit_bindings=False):
    """A screen of the app. Subclasses yield their body from :meth:`body` and draw it in :meth:`show`."""

    TITLE_TEXT: ClassVar[str] = ""
    FOOTER: ClassVar[tuple[str, ...]] = ()  # action ids, most important first; help and quit are always there
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall"), (46, "-high")]
    AUTO_FOCUS = ""

    app: SparseApp

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.BINDINGS = bindings_for(cls)  # type: ignore[assignment]
        kwargs.setdefault("inherit_bindings", False)
        super().__init_subclass__(**kwargs)

    def __init__(self) -> None:
        super().__init__()
        self._note: tuple[str, str] | None = None
        self._note_timer: Timer | None = None
        self._redraw_due = False
        self._sized = False  # nothing can be drawn before the first layout
        self._drawn = False  # and nothing is painted before that
        self._laying_out = False
        self._painter: Timer | None = None
        self._drawn_of: tuple[object, ...] = ()
        # known before it is mounted: Textual would style the whole screen without them, and then once more with them
        self.add_class(*self._size_classes(), *([] if self.app.unicode else ["-ascii"]))

    def _size_classes(self) -> list[str]:
        size = self.app.size
        return [
            max(p for p in places if p[0] <= cells)[1]
            for places, cells in ((self.HORIZONTAL_BREAKPOINTS, size.width), (self.VERTICAL_BREAKPOINTS, size.height))
        ]

    @property
    def desk(self) -> Desk:
        return self.app.desk

    @property
    def wide(self) -> bool:
        return self.size.width >= 110 and self.size.height >= 30

    # layout

    def compose(self) -> ComposeResult:
        yield Line(id="bar")
        yield from self.body()
        yield Line(id="note")
        yield KeyBar(id="keys")

    def aim(self, **arguments: Any) -> None:
        """Point the screen at something; screens that can be opened at a place take arguments."""

    def body(self) -> Iterable[Widget]:
        raise NotImplementedError

    def show(self) -> None:
        """Draw what the desk knows. Called on every update; draws only differences."""
        raise NotImplementedError

    def on_mount(self) -> None:
        first = self.first_focus()
        if first is not None:
            self.go_into(first)

    def on_screen_resume(self) -> None:
        if self._sized:
            self.redraw_soon()

    def on_screen_suspend(self) -> None:
        self.query_one("#keys", KeyBar).set_lines([])  # behind a dialog, which has keys of its own

    def on_block_sized(self) -> None:
        self._sized = True
        self.redraw_soon()

    def redraw_soon(self) -> None:
        """Once for all that asks for it until then: a screen that opens is mounted, resumed and sized in one go."""
        if not self._redraw_due:
            self._redraw_due = True
            self.call_later(self._redraw_now)

    def _redraw_now(self) -> None:
        self._redraw_due = False
        self.redraw()
        self._drawn = self._drawn or self.is_current

    @property
    def _update_timer(self) -> Timer:
        """What paints: it looks twice as often as Textual's, so that a key waits for it half as long."""
        if self._painter is None:
            self._painter = self.set_interval(PAINT_S, self._on_timer_update, name="screen_update", pause=True)
        return self._painter

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        """Lay out; and paint, unless all of the screen is about to be painted anyway."""
        self._laying_out = True
        try:
            super()._refresh_layout(size, scroll)
        finally:
            self._laying_out = False

    def _compositor_refresh(self) -> None:
        """Paint. A screen that opens is painted once, with all that it shows: its empty frames would cost as much again."""
        if self._drawn and not (self._laying_out and self._repaint_required):
            super()._compositor_refresh()

    def first_focus(self) -> Widget | None:
        return next((w for w in self.query(Block) if w.can_focus), None)

    def on_descendant_focus(self) -> None:
        self.draw_keys()

    def redraw(self) -> None:
        """Everything: body, bars, keys."""
        if not self.is_attached or not self.is_current:
            return
        self._drawn_of = self._news()
        self.show()
        self.draw_bar()
        self.draw_note()
        self.draw_keys()

    def heard(self) -> None:
        """Something was told of a run. Most of it is progress; all is drawn anew only where there is news."""
        if self._news() != self._drawn_of:
            self.redraw()
            return
        self.draw_live()
        self.draw_bar()
        self.draw_note()

    def _news(self) -> tuple[object, ...]:
        live = self.desk.live
        return (self.desk.state, live.running, live.stage, live.phase, self.desk.busy, self.desk.followed)

    def draw_live(self) -> None:
        """Draw what moves between two events of a run: strips, counters."""

    # the bars

    def draw_bar(self) -> None:
        self.query_one("#bar", Line).say(topline.bar_text(self))

    def status(self) -> Text:
        """What goes on now, in the top bar whatever the message line says."""
        return topline.status(self)

    def note(self, text: str, style: str = "") -> None:
        """Say something on the message line for a few seconds."""
        self._note = (clean(text), style)
        if self._note_timer is not None:
            self._note_timer.stop()
        self._note_timer = self.set_timer(NOTE_SECONDS, self._unnote)
        self.draw_note()

    def _unnote(self) -> None:
        self._note = None
        self.draw_note()

    def draw_note(self) -> None:
        self.query_one("#note", Line).say(topline.note_text(self))

    def draw_keys(self) -> None:
        if not self.is_attached or not self.is_current:
            return
        keys = []
        for id in (*self.FOOTER, "palette", "help", "quit"):
            action = BY_ID[id]
            why = self.refusal(action)
            if why == "":  # not offered here at all
                continue
            keys.append((key_name(action.keys[0]), self.label(action), why is None))
        self.query_one("#keys", KeyBar).show_keys(keys)

    def label(self, action: Action) -> str:
        return action.label

    # actions

    def why_not(self, id: str) -> str | None:
        """Why the action cannot be done now; ``None`` when it can, ``""`` when it has no place here."""
        if id in ("filter", "sort", "mark") and (self.table is None or not self.table.all_rows):
            return "there is no row here yet"
        return None

    def refusal(self, action: Action) -> str | None:
        if not hasattr(self, f"do_{action.id}"):
            return ""
        why = self.why_not(action.id)
        if why is None and action.changes and self.desk.readonly:
            return "opened read-only"
        if why is None and action.changes and self.desk.followed:
            return f"{self.desk.followed} writes this session; it is followed here"
        return why

    def action_act(self, id: str, *arguments: str) -> None:
        if self.app.ending:  # keys typed behind the one that quit
            return
        action = BY_ID[id]
        why = self.refusal(action)
        if why is not None:
            self.note(f"{key_name(action.keys[0])} {action.label}: {why or 'nothing of that kind yet'}", WARN)
            return
        getattr(self, f"do_{id}")(*arguments)
        if self.is_current:
            self.draw_keys()

    # the app

    def do_back(self) -> None:
        if self.filter_box is not None:
            self._filtering.set_filter("")
            self._close_filter()
            return
        self.go_back()

    def go_back(self) -> None:
        self.app.back()

    def do_home(self) -> None:
        self.app.go_home()

    def do_reload(self) -> None:
        self.desk.reload()
        self.redraw()

    def do_shot(self) -> None:
        self.app.share.shoot()

    def do_palette(self) -> None:
        self.app.open_palette()

    def do_help(self) -> None:
        self.app.open("help")

    def do_suspend(self) -> None:
        self.app.action_suspend_process()

    def do_quit(self) -> None:
        self.app.ask_quit()

    def do_quit_now(self) -> None:
        self.app.action_quit_now()


class CaseSheet(Sheet):
    """A screen of the open session: every other screen of it is one key away."""

    def do_evidence(self) -> None:
        self.app.open("evidence")

    def do_owners(self) -> None:
        self.app.open("owners")

    def do_memo(self) -> None:
        self.app.open("memo")

    def do_commands(self) -> None:
        self.app.open("commands")

    def do_matrix(self) -> None:
        self.app.open("matrix")

    def do_lens(self) -> None:
        self.app.open("lens")

    def do_charts(self) -> None:
        self.app.open("charts")

    def do_paths(self) -> None:
        self.app.open("paths")

    def do_fleet(self) -> None:
        self.app.open("fleet")

    def do_sections(self) -> None:
        self.app.open("sections")

    def do_export(self) -> None:
        self.app.share.export_memo()

    def do_cancel(self) -> None:
        self.app.cancel_run()

    def why_not(self, id: str) -> str | None:
        sections = self.desk.state.sections
        if id in ("matrix", "lens"):
            return None if id in sections else self.desk.cannot_run
        if id == "charts":
            state = self.desk.state
            seen = bool(state.metrics or state.budget or state.native or sections)
            return None if seen else "nothing has been measured yet"
        if id == "paths":
            return None if self.desk.state.native is not None else ""
        if id == "fleet":
            return None if id in sections or self.desk.live.hosts else ""
        if id == "sections":
            return None if set(sections) - {"matrix", "lens"} else ""
        if id == "cancel":
            return None if self.desk.busy else "nothing is running"
        if id in ("export", "memo"):
            return None if self.desk.state.events else "nothing has been recorded yet"
        return super().why_not(id)
