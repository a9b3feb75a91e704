"""``sparsetui import FILE…``: evidence that exists already, read into a session and shown as tables."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetui.cli.common import check_store, fail, say
from sparsetui.evidence.records import Number, TimeTable, Unanswered, to_json

# Which stage of the flow a kind of evidence speaks to.
STAGE = {"trace": "kernel", "stacks": "kernel", "checkpoint": "ingress", "matrix": "ingress"}
_PIECE = 1 << 20  # bytes hashed at a time


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="traces, stacks, checkpoints, matrices")],
    against: Annotated[
        list[Path] | None, typer.Option("--against", metavar="FILE", help="the comparator's files; may be repeated")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="of matrices also the time of a product in each format (seconds each)")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on stdout")] = False,
    session: Annotated[str | None, typer.Option("--session", metavar="ID", help="add to this session")] = None,
    sessions: Annotated[Path | None, typer.Option("--sessions", metavar="DIR", help="the folder of sessions")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="no narration on stderr")] = False,
) -> None:
    """Evidence from outside: profiler traces, stacks, checkpoints, matrices."""
    from sparsetui.ingest.errors import IngestError
    from sparsetui.session.errors import SessionError

    check_store(sessions)
    try:
        read = Reader(quiet, measure)
        failing = [read(f) for f in files]
        comparator = [read(f) for f in against or []]
        if measure and not any(p["kind"] == "matrix" for p in (*failing, *comparator)):
            raise IngestError("--measure: none of the files is a matrix; .smtx, .mtx and .npz are accepted")
        result = conclude(failing, comparator)
        kept = _record(result, failing, comparator, session, sessions, read.commands)
    except IngestError as e:
        fail(e)
    except SessionError as e:
        fail(e.message)
    except KeyboardInterrupt:
        say("sparsetui: interrupted")
        raise typer.Exit(130) from None
    result["session"] = kept
    if json:
        sys.stdout.write(to_json(result, indent=2).decode() + "\n")
    else:
        from sparsetui.ingest.traces.text import lines

        sys.stdout.write("\n".join(lines(result)) + "\n")
    if not quiet:
        say(f"session {kept}")
    if not answered(failing):
        raise typer.Exit(3)


def conclude(failing: Sequence[dict[str, Any]], comparator: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole result of one import: each file, the spread over ranks, and the comparison. Layout as ``--json``."""
    from sparsetui.ingest.comparing import compare
    from sparsetui.ingest.traces import spread

    traces = [p for p in failing if p["kind"] == "trace"]
    result: dict[str, Any] = {
        "schema": 1,
        "files": list(failing),
        "paths": (),
        "samplers": (),
        "unavailable": (),
        "cannot_answer": questions([*failing, *comparator]),
    }
    table = next((p["time_table"] for p in failing if isinstance(p.get("time_table"), TimeTable)), None)
    if table is not None:
        result |= {"paths": table.paths, "samplers": table.samplers, "unavailable": table.unavailable}
    result["ranks"] = spread(traces)
    if result["ranks"]:
        if wrong := result["ranks"]["doubts"]:
            result["cannot_answer"].append(
                Unanswered("Which rank is behind?", "; ".join(wrong), "the traces of all ranks of one run, each once")
            )
        else:
            from sparsetui.diagnosis import ranks

            result["rank_verdict"] = ranks.judge(ranks.of_traces(result["ranks"]))
    if comparator:
        result["against"] = list(comparator)
        result["comparison"] = compare(failing, comparator)
    return result


def questions(payloads: Sequence[dict[str, Any]]) -> list[Unanswered]:
    """What no file could answer, each question once."""
    found: dict[str, Unanswered] = {}
    for p in payloads:
        for u in p.get("cannot_answer") or ():
            if isinstance(u, Unanswered):
                found.setdefault(u.question, u)
    return list(found.values())


def answered(payloads: Sequence[dict[str, Any]]) -> bool:
    """Whether any file held anything that took time, or any tensor."""
    for p in payloads:
        table = p.get("time_table")
        if not isinstance(table, TimeTable) or table.paths:
            return True
    return False


class Reader:
    """Reads files by their kind, and remembers the processes that it started for it."""

    def __init__(self, quiet: bool = True, measure: bool = False) -> None:
        self.quiet, self.measure = quiet, measure
        self.commands: list[dict[str, Any]] = []

    def __call__(self, path: Path) -> dict[str, Any]:
        """One file, with the sha256 of its bytes. Raises :class:`sparsetui.ingest.errors.IngestError`."""
        from sparsetui.evidence.kernels import CatalogueError
        from sparsetui.ingest.errors import IngestError
        from sparsetui.ingest.sniff import sniff

        kind = sniff(path)
        digest = _Digest(path)
        progress = None if self.quiet else Narrator(path)
        try:
            payload = self._read(kind, path, progress)
        except CatalogueError as e:
            raise IngestError(str(e)) from None
        except MemoryError:
            raise IngestError(f"{path}: does not fit into memory") from None
        except OSError as e:
            raise IngestError(f"{path}: cannot be read ({e.strerror or e})") from None
        else:
            digest.join()
        finally:
            digest.stop()  # of a file that was refused, or given up by Ctrl-C, nobody asks for it any more
            if progress is not None:
                progress.done()
        payload["sha256"], payload["bytes"] = digest.value, digest.size
        return payload

    def _read(self, kind: str, path: Path, progress: Narrator | None) -> dict[str, Any]:
        if kind == "trace":
            from sparsetui.ingest import traces

            return traces.inspect(path, progress=progress)
        if kind == "stacks":
            from sparsetui.ingest import stacks

            return stacks.inspect(path, progress=progress)
        if kind == "checkpoint":
            from sparsetui.ingest import checkpoints

            return checkpoints.inspect(path, progress=progress, on_command=self._started)
        from sparsetui.ingest import matrices

        return matrices.inspect(path, self.measure, on_command=self._started)

    def _started(self, argv: list[str], why: str, pid: int | None) -> None:
        self.commands.append({"argv": argv, "why": why, "pid": pid})


class _Digest(threading.Thread):
    """The sha256 of a file, computed beside the reading of it (hashlib lets other threads run)."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.value, self.size = path, "", 0
        self._stopped = False
        self.start()

    def stop(self) -> None:
        """Come to an end now; without effect where it has."""
        self._stopped = True
        self.join()

    def run(self) -> None:
        try:
            with self.path.open("rb") as file:
                digest = hashlib.sha256()
                while not self._stopped and (data := file.read(_PIECE)):
                    digest.update(data)
                self.value = digest.hexdigest()
                self.size = os.fstat(file.fileno()).st_size
        except OSError:
            self.value = ""


class Narrator:
    """Progress on stderr for a file that takes long: at most a line a second, one line rewritten on a terminal."""

    def __init__(self, path: Path) -> None:
        self.path, self._shown, self._next = path, False, time.monotonic() + 1.0
        self._terminal = sys.stderr.isatty()

    def __call__(self, done: float, eta_s: float) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.3 if self._terminal else 2.0)
        self._shown = True
        if self._terminal:
            sys.stderr.write(f"\rreading {done:4.0%}, about {max(1, round(eta_s))} s left ")
            sys.stderr.flush()
        else:
            say(f"reading {self.path}: {done:.0%}, about {max(1, round(eta_s))} s left")

    def done(self) -> None:
        if self._shown and self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _record(
    result: dict[str, Any],
    failing: Sequence[dict[str, Any]],
    comparator: Sequence[dict[str, Any]],
    session: str | None,
    sessions: Path | None,
    commands: Sequence[dict[str, Any]],
) -> str:
    """Write it all to a session, a new one unless named; returns its id."""
    from sparsetui.session.store import Store

    store = Store(sessions)
    name = Path(str(failing[0]["file"])).name.split(".")[0] or "import"
    writer = (
        store.writer(session)
        if session is not None
        else store.create(name, f"import of {Path(str(failing[0]['file'])).name}")
    )
    with writer:
        for command in commands:
            writer.append("command", command)
        known: list[str] = []
        for variant, payloads in (("failing", failing), ("comparator", comparator)):
            for p in payloads:
                evidence = writer.evidence(
                    STAGE.get(p["kind"], "kernel"),
                    p["kind"],
                    p,
                    summary=summary(p),
                    variant=variant if comparator else None,
                    figures=figures(p),
                    source={"file": str(Path(str(p["file"])).resolve()), "sha256": p["sha256"], "bytes": p["bytes"]},
                )
                known.append(evidence.id)
        if result["paths"]:
            writer.append(
                "native", TimeTable(tuple(result["paths"]), tuple(result["samplers"]), tuple(result["unavailable"]))
            )
        if "comparison" in result:
            from sparsetui.ingest.comparing import summary as compared

            c = result["comparison"]
            writer.evidence(
                "execution" if c["kind"] == "trace" else STAGE[c["kind"]],
                f"{c['kind']} comparison",
                c,
                summary=compared(c),
                quality="derived",
            )
            if "budget" in c:
                writer.append("budget", c["budget"])
        for question in result["cannot_answer"]:
            writer.append("unanswered", question)
        section = {
            "files": [
                {"file": p["file"], "kind": p["kind"], "sha256": p["sha256"], "summary": summary(p)} for p in failing
            ],
            "against": [
                {"file": p["file"], "kind": p["kind"], "sha256": p["sha256"], "summary": summary(p)} for p in comparator
            ],
            "ranks": result["ranks"],
            "evidence": known,
        }
        writer.append("section", {"name": "import", "body": section})
        if "rank_verdict" in result:
            from sparsetui.diagnosis import ranks

            body = ranks.section(ranks.of_traces(result["ranks"]), result["rank_verdict"])
            writer.append("section", {"name": "ranks", "body": body})
        return writer.id


def summary(p: dict[str, Any]) -> str:
    """One line on one file's evidence."""
    if p.get("summary"):
        return str(p["summary"])
    table = p.get("time_table")
    top = ""
    if isinstance(table, TimeTable) and table.paths:
        first = table.paths[0]
        top = f", {first.share.value or 0:.0%} {first.path}"
    if p["kind"] == "trace":
        rank = f", rank {p['rank']}" if p["rank"] is not None else ""
        return f"{p['events']} events{rank}{top}"
    if p["kind"] == "stacks":
        return f"{p['samples']} samples{top}"
    return str(p["kind"])


def figures(p: dict[str, Any]) -> dict[str, Number]:
    """The numbers of a payload that stand beside its evidence."""
    out = {k: v for k, v in (p.get("rates") or {}).items() if isinstance(v, Number)}
    out |= {k: v for k, v in (p.get("gaps") or {}).items() if isinstance(v, Number)}
    out |= {f"step_{k}": v for k, v in (p.get("steps") or {}).items() if isinstance(v, Number)}
    out |= {k: v for k, v in (p.get("figures") or {}).items() if isinstance(v, Number)}
    return out
