"""The way back: criteria that follow from what was measured, and a rehearsal of the switch.

The rehearsal serves the candidate, then builds the comparator again as a rollback would, and runs it interleaved with a
comparator that was there before: it must be as fast, answer the same and trip none of the criteria.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from sparsetui.diagnosis.metrics import fallback_rate
from sparsetui.diagnosis.stats import Block, hodges_lehmann, quantile_summary, t_interval
from sparsetui.diagnosis.stats.rounds import block_median
from sparsetui.evidence.records import Number, unavailable
from sparsetui.flow import OWNERS
from sparsetui.release import queueing
from sparsetui.release.variants import Fix, candidate, confirmed, replica_of
from sparsetui.report.numbers import as_number
from sparsetui.runner import clocking, passes
from sparsetui.runner.lab import Lab
from sparsetui.session.closure import STABLE_FLOOR
from sparsetui.session.state import SessionState
from sparsetui.worker.handle import Replica
from sparsetui.workload.spec import Workload

_BACK = 3  # rollbacks rehearsed: one process of identical code may differ by some percent


def criteria(state: SessionState, workload: Workload) -> list[dict[str, Any]]:
    """``[{metric, threshold, window, act, who, since}]``; ``key`` and ``limit`` are what the rehearsal checks."""
    latency = state.metrics.get("latency_ms") or {}
    floor = as_number(latency.get("noise_floor"))
    limits = queueing.limits_of(workload.sla)
    out: list[dict[str, Any]] = []
    rate = _rate(state)
    reliability, ml, kernels = (_who(state, k) for k in ("PR", "ML", "KL"))
    for q, least in (("p50", 200), ("p95", 200), ("p99", 1000)):
        n = as_number((latency.get("comparator") or {}).get(q))
        if q in limits:
            limit, since = limits[q], "SLA of the workload"
        elif n.value is not None and floor.value is not None and q != "p95":
            margin = queueing.margin(floor)
            limit = (n.ci[1] if n.ci else n.value) * (1 + margin)
            since = f"comparator's {q}, {n.value:.3g} ms, and {margin:.1%}: the larger of {STABLE_FLOOR:.0%} and 3 noise floors"
        else:
            continue
        out.append({"key": q, "limit": limit, "metric": f"latency {q}", "threshold": f"above {limit:.4g} ms",
                    "window": _window(least, rate), "act": "switch back to the comparator", "who": reliability,
                    "since": since})  # fmt: skip
    gate = workload.quality.max_drift if workload.quality else None
    if gate is not None:
        out.append({"key": "drift", "limit": gate, "metric": "quality drift against the comparator",
                    "threshold": f"above {gate:g}", "window": "each evaluation", "act": "switch back to the comparator",
                    "who": ml, "since": "quality.max_drift of the workload"})  # fmt: skip
    fallback = as_number((state.metrics.get("fallback_rate") or {}).get("comparator"))
    if fallback.value is not None:
        out.append({"key": "fallback", "limit": fallback.value, "metric": "dense-fallback rate of eligible products",
                    "threshold": f"above {fallback.value:.3g}", "window": "one census after each deployment",
                    "act": "hold the rollout and ask the kernel owner", "who": kernels,
                    "since": "the comparator's own rate"})  # fmt: skip
    if out:
        out.append({"key": "alive", "limit": 0.0, "metric": "workers that died, or outputs that are not finite",
                    "threshold": "any", "window": "each request", "act": "switch back to the comparator",
                    "who": reliability, "since": "the comparator has none"})  # fmt: skip
    return out


def _who(state: SessionState, code: str) -> str:
    role = OWNERS[code]
    who = state.owners.get(role, "")
    return f"{role} ({who})" if who else role


def _rate(state: SessionState) -> float | None:
    """Requests a second of the replayed log."""
    log = (state.sections.get("replay") or {}).get("log") if isinstance(state.sections.get("replay"), Mapping) else None
    if not log or not log.get("span_s"):
        return None
    return float(log["replayed"]) / float(log["span_s"])


def _window(requests: int, rate: float | None) -> str:
    if rate is None:
        return f"{requests} requests"
    return f"{requests} requests, {requests / rate:.3g} s at the replayed rate"


class Rehearsal:
    """One rehearsed way back, and what was seen of the comparator after it."""

    def __init__(self, lab: Lab, budget_s: float) -> None:
        self.lab, self.end = lab, time.monotonic() + budget_s
        found = confirmed(lab)
        self.fix = found if isinstance(found, Fix) else None
        result = lab.journal.state().result
        self.released = candidate(self.fix, result.verdict.status if result else None)
        if self.released == "comparator":
            self.released = "failing"  # without a fix, what is out there now is the failing variant
        self.after: list[Block] = []
        self.ratios: list[float] = []  # after / before, one a rollback
        self.switch_s: list[float] = []
        self.drift = unavailable("outputs were not compared")
        self.fallback = unavailable("no census was taken after the rollback")
        self.finite = True

    def run(self) -> None:
        lab = self.lab
        with lab.journal.phase("release", "rehearsal", f"{self.released} is out, then back to the comparator"):
            lab.gear.start(lab.deadline())
            before, _, _ = replica_of(lab, "comparator", None)
            step = self._settle(before)
            want = self._outputs(before, "before")
            released, arm, _ = replica_of(lab, self.released, self.fix)
            count = clocking.steps_for(step, 1)
            self._ask(released, "block", {"count": max(3, count // 4), "arm": arm, "warm": 2})
            lab.gear.end(released)
            for n in range(_BACK):
                lab.check_cancelled()
                began = time.monotonic()
                back, _, _ = replica_of(lab, "comparator", None)
                self._ask(back, "block", {"count": 1, "warm": 0})
                self.switch_s.append(time.monotonic() - began)
                self._settle(back)
                self._pair(before, back, n, count)
                if n == 0:
                    self._compare(want, back)
                lab.gear.end(back)
                lab.journal.live(progress=(n + 1) / _BACK, eta_s=max(0.0, self.end - time.monotonic()))
                if time.monotonic() > self.end:
                    break
            lab.gear.end(before)

    def _ask(self, replica: Replica, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        return replica.call(verb, args, deadline_s=self.lab.deadline(), cancel=self.lab.cancel)

    def _settle(self, replica: Replica) -> float:
        return float(self._ask(replica, "settle", {"seconds": 0.5})["step_ms"])

    def _outputs(self, replica: Replica, tag: str) -> dict[str, Any]:
        out = self._ask(replica, "outputs", {"count": 4, "tag": tag})
        self.finite = self.finite and bool(out["finite"])
        q = self.lab.workload.quality
        if q is not None and q.entry is not None:
            out["metrics"] = self._ask(replica, "quality", {"entry": q.entry.text})["metrics"]
        return out

    def _compare(self, want: dict[str, Any], back: Replica) -> None:
        got = self._outputs(back, "after")
        if "metrics" in want:
            self.drift, _ = passes.quality_drift(got["metrics"], want["metrics"])
        else:
            self.drift, _ = passes.output_drift(got, want)
        seen = self._ask(back, "census", {"steps": 2, "seconds": 2.0})
        case = dataclasses.replace(self.lab.case(), census={"comparator": seen})
        self.fallback = as_number(fallback_rate(case, "comparator"))

    def _pair(self, before: Replica, back: Replica, number: int, count: int) -> None:
        """ABBA blocks of the old and the new comparator until this rollback's share of the time is spent."""
        share = time.monotonic() + max(0.5, (self.end - time.monotonic()) / (_BACK - number) - 0.5)
        logs: list[float] = []
        at = 0
        while len(logs) < 4 or (time.monotonic() < share and len(logs) < 40):
            order = (before, back) if at % 2 == 0 else (back, before)
            got = {id(r): self._ask(r, "block", {"count": count, "start": at * count, "warm": 2}) for r in order}
            old, new = (Block("comparator", f"{k} {number}", at, got[id(r)]["times_ms"], got[id(r)]["conditions"])
                        for k, r in (("before", before), ("after", back)))  # fmt: skip
            logs.append(math.log(block_median(new) / block_median(old)))
            self.after.append(new)
            self.lab.journal.latency("comparator after", block_median(new))
            at += 1
        self.ratios.append(hodges_lehmann(logs))

    def ratio(self) -> Number:
        if len(self.ratios) < 2:
            return Number(value=math.exp(self.ratios[0]), n=1, unit="×")
        low, high = t_interval(self.ratios)
        centre = hodges_lehmann(self.ratios)
        return Number(value=math.exp(centre), ci=(math.exp(low), math.exp(high)), n=len(self.ratios), unit="×")


def run_rehearsal(lab: Lab, budget_s: float) -> dict[str, Any]:
    """Rehearse the way back within about ``budget_s`` seconds; leaves an evidence and the section ``rehearsal``."""
    run = Rehearsal(lab, budget_s)
    run.run()
    body: dict[str, Any] = msgspec.to_builtins(section(run))
    payload = {"after": run.after, "ratios": run.ratios, "switch_s": run.switch_s}
    made = lab.journal.evidence("release", "rehearsal", payload, summary=body["why"])
    body["evidence"] = made.id
    lab.journal.append("section", {"name": "rehearsal", "body": body})
    return body


def section(run: Rehearsal) -> dict[str, Any]:
    state, workload = run.lab.journal.state(), run.lab.workload
    q = quantile_summary(run.after)
    ratio = run.ratio()
    floor = as_number((state.metrics.get("latency_ms") or {}).get("noise_floor"))
    limit = 1 + queueing.margin(floor)
    found = criteria(state, workload)
    seen: dict[str, Number] = {**q, "drift": run.drift, "fallback": run.fallback,
                               "alive": Number(value=0.0 if run.finite else 1.0, n=len(run.ratios))}  # fmt: skip
    trouble = []
    for c in found:
        key, bound = str(c.pop("key")), float(c.pop("limit"))
        figure = seen[key]
        c["comparator_after"] = figure
        fires = _fires(figure, bound)
        c["fires"] = fires
        if fires != "no":
            trouble.append(f"{c['metric']} {fires if fires != 'yes' else 'fires'}")
    centre = ratio.value or 0.0
    steady = centre <= limit
    if not steady:
        trouble.append(f"it is {centre:.3f}× as slow as before, accepted up to {limit:.3f}×")
    seconds = Number(value=sorted(run.switch_s)[len(run.switch_s) // 2], n=len(run.switch_s), unit="s")
    passed = bool(found) and not trouble
    why = ("no criterion could be generated: neither an SLA nor a noise floor is known" if not found
           else "; ".join(trouble) if trouble
           else f"back on the comparator in {seconds.value:.2g} s, {centre:.3f}× its time before, no criterion fires")  # fmt: skip
    return {
        "summary": f"From {run.released} back to the comparator, {len(run.ratios)} times, in fresh processes.",
        "passed": passed, "why": why, "released": run.released, "switch": seconds, "time_against_before": ratio,
        "accepted_up_to": Number(value=limit, unit="×", quality="derived",
                                 reason=f"three noise floors, at least {STABLE_FLOOR:.0%}"),
        "latency_after": q, "criteria": found,
    }  # fmt: skip


def _fires(figure: Number, limit: float) -> str:
    """``no``, ``yes``, or that it cannot be told; equality does not fire."""
    if figure.value is None:
        return f"cannot be told ({figure.reason})"
    low, high = figure.ci or (figure.value, figure.value)
    if high <= limit * (1 + 1e-9):
        return "no"
    return "yes" if low > limit else "no" if figure.value <= limit else "cannot be told apart from its threshold"
