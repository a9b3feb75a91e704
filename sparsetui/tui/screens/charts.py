"""The charts of a session in full width: latency of both variants, the budget, the reality check, roofline, paths,
threads, and the bandwidth lens. A chart whose data does not exist is not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text
from textual.widget import Widget

from sparsetui.evidence.records import Evidence
from sparsetui.evidence.text import clean
from sparsetui.report import plots
from sparsetui.report.numbers import brief, figure, metric
from sparsetui.report.sections import lens_data
from sparsetui.session.state import SessionState
from sparsetui.tui import artifacts
from sparsetui.tui.live_panel import tinted
from sparsetui.tui.look import ACCENT, COMPARATOR, DIM, FAILING, HEAD, OK, ink
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel

MOST_POINTS = 12


class Charts(CaseSheet):
    TITLE_TEXT = "charts"
    FOOTER = ("yank", "shot", "evidence", "paths", "memo", "back")

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[str, Any] = {}

    def body(self) -> Iterable[Widget]:
        yield Panel(id="charts", classes="frame half", title="charts of this session")

    def show(self) -> None:
        panel = self.query_one("#charts", Panel)
        width = max(20, panel.content_size.width)
        tall = panel.content_size.height >= 24
        lines: list[Text] = []
        state, unicode = self.desk.state, self.app.unicode
        for chart in (
            self._latency(state, width, 13 if tall else 9, unicode),
            _budget(state, width, unicode),
            _reality(state, width, unicode),
            self._roofline(state, width, 14 if tall else 10, unicode),
            _paths(state, width, unicode),
            self._threads(state, width, unicode),
            _lens(state, width, 12, unicode),
        ):
            if chart:
                lines += [ink()] * bool(lines) + chart
        panel.set_lines(lines or [ink("nothing has been measured yet that a chart could show", DIM)])

    def _artifact(self, e: Evidence) -> Any:
        """The decoded artifact, read once; ``None`` where it is missing or damaged."""
        if e.sha256 is None:
            return None
        if e.sha256 not in self._read:
            import msgspec

            try:
                raw = self.desk.store.open(self.desk.ref or self.desk.state.id).artifact(e.sha256)
                self._read[e.sha256] = msgspec.json.decode(raw)
            except Exception:  # the evidence screen says what is wrong with it
                self._read[e.sha256] = None
        return self._read[e.sha256]

    def _newest(self, probe: str, variant: str | None = None) -> Any:
        found = [e for e in self.desk.state.evidence if e.probe == probe and (variant is None or e.variant == variant)]
        return self._artifact(found[-1]) if found else None

    def _latency(self, state: SessionState, width: int, height: int, unicode: bool) -> list[Text]:
        times = artifacts.step_times(self._newest("clock"))
        if not any(times.values()):
            return []
        ratio = metric(state.metrics, "latency_ms", "ratio")
        more = "" if ratio.value is None else f"ratio {figure(ratio, unit='×', count=False)}"
        lines = [_head("latency of one step, unprobed", more, width)]
        chart = plots.distribution(times["failing"], times["comparator"], width, height, unicode)
        style = FAILING
        for line in chart[:-1]:
            if line.startswith("comparator"):
                style = COMPARATOR
            lines.append(ink(line, DIM if line.startswith(("failing", "comparator")) else style))
        return [*lines, ink(chart[-1], DIM)]

    def _roofline(self, state: SessionState, width: int, height: int, unicode: bool) -> list[Text]:
        lines: list[Text] = []
        for variant in ("failing", "comparator"):
            roofs = artifacts.roofs_of(self._newest("roofs", variant))
            for bound, points in artifacts.products(self._newest("census", variant)).items():
                if points and bound in roofs:
                    title = f"roofline of the {variant} variant's products"
                    head = _head(title, f"{bound} roof; timed under the census", width)
                    lines += [ink()] * bool(lines) + [head]
                    chart = plots.roofline(points[:MOST_POINTS], roofs[bound], width, height, unicode)
                    lines += [ink(x) for x in chart]
        return lines

    def _threads(self, state: SessionState, width: int, unicode: bool) -> list[Text]:
        from sparsetui.tui.screens.watch import mostly_on

        seen = artifacts.threads(self._newest("attach"))
        rows: list[plots.BarRow] = [
            (clean(name, 24), busy.value, f"{figure(busy, percent=True, count=False)}  {mostly_on(paths)}")
            for name, busy, paths in seen
            if busy.value is not None
        ]
        return _bars("threads", "the share of the time that each ran, and on what", rows, width, unicode)


def _head(title: str, more: str, width: int) -> Text:
    """A title, and what explains it where there is room."""
    line = ink(title, HEAD)
    if more and line.cell_len + len(more) + 3 <= width:
        line.append("   " + more, DIM)
    return line


def _bars(title: str, more: str, rows: list[plots.BarRow], width: int, unicode: bool) -> list[Text]:
    if not rows:
        return []
    bars = [ink(x) for x in plots.labelled_bars(rows, width, unicode)]
    return [_head(title, more, width), *tinted(bars, FAILING)]


def _budget(state: SessionState, width: int, unicode: bool) -> list[Text]:
    if state.budget is None:
        return []
    title, *shares = plots.budget_bars(state.budget, width, unicode, state.findings)
    return [ink(title, HEAD), *tinted([ink(x) for x in shares], FAILING)]


def _reality(state: SessionState, width: int, unicode: bool) -> list[Text]:
    if not any(k in state.metrics for k in ("nominal_sparsity", "real_speedup")):
        return []
    bars = [ink(x) for x in plots.reality_check(state.metrics, width, unicode)]
    title = _head("sparse reality check", "what was pruned, what time it saved, what still ran dense", width)
    return [title, *tinted(bars, ACCENT, OK, FAILING)]


def _paths(state: SessionState, width: int, unicode: bool) -> list[Text]:
    if state.native is None:
        return []
    rows: list[plots.BarRow] = [
        (p.path, p.share.value, figure(p.share, percent=True, count=False)) for p in state.native.paths[:8]
    ]
    return _bars("where the time goes by path", "as samplers saw it from outside", rows, width, unicode)


def _lens(state: SessionState, width: int, height: int, unicode: bool) -> list[Text]:
    body = state.sections.get("lens")
    if body is None:
        return []
    points, zones = lens_data(body)
    if not points:
        return []
    worst = max(points, key=lambda p: p.pressure)
    more = f"highest {brief(worst.pressure)} of the roof, at {clean(worst.label, 30)}"
    title = _head("bandwidth lens: working-set pressure", more, width)
    return [title, *(ink(x) for x in plots.lens(points, zones, width, height, unicode))]


SCREEN = Charts
