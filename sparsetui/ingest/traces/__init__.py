"""Profiler traces: read in bounded memory, salvaged where broken, and turned into tables by path."""

from __future__ import annotations

from sparsetui.ingest.traces.compare import compare
from sparsetui.ingest.traces.inspect import inspect
from sparsetui.ingest.traces.ranks import spread

__all__ = ["compare", "inspect", "spread"]
