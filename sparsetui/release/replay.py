"""Replay of a request log: open loop, one worker, latency from the intended arrival; failing, comparator and fixed by turns.

The log is cut into windows; each window is served by every variant, in an order that changes, so that a busy host hits all of
them. A queue starts empty in each window, and a window ends when its last request was served.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from sparsetui.diagnosis import energy
from sparsetui.diagnosis.stats import Block, quantile_summary, t_interval
from sparsetui.evidence.records import Number, unavailable
from sparsetui.release import queueing
from sparsetui.release.requests import RequestLog, RequestLogError, read_log
from sparsetui.release.variants import FIXED, Fix, candidate, confirmed, replica_of
from sparsetui.report.numbers import as_number
from sparsetui.runner.equipment import VARIANTS
from sparsetui.runner.lab import Lab
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Replica
from sparsetui.workload.spec import Replay, Workload

_WINDOWS = 4
_CHUNK = 40  # requests a block of the bootstrap
_SHARE = 0.75  # of the budget for the log; the rest finds the saturation points
_BURST_S = 0.4
_BELOW, _ABOVE = 0.8, 1.2  # of the capacity: a queue must hold below it and grow above it


class ReplayRun:
    """One replay: the log, its variants and what each request took."""

    def __init__(self, lab: Lab, budget_s: float) -> None:
        self.lab, self.budget = lab, budget_s
        self.end = time.monotonic() + budget_s
        found = confirmed(lab)
        self.fix: Fix | None = found if isinstance(found, Fix) else None
        self.no_fix = found if isinstance(found, str) else ""
        self.names = [*VARIANTS, *([FIXED] if self.fix else [])]
        self.replicas: dict[str, tuple[Replica, str]] = {}
        self.windows: dict[str, list[dict[str, Any]]] = {n: [] for n in self.names}
        self.bursts: dict[str, list[dict[str, Any]]] = {n: [] for n in self.names}
        self.control: list[dict[str, Any]] = []  # the comparator back to back under the fix's control arm
        self.queue: dict[str, dict[str, bool | None]] = {n: {} for n in self.names}
        self.lost: dict[str, str] = {}
        self.used: RequestLog | None = None
        self.done, self.planned = 0.0, 1.0

    def run(self, log: RequestLog) -> None:
        lab = self.lab
        with lab.journal.phase("release", "replay", f"{log.path.name}: open loop, one worker a variant"):
            lab.gear.start(lab.deadline())
            for name in self.names:
                try:
                    replica, arm, _ = replica_of(lab, name, self.fix)
                    self.replicas[name] = (replica, arm)
                    self._serve(name, [0.0] * 3, None, 5.0)  # what a first request builds is not a request's latency
                except WorkerFault as e:
                    self._lose(name, e)
            left = _SHARE * (self.end - time.monotonic())
            self.used = log.first(left / max(1, len(self.replicas)))
            self.planned = max(1e-3, self.end - time.monotonic())
            self._windows(self.used, left)
            self._saturation()
        for replica, _ in self.replicas.values():
            lab.gear.end(replica)

    def _lose(self, name: str, e: WorkerFault) -> None:
        self.lost[name] = e.fault.message
        self.lab.journal.append("fault", {"what": f"replay: {name}", "why": e.fault.message})
        self.replicas.pop(name, None)

    def _serve(
        self, name: str, arrivals_ms: list[float], sizes: Any, seconds: float, start: int = 0, arm: str | None = None
    ) -> dict[str, Any]:
        self.lab.check_cancelled()
        replica, own = self.replicas[name]
        args = {
            "arrivals": arrivals_ms,
            "sizes": list(sizes) if sizes else None,
            "arm": own if arm is None else arm,
            "seconds": seconds,
            "start": start,
        }
        return replica.call("serve", args, deadline_s=min(self.lab.deadline(), seconds + 20), cancel=self.lab.cancel,
                            on_message=self._progress)  # fmt: skip

    def _progress(self, message: dict[str, Any]) -> None:
        left = max(0.0, self.end - time.monotonic())
        self.lab.journal.live(progress=min(1.0, 1 - left / self.planned), eta_s=left,
                              message=f"{message.get('served', 0)} of {message.get('of', 0)} requests served")  # fmt: skip

    def _windows(self, log: RequestLog, left: float) -> None:
        cut = log.windows(max(1, min(_WINDOWS, int(log.span / 0.5))))
        share = left / max(1, len(cut) * len(self.names))
        start = 0
        for k, window in enumerate(cut):
            names = self.names[k % len(self.names) :] + self.names[: k % len(self.names)]
            for name in names:
                if name not in self.replicas:
                    continue
                limit = max(1.0, 2.0 * share + window.span)
                try:
                    got = self._serve(name, [a * 1e3 for a in window.arrivals], window.sizes, limit, start)
                except WorkerFault as e:
                    self._lose(name, e)
                    continue
                self.windows[name].append(got)
                if got["latency_ms"]:
                    self.lab.journal.latency(name, float(np.median(got["latency_ms"])))
            start += len(window.arrivals)

    def _saturation(self) -> None:
        """Back to back for the capacity, twice a variant by turns; then a queue below and one above it."""
        each = (self.end - time.monotonic()) / max(1, 4 * len(self.replicas))
        burst = max(0.1, min(_BURST_S, each))
        for _ in range(2):
            for name in list(self.replicas):
                mean = self._service_ms(name)
                n = max(20, min(4000, int(burst * 1e3 / max(mean, 1e-3))))
                try:
                    self.bursts[name].append(self._serve(name, [0.0] * n, self._sizes(n), 3 * burst + 1))
                except WorkerFault as e:
                    self._lose(name, e)
            self._harness(burst)
        for factor in (_BELOW, _ABOVE):
            for name in list(self.replicas):
                rate = self.capacity(name).value
                if rate is None:
                    continue
                n = max(30, min(4000, int(rate * factor * burst)))
                try:
                    got = self._serve(
                        name, [i * 1e3 / (rate * factor) for i in range(n)], self._sizes(n), 4 * burst + 1
                    )
                    self.queue[name][f"{factor:g}"] = grows(got["latency_ms"], self._service_ms(name))
                except WorkerFault as e:
                    self._lose(name, e)

    def _harness(self, burst: float) -> None:
        """The comparator back to back under the rewrites that the fixed variant runs under, which change nothing there."""
        if self.fix is None or not self.fix.arm.startswith("on:") or "comparator" not in self.replicas:
            return
        n = max(20, min(2000, int(burst * 1e3 / max(self._service_ms("comparator"), 1e-3))))
        try:
            arm = f"control:{self.fix.intervention}"
            self.control.append(self._serve("comparator", [0.0] * n, self._sizes(n), 3 * burst + 1, arm=arm))
        except WorkerFault as e:
            self._lose("comparator", e)

    def harness_ms(self) -> Number:
        """What running under rewrites adds to a request, in ms: it is in the fixed variant's figures and in no release."""
        plain = [t for b in self.bursts["comparator"] for t in b["service_ms"]]
        under = [t for b in self.control for t in b["service_ms"]]
        if not plain or not under:
            return unavailable("no variant was replayed under rewrites", "ms")
        cost = max(0.0, float(np.median(under) - np.median(plain)))
        return Number(value=cost, n=len(under), unit="ms", quality="derived")

    def _sizes(self, n: int) -> list[float] | None:
        sizes = self.used.sizes if self.used else None
        return [sizes[i % len(sizes)] for i in range(n)] if sizes else None

    def _service_ms(self, name: str) -> float:
        times = [t for w in self.windows[name] for t in w["service_ms"]]
        return float(np.mean(times)) if times else self.lab.step_ms("failing")

    # -- figures ---------------------------------------------------------------------------------------------------

    def blocks(self, name: str, key: str = "latency_ms") -> list[Block]:
        out = []
        for k, w in enumerate(self.windows[name]):
            times = w[key]
            out += [Block(name, f"{name} window {k + 1}", k * 10_000 + i, times[i : i + _CHUNK])
                    for i in range(0, len(times), _CHUNK)]  # fmt: skip
        return out

    def capacity(self, name: str) -> Number:
        """Requests a second that one worker served back to back; the interval over tenths of the bursts."""
        rates = []
        for b in self.bursts[name]:
            times = np.asarray(b["service_ms"])
            rates += [1e3 / float(part.mean()) for part in np.array_split(times, 10) if part.size]
        if len(rates) < 2:
            return unavailable(self.lost.get(name, "it was not driven to saturation"), "requests/s")
        low, high = t_interval(rates)
        return Number(value=float(np.mean(rates)), ci=(max(0.0, low), high), n=len(rates), unit="requests/s")


def grows(latency_ms: list[float], service_ms: float) -> bool | None:
    """Whether the queue grew: the last third waited longer than the first by more than five services and by half."""
    n = len(latency_ms) // 3
    if n < 5:
        return None
    first, last = float(np.median(latency_ms[:n])), float(np.median(latency_ms[-n:]))
    return last > 1.5 * first and last - first > 5 * service_ms


def log_of(workload: Workload, given: Replay | None = None) -> tuple[Replay, RequestLog]:
    """The log to replay, at its speed. Raises :class:`RequestLogError`."""
    asked = given or workload.replay
    if asked is None:
        raise RequestLogError(f"{workload.path.name}: has no [replay] with a log; name one with --log")
    return asked, read_log(asked.log).faster(asked.speed)


def run_replay(lab: Lab, budget_s: float, given: Replay | None = None) -> dict[str, Any]:
    """Replay the workload's log, or a ``given`` one, within about ``budget_s`` seconds; leaves an evidence and the section
    ``replay``.

    Raises :class:`RequestLogError` where the log cannot be read, ``Cancelled`` where the run was.
    """
    asked, log = log_of(lab.workload, given)
    run = ReplayRun(lab, budget_s)
    run.run(log)
    body: dict[str, Any] = msgspec.to_builtins(section(run, log, asked.speed))
    payload = {"windows": run.windows, "bursts": run.bursts, "queue": run.queue, "lost": run.lost,
               "control": run.control}  # fmt: skip
    made = lab.journal.evidence("release", "replay", payload, summary=body["why"])
    body["evidence"] = made.id
    lab.journal.append("section", {"name": "replay", "body": body})
    return body


def section(run: ReplayRun, log: RequestLog, speed: float) -> dict[str, Any]:
    used, sla = run.used, run.lab.workload.sla
    assert used is not None
    limits = queueing.limits_of(sla)
    variants = {name: _variant(run, name) for name in run.names}
    status = run.lab.journal.state().result
    chosen = candidate(run.fix, status.verdict.status if status else None)
    relative, harness = not limits, run.harness_ms()
    if relative:
        floor = as_number((run.lab.journal.state().metrics.get("latency_ms") or {}).get("noise_floor"))
        limits = relative_limits(variants["comparator"], floor)
    verdicts = {
        name: _held(v, _above(limits, harness) if relative and name == FIXED else limits, strict=not relative)
        for name, v in variants.items()
    }
    for name, v in variants.items():
        v["verdict"] = tell(verdicts[name])
    passed = bool(limits) and all(x == "held" for x in verdicts[chosen].values()) and chosen not in run.lost
    asked = "the SLA"
    if relative:
        asked = f"the comparator's own quantiles and {queueing.margin(floor):.0%}, since no SLA is set"
    why = f"{chosen} against {asked}: {tell(verdicts[chosen])}"
    if relative and "p99" not in limits:  # without it a replay would say nothing of the tail
        passed = False
        why += f"; no p99 to hold it to: {variants['comparator']['p99'].reason}"
    if chosen == "comparator":
        why += f" (there is no fixed variant to replay: {run.no_fix})"
    if any("not known" in v for v in verdicts[chosen].values()) or ("p99" not in limits and relative):
        why += f"; {len(used.arrivals)} of {len(log.arrivals)} requests fit into the time: raise the budget or [replay] speed"
    gone = "".join(f"; {n} was lost: {m}" for n, m in run.lost.items())
    return {
        "summary": f"{len(used.arrivals)} requests of {log.path.name} over {used.span:.3g} s for each variant; "
                   + "; ".join(f"{n}: {tell(v)}" for n, v in verdicts.items()) + gone,
        "passed": passed, "why": why, "candidate": chosen,
        "sla": {f"{q}_ms": v for q, v in limits.items()}, "sla_is": asked,
        "log": {"file": log.path.name, "requests": len(log.arrivals), "replayed": len(used.arrivals),
                "span_s": round(used.span, 3), "speed": speed, "out_of_order": log.reordered,
                "inputs_by": next((w["by"] for v in run.windows.values() for w in v), "turn")},
        "variants": variants,
        "cost_of_the_rewrites": harness,
        "fix": run.fix.intervention if run.fix else f"none: {run.no_fix}",
        "counted": "latency from the intended arrival, so that waiting in the queue shows; one worker, queue empty at each window",
    }  # fmt: skip


def relative_limits(comparator: dict[str, Any], floor: Number) -> dict[str, float]:
    """Limits where no SLA sets any, in ms: the comparator's, with the margin of the rollback criteria. Of its estimates, not of
    their upper bounds: those grow with the noise, and a limit that does holds nothing."""
    found = {q: comparator[q] for q in ("p50", "p95", "p99")}
    return {q: n.value * (1 + queueing.margin(floor)) for q, n in found.items() if n.value is not None}


def _above(limits: dict[str, float], cost: Number) -> dict[str, float]:
    return {q: v + (cost.value or 0.0) for q, v in limits.items()}


def _variant(run: ReplayRun, name: str) -> dict[str, Any]:
    blocks = run.blocks(name)
    served = sum(len(b.times_ms) for b in blocks)
    if not served:
        none = unavailable(run.lost.get(name, "no request was served"))
        return {"p50": none, "p95": none, "p99": none, "saturation": none, "verdict": ""}
    offered = sum(w["of"] for w in run.windows[name])
    wall = sum(w["wall_s"] for w in run.windows[name])
    busy = sum(sum(w["service_ms"]) for w in run.windows[name]) / 1e3
    watts = run.lab.workload.energy.watts_per_core if run.lab.workload.energy else None
    work = [Block(name, name, i, w["service_ms"], w["conditions"]) for i, w in enumerate(run.windows[name])]
    latencies = np.asarray([t for b in blocks for t in b.times_ms])
    limits = queueing.limits_of(run.lab.workload.sla)
    limit = limits.get("p99") or limits.get("p95") or limits.get("p50")
    out: dict[str, Any] = {**quantile_summary(blocks), "served": served, "offered": offered}
    missed = int((latencies > limit).sum()) + (offered - served) if limit is not None else 0
    out["missed"] = (_share(missed, offered, f"of requests took longer than {limit:g} ms or were not served")
                     if limit is not None else unavailable("no SLA is set"))  # fmt: skip
    out["service_p50"] = quantile_summary(run.blocks(name, "service_ms"))["p50"]
    out["waited"] = Number(value=sum(w["waited"] for w in run.windows[name]) / served, n=served, unit="of requests")
    out["load"] = Number(value=busy / wall, n=served, unit="of the worker's time")
    out["saturation"] = run.capacity(name)
    out["queue"] = ", ".join(
        f"{'grows' if g else 'holds'} at {f}×" for f, g in run.queue[name].items() if g is not None
    )
    out["energy"] = energy.per_request(work, watts, ("no RAPL or NVML counter was readable",))
    return out


def _share(count: int, of: int, unit: str) -> Number:
    """Wilson's interval of a share."""
    p, z = count / of, 1.96
    mid = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z * np.sqrt(p * (1 - p) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return Number(value=p, ci=(max(0.0, float(mid - half)), min(1.0, float(mid + half))), n=of, unit=unit)


def _held(variant: dict[str, Any], limits: dict[str, float], strict: bool) -> dict[str, str]:
    """Each limited quantile: held, broken, or why that cannot be told. An SLA is held by a whole interval; a limit that was
    itself measured, and has a margin, by the estimate. Either is broken by a whole interval."""
    out = {}
    for q, limit in limits.items():
        n = variant[q]
        if n.value is None:
            out[q] = f"not known ({n.reason})"
            continue
        low, high = n.ci or (n.value, n.value)
        held = (high if strict else n.value) <= limit
        out[q] = "held" if held else "broken" if low > limit else "not told apart from its limit"
    return out


def tell(verdicts: dict[str, str]) -> str:
    """In words: which quantiles hold and which fail, so that a tail is told apart from a shift of everything."""
    if not verdicts:
        return "no limit to hold"
    groups: dict[str, list[str]] = {}
    for q, v in verdicts.items():
        groups.setdefault(v, []).append(q)
    if set(groups) == {"held"}:
        return f"{', '.join(groups['held'])} held"
    if set(groups) == {"broken"} and len(verdicts) > 1:
        return f"all of {', '.join(groups['broken'])} broken: every request is slower, not only the tail"
    text = "; ".join(f"{', '.join(qs)} {v}" for v, qs in groups.items())
    if "p50" in groups.get("held", ()) and {"p95", "p99"} & set(groups.get("broken", ())):
        text += ": only the tail fails"
    return text
