"""What holds for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in each run, so that a red run is about the change and not about the draw. Fresh ones are drawn where
# that is the point: HYPOTHESIS_PROFILE=random, which `make torture` sets.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What investigates for real, with processes and time of its own: one after the other in one of the processes that run the
# tests, while all else runs in the others. The figures are made for a busy host, but not for three of these at once.
_ONE_AT_A_TIME = (
    "runner", "fleet/test_cluster.py", "release/test_sessions.py", "release/test_pipelines.py", "release/test_formats.py",
    "tui/test_whole_investigation.py", "tui/test_live.py", "playbook/test_on_drills.py", "ingest/test_samplers.py",
    "ingest/test_attach.py", "cases/test_cases.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for ``pytest -n 2 --dist loadgroup``: the real investigations, which come first, and each other file."""
    here = Path(__file__).parent
    alone: list[pytest.Item] = []
    for item in items:
        place = item.path.relative_to(here).as_posix()
        mine = place.startswith(_ONE_AT_A_TIME)
        item.add_marker(pytest.mark.xdist_group("investigations" if mine else place))
        if mine:
            alone.append(item)
    first = set(map(id, alone))
    items.sort(key=lambda item: id(item) not in first)
