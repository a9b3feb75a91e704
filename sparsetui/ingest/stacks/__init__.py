"""Stacks that a sampler or tracer wrote: collapsed text, speedscope files, Chrome events. Time by path, with callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsetui.evidence.kernels import Catalogue
from sparsetui.ingest.events.source import Progress, Source
from sparsetui.ingest.stacks import chrome, formats
from sparsetui.ingest.stacks.report import payload
from sparsetui.ingest.stacks.tally import Tally

__all__ = ["inspect"]


def inspect(path: Path, *, catalogue: Catalogue | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Everything a file of stacks tells, JSON-able (records included).

    Raises :class:`sparsetui.ingest.errors.IngestError` when no stack could be read from it.
    """
    tally = Tally(catalogue or Catalogue.load())
    head = next(iter(Source(path).chunks()), b"").lstrip()
    if head[:1] == b"{" and b'"traceEvents"' not in head[: 1 << 20]:
        about = formats.speedscope(path, tally, progress)
    elif head[:1] in b"{[" and head:
        about = chrome.events(path, tally, progress)
    else:
        about = formats.collapsed(path, tally, progress)
    return payload(path, tally, about)
