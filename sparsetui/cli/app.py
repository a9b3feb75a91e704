"""The command line: which command is where. Commands live one to a file beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsetui.cli import investigate, sessions
from sparsetui.cli.attach import attach
from sparsetui.cli.close import close
from sparsetui.cli.common import tui_options
from sparsetui.cli.doctor import doctor
from sparsetui.cli.drill import drill
from sparsetui.cli.fleet import fleet
from sparsetui.cli.import_ import import_
from sparsetui.cli.matrix import matrix
from sparsetui.cli.memo import memo
from sparsetui.cli.playbooks import app as playbooks

app = typer.Typer(
    name="sparsetui",
    help="Find the first failing mechanism after a model was pruned, prove it live, and close with a way back.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    add_completion=False,  # it edits the shell's start-up files, and this runs on hosts that are not ours
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("investigate")(investigate.investigate)
app.command("drill")(drill)
app.command("attach")(attach)
app.command("import")(import_)
app.command("matrix")(matrix)
app.command("fleet")(fleet)
app.command("close")(close)
app.add_typer(sessions.app, name="sessions")
app.command("memo")(memo)
app.add_typer(playbooks, name="playbooks")
app.command("doctor")(doctor)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    sessions_dir: Annotated[
        Path | None, typer.Option("--sessions", metavar="DIR", help="where sessions are kept")
    ] = None,
    readonly: Annotated[bool, typer.Option("--readonly", help="look, run nothing and write nothing")] = False,
    mouse: Annotated[bool, typer.Option("--mouse", help="let the app take the mouse")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="no colours (as NO_COLOR does)")] = False,
    no_unicode: Annotated[bool, typer.Option("--no-unicode", help="ASCII only")] = False,
    version: Annotated[bool, typer.Option("--version", "-V", help="print the version")] = False,
) -> None:
    """Without a command: the app, with saved sessions, drills and playbooks."""
    tui_options.update(mouse=mouse, color=not no_color, unicode=not no_unicode)
    if version:
        from sparsetui import __version__

        print(f"sparsetui {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        investigate.open_app(store=sessions_dir, readonly=readonly)
