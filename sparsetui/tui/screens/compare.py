"""Two sessions side by side: verdict, key figures, mechanisms, lock, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.text import Text
from textual.widget import Widget

from sparsetui.evidence.records import Finding, Number
from sparsetui.evidence.text import clean
from sparsetui.report.facts import facts_of
from sparsetui.report.numbers import fallback_overhead, figure, metric
from sparsetui.session.state import SessionState
from sparsetui.tui.actions import Action
from sparsetui.tui.guide import closes
from sparsetui.tui.look import BAD, DIM, HEAD, WARN, ink
from sparsetui.tui.panels import labelled
from sparsetui.tui.screens.base import Sheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table

NONE = "–"

# label, where the figure is, whether it is a share
_FIGURES: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("ratio", ("latency_ms", "ratio"), False),
    ("noise floor", ("latency_ms", "noise_floor"), True),
    ("failing p50", ("latency_ms", "failing", "p50"), False),
    ("failing p95", ("latency_ms", "failing", "p95"), False),
    ("failing p99", ("latency_ms", "failing", "p99"), False),
    ("comparator p50", ("latency_ms", "comparator", "p50"), False),
    ("comparator p99", ("latency_ms", "comparator", "p99"), False),
    ("real speed-up", ("real_speedup",), False),
    ("nominal sparsity", ("nominal_sparsity",), True),
    ("conversions a step", ("conversion_rate",), False),
    ("metadata overhead", ("metadata_overhead",), True),
    ("quality drift", ("quality_drift",), False),
    ("energy a request", ("energy_j_per_request",), False),
)


class Compare(Sheet):
    TITLE_TEXT = "two sessions compared"
    FOOTER = ("enter", "filter", "yank", "mark", "back")

    def __init__(self) -> None:
        super().__init__()
        self.refs: tuple[str, str] = ("", "")
        self._read: tuple[SessionState, SessionState] | None = None
        self._problem = ""

    def aim(self, **arguments: Any) -> None:
        """``a`` and ``b`` are the sessions' ids."""
        self.refs, self._read = (arguments["a"], arguments["b"]), None

    def body(self) -> Iterable[Widget]:
        yield Panel(id="both", classes="frame")
        yield Table(
            [
                Column("", 14, 32),
                Column("A", 18, 60),
                Column("B", 18, 60),
                Column("B against A", 13, 16),
            ],
            id="rows",
            classes="frame half",
            title="side by side",
        )
        yield Panel(id="cell", classes="frame")

    def on_mount(self) -> None:
        for id in ("#both", "#cell"):
            self.query_one(id).can_focus = False
        super().on_mount()

    def first_focus(self) -> Widget | None:
        return self.query_one("#rows")

    def show(self) -> None:
        if self._read is None and not self._problem:
            try:
                a, b = (self.desk.store.open(ref).state() for ref in self.refs)
                self._read = (a, b)
            except Exception as error:  # damaged or deleted meanwhile
                self._problem = str(error)
        panel = self.query_one("#both", Panel)
        panel.set_title("compared")
        if self._read is None:
            panel.set_lines([ink(clean(self._problem, 300), WARN)])
            return
        a, b = self._read
        panel.set_lines([_who("A", a), _who("B", b)])
        self.query_one("#rows", Table).set_rows(rows(a, b))
        self._whole()

    def on_table_picked(self) -> None:
        self._whole()

    def _whole(self) -> None:
        """The row under the cursor, uncut."""
        panel, table = self.query_one("#cell", Panel), self.query_one("#rows", Table)
        row = next((r for r in table.rows if r.key == table.key), None)
        width = max(20, panel.content_size.width)
        label, a, b, _ = row.plain() if row is not None else ("", "", "", "")
        panel.set_title(label)
        panel.set_lines([*labelled("A", a, width, indent=3), *labelled("B", b, width, indent=3)])

    def do_enter(self) -> None:
        """Open the one that the cursor's row says more of: A, unless only B has it."""
        key = self.query_one("#rows", Table).key
        row = next((r for r in self.query_one("#rows", Table).rows if r.key == key), None)
        b_only = row is not None and row.plain()[1] == NONE and row.plain()[2] != NONE
        self.app.shelf.open_session(self.refs[1] if b_only else self.refs[0])

    def label(self, action: Action) -> str:
        return "open" if action.id == "enter" else super().label(action)


def _who(name: str, s: SessionState) -> Text:
    line = ink(f"{name}  ", HEAD) + ink(clean(s.id, 60))
    about = [s.workload, s.updated[:16].replace("T", " "), f"host {s.host}" if s.host else ""]
    line.append("  " + clean("  ".join(x for x in about if x), 120), DIM)
    return line


def rows(a: SessionState, b: SessionState) -> list[Row]:
    """What two sessions say of the same questions; the last column tells where they differ."""
    return [*_verdict(a, b), *_figures(a, b), *_mechanisms(a, b), *_lock(a, b)]


def _row(key: str, label: str, left: str, right: str, told: str | None = None) -> Row:
    same = left == right
    said = ("" if same else "▲ differs") if told is None else told
    style = BAD if said.startswith("▲") else DIM
    return Row(key, (label, left or NONE, right or NONE, ink(said, style)))


def _verdict(a: SessionState, b: SessionState) -> list[Row]:
    def of(s: SessionState, get: Callable[[Any], Any]) -> str:
        return clean(get(s.result.verdict) or "", 300) if s.result is not None else ""

    fields: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("verdict", lambda v: v.status.replace("_", " ")),
        ("mechanism", lambda v: v.mechanism),
        ("how sure", lambda v: v.confidence),
        ("share", lambda v: figure(v.share_of_regression, percent=True, count=False) if v.share_of_regression else ""),
        ("owner", lambda v: v.owner),
        ("fix", lambda v: v.fix),
    )
    found = [_row(f"verdict {n}", n, of(a, get), of(b, get)) for n, get in fields]
    found.append(_row("standing", "standing", facts_of(a).standing.lower(), facts_of(b).standing.lower()))
    return found


def _figures(a: SessionState, b: SessionState) -> list[Row]:
    found = []
    pairs = [(label, metric(a.metrics, *path), metric(b.metrics, *path), share) for label, path, share in _FIGURES]
    pairs.insert(-3, ("fallback overhead", fallback_overhead(a.metrics), fallback_overhead(b.metrics), True))
    for label, left, right, share in pairs:
        if left.value is None and right.value is None:
            continue
        cells = [_figure(n, share) for n in (left, right)]
        found.append(_row(f"figure {label}", label, cells[0], cells[1], _against(left, right)))
    return found


def _figure(number: Number, share: bool) -> str:
    return NONE if number.value is None else figure(number, percent=share, count=False)


def _against(left: Number, right: Number) -> str:
    """How B stands to A. Only intervals that keep apart count as a difference."""
    if left.value is None or right.value is None:
        return ""
    times = f"×{right.value / left.value:.2f}" if left.value > 0 and right.value > 0 else ""
    if left.ci is None or right.ci is None:
        return times
    apart = left.ci[1] < right.ci[0] or right.ci[1] < left.ci[0]
    return f"▲ {times}".rstrip() if apart else f"{times} overlap".strip()


def _mechanisms(a: SessionState, b: SessionState) -> list[Row]:
    by_name: list[Mapping[str, Finding]] = [{f.mechanism: f for f in s.findings} for s in (a, b)]
    names = sorted({n for found in by_name for n in found}, key=lambda n: (not _material(by_name, n), n))
    return [_row(f"mechanism {n}", clean(n, 40), *(_finding(found.get(n)) for found in by_name)) for n in names]


def _material(by_name: list[Mapping[str, Finding]], name: str) -> bool:
    return any(name in found and found[name].material for found in by_name)


def _finding(f: Finding | None) -> str:
    if f is None:
        return NONE
    return clean(f"▲ {f.confidence} {closes(f)}".strip(), 60) if f.material else "not material"


def _lock(a: SessionState, b: SessionState) -> list[Row]:
    """Under what the two ran: all tags that differ between the sessions, then whether each pair matched."""
    locks = [s.lock for s in (a, b)]
    matches = [NONE if k is None else "✓ match" if k.match else "✗ differs" for k in locks]
    tags = [k.tags if k is not None else {} for k in locks]
    found = [_row("lock", "lock of the pair", *matches)]
    for tag in sorted({t for some in tags for t in some}):
        left, right = (clean(some.get(tag, NONE), 60) for some in tags)
        if left != right:
            found.append(_row(f"tag {tag}", clean(f"lock: {tag}", 40), left, right))
    return found


SCREEN = Compare
