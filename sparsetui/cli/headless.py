"""The face without a screen: narration on stderr, results on stdout or in files, the verdict as the exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import typer

from sparsetui.cli.common import fail, say
from sparsetui.evidence.records import Result
from sparsetui.runner.api import Cancelled, Runner, Update

EXIT = {"no_fault": 0, "fault": 1, "cannot_answer": 3}
INTERRUPTED = 130


class Narrator:
    """Says each phase once, and how far a long one is, at most every few seconds."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._phase, self._at = quiet, "", 0.0

    def __call__(self, update: Update) -> None:
        live = update.live
        if self._quiet or not live.running:
            return
        now = time.monotonic()
        if live.phase != self._phase:
            self._phase, self._at = live.phase, now
            say(f"[{live.spent_s:5.1f}/{live.budget_s:g} s] {live.stage:<10} {live.phase}: {live.message}")
        elif now - self._at > 5 and live.ratio is not None and live.ratio.value is not None:
            self._at = now
            say(
                f"[{live.spent_s:5.1f}/{live.budget_s:g} s] {live.phase}: failing/comparator {live.ratio.value:.3f} so far"
            )


class Stoppable(Protocol):
    def cancel(self) -> None: ...


@contextmanager
def signals(runner: Stoppable) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP stop the run; what was measured is already on disk."""

    def stop(number: int, frame: Any) -> None:
        runner.cancel()

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def run(runner: Runner, *, json_to: str | None, memo_to: str | None) -> tuple[Result, Path]:
    """The whole investigation; writes the memo into the session, and JSON and memo where asked. Exits 130 on a signal."""
    from sparsetui.report.jsonout import result_json
    from sparsetui.report.memo import render
    from sparsetui.session.errors import SessionError

    with signals(runner):
        try:
            result = runner.run_all()
        except Cancelled:
            say(f"interrupted; the session is saved: {runner.state().id}")
            raise typer.Exit(INTERRUPTED) from None
        except SessionError as e:  # a full disk, say: what was acknowledged is kept, and no answer can be
            say(f"sparsetui: {e}")
            raise typer.Exit(EXIT["cannot_answer"]) from None
        finally:
            try:
                memo = render(runner.state())
                path = runner.save_memo(memo)
            except SessionError as e:
                say(f"sparsetui: the memo is not saved: {e}")
                path = Path(os.devnull)
            finally:
                runner.close()
    write(json_to, result_json(result))
    write(memo_to, memo.encode())
    return result, path


def write(target: str | None, data: bytes) -> None:
    """``-`` is stdout; a file is written whole or not at all."""
    from sparsetui.session.errors import SessionError
    from sparsetui.session.files import write_whole

    if target is None:
        return
    if target == "-":
        sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")
        sys.stdout.buffer.flush()
        return
    try:
        write_whole(Path(target), data)
    except SessionError as e:
        fail(e)
