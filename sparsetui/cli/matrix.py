"""``sparsetui matrix WORKLOAD.toml``: the trade-off matrix of formats, measured on the workload's own shapes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli import headless
from sparsetui.cli.common import check_store, check_target, clean, fail, say
from sparsetui.cli.investigate import SessionsOption

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
    with headless._signals(runner):
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
        return ReleaseRunner(spec, Store(sessions), budget_s=budget, session=session, listener=headless.Narrator(False))
    except (WorkloadError, SessionError) as e:
        fail(e)


_COLUMNS = (
    "name",
    "kind",
    "p50",
    "p99",
    "against_dense",
    "throughput_at_SLA",
    "energy",
    "weight_bytes",
    "quality_drift",
    "SLA",
    "risk",
)


def show(body: dict[str, Any], quiet: bool) -> None:
    """The decisive columns as a table: on stdout, or on stderr where stdout carries data."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sparsetui.report.numbers import as_number, brief, figure

    console = Console(stderr=quiet, highlight=False, file=sys.stderr if quiet else sys.stdout)
    table = Table(title=Text(clean(body["summary"])), title_justify="left", box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in body["rows"]:
        cells = []
        for column in _COLUMNS:
            value = row.get(column)
            if isinstance(value, dict):
                n = as_number(value)
                cells.append("unavailable" if n.value is None else figure(n, count=False))
            else:
                cells.append(brief(value) if isinstance(value, (int, float)) else clean(value or ""))
        table.add_row(*(Text(c) for c in cells))
    console.print(table)
