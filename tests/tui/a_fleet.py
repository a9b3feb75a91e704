"""A fleet of four hosts as its runner leaves it: one throttled, one without torch."""

from __future__ import annotations

from typing import Any

from sparsetui.evidence.records import Evidence, Number

HOSTS: dict[str, dict[str, Any]] = {
    "web-1": {"state": "done", "says": "cannot_answer", "ratio": 1.02, "mechanism": "", "why": "", "phase": ""},
    "web-2": {"state": "running", "phase": "clock", "spent_s": 31.4, "budget_s": 60.0, "ratio": 1.01},
    "web-3": {"state": "submitted"},
    "web-4": {
        "state": "refused",
        "why": "python3 has no usable torch: No module named 'torch'",
        "says": "",
        "ratio": None,
    },
}


def _number(value: float, low: float, high: float, unit: str) -> dict[str, Any]:
    return {"value": value, "ci": [low, high], "n": 8, "unit": unit, "quality": "measured"}


def _row(host: str, level: float, apart: str = "", lock: str = "97f3ff10cb64") -> dict[str, Any]:
    ms = _number(level, level * 0.98, level * 1.02, "ms")
    return {"host": host, "state": "done", "says": "no_fault", "apart": apart, "mechanism": "", "lock": lock, "code": "path",
            "ratio": _number(1.01, 0.98, 1.04, "×"), "failing_ms": ms, "comparator_ms": ms, "seconds": 70.1}  # fmt: skip


_SICK = "the host itself is slower: both variants run at 3.00× the others' step time"
FLEET: dict[str, Any] = {
    "summary": f"It is the host: web-3: {_SICK} (quota: 50000 100000 here, max 100000 elsewhere). The other 2 do not show it "
    "(1.01× [0.96, 1.06]). 1 more gave no answer: web-4.",
    "status": "host",
    "address": "10.0.0.1:6379",
    "chosen": "web-1, web-2, web-3, web-4",
    "rows": [
        _row("web-1", 2.01),
        _row("web-2", 2.0),
        _row("web-3", 6.02, "yes", "8973e4d6492e"),
        {"host": "web-4", "state": "refused", "says": "python3 has no usable torch", "apart": "", "mechanism": "", "lock": ""},
    ],
    "apart": [
        {"host": "web-3", "seen_in": "step time", "factor": _number(3.0, 2.7, 3.3, "×"), "why": _SICK,
         "lock": "quota: 50000 100000 here, max 100000 elsewhere", "conditions": "9 stops by the CPU quota a second, elsewhere 0"}
    ],
    "missing": [{"host": "web-4", "state": "refused", "why": "python3 has no usable torch"}],
}  # fmt: skip

HOST_EVIDENCE = (
    Evidence("E03", "execution", "host", "web-3: no fault, failing / comparator 1.01×, lock 8973e4d6492e", "ab" * 32,
             figures={"ratio": Number(1.01, (0.98, 1.04), 8, "×"), "comparator": Number(6.02, (5.9, 6.14), 8, "ms")},
             source={"host": "web-3", "address": "10.0.0.13", "python": "3.11.7", "code": "path"}),
)  # fmt: skip
