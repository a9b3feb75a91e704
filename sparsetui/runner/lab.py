"""The lab: the workload's replicas and everything they have shown so far. Passes are run here, by name, within the budget."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from sparsetui.diagnosis.case import Case, Declared, Trial
from sparsetui.diagnosis.catalogue import all_mechanisms
from sparsetui.diagnosis.metrics import nominal_sparsity
from sparsetui.diagnosis.stats import (
    ArmRound,
    Block,
    Closure,
    Comparison,
    Round,
    TailComparison,
    closure,
    compare,
    in_calm,
    quantile_summary,
    ratio_quantiles,
)
from sparsetui.diagnosis.stats.closures import Question
from sparsetui.diagnosis.suspects import gap
from sparsetui.evidence.records import Lock, Number, TimeTable
from sparsetui.runner import clocking, oprows, passes, trials
from sparsetui.runner.api import Cancelled
from sparsetui.runner.equipment import VARIANTS, Equipment
from sparsetui.runner.journal import Journal
from sparsetui.worker.faults import CallCancelled, Fault, WorkerFault
from sparsetui.worker.handle import Replica
from sparsetui.workload.spec import Workload

_HARD = 1.25  # the contract's bound on the budget; what closing down takes comes on top
CALM = "calm"  # the intervention that measures the same pair again while nothing is taken from it
THRESHOLD = 0.02  # a slowdown smaller than this is not searched for longer


class Lab:
    """Replicas, payloads, rounds and trials of one workload, and the budget they are spent from.

    ``payloads`` maps (probe, variant) to what the probe returned; ``trials`` maps (intervention, variant).
    """

    def __init__(self, workload: Workload, journal: Journal, budget_s: float, asks_speedup: bool = False) -> None:
        self.workload, self.journal, self.budget_s = workload, journal, budget_s
        self.asks_speedup = asks_speedup
        self.cancel = threading.Event()
        self.gear = Equipment(workload, journal, self.cancel)
        self.payloads: dict[tuple[str, str], dict[str, Any]] = {}
        self.natives: dict[str, TimeTable] = {}
        self.trials: dict[tuple[str, str], Trial] = {}
        self.arms: dict[tuple[str, str], list[ArmRound]] = {}
        self.calm: list[Round] = []  # pairs of processes measured while the host took nothing from them
        self.clock = clocking.Clock()
        self.first: dict[str, Replica] = {}
        self.faults: dict[str, Fault] = {}  # why a variant cannot be run on
        self.skipped: dict[str, str] = {}  # mechanisms whose probe the budget left no time for, and what they ask
        self.deaths: dict[str, Fault] = {}  # the newest death of each variant, whatever it was doing
        self._hard_end: float | None = None

    # -- time ----------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        self.cancel.clear()
        self.journal.start_clock()
        self._hard_end = time.monotonic() + max(_HARD * self.budget_s, self.budget_s + 4.0)
        try:
            yield
        except (CallCancelled, Cancelled):
            self.journal.append("interrupted", {"why": "cancelled"})
            raise Cancelled from None
        finally:
            self.journal.stop_clock()
            self.journal.live(running=False, phase="", progress=None, eta_s=None)
            self.journal.tell(force=True)

    @property
    def left(self) -> float:
        """Seconds of budget left."""
        return self.budget_s - self.journal.spent

    def deadline(self) -> float:
        """Seconds until a call must have answered, whatever it does."""
        end = self._hard_end or time.monotonic() + self.budget_s
        return max(1.0, end - time.monotonic())

    def check_cancelled(self) -> None:
        if self.cancel.is_set():
            raise Cancelled

    # -- passes --------------------------------------------------------------------------------------------------

    def run_pass(self, name: str, fresh: bool = False) -> None:
        """Run one pass of ``flow.STAGES`` unless its payloads are here already (or ``fresh`` asks for new ones)."""
        done: Mapping[str, Callable[[], bool]] = {
            "clock": lambda: bool(self.clock.rounds),
            "native": lambda: "failing" in self.natives,
            "interventions": lambda: bool(self.trials),
            "gates": lambda: False,
        }
        have = done.get(name, lambda: all((name, v) in self.payloads for v in VARIANTS))
        if have() and not fresh:
            return
        runs: Mapping[str, Callable[[], None]] = {
            "lock": self.take_lock, "inventory": self.take_inventory, "census": self.take_census,
            "profile": self.take_profile, "native": self.take_native,
            "clock": lambda: clocking.take_clock(self, 0.3 * self.budget_s),
            "interventions": self.take_interventions, "outputs": self.take_outputs, "quality": self.take_quality,
        }  # fmt: skip
        if name in runs:
            runs[name]()

    def take_interventions(self) -> None:
        for name in ("lock", "inventory", "census", "profile", "clock"):
            self.run_pass(name)
        if not self.faults:
            trials.take_interventions(self)

    def ready(self) -> bool:
        """Both first replicas are up and built; False (with the fault on record) if one variant cannot be."""
        if len(self.first) == 2 and all(r.alive for r in self.first.values()):
            return True
        for r in self.first.values():
            if not r.alive:
                self._died_idle(r)
            self.gear.end(r)
        self.first = {}
        with self.journal.phase("ingress", "build", "start the workers and build both variants"):
            for variant in VARIANTS:
                self.faults.pop(variant, None)
            try:
                self.gear.start(self.deadline())
                self.first, built = self.gear.pair(self.deadline(), watch=True)
            except WorkerFault as e:
                self.fault(e)
                return False
        for v, answer in built.items():
            self.payloads[("build", v)] = answer
            self.journal.evidence("ingress", "build", answer, variant=v, seconds=answer.get("seconds"),
                                  summary=f"built in {answer['seconds']:.2f} s, {answer['inputs']} inputs, "
                                          f"{answer['threads']} threads, torch {answer['torch']}")  # fmt: skip
        return True

    def _died_idle(self, replica: Replica) -> None:
        """A replica that died between two passes: how it ended goes on record before a fresh one takes its place."""
        try:
            replica.call("ping", deadline_s=2.0)
        except WorkerFault as e:
            self.fault(e)

    def fault(self, e: WorkerFault) -> None:
        """Keep a failure on record. One that only says that the budget ended does not count against the variant."""
        f = e.fault
        variant = "comparator" if "comparator" in f.label else "failing"
        self.deaths[variant] = f
        if not (f.kind == "timeout" and self.left <= 0 and ("settle", variant) in self.payloads):
            self.faults[variant] = f
        self.journal.append("fault", {"what": f"{f.label or 'worker'}: {f.verb or 'start'}", "why": f.message,
                                      "fault": msgspec.to_builtins(f)})  # fmt: skip

    def each(
        self,
        stage: str,
        probe: str,
        args: dict[str, Any],
        say: Callable[[dict[str, Any]], str],
        message: str,
        *,
        optional_s: float | None = None,
        together: bool = False,
    ) -> None:
        """One verb on both first replicas, one after the other; or ``together``, where neither is being timed.

        With ``optional_s`` it may take that many seconds, and its failure says nothing of the variant: the investigation goes
        on without it.
        """
        if not self.ready():
            return
        limit = self.deadline() if optional_s is None else min(self.deadline(), optional_s)

        def ask(v: str) -> dict[str, Any]:
            return passes.simple(self.journal, self.first[v], v, stage, probe, args, limit, self.cancel, say)

        with self.journal.phase(stage, probe, message), ThreadPoolExecutor(max_workers=len(VARIANTS)) as pool:
            asked = {v: pool.submit(ask, v) for v in VARIANTS} if together else {}
            for v in VARIANTS:
                self.check_cancelled()
                try:
                    self.payloads[(probe, v)] = asked[v].result() if together else ask(v)
                except WorkerFault as e:
                    before = dict(self.faults)
                    self.fault(e)
                    if optional_s is not None:
                        self.faults = before
                    if not self.first[v].alive:
                        return

    def autopsy(self) -> None:
        """Where a variant's step raised and its replica lives on: which op it was, and on what."""
        for v, f in self.faults.items():
            replica = self.first.get(v)
            if f.kind != "exception" or replica is None or not replica.alive:
                continue
            with self.journal.phase("kernel", "autopsy", f"which op of the {v} variant raised"):
                try:
                    self.payloads[("autopsy", v)] = passes.simple(
                        self.journal, replica, v, "kernel", "autopsy", {}, self.deadline(), self.cancel, _summary
                    )
                except WorkerFault as e:
                    self.journal.append("fault", {"what": f"{v}: autopsy", "why": e.fault.message})

    def take_lock(self) -> None:
        # it takes the first step, in which a compiler may be at work for seconds
        self.each("ingress", "lock", {}, lambda p: f"{len(p['tags'])} tags", "tags that both variants run under",
                  together=True)  # fmt: skip
        if all(("lock", v) in self.payloads for v in VARIANTS):
            self.journal.append("lock", self.lock())

    def lock(self) -> Lock:
        tags = {v: self.payloads[("lock", v)]["tags"] for v in VARIANTS}
        return passes.compare_locks(tags["failing"], tags["comparator"], self.workload.change)

    def take_inventory(self) -> None:
        pattern = self.workload.declared.pattern
        args = {"pattern": f"{pattern[0]}:{pattern[1]}" if pattern else None}
        self.each(
            "ingress", "inventory", args, passes.say_inventory, "zeros, layouts, indices and bytes of every tensor"
        )

    def settle(self) -> None:
        if all(("settle", v) in self.payloads for v in VARIANTS) or not self.ready():
            return
        with self.journal.phase("execution", "settle", "warm up until page faults settle"):
            try:
                got = clocking.settle(self.first, min(2.0, self.budget_s / 15), self.deadline(), self.cancel)
            except WorkerFault as e:
                self.fault(e)
                return
        for v, p in got.items():
            self.payloads[("settle", v)] = p
            self.journal.evidence("execution", "settle", p, variant=v, summary=f"{p['steps']} steps to warm up: first call "
                                  f"{p['cold_ms']:.3g} ms, then {p['step_ms']:.3g} ms a step")  # fmt: skip

    def step_ms(self, variant: str) -> float:
        """What a step of the variant takes: from the clock's blocks once there are some, before that from the warm-up."""
        blocks = [b for r in self.clock.rounds for b in (r.failing if variant == "failing" else r.comparator)]
        if blocks:
            return float(np.median([np.median(b.times_ms) for b in blocks]))
        return float(self.payloads.get(("settle", variant), {}).get("step_ms", 1.0))

    def few(self, seconds: float, variant: str = "failing", most: int = 12) -> int:
        slowest = max(self.step_ms(variant), self.step_ms("comparator"), 1e-3)
        return max(2, min(most, int(seconds * 1e3 / slowest)))

    def take_census(self) -> None:
        self.settle()
        seconds = self.budget_s / 30
        args = {"steps": self.few(seconds / 3), "seconds": seconds}
        self.each("lowering", "census", args, passes.say_census, "every op, with layouts and owners")
        if any(passes.unheld(self.payloads.get(("census", v), {})) for v in VARIANTS) and not self.faults:
            self.take_inventory()  # once more, with the weights that only running the step could show
        self.tell_ops()

    def take_profile(self) -> None:
        self.settle()
        args = {"steps": self.few(self.budget_s / 60), "memory": True}
        self.each("kernel", "profile", args, passes.say_profile, "ops nested inside kernels")

    def take_native(self) -> None:
        if not self.ready():
            return
        seconds = min(3.0, max(1.0, self.budget_s / 20))
        variants = VARIANTS if self.budget_s >= 45 else ("failing",)
        with self.journal.phase("kernel", "native", "the symbols that really run"):
            for v in variants:
                self.check_cancelled()
                try:
                    self.natives[v] = passes.native(
                        self.journal,
                        self.first[v],
                        v,
                        seconds,
                        self.gear.scratch,
                        self.cancel,
                        min(self.deadline(), 20.0),
                    )
                except WorkerFault as e:
                    self.fault(e)
        if "failing" in self.natives:
            self.journal.append("native", self.natives["failing"])

    def take_outputs(self) -> None:
        self.each("validation", "outputs", {"count": self.few(self.budget_s / 30, most=8)}, lambda p: f"{len(p['files'])} outputs, "
                  f"{'finite' if p['finite'] else 'NOT finite'}, {'repeats' if p['repeats'] else 'does not repeat'}",
                  "outputs of both variants on the same inputs")  # fmt: skip
        self.keep_drift()

    def keep_drift(self) -> None:
        both = [self.payloads.get(("outputs", v)) for v in VARIANTS]
        if both[0] and both[1]:
            drift, name = passes.output_drift(both[0], both[1])
            kept = {"number": msgspec.to_builtins(drift), "metric": name}
            self.payloads[("drift", "")] = kept
            self.journal.evidence("validation", "drift", kept, summary="outputs of failing against comparator",
                                  figures={"drift": drift})  # fmt: skip

    def take_quality(self) -> None:
        q = self.workload.quality
        if q is None or q.entry is None:
            return
        self.each("validation", "quality", {"entry": q.entry.text},
                  lambda p: ", ".join(f"{k} {v:.4g}" for k, v in p["metrics"].items()), "the user's own metric")  # fmt: skip

    def extra_probes(self, late: bool) -> None:
        """Probes that a mechanism asks for by name (``needs``), where the evidence so far makes it worth asking."""
        case = self.case()
        for m in all_mechanisms():
            for probe in m.needs:
                have = (probe, "failing") in self.payloads
                if m.waits(case) != late or have or (m.wants is not None and not m.wants(case)):
                    continue
                if self.left < self.budget_s * (0.0 if late else 0.35):  # a late one takes a few per cent
                    self.skipped[m.id] = m.question
                    continue
                self.skipped.pop(m.id, None)
                self.check_cancelled()
                args: dict[str, Any] = {"seconds": self.budget_s / 30}
                if m.arguments is not None:
                    args.update(m.arguments(case))
                self.each(m.stage, probe, args, _summary, m.question,
                          optional_s=3 * self.budget_s / 30 + 5)  # fmt: skip

    # -- deciding ------------------------------------------------------------------------------------------------

    @property
    def question(self) -> Question:
        return "missing-speedup" if self.declared().wanted else "regression"

    @property
    def ideal(self) -> float | None:
        wanted = self.declared().wanted
        return 1.0 / wanted if wanted else None

    def declared(self) -> Declared:
        """What the release claims; where a playbook asks why it is no faster, the ideal of its zeros stands in for a claim."""
        d, q, sla = self.workload.declared, self.workload.quality, self.workload.sla
        asked = None
        if self.asks_speedup and d.speedup is None and ("inventory", "failing") in self.payloads:
            zeros = nominal_sparsity(Case(inventory={"failing": self.payloads[("inventory", "failing")]}), "failing")[
                "value"
            ]
            asked = min(20.0, 1.0 / (1.0 - zeros)) if zeros is not None and 0.05 < zeros < 1.0 else None
        return Declared(d.sparsity, d.layout, d.pattern, d.targets, d.speedup, asked, max_drift=q.max_drift if q else None,
                        p99_ms=sla.p99_ms if sla else None)  # fmt: skip

    @property
    def comparison(self) -> Comparison | None:
        return self.clock.comparison(THRESHOLD) if self.clock.rounds else None

    @property
    def tails(self) -> TailComparison | None:
        c = self.comparison
        return ratio_quantiles(self.clock.rounds, floor=c.floor.value or 0.0) if c is not None else None

    def closure(self, key: tuple[str, str]) -> Closure | None:
        """What the trial ``key`` closed, from its cycles and the clock's rounds as they are now."""
        arms, compared = self.arms.get(key), self.comparison
        if key[0] == CALM and self.calm and compared is not None:
            after = compare(self.calm, threshold=THRESHOLD)
            return in_calm(compared, after, question=self.question, ideal_ratio=self.ideal)
        if not arms or compared is None:
            return None
        return closure(arms, compared, question=self.question, ideal_ratio=self.ideal)

    def latency(self) -> dict[str, dict[str, Number]]:
        """p50, p95 and p99 of each variant, from the clock's blocks."""
        out = {}
        for v in VARIANTS:
            blocks: list[Block] = [
                b for r in self.clock.rounds for b in (r.failing if v == "failing" else r.comparator)
            ]
            if blocks:
                out[v] = quantile_summary(blocks)
        return out

    def case(self) -> Case:
        """Everything seen so far, as the mechanisms read it."""

        def by(probe: str) -> dict[str, dict[str, Any]]:
            return {v: self.payloads[(probe, v)] for v in VARIANTS if (probe, v) in self.payloads}

        kept = self.payloads.get(("drift", ""))
        drift, metric = (msgspec.convert(kept["number"], Number), str(kept["metric"])) if kept else (None, "")
        of_outputs = drift
        judged = [self.payloads.get(("quality", v)) for v in VARIANTS]
        if judged[0] and judged[1]:
            drift, metric = passes.quality_drift(judged[0]["metrics"], judged[1]["metrics"])
        wanted = {probe for m in all_mechanisms() for probe in m.needs} | {"lock", "autopsy"}
        ids = {(e.probe, e.variant or ""): e.id for e in self.journal.state().evidence}
        tried = {k: dataclasses.replace(t, closure=self.closure(k)) for k, t in self.trials.items()}
        return Case(
            declared=self.declared(),
            change=frozenset(self.workload.change),
            comparison=self.comparison,
            tails=self.tails,
            lock=self.lock() if all(("lock", v) in self.payloads for v in VARIANTS) else None,
            inventory=by("inventory"), census=by("census"), profile=by("profile"), native=self.natives,
            build=by("build"), settle=by("settle"), cold_ms=self.clock.cold_ms, growth=by("growth"),
            outputs=by("outputs"), quality=by("quality"),
            extra={**{k: p for k, p in self.payloads.items() if k[0] in wanted},
                   ("conditions", ""): {"blocks": self.clock.conditions}},
            died={v: f.message for v, f in self.faults.items()},
            trials=tried, drift=drift, drift_metric=metric, output_drift=of_outputs, evidence_ids=ids,
        )  # fmt: skip

    def tell_ops(self) -> None:
        self.journal.append("ops", {"rows": oprows.rows(self.case())})

    @property
    def open_gap(self) -> str:
        """``open``, ``none`` or ``undecided``: whether there is a gap between the variants to explain."""
        return gap(Case(declared=self.declared(), comparison=self.comparison))[0]


def _summary(payload: dict[str, Any]) -> str:
    return str(payload.get("summary", ""))
