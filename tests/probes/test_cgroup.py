"""The quota of the cgroup that a process is in, over folders as the kernel lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsetui.probes import cgroup


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "ROOT", str(tmp_path / "fs"))
    monkeypatch.setattr(cgroup, "OWN", str(tmp_path / "own"))
    return tmp_path


def write(place: Path, own: str, **files: str) -> None:
    (place / "own").write_text(own)
    for name, text in files.items():
        path = place / "fs" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_the_tightest_quota_on_the_way_up_counts(place: Path) -> None:
    write(place, "0::/team.slice/serving.service", **{
        "team.slice/serving.service/cpu.max": "200000 100000",
        "team.slice/cpu.max": "150000 100000",
        "team.slice/serving.service/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 250000\n",
        "team.slice/cpu.stat": "nr_throttled 40",
    })  # fmt: skip
    assert cgroup.quota() == (1.5, "150000 100000", "v2")
    assert cgroup.throttled() == 42
    assert cgroup.stops() == (42, pytest.approx(0.25))


def test_version_one_is_read_as_well(place: Path) -> None:
    write(place, "5:memory:/x\n4:cpu,cpuacct:/pod", **{
        "cpu,cpuacct/pod/cpu.cfs_quota_us": "30000", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/pod/cpu.stat": "nr_periods 9\nnr_throttled 7\nthrottled_time 5000000",
    })  # fmt: skip
    assert cgroup.quota() == (0.3, "30000 100000", "v1")
    assert cgroup.stops() == (7, pytest.approx(0.005))


def test_in_a_container_its_own_cgroup_stands_at_the_root(place: Path) -> None:
    write(place, "0::/docker/0123abcd", **{"cpu.max": "200000 100000", "cpu.stat": "nr_throttled 1"})
    assert cgroup.quota() == (2.0, "200000 100000", "v2")


def test_no_limit_is_none_and_says_what_is_there(place: Path) -> None:
    write(place, "0::/a", **{"a/cpu.max": "max 100000"})
    assert cgroup.quota() == (None, "max 100000", "v2")
    assert cgroup.stops() == (None, None)


@pytest.mark.parametrize("own", ["", "0", "0::", "x:y", "0::/../../..", "4:cpu:/gone"])
def test_what_tells_nothing_is_no_quota(place: Path, own: str) -> None:
    write(place, own)
    assert cgroup.quota() == (None, "", "")
    assert cgroup.throttled() is None


@pytest.mark.parametrize("text", ["5 0", "much 100000", "100000", "-1 100000"])
def test_a_quota_that_is_none_limits_nothing(place: Path, text: str) -> None:
    write(place, "0::/a", **{"a/cpu.max": text})
    assert cgroup.quota()[0] is None
