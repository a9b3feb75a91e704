"""What the top bar and the message line say: what is open, what goes on, how long it may take, and what was last told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.text import Text

from sparsetui.evidence.text import clean
from sparsetui.report.plots import bar
from sparsetui.tui.look import ACCENT, BAD, DIM, HEAD, OK, WARN, ink

if TYPE_CHECKING:
    from sparsetui.tui.screens.base import Sheet

_DATE = re.compile(r"^\d{4}-\d\d-\d\d-")  # what session ids begin with; home tells the date
VERDICTS = {
    "fault": ("▲ fault", BAD),
    "no_fault": ("✓ no fault", OK),
    "cannot_answer": ("– cannot tell", WARN),
}


def bar_text(sheet: Sheet) -> Text:
    """`` sparsetui  title   …``: what is open, lock, budget, host."""
    state, live = sheet.desk.state, sheet.desk.live
    text = ink(" sparsetui ", style=HEAD)
    name = _DATE.sub("", state.id) or sheet.desk.title
    text.append(f" {clean(name, 40) if name else sheet.TITLE_TEXT}")
    if sheet.TITLE_TEXT and sheet.desk.is_open and sheet.size.width >= 100:
        text.append(f"  {sheet.TITLE_TEXT}", style=DIM)
    tail = sheet.status()
    if sheet.desk.is_open:
        if state.lock is not None:
            undeclared = [d for d in state.lock.differs if not d.declared]
            tail.append("   lock ")
            tail.append(
                "✓ match" if state.lock.match else f"✗ {len(undeclared)} differ", OK if state.lock.match else BAD
            )
        workload = sheet.desk.workload
        if workload is not None and sheet.size.width >= 140:
            pair = f"failing {workload.failing.entry.attribute} · comparator {workload.comparator.entry.attribute}"
            tail.append("   " + clean(pair, 60), style=DIM)
        if not sheet.desk.followed:  # of another's run only its phases are known
            tail.append("   " + budget_text(live.spent_s, live.budget_s))
        if state.host and sheet.size.width >= 100:
            tail.append(f"   host {clean(state.host, 24)}", style=DIM)
    if sheet.desk.readonly:
        tail.append("   read-only", style=WARN)
    gap = sheet.size.width - text.cell_len - tail.cell_len - 1
    if gap < 1:
        text.truncate(max(0, sheet.size.width - tail.cell_len - 2), overflow="ellipsis")
        gap = 1
    return text + ink(" " * gap) + tail


def budget_text(spent_s: float, budget_s: float) -> str:
    """The live profiling time of the run that goes on, or was last; it is not that of the whole session."""
    return f"run budget {spent_s:.0f}/{budget_s:.0f} s" if spent_s else f"run budget {budget_s:.0f} s"


def status(sheet: Sheet) -> Text:
    """What goes on now, for the top bar: it stays there whatever the message line says."""
    live, result = sheet.desk.live, sheet.desk.verdict
    if not live.running:
        if sheet.desk.followed:
            return ink("followed", WARN)
        return ink(*VERDICTS[result.verdict.status]) if result is not None else ink()
    text = ink("» ", ACCENT) + ink(clean(live.phase or sheet.desk.busy or "running", 16), HEAD)
    if live.eta_s is not None:
        text.append(f" {live.eta_s:.0f} s left", DIM)
    elif not sheet.desk.followed:
        text.append(f" ≤{max(0.0, live.budget_s - live.spent_s):.0f} s left", DIM)
    return text


def note_text(sheet: Sheet) -> Text:
    live = sheet.desk.live
    if sheet._note is not None:
        return ink(" " + sheet._note[0], style=sheet._note[1])
    if not sheet.desk.busy:
        return ink()
    text = ink(" » ", style=ACCENT)
    text.append(clean(live.phase or sheet.desk.busy, 30), style=HEAD)
    tail = ink()
    if live.progress is not None:
        tail.append("  " + bar(min(1.0, max(0.0, live.progress)), 12, sheet.app.unicode), style=ACCENT)
        tail.append(f" {100 * live.progress:3.0f}%")
    if live.eta_s is not None:
        tail.append(f"  {live.eta_s:.0f} s left", style=DIM)
    tail.append(f"  {sheet.app.run_seconds:.0f} s", style=DIM)
    if live.message and live.message != sheet.desk.busy:
        text.append("  " + clean(live.message, max(0, sheet.size.width - text.cell_len - tail.cell_len - 3)))
    text.append_text(tail)
    return text
