"""Is it the host or the release? Over recorded reports, each scene with one right answer."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from recorded import CALM, fleet, report

from sparsetui.evidence.records import Verdict
from sparsetui.fleet.records import HostReport, lock_id
from sparsetui.fleet.verdict import decide


def three(**odd: Any) -> list[HostReport]:
    return [report("a"), report("b", 1.01), report("c", **odd)]


def test_a_slowdown_on_every_host_is_the_release() -> None:
    v = decide(fleet(5, 2.0))
    assert v.status == "release"
    assert v.ratio.ci is not None
    assert v.ratio.ci[0] < 2.0 < v.ratio.ci[1]
    assert v.mechanisms == {"kernel.wrong-orientation": tuple(f"h{i:04d}" for i in range(5))}
    assert v.outliers == ()
    assert "It is the release: 5 of 5 hosts" in v.summary


def test_a_host_that_runs_slower_whatever_the_release_is_named() -> None:
    v = decide(three(level_ms=6.0, conditions={**CALM, "others_busy": 0.7, "nivcsw": 800.0}))
    assert v.status == "host"
    (odd,) = v.outliers
    assert odd.host == "c"
    assert odd.seen_in == "step"
    assert odd.factor.value == pytest.approx(3.0, rel=0.05)
    assert any("neighbours" in c for c in odd.conditions)
    assert any("taken off the CPU" in c for c in odd.conditions)
    assert odd.lock == ()
    assert "It is the host: c" in v.summary


def test_a_quota_that_only_the_mean_shows_is_seen() -> None:
    """Whole time slices are taken: nearly all steps are as fast as elsewhere."""
    paces = {"a": 0.70, "b": 0.71, "c": 2.1}
    v = decide([report(h, pace=p, pace_se=0.05) for h, p in paces.items()])
    assert v.status == "host"
    (odd,) = v.outliers
    assert (odd.host, odd.seen_in) == ("c", "mean step")
    assert "mean step takes 4." in odd.why


def test_what_differs_in_its_lock_is_told_and_it_is_not_pooled() -> None:
    tags = {"threads": "64", "env.OMP_NUM_THREADS": "64"}
    v = decide(three(level_ms=9.0, tags=tags))
    assert v.status == "host"
    (odd,) = v.outliers
    assert odd.host == "c"
    assert "threads: 64 here, 8 elsewhere" in odd.lock
    assert [g.hosts for g in v.groups] == [("a", "b"), ("c",)]
    assert v.ratio.n == 2


def test_another_library_version_on_the_host_that_shows_it_is_told() -> None:
    hosts = [*fleet(6), report("z", 1.8, tags={"torch": "2.12.0"})]
    v = decide(hosts)
    assert v.status == "host"
    (odd,) = v.outliers
    assert (odd.host, odd.seen_in) == ("z", "finding")
    assert "torch: 2.12.0 here, 2.13.0+cpu elsewhere" in odd.lock
    assert v.ratio.n == 6


def test_a_quota_on_one_host_is_told_by_its_throttling() -> None:
    v = decide(three(level_ms=5.0, tags={"quota": "50000 100000"}, conditions={**CALM, "throttled": 9.0}))
    (odd,) = v.outliers
    assert "quota: 50000 100000 here, max 100000 elsewhere" in odd.lock
    assert any("CPU quota" in c for c in odd.conditions)


def test_another_cpu_is_no_fault_of_the_host() -> None:
    v = decide([*fleet(4), report("old", level_ms=6.0, tags={"cpu": "EPYC 7742"})])
    assert v.status == "no_fault"
    assert v.outliers == ()
    assert len(v.groups) == 2


def test_a_sick_host_in_a_slow_release_is_both() -> None:
    v = decide([*fleet(5, 1.5), report("sick", 1.5, 8.0)])
    assert v.status == "mixed"
    assert [o.host for o in v.outliers] == ["sick"]
    assert "sick" in v.summary
    assert "kernel.wrong-orientation" in v.summary


def test_a_host_a_little_apart_does_not_excuse_a_release_ten_times_slower() -> None:
    v = decide([*fleet(8, 12.0), report("warm", 12.0, 2.9)])
    assert v.status == "release"
    assert [o.host for o in v.outliers] == ["warm"]
    assert "less than a quarter" in v.remarks[0]


def test_nothing_anywhere_is_no_fault() -> None:
    v = decide(fleet(4))
    assert v.status == "no_fault"
    assert v.ratio.ci is not None


def test_no_single_host_could_tell_but_together_they_do() -> None:
    hosts = [report(f"h{i}", 1.25, se=0.12, says="undecided") for i in range(12)]
    v = decide(hosts)
    assert v.status == "release"
    assert v.undecided == tuple(sorted(h.host for h in hosts))


def test_hosts_that_contradict_each_other_are_mixed() -> None:
    hosts = [report(f"y{i}", 1.0, says="slower") for i in range(3)] + [report(f"n{i}") for i in range(3)]
    v = decide(hosts)
    assert v.status == "mixed"
    assert "contradict" in v.summary


def test_one_host_cannot_tell() -> None:
    v = decide([report("a", 3.0)])
    assert v.status == "cannot_answer"
    assert "1 of at least 2" in v.unanswered[0].why


def test_two_hosts_that_differ_do_not_say_which_is_sick() -> None:
    v = decide([report("a", says="undecided"), report("b", 1.6, level_ms=9, says="undecided")])
    assert v.status == "cannot_answer"
    assert v.outliers == ()
    assert "third host" in v.unanswered[0].settle


def test_two_hosts_tell_a_release_that_both_show() -> None:
    assert decide([report("a", 3.0), report("b", 2.9)]).status == "release"


def test_the_missing_are_named_and_the_rest_decides() -> None:
    v = decide([*fleet(3, 2.0), HostReport("gone", "lost", "the node died"), HostReport("bare", "refused", "no torch")])
    assert v.status == "release"
    assert v.missing == (("bare", "refused", "no torch"), ("gone", "lost", "the node died"))
    assert "2 more gave no answer: bare, gone" in v.summary
    assert any("go on with this session" in u.settle for u in v.unanswered)


def test_no_answer_at_all_is_said() -> None:
    v = decide([HostReport("a", "refused", "no torch"), HostReport("b", "lost", "the node died")])
    assert v.status == "cannot_answer"
    assert v.ratio.value is None
    assert v.ratio.reason


def test_the_minority_that_names_another_mechanism_is_listed() -> None:
    hosts = [*fleet(4, 2.0), report("x", 2.0, mechanism="execution.index-copy")]
    v = decide(hosts)
    assert v.status == "release"
    assert v.minority == (("x", "execution.index-copy"),)


def test_hosts_of_three_locks_are_never_pooled() -> None:
    hosts = [report(f"{t}{i}", 2.0, tags={"torch": t}) for t in ("2.11", "2.12", "2.13") for i in range(2)]
    v = decide(hosts)
    assert v.status == "release"
    assert len(v.groups) == 3
    assert all(g.ratio.n == 2 for g in v.groups)
    assert v.ratio.n == 2


def test_a_fault_that_is_not_of_latency_is_the_release_where_all_show_it() -> None:
    def gap(host: str) -> HostReport:
        r = report(host)
        found = Verdict("fault", "not pruned", mechanism="ingress.coverage-gap", confidence="confirmed")
        return msgspec.structs.replace(r, verdict=found, log_ratio=None, se=None)

    v = decide([gap("a"), gap("b"), gap("c")])
    assert v.status == "release"
    assert "ingress.coverage-gap on 3 of them" in v.summary.replace(", ingress", " ingress")


def test_the_place_of_a_process_is_no_part_of_its_lock() -> None:
    a = {"comparator": {"torch": "2.13", "affinity": "0-3", "interpreter": "/a/python", "numa": "0"}}
    b = {"comparator": {"torch": "2.13", "affinity": "4-7", "interpreter": "/b/python", "numa": "0-1"}}
    assert lock_id(a) == lock_id(b)
    assert lock_id(a) != lock_id({"comparator": {**a["comparator"], "torch": "2.12"}})


def test_the_order_of_reports_does_not_matter() -> None:
    hosts = [*fleet(9, 1.5), report("sick", 1.5, 8.0), HostReport("gone", "lost", "the node died")]
    mixed = list(hosts)
    random.Random(3).shuffle(mixed)
    assert decide(mixed) == decide(hosts)


def test_a_thousand_hosts_are_decided_with_their_outliers() -> None:
    hosts = fleet(1000, 1.4, tau=0.04)
    sick = {"h0007", "h0400", "h0999"}
    hosts = [report(r.host, 1.4, 7.0) if r.host in sick else r for r in hosts]
    v = decide(hosts)
    assert v.status == "mixed"
    assert {o.host for o in v.outliers} == sick
    assert v.ratio.n == 997
    assert v.between.value == pytest.approx(0.04, abs=0.006)


def test_a_report_survives_its_way_as_json() -> None:
    r = report("a", 2.0)
    assert msgspec.json.decode(msgspec.json.encode(r), type=HostReport) == r
