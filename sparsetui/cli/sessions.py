"""``sparsetui sessions``: list, show, open, move, check and delete saved sessions."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli.common import check_target, clean, fail, say, tui_options
from sparsetui.evidence.records import Number, to_json
from sparsetui.session.closure import gates
from sparsetui.session.errors import SessionError
from sparsetui.session.reader import Reader
from sparsetui.session.state import SessionState
from sparsetui.session.store import SessionSummary, Store

app = typer.Typer(help="Saved sessions; a SESSION is an id, a unique part of one, or a folder.")

SessionArg = Annotated[str, typer.Argument(metavar="SESSION", help="id, unique part of it, or a folder")]
RootOption = Annotated[
    Path | None,
    typer.Option("--sessions", metavar="DIR", help="where sessions are kept (default: ./sessions, else user data)"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout")]


@contextmanager
def _one_line() -> Iterator[None]:
    """Errors of the session room become one line and exit code 2."""
    try:
        yield
    except SessionError as e:
        fail(e.message)


def _write_json(obj: Any) -> None:
    sys.stdout.write(to_json(obj, indent=2).decode() + "\n")


@app.command("list")
def list_(
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="words that workload, mechanism, owner or date hold")
    ] = "",
    sessions: RootOption = None,
    json: JsonOption = False,
) -> None:
    """All sessions, newest first."""
    with _one_line():
        store = Store(sessions, readonly=True)
        found = store.list(text)
    if json:
        _write_json(found)
        return
    if not found:
        asked = f" with '{clean(text, 80)}'" if text else ""
        say(f"no session{asked} in {store.root}")
        return
    for line in _table([("session", "updated", "events", "verdict", "mechanism", "owner", "note"), *map(_row, found)]):
        print(line)


def _row(s: SessionSummary) -> tuple[str, ...]:
    note = s.damage or (f"written by {s.writing}" if s.writing else "") or (f"closed by {s.closed}" if s.closed else "")
    note = note or ("interrupted" if s.interrupted else "")
    return (
        s.id,
        s.updated[:16].replace("T", " "),
        str(s.events),
        s.status or "-",
        s.mechanism or "-",
        s.owner or "-",
        note,
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    cells = [[*(clean(c, 60) for c in row[:-1]), clean(row[-1], 200)] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


@app.command()
def show(session: SessionArg, sessions: RootOption = None, json: JsonOption = False) -> None:
    """What a session found, as text or as JSON."""
    with _one_line():
        reader = Store(sessions, readonly=True).open(session)
        state = reader.state()
    for note in reader.damage:
        say(f"{reader.id}: {note}")
    if json:
        _write_json({**_fields(state), "gates": gates(state), "damage": reader.damage})
        return
    for line in _described(reader, state):
        print(line)


def _fields(state: SessionState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}


def _described(reader: Reader, state: SessionState) -> Iterator[str]:
    yield f"{clean(reader.id)}  {clean(state.title)}"
    yield f"  workload {clean(state.workload) or '-'}, host {clean(state.host)}, {clean(state.tool)}"
    yield f"  created {clean(state.created)}, updated {clean(state.updated)}, {state.events} events"
    if reader.writing:
        yield f"  being written by {clean(reader.writing)}"
    if state.interrupted is not None:
        yield f"  interrupted: {clean(state.interrupted) or 'no reason was given'}"
    verdict = state.result.verdict if state.result else None
    if verdict is None:
        yield "verdict: none yet"
    else:
        yield f"verdict: {verdict.status}  {clean(verdict.mechanism or '')}  {verdict.confidence or ''}".rstrip()
        yield f"  {clean(verdict.summary)}"
        if verdict.share_of_regression is not None:
            yield f"  share of the regression: {_figure(verdict.share_of_regression)}"
        if verdict.owner:
            yield f"  owner: {clean(state.owners.get(verdict.owner, ''))} ({clean(verdict.owner)})"
    for title, found in (("findings", state.material), ("ruled out", state.ruled_out)):
        if found:
            yield f"{title}:"
            for f in found:
                yield f"  {clean(f.mechanism)}  {f.confidence}  {clean(f.reason or f.summary, 100)}"
    if state.evidence:
        yield "evidence:"
        yield from (f"  {line}" for line in _table([_evidence(e) for e in state.evidence]))
    if state.faults:
        yield "faults:"
        yield from (f"  {clean(f.get('what', ''), 60)}: {clean(f.get('why', ''), 100)}" for f in state.faults)
    yield "gates:"
    yield from (f"  {line}" for line in _table([(g.state, g.gate, g.why) for g in gates(state)]))


def _evidence(e: Any) -> tuple[str, ...]:
    return e.id, e.stage, e.probe, e.quality, (e.sha256 or "-")[:12], e.summary


def _figure(n: Number) -> str:
    if n.value is None:
        return f"unavailable: {clean(n.reason or '')}"
    return (
        f"{n.value:.3g}"
        + (f" [{n.ci[0]:.3g}, {n.ci[1]:.3g}]" if n.ci else "")
        + (f" {clean(n.unit)}" if n.unit else "")
    )


@app.command("open")
def open_(
    session: SessionArg,
    sessions: RootOption = None,
    readonly: Annotated[bool, typer.Option("--readonly", help="look only; another may go on writing")] = False,
) -> None:
    """Open a session in the app."""
    with _one_line():
        store = Store(sessions, readonly=readonly)
        path = store.find(session)
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        fail(f"the app needs a terminal; without one use: sparsetui sessions show {path}")
    from sparsetui.tui.app import run  # the app is heavy, and no other command here needs it

    with _one_line():
        looks: dict[str, Any] = dict(tui_options)
        code = run(store=store, session=str(path), readonly=readonly, **looks)
    raise typer.Exit(int(code or 0))


@app.command()
def export(
    session: SessionArg,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="default: ID.tar.gz here")
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="without hosts, users and paths, as ID-redacted")] = False,
    sessions: RootOption = None,
) -> None:
    """Pack a session into one file; prints its path."""
    check_target("-o", output)
    with _one_line(), contextlib.ExitStack() as held:
        store = Store(sessions, readonly=True)
        path = store.find(session)
        report = store.verify(path)
        if redact:
            from sparsetui.report.share import share

            try:
                work = held.enter_context(tempfile.TemporaryDirectory())
            except OSError as e:
                fail(f"no place to redact a copy in: {clean(e.strerror or e)}; TMPDIR names a folder that may be written to")
            path = share(path, Path(work), f"{path.name[:80]}-redacted")
        dest = store.export(path, output or Path(f"{path.name}.tar.gz"))
    if not report.ok:
        say(f"{path.name} is damaged, and an import will refuse it; see: sparsetui sessions verify {path}")
    print(clean(dest))


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what `sessions export` wrote")],
    sessions: RootOption = None,
) -> None:
    """Take a session from a file, after checking all of it; prints its folder."""
    with _one_line():
        print(clean(Store(sessions).import_(file)))


@app.command()
def verify(session: SessionArg, sessions: RootOption = None, json: JsonOption = False) -> None:
    """Check every byte of a session. Exit code 0 when it is whole, 1 when it is damaged."""
    with _one_line():
        report = Store(sessions, readonly=True).verify(session)
    if json:
        _write_json(report)
    else:
        for line in report.lines():
            print(clean(line).rstrip() if not line.startswith("  ") else "  " + clean(line.strip()))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def delete(
    session: SessionArg,
    sessions: RootOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Remove a session for good."""
    with _one_line():
        store = Store(sessions)
        path = store.find(session)
        if not yes:
            if not sys.stdin.isatty():
                fail("without a terminal, deleting needs --yes")
            if not typer.confirm(f"Delete {clean(path)} for good?", err=True):
                say("nothing was deleted")
                return
        print(clean(store.delete(path)))
