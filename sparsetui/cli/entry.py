"""The command as a process: every failure is one line on stderr and an exit code, whatever the command did or was given."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from sparsetui.cli.common import say

INTERRUPTED = 130
BROKEN_PIPE = 141  # as a shell shows a program that SIGPIPE ended
DEBUG = "SPARSETUI_DEBUG"
_NOT_TAKEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and return its exit code. Raises nothing."""
    complete_the_streams()
    try:
        code = _invoke(list(sys.argv[1:] if args is None else args))
        sys.stdout.flush()
        return code
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # the command line library ends so, with another code
            _give_up_stdout()
            return BROKEN_PIPE
        return _flushed(_code(e))
    except KeyboardInterrupt:
        say("sparsetui: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_stdout()
        return BROKEN_PIPE
    except BaseException as e:
        return _failed(e)


def _opens_the_app(args: list[str]) -> bool:
    """Nothing but where the sessions are, and they are there: the app needs no command line library for that."""
    return not args or (len(args) == 2 and args[0] == "--sessions" and os.path.isdir(args[1]))


def _invoke(args: list[str]) -> int:
    if _opens_the_app(args):
        from sparsetui.tui.app import run as open_app

        return open_app(store=args[1] if args else None)
    import typer
    from typer.main import get_command

    from sparsetui.cli.app import app

    try:
        code = get_command(app).main(args=args, prog_name="sparsetui", standalone_mode=False)
    except typer.Exit as e:
        code = e.exit_code
    except typer.Abort:
        say("sparsetui: interrupted")
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _failed(error: BaseException) -> int:
    """One line for what no command foresaw, and its exit code."""
    usage = getattr(error, "format_message", None)  # the command line library's errors, whichever package defines them
    if usage is not None:
        context: Any = getattr(error, "ctx", None)
        command = getattr(context, "command_path", "") or "sparsetui"
        say(f"sparsetui: {_one_line(usage())}; see: {command} --help")
        return int(getattr(error, "exit_code", 2))
    from sparsetui.session.errors import SessionError

    if isinstance(error, SessionError):
        say(f"sparsetui: {error.message}")
        return 2
    if isinstance(error, OSError) and error.filename is None and error.errno in _NOT_TAKEN:
        say(f"sparsetui: the output cannot be written: {error.strerror}")
        _give_up_stdout()
        return 2
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    say(
        f"sparsetui: a bug in sparsetui: {type(error).__name__}: {_one_line(str(error))} ({place}); {DEBUG}=1 shows more"
    )
    return 3


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")[:600]


def _code(exit_: SystemExit) -> int:
    if exit_.code is None or isinstance(exit_.code, int):
        return exit_.code or 0
    say(f"sparsetui: {_one_line(str(exit_.code))}")
    return 2


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _give_up_stdout()
        return BROKEN_PIPE
    return code


def _give_up_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's own flush at exit cannot complain."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def complete_the_streams() -> None:
    """Standard streams that were closed lead to /dev/null: else the next file or socket would take their numbers, and a
    worker would print into it. A character that the terminal's encoding lacks is shown by its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            got = os.open(os.devnull, os.O_RDWR)
            if got != number:
                os.dup2(got, number)
                os.close(got)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
