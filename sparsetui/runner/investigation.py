"""One investigation: from a workload to a verdict, within a budget, with everything in the ledger."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

import sparsetui
from sparsetui.diagnosis import energy
from sparsetui.diagnosis import metrics as headline
from sparsetui.diagnosis.case import Case, Trial
from sparsetui.diagnosis.stats import ArmRound, Round
from sparsetui.diagnosis.suspects import suspects
from sparsetui.diagnosis.verdict import Judgement, judge
from sparsetui.evidence.records import Evidence, Lock, Result, TimeTable, Unanswered
from sparsetui.flow import BY_ID
from sparsetui.runner import trials
from sparsetui.runner.api import Listener
from sparsetui.runner.equipment import VARIANTS
from sparsetui.runner.failed import judge_failed
from sparsetui.runner.journal import Journal
from sparsetui.runner.lab import CALM, Lab
from sparsetui.runner.plan import run_plan
from sparsetui.runner.recorded import Recorded
from sparsetui.session import closure as closing
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store
from sparsetui.workload.spec import Workload

TOOL = f"sparsetui {sparsetui.__version__}"


class Investigation(Recorded):
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
        self.workload, self.playbook = workload, playbook
        self.writer = store.writer(session) if session is not None else store.create(workload.name)
        self.journal = Journal(self.writer, listener, budget_s)
        asks = getattr(playbook, "question", "") == "missing-speedup"
        self.lab = Lab(workload, self.journal, budget_s, asks_speedup=asks)
        self._closed = False
        if session is not None:
            self._reload()
        else:
            self.journal.introduce(workload)

    # -- what a face may call ------------------------------------------------------------------------------------

    def state(self) -> SessionState:
        return self.writer.state()

    def run_all(self) -> Result:
        with self.lab.running():
            run_plan(self.lab)
            return self.conclude()

    def run_stage(self, stage: str) -> None:
        with self.lab.running():
            for name in BY_ID[stage].passes:
                self.lab.run_pass(name, fresh=True)
            self.conclude()

    def intervene(self, mechanism: str | None = None) -> None:
        lab = self.lab
        with lab.running():
            for name in ("lock", "inventory", "census", "profile", "clock"):
                lab.run_pass(name)
            found = [s for s in suspects(lab.case()) if mechanism in (None, s.mechanism.id) and s.intervention]
            if found and not lab.faults:
                trials.try_out(lab, found[0], seconds=max(4.0, lab.budget_s / 6))
            self.conclude()

    def bad_input(self) -> str | None:
        """What the workload file gets wrong that only running it could show, in one line; None if nothing."""
        wrong = [f.message for f in self.lab.faults.values() if f.bad_input]
        return f"{self.workload.path}: {'; '.join(dict.fromkeys(wrong))}" if wrong else None

    def record(self, kind: str, body: Any) -> None:
        self.journal.append(kind, body)

    def save_memo(self, text: str) -> Path:
        return self.writer.write_memo(text)

    def cancel(self) -> None:
        self.lab.cancel.set()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.lab.cancel.set()
        self.lab.gear.close()
        self.writer.close()

    # -- the record ----------------------------------------------------------------------------------------------

    def _reload(self) -> None:
        """Read the newest payload of each pass back from the session's artifacts."""
        for e in self.state().evidence:
            if not e.sha256:
                continue
            payload = msgspec.json.decode(self.writer.read_artifact(e.sha256))
            variant = e.variant or ""
            if e.probe == "clock":
                self.lab.clock.rounds = msgspec.convert(payload["rounds"], list[Round])
                self.lab.clock.inputs = int(payload.get("inputs", 1))
                self.lab.clock.cold_ms = dict(payload.get("cold_ms", {}))
                self.lab.clock.conditions = list(payload.get("conditions", []))
            elif e.probe == "native":
                self.lab.natives[variant] = msgspec.convert(payload, TimeTable)
            elif e.probe == "drift":
                self.lab.payloads[("drift", "")] = payload
            elif e.probe == "intervention":
                self._trial_from(payload, variant, e)
            else:
                self.lab.payloads[(e.probe, variant)] = payload

    def _trial_from(self, payload: dict[str, Any], variant: str, e: Evidence) -> None:
        key = (str(payload["intervention"]), variant)
        self.lab.arms[key] = msgspec.convert(payload["arms"], list[ArmRound])
        if key[0] == CALM:
            self.lab.calm = msgspec.convert(payload.get("rounds", []), list[Round])
        self.lab.trials[key] = Trial(key[0], None, payload["check"], (e.id,), payload.get("failed", ""))

    def conclude(self) -> Result:
        case = self.lab.case()
        judgement = self._judged(case)
        numbers = headline.metrics(case, self.lab.latency())
        numbers["energy_j_per_request"] = self._energy()
        self.journal.append("metrics", numbers)
        for f in judgement.findings:
            self.journal.append("finding", f)
        for u in judgement.unanswered:
            self.journal.append("unanswered", u)
        if judgement.budget is not None:
            self.journal.append("budget", judgement.budget)
        if case.census:
            self.lab.tell_ops()
        if self.playbook is not None:
            self._walk()
        state = self.state()
        gates = closing.gates(state)
        for g in gates:
            self.journal.append("gate", g)
        material = [f for f in judgement.findings if f.material]
        result = Result(
            session=self.writer.id, verdict=judgement.verdict, tool=TOOL, workload=self.workload.name,
            findings=tuple(material), ruled_out=tuple(f for f in judgement.findings if not f.material and f.settled),
            cannot_answer=judgement.unanswered, metrics=numbers, lock=case.lock or Lock(match=False),
            gates=gates, evidence=state.evidence, budget=judgement.budget, ops=state.ops, native=self.lab.natives.get("failing"),
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

    def _energy(self) -> dict[str, Any]:
        """Joules a request of each variant: from counters where they could be read beside the blocks, else as the file says."""
        blocks = {v: [b for r in self.lab.clock.rounds for b in getattr(r, v)] for v in VARIANTS}
        watts = self.workload.energy.watts_per_core if self.workload.energy else None
        got: dict[str, Any] = msgspec.to_builtins(
            energy.by_variant(blocks, watts, ("no RAPL or NVML counter was readable",))
        )
        return got

    def _judged(self, case: Case) -> Judgement:
        faults = self.lab.faults or (self.lab.deaths if case.comparison is None else {})
        if faults:
            return judge_failed(case, faults)
        found = judge(case)
        why, settle = "the budget was used up before it was looked at", "run again with a larger --budget"
        late = [Unanswered(f"{m}: {question}", why, settle) for m, question in self.lab.skipped.items()]
        return dataclasses.replace(found, unanswered=(*found.unanswered, *late))

    def _walk(self) -> None:
        from sparsetui.playbook.facts import flatten
        from sparsetui.playbook.runner import walk

        trail = walk(self.playbook, flatten(self.state()))
        self.journal.append("playbook", msgspec.to_builtins(trail))
