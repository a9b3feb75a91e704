"""What a watch saw, as JSON and as part of a session."""

from __future__ import annotations

import os
import platform
from typing import Any

from sparsetui.evidence.records import Evidence, Number
from sparsetui.ingest.attach import Snapshot
from sparsetui.session.store import Store


def as_result(last: Snapshot) -> dict[str, Any]:
    """The JSON of ``--json``: the time table of the contract at the top, and what else was seen beside it."""
    return {
        "paths": last.table.paths,
        "samplers": last.table.samplers,
        "unavailable": last.table.unavailable,
        "dense_share": last.dense_share,
        "conversion_share": last.conversion_share,
        "threads": last.threads,
        "callers": [{"caller": name, "share": number} for name, number in last.callers],
        "observer_effect": last.cost.measured,
        "seconds": last.elapsed_s,
        "targets": [{"pid": t.pid, "cmdline": t.cmdline, "uid": t.uid} for t in last.targets],
        "ended": last.ended,
        "lives": last.lives,
    }


def keep(store: Store, session: str, last: Snapshot, commands: list[dict[str, Any]]) -> tuple[Evidence, str]:
    """Add a watch to ``session`` (empty: to a new one): its commands, its table as the newest native one, its evidence.

    Returns the evidence and the session's id. Raises :class:`sparsetui.session.errors.SessionError`.
    """
    figures = {"dense share of products": last.dense_share, "conversion share": last.conversion_share}
    top = last.table.paths[0] if last.table.paths else None
    summary = f"{top.path} {share_text(top.share)} over {last.elapsed_s:.0f} s" if top else "nothing was seen"
    with store.writer(session) if session else store.create("attach", _title(last)) as writer:
        for command in commands:
            writer.append("command", command)
        writer.append("native", last.table)
        kept = writer.evidence(
            "kernel",
            "attach",
            as_result(last),
            summary=summary,
            seconds=last.elapsed_s,
            figures=figures,
            source=_source(last),
            quality="measured" if top else "unavailable",
        )
        return kept, writer.id


def _source(last: Snapshot) -> dict[str, object]:
    """Where the evidence of a watch comes from."""
    return {
        "pids": [w.pid for w in last.targets],
        "cmdlines": [w.cmdline for w in last.targets],
        "host": platform.node(),
        "by": f"uid {os.geteuid()}",
    }


def _title(last: Snapshot) -> str:
    first = last.targets[0] if last.targets else None
    return f"attach to {first.pid} {first.cmdline[:40]}" if first else "attach"


def share_text(number: Number) -> str:
    """``96% [94%, 97%]``, or a dash."""
    if number.value is None:
        return "–"
    ends = f" [{number.ci[0]:.0%}, {number.ci[1]:.0%}]" if number.ci else ""
    return f"{number.value:.0%}{ends}"
