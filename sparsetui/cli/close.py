"""``sparsetui close SESSION``: run what closure still lacks, record who answers for it, and say which gates hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli import headless
from sparsetui.cli.common import clean, fail, say
from sparsetui.cli.investigate import SessionsOption

CloseBudget = Annotated[
    float,
    typer.Option("--budget", metavar="SECONDS", min=5, max=3600, help="measuring time of each run that is asked for"),
]


def close(
    session: Annotated[str, typer.Argument(help="a session's id, or its folder")],
    workload: Annotated[
        Path | None, typer.Option("--workload", metavar="FILE", help="the workload, where it has moved")
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="measure the trade-off matrix and the bandwidth lens")
    ] = False,
    replay: Annotated[bool, typer.Option("--replay", help="replay the workload's request log")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="replay this log instead of the workload's")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option("--speed", min=0.001, max=1000, help="how many times as fast --log is played (1 without it)"),
    ] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="rehearse the way back")] = False,
    owner: Annotated[list[str] | None, typer.Option("--owner", metavar="ROLE=WHO", help="who owns a role")] = None,
    owners_file: Annotated[
        Path | None, typer.Option("--owners-file", metavar="FILE", help="a file like CODEOWNERS")
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option("--attach", metavar="ROLE=EVIDENCE", help="a role's closure artifact: an id such as E04, or auto"),
    ] = None,
    waive: Annotated[list[str] | None, typer.Option("--waive", metavar="GATE", help="a gate to waive")] = None,
    why: Annotated[str, typer.Option("--why", help="the reason of the waivers")] = "",
    by: Annotated[str, typer.Option("--by", help="who waives")] = "",
    sign: Annotated[list[str] | None, typer.Option("--sign", metavar="ROLE=WHO", help="sign off as a role")] = None,
    budget: CloseBudget = 60.0,
    sessions: SessionsOption = None,
) -> None:
    """Close a session. Roles: ML, KL, RT, PR or their full names. Exit: 0 closed, 1 not closed, 2 bad input, 130 interrupted."""
    from sparsetui.release import closing
    from sparsetui.release.requests import RequestLogError
    from sparsetui.report.memo import render
    from sparsetui.runner.api import Cancelled
    from sparsetui.session.errors import SessionError
    from sparsetui.session.owners import read_owners
    from sparsetui.workload.spec import Replay

    replay = replay or log is not None
    _check_usage(workload, matrix or replay or rehearse, log, speed, bool(waive), bool(why or by))
    try:
        owners = [closing.pair_of(x, "--owner", "WHO") for x in owner or ()]
        proofs = [closing.pair_of(x, "--attach", "EVIDENCE") for x in attach or ()]
        signed = [closing.pair_of(x, "--sign", "WHO") for x in sign or ()]
        file = closing.from_file(read_owners(owners_file)) if owners_file else {}
        with _book(session, sessions, workload, budget, runs=matrix or replay or rehearse) as (runner, book):
            for gate in waive or ():
                closing.waive(book, gate, why, by)
            closing.assign(book, file, owners_file.name if owners_file else "")
            closing.assign(book, dict(owners), "typed")
            try:
                if replay:
                    runner.run_replay(budget, Replay(str(log.absolute()), speed or 1.0) if log else None)
                if matrix:
                    runner.run_matrix(budget)
                    runner.run_lens(budget)
                if rehearse:
                    runner.run_rehearsal(budget)
            except Cancelled:
                say(f"interrupted; the session is saved: {session}")
                raise typer.Exit(headless.INTERRUPTED) from None
            for role, evidence in proofs:
                say(f"{role}: {closing.attach(book, role, evidence)} attached")
            for role, who in signed:
                closing.sign(book, role, who)
            gates = closing.evaluate(book)
            state = book.state()
            path = (runner.save_memo if runner else book.write_memo)(render(state))
    except (closing.ClosingError, RequestLogError, SessionError) as e:
        fail(e)
    open_ = [g for g in gates if g.state not in ("passed", "waived")]
    for g in gates:
        name = f"{g.state:<8} {g.gate:<11}"
        print(clean(f"{name} {g.why}" + (f" [by {g.by}]" if g.by else "")), file=sys.stdout)
    print("CLOSED" if not open_ else f"NOT CLOSED: {', '.join(g.gate for g in open_)}")
    say(f"memo {path}")
    raise typer.Exit(1 if open_ else 0)


def _check_usage(
    workload: Path | None, runs: bool, log: Path | None, speed: float | None, waives: bool, reasons: bool
) -> None:
    """Refuse what could not be read and options that would do nothing, before anything is measured or written."""
    from sparsetui.release.requests import RequestLogError, read_log
    from sparsetui.workload.errors import WorkloadError
    from sparsetui.workload.spec import load

    try:
        if workload is not None:
            load(workload)
        if log is not None:
            read_log(str(log))
    except (WorkloadError, RequestLogError) as e:
        fail(e)
    if workload is not None and not runs:
        fail(f"--workload {workload}: nothing is to be measured; add --matrix, --replay or --rehearse")
    if speed is not None and log is None:
        fail("--speed says how fast --log is played; a log of the workload file has its own speed under [replay]")
    if reasons and not waives:
        fail("--why and --by belong to a waiver; name the gate with --waive")


@contextmanager
def _book(
    session: str, sessions: Path | None, workload: Path | None, budget: float, runs: bool
) -> Iterator[tuple[Any, Any]]:
    """The session to write to: with a runner where something is to be measured, else its writer alone."""
    from sparsetui.session.store import Store

    store = Store(sessions)
    if not runs:
        with store.writer(session) as writer:
            yield None, writer
        return
    from sparsetui.cli.matrix import release_runner

    recorded = store.open(session).state().spec
    runner = release_runner(workload or _recorded(recorded, session), sessions, session, budget)
    try:
        if recorded and runner.workload.sha256 != recorded.get("sha256"):
            say("the workload file has changed since the investigation; what is measured now is of the new one")
        with headless.signals(runner):
            yield runner, runner.journal
    finally:
        runner.close()


def _recorded(spec: dict[str, Any], session: str) -> Path:
    path = spec.get("path")
    if not isinstance(path, str) or not Path(path).is_file():
        fail(f"{session}: its workload file {path or ''} is not there; name it with --workload")
    return Path(path)
