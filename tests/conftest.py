"""What holds for every test."""

from __future__ import annotations

import os
from typing import Any

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


def _room(nodeid: str) -> str:
    place = nodeid.partition("::")[0].removeprefix("tests/")
    return "investigations" if place.startswith(_ONE_AT_A_TIME) else place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The real investigations come first: they take longest."""
    items.sort(key=lambda item: _room(item.nodeid) != "investigations")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``pytest -n 2``: a file's tests in one process, and the real investigations all in one."""
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _room(nodeid)

    return Rooms(config, log)
