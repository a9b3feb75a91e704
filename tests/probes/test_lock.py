"""Tags that the code itself sets, and which declared change covers them."""

from __future__ import annotations

import torch

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.catalogue import all_mechanisms
from sparsetui.evidence.records import Difference, Lock
from sparsetui.runner.passes import compare_locks


def test_a_library_that_the_step_switches_off_is_a_tag(replica):
    def step(x):
        torch.backends.mkldnn.set_flags(False)
        return x @ x.t()

    try:
        off = replica(step).ask("lock")["tags"]
    finally:
        torch.backends.mkldnn.set_flags(True)
    on = replica(lambda x: x @ x.t()).ask("lock")["tags"]
    assert (off["switch.mkldnn"], on["switch.mkldnn"]) == ("False", "True")
    told = compare_locks(off, on, ["weights"])
    assert [(d.tag, d.declared) for d in told.differs] == [("switch.mkldnn", False)]
    assert compare_locks(off, on, ["code"]).match


def test_a_thread_count_is_one_difference_with_the_variables_that_set_it():
    differs = tuple(
        Difference(tag=tag, failing="1", comparator="2", declared=False)
        for tag in ("env.MKL_NUM_THREADS", "env.OMP_NUM_THREADS", "threads")
    )
    mismatch = next(m for m in all_mechanisms() if m.id == "ingress.lock-mismatch")
    told = mismatch.suspect(Case(lock=Lock(match=False, differs=differs, tags={})), "failing")
    assert told is not None
    assert told.summary.endswith("threads 1 against 2 (by MKL_NUM_THREADS, OMP_NUM_THREADS)")
    assert [p.module for p in told.where] == ["threads"]
    only = mismatch.suspect(Case(lock=Lock(match=False, differs=differs[:2], tags={})), "failing")
    assert only is not None
    assert "env.MKL_NUM_THREADS 1 against 2; env.OMP_NUM_THREADS 1 against 2" in only.summary
