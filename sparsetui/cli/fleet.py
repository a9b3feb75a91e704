"""``sparsetui fleet WORKLOAD.toml --address RAY_ADDRESS``: is it the host or the release?"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli import headless
from sparsetui.cli.common import check_store, check_target, clean, fail, say
from sparsetui.cli.investigate import (
    BudgetOption,
    HeadlessOption,
    JsonOption,
    MemoOption,
    PlaybookOption,
    SessionsOption,
)
from sparsetui.runner.api import Update

ADDRESS_HELP = "HOST:PORT of a Ray cluster, ray://HOST:PORT, auto, or local for a Ray of one node here"


def fleet(
    workload: Annotated[Path | None, typer.Argument(metavar="WORKLOAD.toml", help="the workload file")] = None,
    address: Annotated[str | None, typer.Option("--address", metavar="RAY_ADDRESS", help=ADDRESS_HELP)] = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", metavar="N|a,b,c", help="how many nodes, or which; default: all with cores")
    ] = None,
    playbook: PlaybookOption = None,
    budget: BudgetOption = 60.0,
    patience: Annotated[
        float, typer.Option("--patience", metavar="SECONDS", min=5, max=86400, help="wait that long for a node's cores")
    ] = 600.0,
    headless_: HeadlessOption = False,
    json: JsonOption = None,
    memo: MemoOption = None,
    sessions: SessionsOption = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="go on with this session: only hosts without an answer"),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option("--matrix", help="instead: the trade-off matrix, its signatures spread over nodes of one lock"),
    ] = False,
    attach: Annotated[
        str | None,
        typer.Option(
            "--attach", metavar="HOST:PID,…", help="instead of a workload: watch these processes from outside"
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=1, max=3600, help="how long --attach watches")
    ] = 10.0,
) -> None:
    """Investigate the same pair on many hosts over Ray: is one host sick, or the release?

    Exit: 0 no fault, 1 fault (of the release or of hosts), 2 bad input, 3 cannot answer, 130 interrupted. With --matrix or
    --attach 0 where it was measured, and 3 where it was not.
    """
    from sparsetui.workload.errors import WorkloadError
    from sparsetui.workload.spec import load

    check_store(sessions)
    check_target("--json", json)
    check_target("--memo", memo)
    wanted = parse_hosts(hosts)
    if attach is not None:
        if workload is not None or hosts is not None or memo is not None or matrix:
            fail(
                "--attach watches processes that run already; it cannot go with a WORKLOAD.toml, --hosts, --memo or --matrix"
            )
        _attach(attach, address, seconds, sessions, session, json)
    from sparsetui.cli.investigate import find_playbook

    book = find_playbook(playbook)
    _find_session(session, sessions)
    if workload is None:
        fail(
            "fleet: needs a WORKLOAD.toml to investigate, or --attach HOST:PID,… to watch; see: sparsetui fleet --help"
        )
    try:
        spec = load(workload)
    except WorkloadError as e:
        fail(e)
    if matrix and playbook is not None:
        fail("--matrix follows no playbook; leave --playbook out")
    options: dict[str, Any] = {"address": _needed(address), "hosts": wanted, "patience_s": patience}
    if not (headless_ or json or memo):
        _open_app(spec, sessions, session, budget, book, matrix, options)
    runner = _runner(spec, sessions, session, budget, book, matrix, options)
    (_matrix if matrix else _investigate)(runner, spec, json, memo)


def _needed(address: str | None) -> str:
    if address is None:
        fail(f"--address is needed: {ADDRESS_HELP}")
    return address


def _find_session(session: str | None, sessions: Path | None) -> None:
    """A session that is not there is told before anything else is done."""
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store

    if session is not None:
        try:
            Store(sessions, readonly=True).find(session)
        except SessionError as e:
            fail(e.message)


def parse_hosts(text: str | None) -> int | list[str] | None:
    """``--hosts``: a number or names. Anything else ends the command."""
    if text is None:
        return None
    if text.strip().isdigit() and text.strip().isascii():
        count = int(text)
        if not 1 <= count <= 100_000:
            fail(f"--hosts {text[:40]}: accepted are a number from 1 on, or names with commas between them")
        return count
    names = [n.strip() for n in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        fail(f"--hosts {text[:200]}: accepted are a number from 1 on, or names with commas between them, each once")
    return names


class Narrator:
    """One line for each thing that happens to a host; where a host is, at most every ten seconds."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._at = time.monotonic()

    def __call__(self, update: Update) -> None:
        hosts = update.live.hosts
        for host, now in hosts.items():
            state = str(now.get("state", ""))
            if state != self._states.get(host):
                first = host not in self._states
                self._states[host] = state
                if state != "waiting" and not (first and state == "done"):
                    say(f"{host}: {line(now)}")
        if update.live.running and time.monotonic() - self._at > 10:
            self._at = time.monotonic()
            going = [f"{h}: {line(v)}" for h, v in hosts.items() if v.get("state") == "running" and v.get("phase")]
            if going:
                say("; ".join(going[:4]) + (f"; {len(going) - 4} more" if len(going) > 4 else ""))


def line(now: dict[str, Any]) -> str:
    """What a host does now, in a few words."""
    state = str(now.get("state", ""))
    if state == "done":
        words = [str(now.get("says", "")).replace("_", " "), str(now.get("mechanism", ""))]
        if isinstance(now.get("ratio"), int | float):
            words.append(f"failing/comparator {now['ratio']:.2f}×")
        return "  ".join(w for w in words if w)
    if state == "running" and now.get("phase"):
        spent = f" [{now.get('spent_s', 0):.0f}/{now['budget_s']:.0f} s]" if now.get("budget_s") else ""
        return f"{now['phase']}{spent}"
    if now.get("why"):
        return f"{state}: {now['why']}"
    return {"submitted": "its cores are asked for", "running": "started"}.get(state, state)


def _kind(matrix: bool) -> Any:
    """What runs over the fleet."""
    if matrix:
        from sparsetui.fleet.matrix import FleetMatrix

        return FleetMatrix
    from sparsetui.fleet.investigation import FleetInvestigation

    return FleetInvestigation


def _runner(
    spec: Any, sessions: Path | None, session: str | None, budget: float, book: Any, matrix: bool, options: dict[str, Any]
) -> Any:  # fmt: skip
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store

    try:
        store = Store(sessions)
        return _kind(matrix)(
            spec, store, budget_s=budget, playbook=book, listener=Narrator(), session=session, **options
        )
    except SessionError as e:
        fail(e.message)


def _headless(runner: Any, spec: Any) -> tuple[Any, str, Path]:
    """Run it to its end: what it came to, the memo and where that lies."""
    from sparsetui.fleet.run import FleetError
    from sparsetui.report.memo import render
    from sparsetui.runner.api import Cancelled
    from sparsetui.session.errors import SessionError

    say(f"will run on the nodes: {', '.join(str(f) for f in spec.files()) or ', '.join(spec.modules())}")
    try:
        with headless.signals(runner):
            result = runner.run_all()
        text = render(runner.state())
        return result, text, runner.save_memo(text)
    except FleetError as e:
        fail(e)
    except Cancelled:
        said = f"interrupted; the session is saved: {runner.state().id}" if runner.state().id else "interrupted"
        say(said)
        raise typer.Exit(headless.INTERRUPTED) from None
    except SessionError as e:
        say(f"sparsetui: {e}")
        raise typer.Exit(headless.EXIT["cannot_answer"]) from None
    finally:
        runner.close()


def _investigate(runner: Any, spec: Any, json: str | None, memo: str | None) -> None:
    from sparsetui.report.jsonout import session_json

    result, text, path = _headless(runner, spec)
    state = runner.state()
    headless.write(json, session_json(state))
    headless.write(memo, text.encode())
    show(state.sections[runner.section], quiet="-" in (json, memo))
    for u in result.cannot_answer:
        say(f"cannot answer: {u.question} ({u.why}); {u.settle}")
    say(f"session {state.id}; memo {path}")
    raise typer.Exit(headless.EXIT[result.verdict.status])


def _matrix(runner: Any, spec: Any, json: str | None, memo: str | None) -> None:
    from sparsetui.evidence.records import to_json

    body, text, path = _headless(runner, spec)
    id_ = runner.state().id
    headless.write(json, to_json({"schema": 1, "session": id_, **body}, indent=2))
    headless.write(memo, text.encode())
    show_matrix(body, quiet="-" in (json, memo))
    for row in body.get("rows", ()):
        if row["state"] != "done":
            say(f"{row['host']} {row['state']}: {row['says']}")
    for u in body.get("unmeasured", ()):
        say(f"not measured: {u['signature']} (lock {u['lock']}): {u['why']}")
    say(f"session {id_}; memo {path}")
    raise typer.Exit(0 if body.get("tables") and runner.parts else headless.EXIT["cannot_answer"])


def _attach(
    text: str, address: str | None, seconds: float, sessions: Path | None, session: str | None, json: str | None
) -> None:
    """Watch processes of several hosts, say who waits for whom. Exit: 0 compared, 2 bad input, 3 fewer than two were seen."""
    from sparsetui.evidence.records import to_json
    from sparsetui.fleet.attaching import FleetWatch, parse
    from sparsetui.fleet.run import FleetError
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store

    try:
        store, targets = Store(sessions), parse(text)
        _find_session(session, sessions)
        watch = FleetWatch(store, targets, address=_needed(address), seconds=seconds, session=session, say=say)
        with headless.signals(watch):
            kept, body = watch.run()
    except ValueError as e:
        fail(f"--attach {text[:120]}: {e}")
    except FleetError as e:
        fail(e)
    except SessionError as e:
        fail(e.message)
    headless.write(json, to_json({"schema": 1, "session": kept, **body}, indent=2))
    print(clean(body["summary"]), file=sys.stderr if json == "-" else sys.stdout)
    say(f"session {kept}")
    raise typer.Exit(0 if "rows" in body else headless.EXIT["cannot_answer"])


def _open_app(
    spec: Any, sessions: Path | None, session: str | None, budget: float, book: Any, matrix: bool, options: dict[str, Any]
) -> None:  # fmt: skip
    """The app on its screen of hosts; its runner is made when the person starts the run."""
    from sparsetui.cli.investigate import open_app

    def factory(workload: Any, store: Any, **given: Any) -> Any:
        return _kind(matrix)(workload, store, **given, **options)

    open_app(
        store=sessions,
        session=session,
        workload=spec,
        playbook=book,
        budget=budget,
        runner_factory=factory,
        screen="fleet",
    )


def show(body: dict[str, Any], quiet: bool) -> None:
    """The verdict and a row a host: on stdout, or on stderr where stdout carries data."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sparsetui.report.numbers import as_number, brief, figure

    stream = sys.stderr if quiet else sys.stdout
    console = Console(highlight=False, file=stream, width=None if stream.isatty() else 140)
    console.print(Text(clean(body["summary"])))
    table = Table(box=None, pad_edge=False)
    for heading in ("host", "answer", "failing / comparator", "failing ms", "comparator ms", "lock", ""):
        table.add_column(heading, overflow="fold")
    for row in body.get("rows", ()):
        answer = row["says"].replace("_", " ") if row["state"] == "done" else f"{row['state']}: {row['says']}"
        ratio = as_number(row["ratio"])
        cells = [row["host"], f"{answer} {row['mechanism']}".strip(),
                 figure(ratio, unit="×", count=False, mark=False) if ratio.value is not None else "–",
                 brief(as_number(row["failing_ms"]).value), brief(as_number(row["comparator_ms"]).value), row["lock"],
                 "apart" if row["apart"] else ""]  # fmt: skip
        table.add_row(*(Text(clean(c, 200)) for c in cells))
    console.print(table)
    for name in ("between_hosts", "within_a_host"):
        n = as_number(body.get(name))
        if n.value is not None:
            console.print(Text(f"{name.replace('_', ' ')}: {figure(n, percent=True, count=False)} of the ratio"))


def show_matrix(body: dict[str, Any], quiet: bool) -> None:
    """What the matrix says, and for each lock its signatures and its whole steps. All of it is in the memo."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sparsetui.report.numbers import as_number, brief, figure

    stream = sys.stderr if quiet else sys.stdout
    console = Console(highlight=False, file=stream, width=None if stream.isatty() else 140)
    console.print(Text(clean(body["summary"])))

    def cell(value: Any) -> Text:
        if not isinstance(value, dict):
            return Text(clean("–" if value is None else brief(value) if isinstance(value, float) else value, 200))
        n = as_number(value)
        return Text("–" if n.value is None else clean(figure(n, count=False, mark=False), 80))

    for lock, found in body.get("tables", {}).items():
        console.print(Text(clean(f"\n{lock}: {found['summary']}", 400)))
        for name in ("signatures", "whole_steps"):
            rows = found.get(name, ())
            if rows:
                table = Table(box=None, pad_edge=False)
                for heading in rows[0]:
                    table.add_column(heading.replace("_", " "), overflow="fold")
                for row in rows:
                    table.add_row(*(cell(row.get(k)) for k in rows[0]))
                console.print(table)
