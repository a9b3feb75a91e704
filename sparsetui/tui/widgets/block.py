"""A block of text lines that repaints only the cells that changed.

Everything on the screen is drawn by it: a stock table repaints itself whole for one changed digit, which a thin line
feels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from sparsetui.tui.look import ascii_form

_PLAIN = Style()


def changed_span(old: Strip, new: Strip) -> tuple[int, int] | None:
    """First and last + 1 differing cell of two lines of equal width, or ``None`` when they look the same."""
    if old == new:
        return None
    a, b = _cells(old), _cells(new)
    if a == b:
        return None
    if len(a) != len(b):
        return 0, max(len(a), len(b))
    first = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    last = next(i for i in range(len(a) - 1, -1, -1) if a[i] != b[i])
    return first, last + 1


def _cells(strip: Strip) -> list[tuple[str, Style | None]]:
    cells: list[tuple[str, Style | None]] = []
    for text, style, _ in strip:
        if text.isascii():
            cells.extend((c, style) for c in text)
            continue
        part = Strip([Segment(text)])
        if part.cell_length == len(text):
            cells.extend((c, style) for c in text)
        else:  # a double-width character from outside: compare the run as a whole, at its true width
            cells.append((text, style))
            cells.extend(("", style) for _ in range(part.cell_length - 1))
    return cells


class Block(Widget):
    """Lines of rich ``Text``, cut to the width, scrolled by whole lines.

    ``top`` is the first line shown. Text is never read as markup. With the app's ``unicode`` off every line is drawn in
    ASCII.
    """

    DEFAULT_CSS = """
    Block { height: 1fr; width: 1fr; }
    """

    COUNTED: ClassVar[str] = "lines"

    class Sized(Message):
        """The block has another size: lines that were made for the old one have to be made again."""

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, Block.Sized)

    def __init__(self, *args: Any, title: str = "", **kwargs: Any) -> None:
        super().__init__(*args, markup=False, **kwargs)
        self._lines: list[Text] = []
        self._painted: dict[int, Strip] = {}
        self._made: dict[int, Strip] = {}  # by the last repaint, and not yet painted
        self.top = 0
        self._subtitle = ""  # what the frame says below, where it was told to say something
        if title:
            self.set_title(title)

    @property
    def unicode(self) -> bool:
        return bool(getattr(self.app, "unicode", True))

    def set_title(self, title: str, subtitle: str | None = None) -> None:
        """Border texts; compared before they are set, since setting repaints the border."""
        from textual.content import Content

        want = Content(title)
        if self._border_title != want:
            self._border_title = want
            if self.is_mounted:
                self.refresh()
        if subtitle is not None:
            self._subtitle = subtitle
            self._set_subtitle(subtitle)

    def _set_subtitle(self, subtitle: str) -> None:
        from textual.content import Content

        want = Content(subtitle) if subtitle else None
        if self._border_subtitle != want:
            self._border_subtitle = want
            if self.is_mounted:
                self.refresh()

    @property
    def count(self) -> int:
        """How many lines there are to scroll through."""
        return len(self._lines)

    def set_lines(self, lines: Sequence[Text | str]) -> None:
        """Show ``lines``; only the cells that differ are repainted."""
        self._lines = [x if isinstance(x, Text) else Text(x) for x in lines]
        self.top = max(0, min(self.top, len(self._lines) - 1))
        self.repaint()

    @property
    def lines(self) -> list[Text]:
        return self._lines

    def text(self) -> str:
        """All lines as plain text, for yank."""
        return "\n".join(line.plain.rstrip() for line in self._lines)

    def repaint(self) -> None:
        """Mark as dirty the cells that would be drawn otherwise than they were."""
        self._made.clear()
        if not self.is_mounted or not self.size:
            return
        regions = []
        for y in range(self.content_size.height):
            old = self._painted.get(y)
            new = self._made[y] = self._strip(y)
            if old is None or old.cell_length != new.cell_length:
                regions.append(Region(0, y, self.content_size.width, 1))
            elif (span := changed_span(old, new)) is not None:
                regions.append(Region(span[0], y, span[1] - span[0], 1))
        if regions:
            self.refresh(*regions)
        if not self._subtitle:  # else: that there is more than can be seen
            self._set_subtitle(f"{self.count} {self.COUNTED}" if self.count > self.page > 1 else "")

    def line_at(self, y: int) -> Text | None:
        """The line drawn at content row ``y``; subclasses put headers and cursors here."""
        i = self.top + y
        return self._lines[i] if 0 <= i < len(self._lines) else None

    def line_style(self, y: int) -> Style:
        """A style for the whole row ``y``, e.g. that of a cursor."""
        return _PLAIN

    def _strip(self, y: int) -> Strip:
        width = self.content_size.width
        line = self.line_at(y)
        if line is None:
            return Strip.blank(width)
        if not self.unicode and not line.plain.isascii():
            line = line.copy()
            line.plain = ascii_form(line.plain)
        segments = [Segment(s.text, s.style) for s in line.render(self.app.console, end="")]
        strip = Strip(segments)
        if strip.cell_length > width:
            mark = "…" if self.unicode else "~"
            strip = Strip([*strip.crop(0, max(0, width - 1)), Segment(mark)]) if width > 0 else Strip.blank(0)
        strip = strip.adjust_cell_length(width)
        style = self.line_style(y)
        return strip.apply_style(style) if style else strip

    def render_line(self, y: int) -> Strip:
        strip = self._made.pop(y, None) or self._strip(y)
        self._painted[y] = strip
        return strip.apply_style(self.visual_style.rich_style)

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.repaint()  # a cursor comes or goes; when the event comes it is not known yet

    def on_resize(self) -> None:
        self._painted.clear()
        self._made.clear()
        self.post_message(self.Sized())

    # scrolling, by lines

    @property
    def page(self) -> int:
        return max(1, self.content_size.height)

    def scroll_lines(self, delta: int) -> None:
        last = max(0, len(self._lines) - self.page)
        top = max(0, min(self.top + delta, last))
        if top != self.top:
            self.top = top
            self.repaint()

    def move(self, where: str) -> None:
        """``up``, ``down``, ``page_up``, ``page_down``, ``top``, ``bottom``."""
        far = len(self._lines) + 1
        self.scroll_lines(
            {"up": -1, "down": 1, "page_up": 1 - self.page, "page_down": self.page - 1, "top": -far, "bottom": far}[
                where
            ]
        )
