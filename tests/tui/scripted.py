"""A scripted runner for the tests of the app: it appends realistic events to a real session, and runs nothing.

Figures are made up and serve only to see them drawn.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.evidence.records import (
    BudgetLine,
    Difference,
    Evidence,
    Finding,
    Gate,
    Lock,
    Missing,
    Number,
    OpRow,
    PathShare,
    Place,
    RegressionBudget,
    Result,
    Sampler,
    TimeTable,
    Unanswered,
    Verdict,
    unavailable,
)
from sparsetui.flow import BY_ID, OWNERS, STAGES
from sparsetui.release import closing
from sparsetui.runner.api import Cancelled, Listener, Live, Runner, Update
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store

NASTY = "layers.0.[red]\x1b[31mlinear1\u202e"  # a module name that would like to be markup and an escape sequence


def number(
    value: float, lo: float | None = None, hi: float | None = None, n: int | None = None, unit: str = ""
) -> Number:
    ci = None if lo is None or hi is None else (lo, hi)
    return Number(value=value, ci=ci, n=n, unit=unit)


SHARE = number(0.93, 0.90, 0.95, 24)
WRONG = Finding(
    stage="kernel",
    mechanism="kernel.wrong-orientation",
    confidence="supported",
    material=True,
    summary="the sparse weight of layers.0.linear1 is the right-hand CSC operand of mm",
    owner=OWNERS["KL"],
    where=(Place("layers.0.linear1", "aten::mm"),),
    evidence=("E03", "E05"),
    question="Which kernel really ran?",
    fix="keep the weight on the left: (csr @ x.T).T",
    boundary="the forward of pruned linear layers",
    rollback="set SPARSE_LEFT=0 and restart",
    closes="ratio within the noise floor after the swap",
    reason="two passes agree",
)
INDEX = Finding(
    stage="execution",
    mechanism="execution.index-copy",
    confidence="suspected",
    material=False,
    summary="int64 indices are narrowed on each call",
    owner=OWNERS["KL"],
    share_of_regression=number(0.004, -0.003, 0.011, 24),
    evidence=("E04",),
    reason="closes less than the noise floor",
)
_ONE = {"value": 0.73, "ci": [0.72, 0.74], "n": 200, "unit": "ms", "quality": "measured"}
_NONE = {"value": None, "unit": "J", "quality": "unavailable", "reason": "RAPL is not readable"}
_TIMES = {"value": 1.0, "unit": "×", "quality": "derived"}
MATRIX: dict[str, Any] = {
    "summary": "2 formats; the fastest single one is csr int32, 1.83× as fast as dense",
    "risk_rule": "high: the quality gate is exceeded; low: none of these",
    "rows": [
        {"name": "dense", "kind": "dense", "p50": _ONE, "p99": {**_ONE, "value": 0.91}, "against_dense": _TIMES,
         "energy": _NONE, "weight_bytes": 4194304, "quality_drift": 0.0, "SLA": "met", "risk": "low", "note": "as it was"},
        {"name": "csr int32", "kind": "unstructured", "p50": {**_ONE, "value": 0.4}, "p99": {**_ONE, "value": 0.52},
         "against_dense": {**_TIMES, "value": 0.55, "ci": [0.53, 0.57]}, "energy": _NONE, "weight_bytes": 675196,
         "quality_drift": {"value": 0.02, "unit": "", "quality": "measured"}, "SLA": "met",
         "risk": "medium: no quality gate decides", "note": "one index a value"},
    ],
}  # fmt: skip
LENS: dict[str, Any] = {
    "points": [
        {"label": "release", "pressure": 0.4, "tail": 1.2},
        {"label": "candidate", "pressure": 0.9, "tail": 2.1},
    ],
    "zones": [{"name": "baseline", "low": 0.0}, {"name": "saturation", "low": 0.8}],
}
REPLAY: dict[str, Any] = {"passed": False, "why": "p99 of the fixed variant is above the SLA", "misses": 12}
PASSES: dict[str, tuple[str, ...]] = {s.id: s.passes for s in STAGES}


def operand(layout: str, *shape: int, name: str = "") -> dict[str, Any]:
    return {"layout": layout, "dtype": "float32", "shape": shape, "name": name, "derived": "", "strides": []}


# what the passes leave behind, in their own layout: one product on the wrong side, and what ran inside it
PAYLOADS: dict[str, dict[str, Any]] = {
    "census": {
        "steps": 10,
        "rows": [
            {"op": "aten::addmm", "family": "product", "module": NASTY, "calls": 10, "ns": 1_000_000, "path": "dense",
             "operands": [operand("strided", 64, 1024), operand("strided", 1024, 10)], "outputs": []},
            {"op": "aten::mm", "family": "product", "module": "layers.0.linear1", "calls": 10, "ns": 38_100_000,
             "path": "sparse-csr-rhs",
             "operands": [operand("strided", 64, 1024), operand("csc", 1024, 1024, name="layers.0.linear1.weight")],
             "outputs": [operand("strided", 64, 1024)],
             "weight": {"name": "layers.0.linear1.weight", "layout": "csc", "zeros": 0.9, "nnz": 104857,
                        "bytes": {"values": 419430, "indices": 423528, "dense": 4194304}}},
        ],
    },
    "profile": {
        "steps": 10,
        "rows": [
            {"op": "aten::linear", "within": "", "calls": 20, "self_ms": 0.3, "total_ms": 41.0},
            {"op": "aten::mm", "within": "aten::linear", "calls": 10, "self_ms": 38.0, "total_ms": 38.5},
            {"op": "aten::copy_", "within": "aten::linear", "calls": 10, "self_ms": 2.0, "total_ms": 2.0},
        ],
    },
    "native": {
        "paths": [
            {"path": "sparse-csr-rhs", "share": {"value": 0.96, "ci": [0.94, 0.97], "n": 480, "unit": "share"},
             "symbols": ["mkl_sparse_s_csr_ng_n_mm_f_ker_i4_def"], "callers": ["serving.py:41 forward"], "threads": 2},
        ],
    },
}  # fmt: skip


class ScriptedRunner(Runner):
    """``pace`` is the seconds a pass lasts; ``fail`` names a pass that raises; ``hold`` makes a pass wait for cancel."""

    alive = True

    def __init__(
        self,
        workload: Any,
        store: Store,
        *,
        budget_s: float,
        playbook: Any,
        listener: Listener,
        session: str | None = None,
        pace: float = 0.0,
        fail: str = "",
        hold: str = "",
        steps: int = 4,
    ) -> None:
        self.listener = listener
        self.budget_s = budget_s
        self.pace, self.fail, self.hold, self.steps = pace, fail, hold, steps
        self.calls: list[str] = []
        self.closed = 0
        self.spent = 0.0
        self._stop = threading.Event()
        self._live = Live(budget_s=budget_s)
        if session is None:
            self.writer = store.create(workload.name, getattr(workload, "name", ""))
            self.writer.append("workload", {"path": str(workload.path), "owners": workload.owners})
            for role, who in workload.owners.items():
                self.assign(role, who, "workload file")
        else:
            self.writer = store.writer(session)
        self.session = self.writer.id

    # what the app sees

    def state(self) -> SessionState:
        return self.writer.state()

    def _tell(self, **live: Any) -> None:
        self._live = msgspec.structs.replace(self._live, spent_s=self.spent, **live)
        self.listener(Update(self.writer.state(), self._live))

    def _evidence(self, stage: str, probe: str, summary: str, **fields: Any) -> Evidence:
        payload = PAYLOADS.get(probe, {"probe": probe, "rows": [{"op": "aten::mm", "calls": 1}]})
        return self.writer.evidence(stage, probe, payload, summary=summary, **fields)

    # the work

    def run_stage(self, stage: str) -> None:
        self.calls.append(stage)
        for name in BY_ID[stage].passes:
            self._pass(stage, name)

    def _pass(self, stage: str, name: str) -> None:
        began = time.monotonic()
        self.writer.append("phase", {"stage": stage, "name": name, "state": "started"})
        self._tell(running=True, stage=stage, phase=name, message="block 1", progress=0.0, eta_s=4 * self.pace)
        try:
            self._during(stage, name)
            getattr(self, f"_{name}", lambda: None)()
            state, note = "done", ""
        except RuntimeError as error:
            state, note = "failed", str(error)
        except Cancelled:
            self.writer.append("phase", {"stage": stage, "name": name, "state": "cancelled"})
            self._tell(running=False)
            raise
        seconds = round(time.monotonic() - began, 3) if self.pace else 1.0
        self.spent += seconds
        self.writer.append("phase", {"stage": stage, "name": name, "state": state, "seconds": seconds, "note": note})
        self._tell(running=False, phase="", message="", progress=None, eta_s=None)

    def _during(self, stage: str, name: str) -> None:
        if self.hold == name:
            self._stop.wait(30)
        if self.fail == name:
            raise RuntimeError("worker died: signal 11 (segmentation fault)")
        strips: dict[str, list[float]] = {"failing": [], "comparator": []}
        for i in range(self.steps):
            if self._stop.is_set():
                raise Cancelled
            if name in ("clock", "intervention"):
                strips["failing"].append(3.85 + 0.1 * ((i * 7) % 5) / 5)
                strips["comparator"].append(0.72 + 0.02 * ((i * 3) % 4) / 4)
            latency = {k: tuple(v) for k, v in strips.items()} if strips["failing"] else self._live.latency_ms
            self._tell(latency_ms=latency, progress=(i + 1) / self.steps, message=f"block {i + 1} of {self.steps}")
            if self.pace:
                time.sleep(self.pace / self.steps)

    def _lock(self) -> None:
        differs = (Difference("weights", "a1", "b2", True),)
        self.writer.append("lock", Lock(match=True, differs=differs, tags={"torch": "2.13.0", "threads": "2"}))
        self.writer.append(
            "command", {"argv": ["python", "-m", "sparsetui.worker.child", "a b"], "why": "fork server", "pid": 4242}
        )
        self._evidence("ingress", "lock", "weights differ, as declared", seconds=0.2)

    def _inventory(self) -> None:
        self._evidence("ingress", "inventory", "12 tensors, 2 sparse (csr), 90 % zeros", variant="failing", seconds=0.4,
                       figures={"zeros": number(0.9, unit="share"), "index bytes": number(419430, unit="B")})  # fmt: skip

    def _census(self) -> None:
        rows = [
            OpRow("aten::mm", NASTY, "sparse-csc", 1, number(3.81, unit="ms"), 0.9, True, False,
                  "strided × csc", "[64,1024]×[1024,1024]", ratio=number(6.2)),
            OpRow("aten::addmm", "head", "dense", 1, number(0.10, unit="ms"), 0.02, layouts="strided × strided", ratio=number(1.0)),
            OpRow("aten::addmm", "layers.1.linear2", "dense", 2, number(0.31, unit="ms"), 0.9, True, True,
                  "strided × strided", ratio=number(1.4)),
        ]  # fmt: skip
        self.writer.append("ops", {"rows": rows})
        self._evidence("lowering", "census", "12 ops, 2 sparse, 1 dense over a 90 %-zero weight", seconds=1.1)
        self.writer.append("metrics", {"fallback_rate": {"calls": number(0.02, unit="share"), "time": number(0.07, unit="share")},
                                       "nominal_sparsity": number(0.9, unit="share")})  # fmt: skip

    def _profile(self) -> None:
        self._evidence("kernel", "profile", "no conversion inside the product", seconds=2.0)

    def _native(self) -> None:
        if not any(f.mechanism == WRONG.mechanism for f in self.writer.state().findings):
            self._evidence("kernel", "native", "96 % in mkl_sparse_s_csr_ng_n_mm_f_ker", seconds=3.0)
            share = number(0.96, 0.94, 0.97, 480)
            symbols, callers = ("mkl_sparse_s_csr_ng_n_mm_f_ker_i4_def",), ("serving.py:41 forward",)
            paths = (
                PathShare("sparse-csr-rhs", share, symbols, callers, 2),
                PathShare("python", number(0.04, 0.03, 0.06, 480)),
            )
            missing = (Missing("layouts", "a symbol tells no layout of its operands"),)
            self.writer.append("native", TimeTable(paths, (Sampler("py-spy", 10, 480, 0.02),), missing))
            self.writer.append("finding", WRONG)

    def _clock(self) -> None:
        p = lambda v, n: number(v, v * 0.98, v * 1.02, n, "ms")  # noqa: E731
        arms = {
            "failing": {"p50": p(3.90, 2000), "p95": p(4.21, 2000), "p99": p(4.80, 2000)},
            "comparator": {"p50": p(0.73, 2000), "p95": p(0.80, 2000), "p99": p(0.91, 2000)},
        }
        self.writer.append("metrics", {"latency_ms": {**arms, "ratio": number(5.34, 5.29, 5.40, 48)},
                                       "real_speedup": number(0.19, 0.185, 0.189, 48),
                                       "energy_j_per_request": {"failing": unavailable("RAPL is not readable")}})  # fmt: skip
        self._live = msgspec.structs.replace(self._live, ratio=number(5.34, 5.29, 5.40, 48), floor=number(0.008))
        self._evidence("execution", "clock", "5.34× slower, floor ±0.8 %", seconds=12.0,
                       figures={"ratio": number(5.34, 5.29, 5.40, 48),
                                "cycles": unavailable("perf counters are not permitted")})  # fmt: skip
        self.writer.append("finding", INDEX)

    def _gates(self) -> None:
        self.writer.append("gate", Gate("quality", "passed", "drift 2e-5 within 0.01", evidence=("E06",)))
        self.writer.append("gate", Gate("replay", "not run", "the workload names no request log"))

    def intervene(self, mechanism: str | None = None) -> None:
        self.calls.append(f"intervene {mechanism}")
        self._pass("kernel", "intervention")
        found = self._evidence(
            "kernel", "intervention", "swapping the sides closes 93 %", seconds=8.0, figures={"share": SHARE}
        )
        proved = msgspec.structs.replace(
            WRONG, confidence="confirmed", share_of_regression=SHARE, intervention=found.id
        )
        self.writer.append("finding", proved)
        gap = number(3.17, 3.1, 3.25, 48, "ms")
        lines = (
            BudgetLine("kernel.wrong-orientation", number(2.95), SHARE),
            BudgetLine("unexplained", number(0.22), number(0.07)),
        )
        self.writer.append("budget", RegressionBudget("regression", gap, lines))
        self._tell(running=False)

    def conclude(self) -> Result:
        self.calls.append("conclude")
        state = self.writer.state()
        first = next((f for f in state.findings if f.material), None)
        if first is None:
            verdict = Verdict("no_fault", "the pair does not differ beyond the noise floor")
        else:
            verdict = Verdict("fault", first.summary, first.stage, first.mechanism, first.confidence, first.where,
                              first.share_of_regression, first.owner, first.evidence, first.intervention, first.fix,
                              first.boundary, first.rollback)  # fmt: skip
        result = Result(self.session, verdict, findings=state.material, ruled_out=state.ruled_out,
                        cannot_answer=(Unanswered("energy", "RAPL is not readable", "run as root"),))  # fmt: skip
        self._gates()
        self.writer.append("result", result)
        self._tell(running=False)
        return result

    def run_all(self) -> Result:
        for stage in STAGES[:-1]:
            self.run_stage(stage.id)
        self.intervene(None)
        return self.conclude()

    # the release half

    def _section(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(name)
        self._pass("release", name)
        self.writer.append("section", {"name": name, "body": body})
        self._tell(running=False)
        return body

    def run_matrix(self, budget_s: float | None = None) -> dict[str, Any]:
        return self._section("matrix", MATRIX)

    def run_lens(self, budget_s: float | None = None) -> dict[str, Any]:
        return self._section("lens", LENS)

    def run_replay(self, budget_s: float | None = None) -> dict[str, Any]:
        return self._section("replay", REPLAY)

    def run_rehearsal(self, budget_s: float | None = None) -> dict[str, Any]:
        return self._section("rehearsal", {"passed": True})

    # closure

    def assign(self, role: str, who: str, source: str = "typed") -> None:
        self.writer.append("owner", {"role": role, "who": who, "source": source})

    def waive(self, gate: str, why: str, by: str) -> None:
        self.writer.append("waiver", {"gate": gate, "why": why, "by": by})
        self.writer.append("gate", Gate(gate, "waived", why, by))

    def sign(self, role: str, who: str, note: str = "") -> None:
        self.writer.append("signoff", {"role": role, "who": who, "note": note})

    def attach(self, role: str, evidence: str, why: str = "") -> None:
        self.writer.append("artifact", {"role": role, "evidence": evidence, "why": why})

    def evaluate_gates(self, by: str = "") -> tuple[Gate, ...]:
        return closing.evaluate(self.writer, by)

    def cancel(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self.closed += 1
        self.writer.close()


class Made:
    """A factory that remembers the runners it made."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.kind = ScriptedRunner
        self.runners: list[ScriptedRunner] = []
        self.given: dict[str, Any] = {}

    def __call__(self, workload: Any, store: Any, **options: Any) -> ScriptedRunner:
        self.given = options
        runner = self.kind(workload, store, **options, **self.options)
        self.runners.append(runner)
        return runner


def workload_file(folder: Path) -> Path:
    """A small legal workload file with its code beside it; nothing of it is run by a scripted runner."""
    (folder / "serving.py").write_text(
        "def build_pruned():\n    return None\n\n\ndef build_release():\n    return None\n\n\ndef requests():\n    return []\n"
    )
    path = folder / "ranker.toml"
    path.write_text(
        '[workload]\nname = "ranker"\n[failing]\nentry = "serving.py:build_pruned"\n'
        '[comparator]\nentry = "serving.py:build_release"\n[inputs]\nentry = "serving.py:requests"\n'
        '[owners]\n"sparse kernel library owner" = "@kernels"\n'
    )
    return path
