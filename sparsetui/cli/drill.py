"""``sparsetui drill``: built-in real regressions to practise on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli import headless
from sparsetui.cli.common import check_store, check_target, fail, say
from sparsetui.cli.investigate import (
    HeadlessOption,
    JsonOption,
    MemoOption,
    PlaybookOption,
    ReadonlyOption,
    SessionsOption,
    find_playbook,
    open_app,
    show,
    start,
)

DrillBudget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="SECONDS",
        min=5,
        max=3600,
        help="live profiling time (default 60; with --all the drill's own)",
    ),
]


def drill(
    name: Annotated[str | None, typer.Argument(help="the drill; without it, the first")] = None,
    list_: Annotated[bool, typer.Option("--list", help="list the drills")] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="run every drill, headless, and say which were named right")
    ] = False,
    playbook: PlaybookOption = None,
    budget: DrillBudget = None,
    headless_: HeadlessOption = False,
    json: JsonOption = None,
    memo: MemoOption = None,
    sessions: SessionsOption = None,
    readonly: ReadonlyOption = False,
) -> None:
    """Practise on a real regression of a really trained and pruned classifier. Exit codes as of investigate."""
    from sparsetui.workload.drills import catalogue
    from sparsetui.workload.drills.training import DrillError

    if list_:
        for d in catalogue.all_drills():
            print(f"{d.name:<24} {d.mechanism or 'nothing wrong':<30} {d.title}")
        return
    check_store(sessions)
    check_target("--json", json)
    check_target("--memo", memo)
    book, seconds = find_playbook(playbook), budget or 60.0
    try:
        chosen = None if all_ else catalogue.get(name)
        catalogue.prepare(say)
    except DrillError as e:
        fail(e)
    if chosen is None:
        _all(catalogue.all_drills(), budget, json, memo, sessions, book)
        return
    from sparsetui.workload.spec import load

    spec = load(chosen.workload)
    if not (headless_ or json or memo):
        open_app(store=sessions, workload=spec, playbook=book, budget=seconds, readonly=readonly)
    say(f"{chosen.title}: {chosen.story}")
    runner = start(spec, sessions, seconds, book)
    result, path = headless.run(runner, json_to=json, memo_to=memo)
    show(runner.state(), path, quiet="-" in (json, memo))
    raise typer.Exit(headless.EXIT[result.verdict.status])


def _all(
    drills: Any, budget: float | None, json: str | None, memo: str | None, sessions: Path | None, book: Any
) -> None:
    """Every drill in turn. Exit 0 if each was named right, 1 otherwise."""
    from sparsetui.evidence.records import to_json
    from sparsetui.workload.spec import load

    if memo is not None:
        fail("--memo goes with one drill; with --all each session keeps its own memo")
    rows: list[dict[str, Any]] = []
    for d in drills:
        result, _ = headless.run(
            start(load(d.workload), sessions, budget or d.budget_s, book), json_to=None, memo_to=None
        )
        v = result.verdict
        right = d.right(v.status, v.mechanism)
        rows.append({"drill": d.name, "expected": d.mechanism, "status": v.status, "mechanism": v.mechanism,
                     "confidence": v.confidence, "right": right, "seconds": result.spent.get("total"),
                     "share": v.share_of_regression, "session": result.session, "result": result})  # fmt: skip
        line = f"{'right' if right else 'WRONG':<6} {d.name:<24} {v.mechanism or v.status:<30} {v.confidence or ''}"
        print(line, file=sys.stderr if json == "-" else sys.stdout, flush=True)
    wrong = sum(not r["right"] for r in rows)
    say(f"{len(rows) - wrong} of {len(rows)} drills right")
    headless.write(json, to_json({"schema": 1, "drills": rows, "right": len(rows) - wrong, "wrong": wrong}, indent=2))
    raise typer.Exit(1 if wrong else 0)
