"""Where time goes by path, as samplers and traces saw it from outside: symbols, callers, and what could not be seen."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.records import PathShare, TimeTable
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import figure
from sparsetui.report.plots import bar
from sparsetui.tui.look import DIM, HEAD, WARN, ink
from sparsetui.tui.panels import labelled
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table


class Paths(CaseSheet):
    TITLE_TEXT = "time by path"
    FOOTER = ("filter", "sort", "yank", "mark", "back")

    def body(self) -> Iterable[Widget]:
        yield Table(
            [
                Column("path", 12, 16),
                Column("", 10, 10, drop=1),
                Column("share", 6, 20),
                Column("symbol", 28, 70),
                Column("under", 16, 60, drop=2),
                Column("threads", 3, 7, right=True, drop=3, short="thr"),
            ],
            id="paths",
            classes="frame half",
            title="where time goes, largest share first",
            empty="no sampler has looked yet",
        )
        with Container(classes="detail"):
            yield Panel(id="detail", classes="frame", title="path")

    @property
    def seen(self) -> TimeTable:
        return self.desk.state.native or TimeTable()

    def show(self) -> None:
        rows = [self._row(i, p) for i, p in enumerate(self.seen.paths)]
        self.query_one("#paths", Table).set_rows(rows)
        self._detail()

    def _row(self, i: int, p: PathShare) -> Row:
        share = figure(p.share, percent=True, count=False, interval=False)
        symbol, caller = next(iter(p.symbols), "–"), next(iter(p.callers), "–")
        cells = (
            clean(p.path, 20),
            ink(bar(p.share.value, 10, self.app.unicode), DIM),
            share,
            clean(symbol, 100),
            clean(caller, 100),
            str(p.threads or "–"),
        )
        return Row(str(i), cells, (None, p.share.value, p.share.value, None, None, p.threads))

    def on_table_picked(self) -> None:
        self._detail()

    def _detail(self) -> None:
        table, panel = self.query_one("#paths", Table), self.query_one("#detail", Panel)
        width = max(20, panel.content_size.width)
        lines = []
        if table.key is not None and int(table.key) < len(self.seen.paths):
            p = self.seen.paths[int(table.key)]
            lines.append(ink(clean(p.path, 30), HEAD) + ink(f"  {figure(p.share, percent=True)}"))
            for symbol in p.symbols[:3]:
                lines += labelled("symbol", symbol, width)
            for caller in p.callers[:3]:
                lines += labelled("under", caller, width)
        for s in self.seen.samplers:
            cost = (
                "cost unknown"
                if s.pause_share is None
                else f"paused its target {100 * s.pause_share:.1f} % of the time"
            )
            lines += labelled("sampler", f"{s.name}, {s.samples} samples at {s.rate_hz:g} Hz, {cost}", width, DIM)
        for m in self.seen.unavailable:
            lines += labelled("not seen", f"{m.what}: {m.why}", width, WARN)
        panel.set_lines(lines)


SCREEN = Paths
