"""``sparsetui attach``: watch live processes from outside."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sparsetui.cli.common import check_store, check_target, clean, fail, say, tui_options
from sparsetui.tui.terminal import why_no_terminal

if TYPE_CHECKING:
    from sparsetui.ingest.attach import Choice, Life, Snapshot, Watch
    from sparsetui.ingest.samplers.base import OnCommand

CANNOT_ANSWER = 3
INTERRUPTED = 130
_LINES = 8  # of processes that came or ended, at a time


def attach(
    pids: Annotated[list[int], typer.Argument(metavar="PID…", help="Processes to watch.", min=1)],
    seconds: Annotated[
        float | None, typer.Option(help="How long; default: until Ctrl-C on a terminal, else 10.", min=0.5, max=86400)
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Print one table at the end; no app.")] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write the result as JSON.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Add what was seen to this session.")] = None,
    sessions: Annotated[Path | None, typer.Option(metavar="DIR", help="Where sessions are kept.")] = None,
    gentle: Annotated[bool, typer.Option("--gentle", help="Python frames only; never stops the process.")] = False,
    rate: Annotated[float, typer.Option(help="py-spy samples a second.", min=1, max=200)] = 10,
    sampler: Annotated[str, typer.Option(help="auto, py-spy or perf.")] = "auto",
    children: Annotated[
        bool, typer.Option("--children", help="Also watch what they start, new workers of a pool too.")
    ] = False,
) -> None:
    """Watch live Python processes from outside: where time goes, on which kernels, and who called them.

    Exit codes: 0 seen, 2 no such process or bad usage, 3 nothing could be seen, 130 interrupted.
    """
    from sparsetui.evidence.kernels import CatalogueError
    from sparsetui.ingest.attach import NoProcess, NothingToSee, Watch

    if sampler not in ("auto", "py-spy", "perf"):
        fail(f"--sampler {sampler}: accepted are auto, py-spy and perf")
    if gentle and sampler == "perf":
        fail("--gentle is py-spy's; perf never stops a process, so --sampler perf needs no --gentle")
    check_store(sessions)
    check_target("--json", json)
    _check_session(session, sessions)
    in_app = not headless and json is None and why_no_terminal() is None
    if seconds is None and not in_app:
        seconds = 10.0
    commands: list[dict[str, Any]] = []

    def on_command(argv: list[str], why: str, pid: int | None) -> None:
        commands.append({"argv": argv, "why": why, "pid": pid})

    def make(told: OnCommand) -> Watch:
        return Watch(
            pids,
            sampler=cast("Choice", sampler),
            rate_hz=rate,
            gentle=gentle,
            with_children=children,
            on_command=told,
            planned_s=seconds,
        )

    try:
        watch = make(on_command)
    except (NoProcess, CatalogueError) as e:
        fail(e)
    for target in watch.targets:
        say(f"watching {target.pid}: {clean(target.cmdline, 100)}")
    say(f"cost: {watch.cost().text}")
    stopped = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        stopped.set()
        watch.interrupt()

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        try:
            watch.start()
        except NothingToSee as e:
            for missing in e.missing:
                say(f"{missing.what}: {missing.why}")
            raise typer.Exit(CANNOT_ANSWER) from None
        if in_app:
            last, interrupted = _in_app(make, watch, seconds, sessions, commands)
        else:
            last, interrupted = _run(watch, seconds), stopped.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _deliver(last, json, session, sessions, commands)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not last.table.samplers or not last.table.paths:
        raise typer.Exit(CANNOT_ANSWER)


def _check_session(session: str | None, sessions: Path | None) -> None:
    """A session that is not there is told now, not once the watching is over."""
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store

    if session is not None:
        try:
            Store(sessions, readonly=True).find(session)
        except SessionError as e:
            fail(e.message)


def _in_app(
    make: Callable[[OnCommand], Watch],
    watch: Watch,
    seconds: float | None,
    sessions: Path | None,
    commands: list[dict[str, Any]],
) -> tuple[Snapshot, bool]:
    """Watch in the app until the person leaves it, or a signal ends it; returns the last snapshot, and whether it did."""
    from sparsetui.tui.app import run
    from sparsetui.tui.watching import Watching

    watching = Watching(make, seconds=seconds, first=watch, commands=commands)
    looks: dict[str, Any] = dict(tui_options)
    code = run(store=sessions, watching=watching, **looks)
    return watching.last or watch.snapshot(), code == INTERRUPTED


def _run(watch: Watch, seconds: float | None) -> Snapshot:
    """Watch to the end, with a line every few seconds; returns the last snapshot."""
    told = 0.0
    last = None
    known: dict[int, Life] = {life.pid: life for life in watch.snapshot().lives}
    for last in watch.snapshots(seconds):
        _come_and_go(last, known)
        if not last.done and last.elapsed_s - told >= (2.5 if not told else 5) and last.table.paths:
            told = last.elapsed_s
            top = "  ".join(f"{r.path} {_interval(r.share)}" for r in last.table.paths[:3])
            say(f"{last.elapsed_s:4.0f} s  {top}")
    assert last is not None
    return last


def _come_and_go(last: Snapshot, known: dict[int, Life]) -> None:
    """Say whose life began or ended since ``known``, a few at a time: a pool may replace its workers all day."""
    lines = []
    for life in last.lives:
        before = known.get(life.pid)
        if before is None or before.came_s != life.came_s:
            lines.append(f"watching {life.pid} too: {clean(life.cmdline, 100)}")
        if life.ended_s is not None and (before is None or before.ended_s is None):
            lines.append(ended_line(life))
        known[life.pid] = life
    for line in lines[:_LINES]:
        say(line)
    if len(lines) > _LINES:
        say(f"… and {len(lines) - _LINES} more came or ended")


def ended_line(life: Life) -> str:
    """``4711 ended after 3.2 s: python worker.py``, the seconds counted from when it was first seen."""
    return f"{life.pid} ended after {(life.ended_s or 0.0) - life.came_s:.1f} s: {clean(life.cmdline, 80)}"


def _deliver(
    last: Snapshot, json: str | None, session: str | None, sessions: Path | None, commands: list[dict[str, Any]]
) -> None:
    from sparsetui.evidence.records import to_json
    from sparsetui.ingest.keep import as_result

    result = as_result(last)
    if json == "-":
        sys.stdout.buffer.write(to_json(result, indent=2) + b"\n")
        sys.stdout.buffer.flush()
    else:
        sys.stdout.write("\n".join(render(last)) + "\n")
        sys.stdout.flush()
    if json not in (None, "-"):
        try:
            Path(str(json)).write_bytes(to_json(result, indent=2) + b"\n")
        except OSError as e:
            fail(f"{json}: cannot be written ({e.strerror})")
    if session is not None:
        _keep(last, session, sessions, commands)


def _keep(last: Snapshot, session: str, sessions: Path | None, commands: list[dict[str, Any]]) -> None:
    """Add the watch to a session."""
    from sparsetui.ingest.keep import keep
    from sparsetui.session.errors import SessionError
    from sparsetui.session.store import Store

    try:
        kept, id = keep(Store(sessions), session, last, commands)
    except SessionError as e:
        fail(e)
    say(f"kept as {kept.id} in session {id}")


def _interval(number: Any) -> str:
    if number.value is None:
        return "–"
    ends = f" [{number.ci[0]:.0%}, {number.ci[1]:.0%}]" if number.ci else ""
    return f"{number.value:.0%}{ends}"


def render(last: Snapshot) -> list[str]:
    """The table as plain lines of at most 120 columns; text of the target is made harmless."""
    lines = [f"{'path':<15}{'share':>6}  {'95 % interval':<15}{'n':>6} {'thr':>4}  what ran  ← who called"]
    for row in last.table.paths:
        value = "–" if row.share.value is None else f"{row.share.value:.1%}"
        ci = f"{row.share.ci[0]:.1%}–{row.share.ci[1]:.1%}" if row.share.ci else ""
        ran = clean(row.symbols[0], 44) if row.symbols else ""
        caller = f"  ← {clean(row.callers[0], 26)}" if row.callers else ""
        lines.append(f"{row.path:<15}{value:>6}  {ci:<15}{row.share.n or 0:>6} {row.threads or '':>4}  {ran}{caller}")
    if not last.table.paths:
        lines.append("(nothing ran while we watched)")
    lines.append("")
    lines.append(f"dense share of products  {_interval(last.dense_share)}")
    lines.append(f"conversion and sort      {_interval(last.conversion_share)}")
    for s in last.table.samplers:
        pause = "" if s.pause_share is None else f", stopped the process {s.pause_share:.1%} of the time"
        lines.append(f"{s.name}: {s.samples} samples at {s.rate_hz:g}/s{pause}")
    for name, number in last.callers[:5]:
        lines.append(f"called from {clean(name, 60)}  {_interval(number)}")
    for t in last.threads[:12]:
        on = ", ".join(f"{p} {v:.0%}" for p, v in t.paths[:3])
        lines.append(f"thread {t.tid} {clean(t.name, 16):<16} ran {_interval(t.busy)}  {on}")
    if len(last.threads) > 12:
        lines.append(f"… and {len(last.threads) - 12} threads more")
    over = [life for life in last.lives if life.ended_s is not None]
    lines += [ended_line(life) for life in over[-_LINES:]]
    if len(over) > _LINES:
        lines.append(f"… and {len(over) - _LINES} that ended before them")
    lines += [f"not seen: {m.what}: {clean(m.why)}" for m in last.table.unavailable]
    return lines
