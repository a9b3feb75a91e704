"""Live attach: where the time of running processes goes, on which kernels, who called them, and what the look costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.records import Number, PathShare
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import figure
from sparsetui.report.plots import bar
from sparsetui.tui import panels
from sparsetui.tui.actions import Action
from sparsetui.tui.look import ACCENT, BAD, DIM, FAILING, HEAD, OK, WARN, ink
from sparsetui.tui.panels import labelled
from sparsetui.tui.screens.base import Sheet
from sparsetui.tui.screens.dialogs import Form
from sparsetui.tui.widgets.bars import Line, Panel
from sparsetui.tui.widgets.block import Block
from sparsetui.tui.widgets.table import Column, Row, Table

if TYPE_CHECKING:
    from sparsetui.ingest.attach import Snapshot, ThreadShare
    from sparsetui.tui.watching import Watching

PANES = (("paths", "paths"), ("callers", "callers"), ("threads", "threads"), ("about", "about"))
_TARGETS = 20  # processes that are told by name
_ENDED = 12  # of the processes that ended, the newest by name
EMPTY = "no sample yet: the first table comes within three seconds"


class Watch(Sheet):
    TITLE_TEXT = "live attach"
    FOOTER = ("enter", "cancel", "run", "keep", "pause", "filter", "yank", "sort", "back")

    def __init__(self) -> None:
        super().__init__()
        self.pane = "paths"
        self.paused = False
        self._frozen: Snapshot | None = None

    def body(self) -> Iterable[Widget]:
        with Container(id="watched"):
            yield Panel(id="head", classes="frame", title="watched")
            yield Line(id="tabs")
            yield Table(
                [
                    Column("path", 14, 16),
                    Column("", 10, 10, drop=2),
                    Column("share", 5, 6, right=True),
                    Column("95 % interval", 11, 13, drop=3, short="95 % int."),
                    Column("what ran", 24, 60),
                    Column("under", 16, 44, drop=1),
                    Column("threads", 3, 7, right=True, drop=4, short="thr"),
                ],
                id="paths",
                classes="frame pane",
                title="where the time goes, largest share first",
                empty=EMPTY,
            )
            yield Table(
                [Column("called from", 20, 70), Column("", 8, 12, drop=1), Column("share", 5, 20)],
                id="callers",
                classes="frame pane",
                title="callers",
                empty="no caller has been seen: perf reads no Python frames",
            )
            yield Table(
                [
                    Column("thread", 6, 8),
                    Column("name", 8, 16, drop=2),
                    Column("", 6, 10, drop=1),
                    Column("ran", 5, 14),
                    Column("mostly on", 10, 60),
                ],
                id="threads",
                classes="frame pane",
                title="threads",
                empty="no thread has run yet",
            )
            yield Panel(id="about", classes="frame pane", title="what it costs, and what it cannot see")

    def on_mount(self) -> None:
        self.query_one("#head").can_focus = False
        super().on_mount()

    def first_focus(self) -> Widget | None:
        return self.query_one("#paths")

    # what is shown

    @property
    def watching(self) -> Watching | None:
        return self.app.watches.now

    @property
    def seen(self) -> Snapshot | None:
        """What the tables show: the newest snapshot, or that of the moment of the pause."""
        if self.paused:
            return self._frozen
        return self.watching.last if self.watching is not None else None

    def show(self) -> None:
        seen, unicode = self.seen, self.app.unicode
        self._head()
        if seen is not None:
            self.query_one("#paths", Table).set_rows([_path_row(p, unicode) for p in seen.table.paths])
            callers = [
                Row(name, (clean(name, 120), _bar(n, 12, unicode), _share(n)), (None, n.value, n.value))
                for name, n in seen.callers
            ]
            self.query_one("#callers", Table).set_rows(callers)
            self.query_one("#threads", Table).set_rows([_thread_row(t, unicode) for t in seen.threads])
        paths = self.query_one("#paths", Table)
        title = "where the time goes, largest share first"
        paths.set_title("paused, p goes on" if self.paused else title)
        about = self.query_one("#about", Panel)
        about.set_lines(self._about(max(20, about.content_size.width)))
        self._draw_tabs()

    def _head(self) -> None:
        """Who is watched, for how long and at what cost: this goes on while the tables are frozen."""
        panel, watching = self.query_one("#head", Panel), self.watching
        if watching is None:
            panel.set_lines(["nothing is watched"])
            return
        last = watching.last
        targets = watching.watch.targets
        lines = [ink(clean(f"{w.pid}  {w.cmdline}", 200)) for w in targets[:1]]
        if len(targets) > 1:
            lines[0] = ink(f"+{len(targets) - 1} more  ", DIM) + lines[0]
        if watching.refused:
            lines.append(ink("✗ ", BAD) + ink(clean(watching.refused, 300), WARN))
        elif last is None:
            lines.append(ink(clean(watching.watch.cost().text, 300), DIM))
        else:
            lines += [_ran_line(last, watching.over), _key_line(last)]
        panel.set_lines(lines)

    def _about(self, width: int) -> list[Text]:
        watching = self.watching
        if watching is None:
            return []
        last = watching.last
        cost = last.cost if last is not None else watching.watch.cost()
        lines = labelled("cost", cost.text, width)
        if cost.measured.value is not None:
            lines += labelled(
                "measured", f"it stood still {figure(cost.measured, percent=True)} of the time", width, HEAD
            )
        elif cost.measured.reason:
            lines += labelled("measured", cost.measured.reason, width, DIM)
        if last is not None:
            for s in last.table.samplers:
                lines += labelled("sampler", f"{s.name}, {s.samples} samples at {s.rate_hz:g} a second", width)
            for m in last.table.unavailable:
                lines += labelled("not seen", f"{m.what}: {m.why}", width, WARN)
            for life in [x for x in last.lives if x.ended_s is not None][-_ENDED:]:
                told = f"{life.pid} after {(life.ended_s or 0.0) - life.came_s:.1f} s: {life.cmdline}"
                lines += labelled("ended", told, width, WARN)
            if len(last.ended) > _ENDED:
                lines += labelled("ended", f"and {len(last.ended) - _ENDED} before them", width, WARN)
        targets = watching.watch.targets
        for w in targets[:_TARGETS]:
            lines += labelled("process", f"{w.pid} (uid {w.uid}) {w.cmdline}", width)
        if len(targets) > _TARGETS:
            lines += labelled("process", f"and {len(targets) - _TARGETS} more", width)
        return lines

    def _draw_tabs(self) -> None:
        self.query_one("#tabs", Line).say(panels.tabs(PANES, self.pane))
        for pane, _ in PANES:
            self.query_one(f"#{pane}").set_class(pane == self.pane, "-on")

    def status(self) -> Text:
        return watch_status(self.watching)

    def panels(self) -> list[Block]:
        return [self.query_one(f"#{id}", Block) for id, _ in PANES]

    def on_descendant_focus(self) -> None:
        if self.focused is not None and self.focused.id in dict(PANES) and self.focused.id != self.pane:
            self.pane = str(self.focused.id)
            self._draw_tabs()
            self.call_after_refresh(self.redraw)
        super().on_descendant_focus()

    def heard(self) -> None:
        self.redraw()

    # what can be done

    def label(self, action: Action) -> str:
        return {"enter": "open", "cancel": "stop", "run": "watch again", "back": "leave"}.get(
            action.id, super().label(action)
        )

    def why_not(self, id: str) -> str | None:
        watching = self.watching
        if id == "enter" and (self.pane != "paths" or self.query_one("#paths", Table).key is None):
            return "the cursor is not on a path"
        if id == "cancel":
            return None if watching is not None and not watching.over else "the watch has ended"
        if id == "run":
            return None if watching is not None and watching.over else "the watch is going on; x stops it"
        if id == "keep":
            if watching is None or watching.last is None:
                return "nothing has been seen yet"
            return None if watching.over else "the watch is going on; x stops it"
        if id == "pause":
            return None if watching is not None and watching.last is not None else "nothing has been seen yet"
        return super().why_not(id)

    def do_enter(self) -> None:
        from sparsetui.tui.screens.dialogs import Ask

        key, seen = self.query_one("#paths", Table).key, self.seen
        path = next((p for p in seen.table.paths if p.path == key), None) if seen is not None else None
        if path is not None:
            lines = [figure(path.share, percent=True) + " of the time", ""]
            lines += [f"ran     {s}" for s in path.symbols[:8]] + [f"under   {c}" for c in path.callers[:8]]
            self.app.push_screen(Ask(path.path, lines, "back", "back"))

    def do_cancel(self) -> None:
        if self.watching is not None:
            self.watching.interrupt()
            self.note("stopping; what was seen stays here")

    def do_run(self) -> None:
        self.app.watches.again()

    def do_pause(self) -> None:
        self._frozen = None if self.paused else self.seen
        self.paused = not self.paused
        self.redraw()

    def do_keep(self) -> None:
        """Ask for the session, and add what was seen to it."""

        def done(values: dict[str, str] | None) -> None:
            if values is not None:
                self.app.watches.keep(values["session"])

        form = Form("keep what was seen", [("session", "session to add it to (empty: a new one)", "")])
        self.app.push_screen(form, done)

    def yank_text(self) -> str:
        return self.table.text() if self.table is not None else ""

    def go_back(self) -> None:
        self.app.watches.leave()


def watch_status(watching: Watching | None) -> Text:
    """``» watching 12 s``: for the top bar."""
    if watching is None:
        return ink()
    if watching.refused:
        return ink("✗ nothing to see", BAD)
    seconds = watching.last.elapsed_s if watching.last is not None else 0.0
    if watching.over:
        return ink(f"✓ watched {seconds:.0f} s", OK)
    return ink("» ", ACCENT) + ink(f"watching {seconds:.0f} s")


def _ran_line(last: Snapshot, over: bool) -> Text:
    """How long, how many samples, and what that cost the process."""
    line = ink(f"{'watched' if over else 'watching'} {last.elapsed_s:.0f} s", HEAD)
    line.append("   " + ", ".join(f"{s.samples} samples by {s.name}" for s in last.table.samplers))
    cost = last.cost.measured
    if cost.value is not None:
        line.append(f"   stood still {figure(cost, percent=True, count=False, interval=False)}", DIM)
    else:
        line.append(f"   will stand still {100 * last.cost.forecast:.1f}%", DIM)
    if last.ended:
        more = f" and {len(last.ended) - 3} more" if len(last.ended) > 3 else ""
        line.append(f"   ended: {', '.join(map(str, last.ended[-3:]))}{more}", WARN)
    return line


def _key_line(last: Snapshot) -> Text:
    """The two figures that tell a sparse service from one that fell back."""
    line = ink("dense share of products ", DIM)
    line.append(*_told(last.dense_share))
    line.append("   conversion and sort ", DIM)
    line.append(*_told(last.conversion_share))
    return line


def _told(number: Number) -> tuple[str, str]:
    if number.value is None:
        return f"– {clean(number.reason or 'not seen', 40)}", DIM
    return figure(number, percent=True, count=False), HEAD


def _bar(number: Number, width: int, unicode: bool) -> Text:
    return ink(bar(number.value, width, unicode), FAILING)


def _share(number: Number) -> str:
    return "–" if number.value is None else figure(number, percent=True, count=False, interval=False)


def _path_row(p: PathShare, unicode: bool) -> Row:
    low, high = p.share.ci or (None, None)
    interval = "" if low is None or high is None else f"{100 * low:.1f}–{100 * high:.1f}%"
    cells = (
        clean(p.path, 20),
        _bar(p.share, 10, unicode),
        _share(p.share),
        ink(interval, DIM),
        clean(next(iter(p.symbols), "–"), 100),
        clean(next(iter(p.callers), "–"), 100),
        str(p.threads or "–"),
    )
    return Row(p.path, cells, (None, p.share.value, p.share.value, low, None, None, p.threads))


def _thread_row(t: ThreadShare, unicode: bool) -> Row:
    mostly = mostly_on(t.paths)
    cells = (str(t.tid), clean(t.name or "–", 16), _bar(t.busy, 10, unicode), _share(t.busy), mostly or "–")
    return Row(f"{t.pid}/{t.tid}", cells, (t.tid, None, t.busy.value, t.busy.value, None))


def mostly_on(paths: Sequence[tuple[str, float]]) -> str:
    """``barrier 92%, sparse-csr 6%``: what a thread ran, largest first."""
    return ", ".join(f"{clean(p, 20)} {100 * share:.0f}%" for p, share in paths[:3])


SCREEN = Watch
