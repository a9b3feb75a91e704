"""``sparsetui matrix WORKLOAD.toml``: the trade-off matrix of formats, measured on the workload's own shapes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli import headless
from sparsetui.cli.common import check_store, check_target, clean, fail, say
from sparsetui.cli.investigate import SessionsOption
from sparsetui.runner.api import Update

MatrixBudget = Annotated[
    float, typer.Option("--budget", metavar="SECONDS", min=5, max=3600, help="measuring time in all")
]


def matrix(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD.toml", help="the workload file")],
    budget: MatrixBudget = 60.0,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="the matrix as JSON")] = None,
    memo: Annotated[str | None, typer.Option("--memo", metavar="FILE|-", help="the session's memo as Markdown")] = None,
    sessions: SessionsOption = None,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="add to this session")] = None,
) -> None:
    """Compare dense, unstructured, structured and mixed formats. Exit: 0 measured, 2 bad input, 3 nothing to compare, 130."""
    from sparsetui.evidence.records import to_json
    from sparsetui.report.memo import render
    from sparsetui.runner.api import Cancelled

    check_store(sessions)
    check_target("--json", json)
    check_target("--memo", memo)
    runner = release_runner(workload, sessions, session, budget)
    with headless.signals(runner):
        try:
            body = runner.run_matrix(budget)
        except Cancelled:
            say(f"interrupted; the session is saved: {runner.state().id}")
            raise typer.Exit(headless.INTERRUPTED) from None
        finally:
            text = render(runner.state())
            path = runner.save_memo(text)
            runner.close()
    headless.write(json, to_json({"schema": 1, "session": runner.state().id, **body}, indent=2))
    headless.write(memo, text.encode())
    show(body, quiet="-" in (json, memo))
    say(f"session {runner.state().id}; memo {path}")
    raise typer.Exit(0 if body["rows"] else 3)


class Progress:
    """Says what is being measured and how long it will still take, when that changes and at most every two seconds."""

    def __init__(self) -> None:
        self._said, self._at = "", 0.0

    def __call__(self, update: Update) -> None:
        live, now = update.live, time.monotonic()
        said = f"{live.phase}: {live.message}"
        if (
            not live.running
            or said == self._said
            or (now - self._at < 2 and said.partition(":")[0] == self._said.partition(":")[0])
        ):
            return
        self._said, self._at = said, now
        eta = f", {live.eta_s:.0f} s to go" if live.eta_s is not None else ""
        say(f"[{live.spent_s:5.1f}/{live.budget_s:g} s] {said}{eta}")


def release_runner(workload: Path, sessions: Path | None, session: str | None, budget: float) -> Any:
    """A :class:`ReleaseRunner` on a new or a saved session. Bad input is one line."""
    from sparsetui.release.runner import ReleaseRunner
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store
    from sparsetui.workload.errors import WorkloadError
    from sparsetui.workload.spec import load

    try:
        spec = load(workload)
        if session is not None:
            Store(sessions).find(session)
        return ReleaseRunner(spec, Store(sessions), budget_s=budget, session=session, listener=Progress())
    except (WorkloadError, SessionError) as e:
        fail(e)


# column, its heading, whether its interval is shown; the narrow table has those that decide
_COLUMNS = (
    ("name", "format", False),
    ("p50", "p50 ms", True),
    ("p99", "p99 ms", False),
    ("against_dense", "× dense", True),
    ("net_of_harness", "net", False),
    ("throughput_at_SLA", "req/s at SLA", False),
    ("energy", "J/request", False),
    ("weight_bytes", "weight bytes", False),
    ("quality_drift", "drift", False),
    ("SLA", "SLA", False),
    ("risk", "risk", False),
)
_NARROW = ("name", "p50", "against_dense", "weight_bytes", "quality_drift", "risk")
_WIDE_FROM, _NO_TERMINAL = 140, 160


def show(body: dict[str, Any], quiet: bool) -> None:
    """The decisive columns as a table: on stdout, or on stderr where stdout carries data. Intervals and reasons are in the memo."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = sys.stderr if quiet else sys.stdout
    console = Console(highlight=False, file=stream, width=None if stream.isatty() else _NO_TERMINAL)
    narrow = console.width < _WIDE_FROM
    console.print(Text(clean(body["summary"])))
    table = Table(box=None, pad_edge=False)
    columns = [c for c in _COLUMNS if not narrow or c[0] in _NARROW]
    for _, heading, _ in columns:
        table.add_column(heading, overflow="fold")
    for row in body["rows"]:
        table.add_row(*(Text(_cell(row.get(key), interval, key == "risk" and narrow)) for key, _, interval in columns))
    if body["rows"]:
        console.print(table)


def _cell(value: Any, interval: bool, first_word: bool) -> str:
    from sparsetui.report.numbers import as_number, brief, figure

    if isinstance(value, dict):
        n = as_number(value)
        return (
            "–"
            if n.value is None
            else figure(n, unit="", count=False, interval=interval, mark=n.quality == "estimated")
        )
    if isinstance(value, int | float):
        return brief(value)
    text = clean(value or "")
    return text.partition(":")[0] if first_word else text
