"""One investigation: from a workload to a verdict, within a budget, with everything in the ledger."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import sparsetui
from sparsetui.diagnosis import metrics as headline
from sparsetui.diagnosis.case import Case, Declared, Trial
from sparsetui.diagnosis.catalogue import all_mechanisms
from sparsetui.diagnosis.stats import ArmRound, Block, Round, closure, quantile_summary, ratio_quantiles
from sparsetui.diagnosis.verdict import Judgement, Suspect, gap, judge, suspects
from sparsetui.evidence.records import Evidence, Lock, Number, Result, TimeTable
from sparsetui.flow import BY_ID
from sparsetui.runner import clocking, oprows, passes, trials
from sparsetui.runner.api import Cancelled, Listener, Runner
from sparsetui.runner.equipment import VARIANTS, Equipment
from sparsetui.runner.journal import Journal
from sparsetui.session import closure as closing
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.worker.faults import CallCancelled, Fault, WorkerFault
from sparsetui.worker.handle import Replica
from sparsetui.workload.spec import Workload

TOOL = f"sparsetui {sparsetui.__version__}"
_HARD = 1.25  # the contract's bound on the budget, less a margin for closing down


class Investigation(Runner):
    """See :class:`sparsetui.runner.api.Runner` for what each method promises.

    ``session`` resumes a saved session: its passes are read back and only what is asked for is run anew.
    """

    def __init__(
        self,
        workload: Workload,
        store: Store,
        *,
        budget_s: float = 60.0,
        playbook: Any = None,
        listener: Listener | None = None,
        session: str | None = None,
    ) -> None:
        self.workload, self.budget_s, self.playbook = workload, budget_s, playbook
        self.writer = store.writer(session) if session else store.create(workload.name)
        self.journal = Journal(self.writer, listener, budget_s)
        self._cancel = threading.Event()
        self.gear = Equipment(workload, self.journal, self._cancel)
        self.payloads: dict[tuple[str, str], dict[str, Any]] = {}
        self.natives: dict[str, TimeTable] = {}
        self.trials: dict[tuple[str, str], Trial] = {}
        self.arms: dict[tuple[str, str], list[ArmRound]] = {}
        self.clock = clocking.Clock()
        self.lap = clocking.Stopwatch()
        self.first: dict[str, Replica] = {}
        self.faults: dict[str, Fault] = {}
        self._closed = False
        self._hard_end: float | None = None
        if session:
            self._reload()
        else:
            self._introduce()

    # -- what a face may call ------------------------------------------------------------------------------------

    def state(self) -> SessionState:
        return self.writer.state()

    def run_all(self) -> Result:
        with self._running():
            from sparsetui.runner.plan import run_plan

            run_plan(self)
            return self.conclude()

    def run_stage(self, stage: str) -> None:
        with self._running():
            for name in BY_ID[stage].passes:
                self.run_pass(name, fresh=True)
            self.conclude()

    def intervene(self, mechanism: str | None = None) -> None:
        with self._running():
            for name in ("lock", "inventory", "census", "profile"):
                self.run_pass(name)
            found = [s for s in suspects(self.case()) if mechanism in (None, s.mechanism.id) and s.intervention]
            if found:
                self.run_pass("clock")
                self.try_out(found[0], seconds=max(4.0, self.budget_s / 6))
            self.conclude()

    def assign(self, role: str, who: str, source: str = "typed") -> None:
        self.journal.append("owner", {"role": role, "who": who, "source": source})

    def waive(self, gate: str, why: str, by: str) -> None:
        self.journal.append("waiver", closing.waiver(gate, why, by))

    def sign(self, role: str, who: str, note: str = "") -> None:
        self.journal.append("signoff", {"role": role, "who": who, "note": note})

    def attach(self, role: str, evidence: str, why: str = "") -> None:
        self.journal.append("artifact", {"role": role, "evidence": evidence, "why": why})

    def save_memo(self, text: str) -> Path:
        return self.writer.write_memo(text)

    def cancel(self) -> None:
        self._cancel.set()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._cancel.set()
        self.gear.close()
        self.writer.close()

    # -- the record ----------------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        w = self.workload
        self.journal.append("workload", {"path": str(w.path), "sha256": w.sha256, "spec": w.as_dict(),
                                         "files": [str(f) for f in w.files()]})  # fmt: skip
        for role, who in w.owners.items():
            self.journal.append("owner", {"role": role, "who": who, "source": w.path.name})

    def _reload(self) -> None:
        """Read the newest payload of each pass back from the session's artifacts."""
        for e in self.state().evidence:
            if not e.sha256:
                continue
            payload = msgspec.json.decode(self.writer.read_artifact(e.sha256))
            variant = e.variant or ""
            if e.probe == "clock":
                self.clock.rounds = msgspec.convert(payload["rounds"], list[Round])
            elif e.probe == "native":
                self.natives[variant] = msgspec.convert(payload, TimeTable)
            elif e.probe == "intervention":
                self._trial_from(payload, variant, e)
            else:
                self.payloads[(e.probe, variant)] = payload

    def _trial_from(self, payload: dict[str, Any], variant: str, e: Evidence) -> None:
        key = (str(payload["intervention"]), variant)
        self.arms[key] = msgspec.convert(payload["arms"], list[ArmRound])
        self.trials[key] = Trial(key[0], None, payload["check"], (e.id,), payload.get("failed", ""))

    # -- time ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._cancel.clear()
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
        if self._cancel.is_set():
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
            "profile": self.take_profile, "native": self.take_native, "clock": self.take_clock,
            "interventions": self.take_interventions, "outputs": self.take_outputs, "quality": self.take_quality,
        }  # fmt: skip
        if name in runs:
            runs[name]()

    def ready(self) -> bool:
        """Both first replicas are up and built; False (with the fault on record) if one variant cannot be."""
        if len(self.first) == 2 and all(r.alive for r in self.first.values()):
            return True
        for r in self.first.values():
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

    def fault(self, e: WorkerFault) -> None:
        f = e.fault
        variant = "comparator" if "comparator" in f.label else "failing"
        self.faults[variant] = f
        self.journal.append("fault", {"what": f"{f.label or 'worker'}: {f.verb or 'start'}", "why": f.message,
                                      "fault": msgspec.to_builtins(f)})  # fmt: skip

    def each(
        self, stage: str, probe: str, args: dict[str, Any], say: Callable[[dict[str, Any]], str], message: str
    ) -> None:
        """One verb on both first replicas, one after the other."""
        if not self.ready():
            return
        with self.journal.phase(stage, probe, message):
            for v in VARIANTS:
                self.check_cancelled()
                try:
                    self.payloads[(probe, v)] = passes.simple(
                        self.journal, self.first[v], v, stage, probe, args, self.deadline(), self._cancel, say
                    )
                except WorkerFault as e:
                    self.fault(e)
                    if not self.first[v].alive:
                        return

    def take_lock(self) -> None:
        self.each("ingress", "lock", {}, lambda p: f"{len(p['tags'])} tags", "tags that both variants run under")
        if all(("lock", v) in self.payloads for v in VARIANTS):
            self.journal.append("lock", self.lock())

    def lock(self) -> Any:
        tags = {v: self.payloads[("lock", v)]["tags"] for v in VARIANTS}
        return passes.compare_locks(tags["failing"], tags["comparator"], self.workload.change)

    def take_inventory(self) -> None:
        pattern = self.workload.declared.pattern
        args = {"pattern": f"{pattern[0]}:{pattern[1]}" if pattern else None}
        self.each(
            "ingress", "inventory", args, passes.say_inventory, "zeros, layouts, indices and bytes of every tensor"
        )

    def settled(self) -> None:
        if all(("settle", v) in self.payloads for v in VARIANTS) or not self.ready():
            return
        with self.journal.phase("execution", "settle", "warm up until page faults settle"):
            try:
                got = clocking.settle(self.first, min(2.0, self.budget_s / 15), self.deadline(), self._cancel)
            except WorkerFault as e:
                self.fault(e)
                return
        for v, p in got.items():
            self.payloads[("settle", v)] = p

    def step_ms(self, variant: str) -> float:
        return float(self.payloads.get(("settle", variant), {}).get("step_ms", 1.0))

    def _few(self, seconds: float, variant: str = "failing", most: int = 12) -> int:
        return max(2, min(most, int(seconds * 1e3 / max(self.step_ms(variant), 1e-3))))

    def take_census(self) -> None:
        self.settled()
        seconds = self.budget_s / 30
        args = {"steps": self._few(seconds / 3), "seconds": seconds}
        self.each("lowering", "census", args, passes.say_census, "every op, with layouts and owners")
        self.tell_ops()

    def take_profile(self) -> None:
        self.settled()
        args = {"steps": self._few(self.budget_s / 60), "memory": True}
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
                        self._cancel,
                        min(self.deadline(), 20.0),
                    )
                except WorkerFault as e:
                    self.fault(e)
        if "failing" in self.natives:
            self.journal.append("native", self.natives["failing"])

    def take_outputs(self) -> None:
        self.each("validation", "outputs", {"count": 8}, lambda p: f"{len(p['files'])} outputs, "
                  f"{'finite' if p['finite'] else 'NOT finite'}, {'repeats' if p['repeats'] else 'does not repeat'}",
                  "outputs of both variants on the same inputs")  # fmt: skip
        self._keep_drift()

    def _keep_drift(self) -> None:
        both = [self.payloads.get(("outputs", v)) for v in VARIANTS]
        if both[0] and both[1]:
            drift, name = passes.output_drift(both[0], both[1])
            self.payloads[("drift", "")] = {"number": msgspec.to_builtins(drift), "metric": name}

    def take_quality(self) -> None:
        q = self.workload.quality
        if q is None or q.entry is None:
            return
        self.each("validation", "quality", {"entry": q.entry.text},
                  lambda p: ", ".join(f"{k} {v:.4g}" for k, v in p["metrics"].items()), "the user's own metric")  # fmt: skip

    def extra_probes(self) -> None:
        """Probes that a mechanism asks for by name (``needs``), where the evidence so far makes it worth asking."""
        case = self.case()
        for m in all_mechanisms():
            for probe in m.needs:
                if self.faults or (m.wants is not None and not m.wants(case)):
                    continue
                self.check_cancelled()
                args: dict[str, Any] = {"seconds": self.budget_s / 30}
                if m.arguments is not None:
                    args.update(m.arguments(case))
                self.each(m.stage, probe, args, lambda p: str(p.get("summary", "")), m.question)

    # -- the clock -----------------------------------------------------------------------------------------------

    def take_clock(self, until: float | None = None) -> None:
        """Rounds until the pair is decided or ``until`` seconds of budget are left."""
        self.settled()
        if self.faults or not self.ready():
            return
        keep = self.budget_s * 0.3 if until is None else until
        self.lap.start()
        with self.journal.phase("execution", "clock", "interleaved latency of fresh process pairs"):
            while not self.faults:
                self.check_cancelled()
                self._one_round()
                mean = self.lap.lap()
                c = self.clock.comparison(self.threshold)
                self.clock.planned = clocking.planned_rounds(len(self.clock.rounds), mean, self.left - keep)
                self.journal.live(ratio=c.ratio, floor=c.floor, progress=len(self.clock.rounds) / self.clock.planned,
                                  eta_s=mean * max(0, self.clock.planned - len(self.clock.rounds)))  # fmt: skip
                if self.clock.enough(self.threshold) or self.left - mean < keep:
                    break
        self._keep_clock()

    @property
    def threshold(self) -> float:
        return 0.02

    def _one_round(self) -> None:
        number = len(self.clock.rounds)
        reuse = number == 0
        try:
            if reuse:
                pair = self.first
            else:
                pair, _ = self.gear.pair(self.deadline())
                clocking.settle(pair, min(1.0, self.budget_s / 30), self.deadline(), self._cancel)
            counts = {v: clocking.steps_for(self.step_ms(v), self.payloads[("build", v)]["inputs"]) for v in VARIANTS}
            taken, conditions = clocking.take_round(pair, number, counts, self.deadline, self._cancel, self.journal)
            self.clock.rounds.append(taken)
            self.clock.conditions += conditions
            if not reuse:
                for r in pair.values():
                    self.gear.end(r)
        except WorkerFault as e:
            self.fault(e)

    def _keep_clock(self) -> None:
        if not self.clock.rounds:
            return
        c = self.clock.comparison(self.threshold)
        payload = {"rounds": self.clock.rounds, "conditions": self.clock.conditions, "comparison": c}
        self.journal.evidence("execution", "clock", payload, summary=f"{c.rounds} rounds of process pairs: {c.reason}",
                              figures={"ratio": c.ratio, "floor": c.floor})  # fmt: skip
        self.journal.append("metrics", headline.metrics(self.case(), self.latency()))

    def latency(self) -> dict[str, dict[str, Number]]:
        out = {}
        for v in VARIANTS:
            blocks: list[Block] = [
                b for r in self.clock.rounds for b in (r.failing if v == "failing" else r.comparator)
            ]
            if blocks:
                out[v] = quantile_summary(blocks)
        return out

    # -- interventions -------------------------------------------------------------------------------------------

    def take_interventions(self) -> None:
        for name in ("lock", "inventory", "census", "profile", "clock"):
            self.run_pass(name)
        found = [s for s in suspects(self.case()) if s.intervention]
        for i, s in enumerate(found):
            self.try_out(s, seconds=max(1.0, (self.left - 1.0) / (len(found) - i)))

    def try_out(self, s: Suspect, seconds: float) -> None:
        """Check and time the suspect's intervention on the failing variant, and on the comparator where it is there too."""
        name = s.intervention
        if name is None:
            return
        if name == "relock":
            from sparsetui.runner.relock import relock

            relock(self, seconds)
            return
        variants = ["failing", "comparator"] if s.shared else ["failing"]
        with self.journal.phase(s.mechanism.stage, f"intervention {name}", f"{s.mechanism.id} switched off live"):
            for v in variants:
                self._try_one(name, v, seconds / len(variants), s)

    def _try_one(self, name: str, variant: str, seconds: float, s: Suspect) -> None:
        if not self.ready():
            return
        replica, key = self.first[variant], (name, variant)
        arms: list[ArmRound] = self.arms.setdefault(key, [])
        check: dict[str, Any] = {}
        failed = ""
        end = time.monotonic() + seconds
        try:
            check = replica.call("check", {"intervention": name}, deadline_s=self.deadline(), cancel=self._cancel)
            if check["applied"] and check["equal"]:
                steps = trials.steps_for(self.step_ms(variant))
                first = len(arms)
                while len(arms) - first < trials.LEAST or time.monotonic() < end:
                    self.check_cancelled()
                    arms.append(trials.take_cycle(replica, name, f"{variant}-first", len(arms), steps, self.deadline,
                                                  self._cancel, self.journal))  # fmt: skip
                    if len(arms) >= trials.MOST or (len(arms) >= trials.LEAST and self._clear(arms)):
                        break
                    if self.left < 0 and len(arms) >= 2:
                        break
            else:
                failed = "it found nothing to rewrite" if not check["applied"] else "it changed the outputs"
        except WorkerFault as e:
            self.fault(e)
            self.faults.pop(variant, None)  # the variant itself is well; only its intervened form is not
            failed = e.fault.message
        self._keep_trial(key, check, failed, s)

    def _clear(self, arms: list[ArmRound]) -> bool:
        """The effect is known well enough: its interval is narrow against itself, or excludes all that matters."""
        e = closure(
            arms, self.clock.comparison(self.threshold), question=self.case_question, ideal_ratio=self.ideal
        ).effect
        if e.value is None or e.ci is None:
            return False
        half = (e.ci[1] - e.ci[0]) / 2
        return half < 0.1 * abs(e.value) or half < 0.004

    def _keep_trial(self, key: tuple[str, str], check: dict[str, Any], failed: str, s: Suspect) -> None:
        name, variant = key
        payload = {
            "intervention": name,
            "mechanism": s.mechanism.id,
            "check": check,
            "arms": self.arms[key],
            "failed": failed,
        }
        closed = self._closure(key)
        text = failed or "measured"
        figures: dict[str, Number] = {}
        if closed is not None and closed.effect.value is not None:
            figures = {"closed ratio": closed.closed_ratio, "effect": closed.effect}
            ratio = closed.closed_ratio.value or 0.0
            text = f"{name}: the step takes {ratio:.3f} of its control's time; outputs equal to {check['error']:.1e}"
        made = self.journal.evidence(s.mechanism.stage, "intervention", payload, variant=variant, summary=text,
                                     figures=figures, quality="measured" if not failed else "unavailable")  # fmt: skip
        self.trials[key] = Trial(name, closed, check, (made.id,), failed)

    def _closure(self, key: tuple[str, str]) -> Any:
        arms = self.arms.get(key)
        if not arms or not self.clock.rounds:
            return None
        return closure(arms, self.clock.comparison(self.threshold), question=self.case_question, ideal_ratio=self.ideal)

    # -- deciding ------------------------------------------------------------------------------------------------

    @property
    def case_question(self) -> Any:
        return "missing-speedup" if self.workload.declared.speedup else "regression"

    @property
    def ideal(self) -> float | None:
        s = self.workload.declared.speedup
        return 1.0 / s if s else None

    def case(self) -> Case:
        """Everything seen so far, as the mechanisms read it."""
        d, q = self.workload.declared, self.workload.quality

        def by(probe: str) -> dict[str, dict[str, Any]]:
            return {v: self.payloads[(probe, v)] for v in VARIANTS if (probe, v) in self.payloads}

        kept = self.payloads.get(("drift", ""))
        drift, metric = (msgspec.convert(kept["number"], Number), str(kept["metric"])) if kept else (None, "")
        judged = [self.payloads.get(("quality", v)) for v in VARIANTS]
        if judged[0] and judged[1]:
            drift, metric = passes.quality_drift(judged[0]["metrics"], judged[1]["metrics"])
        known = {m.needs for m in all_mechanisms()}
        wanted = {n for needs in known for n in needs}
        ids = {(e.probe, e.variant or ""): e.id for e in self.state().evidence}
        trials_now = {k: dataclasses.replace(t, closure=self._closure(k)) for k, t in self.trials.items()}
        return Case(
            declared=Declared(d.sparsity, d.layout, d.pattern, d.targets, d.speedup, q.max_drift if q else None),
            change=frozenset(self.workload.change),
            comparison=self.clock.comparison(self.threshold) if self.clock.rounds else None,
            tails=ratio_quantiles(self.clock.rounds) if self.clock.rounds else None,
            lock=self.lock() if all(("lock", v) in self.payloads for v in VARIANTS) else None,
            inventory=by("inventory"), census=by("census"), profile=by("profile"), native=self.natives,
            build=by("build"), settle=by("settle"), growth=by("growth"), outputs=by("outputs"), quality=by("quality"),
            extra={**{k: p for k, p in self.payloads.items() if k[0] in wanted | {"lock"}},
                   ("conditions", ""): {"blocks": self.clock.conditions}},
            died={v: f.message for v, f in self.faults.items()},
            trials=trials_now, drift=drift, drift_metric=metric, evidence_ids=ids,
        )  # fmt: skip

    def tell_ops(self) -> None:
        self.journal.append("ops", {"rows": oprows.rows(self.case())})

    def conclude(self) -> Result:
        case = self.case()
        judgement = self._judged(case)
        numbers = headline.metrics(case, self.latency())
        self.journal.append("metrics", numbers)
        for f in judgement.findings:
            self.journal.append("finding", f)
        for u in judgement.unanswered:
            self.journal.append("unanswered", u)
        if judgement.budget is not None:
            self.journal.append("budget", judgement.budget)
        if case.census:
            self.tell_ops()
        if self.playbook is not None:
            self._walk()
        state = self.state()
        gates = closing.gates(state)
        for g in gates:
            self.journal.append("gate", g)
        material = [f for f in judgement.findings if f.material]
        result = Result(
            session=self.writer.id, verdict=judgement.verdict, tool=TOOL, workload=self.workload.name,
            findings=tuple(material), ruled_out=tuple(f for f in judgement.findings if not f.material),
            cannot_answer=judgement.unanswered, metrics=numbers, lock=case.lock or Lock(match=False),
            gates=gates, evidence=state.evidence, budget=judgement.budget, ops=state.ops, native=self.natives.get("failing"),
            playbook=state.playbook, spent={"total": self.journal.spent, **self.journal.by_phase},
        )  # fmt: skip
        self.journal.append("result", result)
        final = closing.gates(self.state())
        if final != gates:  # some gates look at the result itself
            for g in final:
                self.journal.append("gate", g)
            result = msgspec.structs.replace(result, gates=final)
            self.journal.append("result", result)
        return result

    def _judged(self, case: Case) -> Judgement:
        from sparsetui.runner.failed import judge_failed

        if self.faults:
            return judge_failed(case, self.faults)
        return judge(case)

    def _walk(self) -> None:
        from sparsetui.playbook.facts import flatten
        from sparsetui.playbook.runner import walk

        trail = walk(self.playbook, flatten(self.state()))
        self.journal.append("playbook", msgspec.to_builtins(trail))

    @property
    def open_gap(self) -> str:
        return gap(self.case())[0]
