"""Run the command in a fork of this process: the whole of ``main``, without paying a second of imports each time."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sparsetui.cli.app
import sparsetui.cli.entry
import sparsetui.ingest.attach
import sparsetui.ingest.matrices
import sparsetui.ingest.sniff
import sparsetui.ingest.stacks
import sparsetui.ingest.traces
import sparsetui.playbook.library
import sparsetui.report.html
import sparsetui.report.memo
import sparsetui.runner.investigation
import sparsetui.session.store
import sparsetui.workload.spec
from sparsetui.__main__ import main

NOBODY = 65534
"".encode("utf-8-sig")  # another user may not be able to read the interpreter's own modules

sparsetui.cli.entry.run(["sessions", "list", "--sessions", os.devnull])  # the command line library's own late imports


@dataclass(frozen=True)
class Done:
    code: int  # negative: ended by that signal
    out: bytes
    err: bytes
    hung: bool
    left: bool  # whether a process of its group lived on

    @property
    def stdout(self) -> str:
        return self.out.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.err.decode("utf-8", "replace")


def command(
    argv: Sequence[str],
    *,
    cwd: Path,
    stdin: str = "null",
    stdout: int | None = None,
    uid: int | None = None,
    timeout: float = 20.0,
    env: dict[str, str] | None = None,
) -> Done:
    """``sparsetui ARGV…`` to its end. ``stdin``: ``null`` or ``closed``; ``stdout``: a descriptor to use instead of a file."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = _child(
                    argv, cwd, stdin, out.fileno() if stdout is None else stdout, err.fileno(), uid, env or {}
                )
            finally:
                os._exit(code)
        hung = not _wait(pid, timeout)
        if hung:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        left = _group_lives(pid)
        out.seek(0)
        err.seek(0)
        return Done(os.waitstatus_to_exitcode(status), out.read(), err.read(), hung, left)


def _wait(pid: int, timeout: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], timeout)[0])
    finally:
        os.close(fd)


def _group_lives(pid: int) -> bool:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    time.sleep(0)
    return True


def _child(argv: Sequence[str], cwd: Path, stdin: str, out: int, err: int, uid: int | None, env: dict[str, str]) -> int:
    os.setsid()
    os.chdir(cwd)
    os.environ.update(env)
    os.dup2(out, 1)
    os.dup2(err, 2)
    if stdin == "closed":
        os.close(0)
    else:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False) if stdin != "closed" else None  # type: ignore[assignment]  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8", errors="backslashreplace"
    )
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    sys.argv = ["sparsetui", *argv]
    code = 0
    try:
        main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return 120  # as the interpreter ends when its own flush fails
    return code
