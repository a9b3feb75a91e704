"""``sparsetui playbooks list|show|check|follow``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsetui.cli.common import clean, fail, say
from sparsetui.cli.investigate import SessionsOption

app = typer.Typer(help="Playbooks: list, show, check, follow.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """All playbooks that are found: id, question, title, and where from. A broken file is told on stderr."""
    from sparsetui.playbook.library import entries

    found = entries()
    books = [(e.playbook, e.origin) for e in found if e.playbook is not None]
    width = max((len(b.id) for b, _ in books), default=0)
    asked = max((len(b.question) for b, _ in books), default=0)
    for book, origin in books:
        print(f"{clean(book.id):<{width}}  {book.question:<{asked}}  {clean(book.title)}  ({clean(origin)})")
    for entry in found:
        if entry.error:
            say(entry.error)


@app.command()
def show(name: Annotated[str, typer.Argument(help="an id, or a path to a YAML file")]) -> None:
    """One playbook, step by step, in words."""
    from sparsetui.playbook.library import find
    from sparsetui.playbook.outline import outline
    from sparsetui.playbook.spec import PlaybookError

    try:
        book = find(name)
    except PlaybookError as e:
        fail(e)
    for line in outline(book):
        print(clean(line))


@app.command()
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="files or folders; without any, all that are found")
    ] = None,
) -> None:
    """Check playbooks; one line for each mistake: file:line: what. Exit 0 if all are right, 2 if not."""
    from sparsetui.playbook.check import check_file
    from sparsetui.playbook.library import entries, expand
    from sparsetui.playbook.spec import PlaybookError

    try:
        paths = expand(files) if files else [e.path for e in entries()]
    except PlaybookError as e:
        fail(e)
    problems = [p for path in paths for p in check_file(path)]
    for problem in problems:
        print(problem)
    if problems:
        raise typer.Exit(2)
    say(f"{len(paths)} playbooks are right")


@app.command()
def follow(
    name: Annotated[str, typer.Argument(help="an id, or a path to a YAML file")],
    session: Annotated[str, typer.Argument(help="a session's id, or its folder")],
    sessions: SessionsOption = None,
) -> None:
    """Walk a playbook over what a saved session holds, and keep the way it took there. Runs nothing.

    Exit, by the end it comes to: 0 no fault, 1 a mechanism, 2 bad input, 3 it cannot answer.
    """
    from sparsetui.playbook.library import find
    from sparsetui.playbook.spec import PlaybookError
    from sparsetui.release import closing
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store

    try:
        book = find(name)
        with Store(sessions).writer(session) as writer:
            trail = closing.follow(writer, book)
    except (PlaybookError, SessionError) as e:
        fail(e)
    for visit in trail.trail:
        print(clean(f"{visit.step}: {visit.ask}"))
        print(clean(f"    {visit.found} -> {visit.next}  [{visit.owner}]"))
    end = trail.end
    print(clean(f"{end.mechanism or end.kind}: {end.say}  [{end.owner}]"))
    if end.settle:
        print(clean(f"settle it with: {end.settle}"))
    raise typer.Exit({"no_fault": 0, "mechanism": 1}.get(end.kind, 3))
