"""What the host allows, and what each gap costs: every check says something, and what is missing says what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsetui.cli import doctor

AUTOGROUP = "/proc/sys/kernel/sched_autogroup_enabled"


def test_every_gap_says_what_it_costs_and_every_check_has_a_line(tmp_path: Path) -> None:
    checks = doctor.run(tmp_path / "sessions")
    text = "\n".join(doctor.render(checks))
    assert {"py-spy", "perf", "torch", "cores", "threads", "governor", "scheduler", "rapl", "nvml", "terminal"} <= {
        c.name.lower() for c in checks
    }
    for c in checks:
        assert c.found, c.name
        assert c.state == "ok" or c.costs, c.name
        assert c.name in text


@pytest.mark.parametrize(("said", "state"), [("1", "limited"), ("0", "ok"), (None, "ok")])
def test_autogroups_make_nice_a_matter_of_the_session(
    monkeypatch: pytest.MonkeyPatch, said: str | None, state: str
) -> None:
    monkeypatch.setattr(doctor, "_read", lambda path: said if path == AUTOGROUP else None)
    found = doctor._scheduler()
    assert found.state == state
    assert ("sysctl" in found.way) is (state == "limited")
