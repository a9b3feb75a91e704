"""``sparsetui investigate WORKLOAD.toml``: the main job, in the app or headless."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli import headless
from sparsetui.cli.common import check_store, check_target, fail, say, tui_options

BudgetOption = Annotated[
    float, typer.Option("--budget", metavar="SECONDS", min=5, max=3600, help="live profiling time in all")
]
PlaybookOption = Annotated[str | None, typer.Option("--playbook", metavar="NAME|FILE", help="the playbook to follow")]
HeadlessOption = Annotated[bool, typer.Option("--headless", help="no app; the verdict is the exit code")]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="the result as JSON (implies --headless)")
]
MemoOption = Annotated[
    str | None, typer.Option("--memo", metavar="FILE|-", help="the memo as Markdown (implies --headless)")
]
SessionsOption = Annotated[Path | None, typer.Option("--sessions", metavar="DIR", help="where sessions are kept")]
ReadonlyOption = Annotated[bool, typer.Option("--readonly", help="open the app to look only; nothing is run")]


def investigate(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD.toml", help="the workload file")],
    playbook: PlaybookOption = None,
    budget: BudgetOption = 60.0,
    headless_: HeadlessOption = False,
    json: JsonOption = None,
    memo: MemoOption = None,
    sessions: SessionsOption = None,
    readonly: ReadonlyOption = False,
) -> None:
    """Find the first failing mechanism of a workload. Exit: 0 no fault, 1 fault, 2 bad input, 3 cannot answer, 130 interrupted."""
    from sparsetui.workload.errors import WorkloadError
    from sparsetui.workload.spec import load

    try:
        spec = load(workload)
    except WorkloadError as e:
        fail(e)
    book = find_playbook(playbook)
    check_store(sessions)
    check_target("--json", json)
    check_target("--memo", memo)
    if not (headless_ or json or memo):
        open_app(store=sessions, workload=spec, playbook=book, budget=budget, readonly=readonly)
    if readonly:
        fail(
            "--readonly looks at sessions in the app; it cannot go with --headless, --json or --memo, which run the workload"
        )
    say(f"will run: {', '.join(str(f) for f in spec.files()) or ', '.join(spec.modules())}")
    runner = start(spec, sessions, budget, book)
    result, path = headless.run(runner, json_to=json, memo_to=memo)
    if result.verdict.status == "cannot_answer" and (wrong := runner.bad_input()):
        fail(wrong)
    show(runner.state(), path, quiet="-" in (json, memo))
    raise typer.Exit(headless.EXIT[result.verdict.status])


def find_playbook(name: str | None) -> Any:
    """The playbook called ``name`` (or in that file), or None for none."""
    if name is None:
        return None
    from sparsetui.playbook.library import find
    from sparsetui.playbook.spec import PlaybookError

    try:
        return find(name)
    except PlaybookError as e:
        fail(e)


def start(spec: Any, sessions: Path | None, budget: float, playbook: Any) -> Any:
    """A runner on a new session; a store that cannot be written is one line."""
    from sparsetui.runner.investigation import Investigation
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store

    try:
        return Investigation(
            spec, Store(sessions), budget_s=budget, playbook=playbook, listener=headless.Narrator(False)
        )
    except SessionError as e:
        fail(e)


def show(state: Any, memo: Path, quiet: bool) -> None:
    """The verdict and the key figures: on stdout, or on stderr where stdout carries data."""
    from sparsetui.report.table import print_summary

    print_summary(state, str(memo), stream=sys.stderr if quiet else sys.stdout)


def open_app(**what: Any) -> None:
    """The app, with its looks from the options before the command; ends with its exit code."""
    from sparsetui.tui.app import run

    looks: dict[str, Any] = dict(tui_options)
    raise typer.Exit(run(**what, **looks))
