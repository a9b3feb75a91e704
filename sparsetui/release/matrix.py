"""The trade-off matrix: the workload's own weights, really pruned and really converted, as whole interleaved steps.

A budget is split between each layer's own products (which choose the mix), outputs and the user's metric, whole steps in
several processes, and the crossover curves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from sparsetui.diagnosis.stats import Block
from sparsetui.evidence.records import Number
from sparsetui.release import rows
from sparsetui.release.arms import REFERENCE, Cycles, fastest, slower, steps_for
from sparsetui.release.targets import Plan, plan
from sparsetui.runner.equipment import VARIANTS
from sparsetui.runner.lab import Lab
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Replica

MIXED, GATED, ALONE = "mixed", "mixed within quality", "alone"
SIZES = (4, 8, 16, 32)
_PROCESSES = 3
_SHARE_LAYERS, _SHARE_QUALITY, _SHARE_CURVES = 0.12, 0.15, 0.18
_CURVES = 4
_LEAST = 4  # cycles in each process, whatever they take


class MatrixRun:
    """One run of the matrix. ``body()`` is the section as it stands; all that was measured goes into the evidence."""

    def __init__(self, lab: Lab, budget_s: float) -> None:
        self.lab, self.budget = lab, budget_s
        self.end = time.monotonic() + budget_s
        self.plan: Plan | None = None
        self.ready: dict[str, Any] = {}
        self.arms: list[str] = []
        self.layer_times: dict[str, Any] = {}
        self.mixes: dict[str, dict[str, Any]] = {}
        self.outputs: dict[str, Any] = {}
        self.metric: dict[str, Any] = {}
        self.precision: list[dict[str, Any]] = []
        self.conversions: dict[str, Any] = {}
        self.curves: list[dict[str, Any]] = []
        self.quick, self.cycles = Cycles(), Cycles()
        self.energy: dict[str, Any] = {"missing": []}
        self.unfused = False

    def ask(self, replica: Replica, do: str, **args: Any) -> dict[str, Any]:
        self.lab.check_cancelled()
        return replica.call(
            "formats", {"do": do, **args}, deadline_s=self.lab.deadline(), cancel=self.lab.cancel,
            on_message=self._progress,
        )  # fmt: skip

    def _progress(self, message: dict[str, Any]) -> None:
        self.say()

    def say(self, message: str | None = None) -> None:
        left = max(0.0, self.end - time.monotonic())
        changes: dict[str, Any] = {"progress": min(1.0, 1 - left / self.budget), "eta_s": left}
        self.lab.journal.live(**changes, **({"message": message} if message else {}))

    def run(self) -> dict[str, Any]:
        with self.lab.journal.phase("release", "matrix", "every format on this workload's own weights and shapes"):
            why = self._measure()
        if why:
            return {"rows": [], "summary": f"No matrix: {why}."}
        return self.body()

    def _measure(self) -> str:
        """Fill in everything; a text says why there is nothing to compare."""
        lab = self.lab
        lab.gear.start(lab.deadline())
        replicas = {v: lab.gear.replica(v, lab.deadline())[0] for v in VARIANTS}
        seen: dict[str, Any] = {}
        for v, r in replicas.items():
            try:
                seen[v] = self.ask(r, "scout")
            except WorkerFault as e:
                lab.journal.append("fault", {"what": f"{v}: scout of its products", "why": e.fault.message})
        found = plan({v: s["layers"] for v, s in seen.items()}, lab.workload.declared.sparsity)
        if isinstance(found, str):
            return found
        self.plan, self.energy = found, seen[found.source]["energy"]
        self.unfused = bool(seen[found.source].get("unfused"))
        first = replicas[found.source]
        began = time.monotonic()
        self.ready = self.ask(first, "prepare", targets=found.targets, blocks=list(SIZES))
        cost = time.monotonic() - began
        self.arms = list(self.ready["arms"])
        self._choose(first)
        self._judge(first)
        try:
            self._time(first, cost)
        except WorkerFault as e:  # what was measured until then stands
            lab.journal.append("fault", {"what": "timing the arms", "why": e.fault.message})
        for r in replicas.values():
            lab.gear.end(r)
        return ""

    # -- what each layer likes best --------------------------------------------------------------------------------

    def _choose(self, replica: Replica) -> None:
        self.say("each layer's own product in every format")
        self.layer_times = self.ask(replica, "layers", seconds=_SHARE_LAYERS * self.budget)
        self._warm_up(replica)
        start = fastest(self.quick, self.arms) or REFERENCE
        self.mixes[MIXED] = self.ask(replica, "mix", name=MIXED, among=self.arms, start=start)
        self._use(MIXED)

    def _use(self, name: str) -> None:
        mix = self.mixes[name]
        self.ready["arms"][name] = mix["account"]
        if mix["same_as"] is None and name not in self.arms:
            self.arms.append(name)

    def _warm_up(self, replica: Replica) -> None:
        """A first look, which only says how long steps are and from which format the mix starts."""
        for n in range(3):
            self._cycle(replica, 0, self.quick, 2 if n == 0 else None)

    def step_ms(self, arm: str) -> float | None:
        return self.cycles.step_ms(arm) or self.quick.step_ms(arm)

    def _judge(self, replica: Replica) -> None:
        """Outputs, the user's metric, dtypes and conversions of every arm, and of formats that have no kernel here."""
        lab, w = self.lab, self.lab.workload
        masked = [f"masked:{f}" for f in self.ready["refused"]]
        self.say("outputs of every arm against dense")
        count = max(1, min(4, int(_SHARE_QUALITY * self.budget * 1e3 / (40 * max(1.0, self._slowest())))))
        self.outputs = self.ask(replica, "outputs", arms=self.arms + masked, count=count)["arms"]
        if w.quality is not None and w.quality.entry is not None:
            self.say("the user's metric in every arm")
            families = self._one_of_each_family() + masked
            args = {"arms": families, "entry": w.quality.entry.text, "seconds": _SHARE_QUALITY * self.budget}
            try:
                self.metric = self.ask(replica, "quality", **args)["arms"]
            except WorkerFault as e:
                lab.journal.append("fault", {"what": "the user's metric under an arm", "why": e.fault.message})
        self.conversions = self.ask(replica, "conversions", arms=self.arms, steps=2)["arms"]
        self.precision = self.ask(replica, "precision", count=min(2, count))["rows"]
        self._gate(replica)

    def _slowest(self) -> float:
        return max((self.step_ms(a) or 0.0 for a in self.arms), default=1.0)

    def _one_of_each_family(self) -> list[str]:
        """The fastest arm of each pruning: formats that hold the same zeros give the same answers."""
        best: dict[str, str] = {}
        for a in self.arms:
            family = str(self.ready["arms"][a]["family"]) if a != GATED else GATED
            if family not in best or (self.step_ms(a) or 0.0) < (self.step_ms(best[family]) or 0.0):
                best[family] = a
        return list(best.values())

    def _gate(self, replica: Replica) -> None:
        """With a quality gate, a second mix: only of formats that hold it alone, and that together hold it too."""
        q = self.lab.workload.quality
        if q is None or q.max_drift is None:
            return
        limit = q.max_drift
        good = [
            a for a in self.arms if a != MIXED and (d := rows.drift(self, a)).value is not None and d.value <= limit
        ]
        start = fastest(self.quick, good)
        if start is None or set(good) == set(self.arms) - {MIXED}:
            return
        self.mixes[GATED] = self.ask(replica, "mix", name=GATED, among=good, start=start)
        self._use(GATED)
        self.outputs.update(self.ask(replica, "outputs", arms=[GATED], count=2)["arms"])
        self.conversions.update(self.ask(replica, "conversions", arms=[GATED], steps=2)["arms"])
        if q.entry is not None:
            self.metric.update(self.ask(replica, "quality", arms=[GATED], entry=q.entry.text)["arms"])

    # -- whole steps -----------------------------------------------------------------------------------------------

    def _time(self, first: Replica, cost: float) -> None:
        """Cycles in up to three processes, then the curves; processes differ by some percent, so one would not do."""
        curves = _SHARE_CURVES * max(0.0, self.end - time.monotonic())
        left = self.end - time.monotonic() - curves
        more = max(0, min(_PROCESSES - 1, int(left / max(6.0, 6 * (cost + 1.0))) - 1))
        replica: Replica = first
        for n in range(more + 1):
            if n:
                try:
                    replica = self._another(n)
                except WorkerFault as e:
                    self.lab.journal.append("fault", {"what": "another process for the matrix", "why": e.fault.message})
                    break
            share = (self.end - curves - time.monotonic()) / (more + 1 - n)
            self._cycles(replica, n, time.monotonic() + share)
            if n:
                self.lab.gear.end(replica)
        self._settle_mixed()
        self._curves(first)

    def _another(self, n: int) -> Replica:
        assert self.plan is not None
        self.say(f"process {n + 1}: the same arms again")
        replica, _ = self.lab.gear.replica(self.plan.source, self.lab.deadline())
        self.ask(replica, "scout")
        self.ask(replica, "prepare", targets=self.plan.targets, blocks=list(SIZES))
        for name, mix in self.mixes.items():
            self.ask(replica, "mix", name=name, choice=[c["format"] for c in mix["choice"]])
        self.ask(replica, "outputs", arms=self.arms, count=1)  # settles caches, and how results have to lie
        return replica

    def _cycles(self, replica: Replica, number: int, until: float) -> None:
        done, took = 0, 0.0
        self.say(f"whole steps of {len(self.arms)} arms, interleaved")
        while done < _LEAST or time.monotonic() + took < until:
            began = time.monotonic()
            self._cycle(replica, number, self.cycles)
            took, done = time.monotonic() - began, done + 1

    def _cycle(self, replica: Replica, number: int, into: Cycles, count: int | None = None) -> None:
        order = into.order(self.arms)
        steps = {a: count or steps_for(self.step_ms(a) or 5.0) for a in order}
        asked = [{"arm": a, "count": steps[a]} for a in order]
        asked.append({"arm": ALONE, "count": steps[REFERENCE]})
        got = self.ask(replica, "steps", arms=asked, start=into.done, warm=1)["blocks"]
        made = [Block(b["arm"], f"process {number + 1}", i, b["times_ms"], b["conditions"]) for i, b in enumerate(got)]
        into.add([*order, ALONE], made)
        for b in made:
            self.lab.journal.latency(b.variant, sorted(b.times_ms)[len(b.times_ms) // 2])
        self.say()

    def _settle_mixed(self) -> None:
        """The mix must not be slower than the best single format: where it measures slower, that format is the mix."""
        singles = [a for a in self.arms if a not in (MIXED, GATED)]
        for name in self.mixes:
            among = singles if name == MIXED else [a for a in singles if a in self._within(singles)]
            same, best = self.mixes[name]["same_as"], fastest(self.cycles, among)
            own = same or name
            if best is not None and own != best and slower(self.cycles, own, best):
                self.mixes[name].update(same_as=best, replaced=True)

    def _within(self, arms: Sequence[str]) -> list[str]:
        q = self.lab.workload.quality
        limit = q.max_drift if q and q.max_drift is not None else float("inf")
        return [a for a in arms if (d := rows.drift(self, a)).value is not None and d.value <= limit]

    def _curves(self, replica: Replica) -> None:
        layers = self.ready["layers"]
        hot = dict.fromkeys(x["signature"] for x in layers if x["target"] > 0)
        picks = [next(i for i, x in enumerate(layers) if x["signature"] == s) for s in list(hot)[:_CURVES]]
        for n, at in enumerate(picks):
            left = self.end - time.monotonic()
            if left <= 0 and n:
                break
            self.say(f"crossover of {layers[at]['signature']}")
            seconds = max(0.6, left / (len(picks) - n))
            try:
                self.curves.append(self.ask(replica, "curve", layer=at, seconds=seconds))
            except WorkerFault as e:
                self.lab.journal.append("fault", {"what": "crossover curve", "why": e.fault.message})
                return

    # -- the section -----------------------------------------------------------------------------------------------

    def body(self) -> dict[str, Any]:
        return rows.section(self)

    def payload(self) -> dict[str, Any]:
        return {"plan": self.plan, "prepared": self.ready, "layers": self.layer_times, "mixes": self.mixes,
                "outputs": self.outputs, "metric": self.metric, "precision": self.precision,
                "conversions": self.conversions, "curves": self.curves, "energy": self.energy,
                "blocks": {a: [b for _, b in found] for a, found in self.cycles.blocks.items()}}  # fmt: skip


def run_matrix(lab: Lab, budget_s: float) -> dict[str, Any]:
    """Measure the matrix within about ``budget_s`` seconds; leaves an evidence and the section ``matrix``, returns its body.

    Raises :class:`WorkerFault` where a variant cannot be built or its step fails, ``Cancelled`` where the run was.
    """
    run = MatrixRun(lab, budget_s)
    body: dict[str, Any] = msgspec.to_builtins(run.run())
    figures: dict[str, Number] = {}
    for row in body["rows"][:12]:
        p50 = msgspec.convert(row["p50"], Number)
        if p50.value is not None:
            figures[f"p50 {row['name']}"] = p50
    made = lab.journal.evidence("release", "matrix", run.payload(), summary=body["summary"], figures=figures,
                                quality="measured" if body["rows"] else "unavailable")  # fmt: skip
    body["evidence"] = made.id
    lab.journal.append("section", {"name": "matrix", "body": body})
    return body
