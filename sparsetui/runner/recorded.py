"""What people add to a session beside what was measured: owners, waivers, signatures and artifacts of a role."""

from __future__ import annotations

from typing import Any

from sparsetui.runner.api import Runner
from sparsetui.session import closure


class Recorded(Runner):
    """The part of a runner that only writes down what somebody said; :meth:`record` is where it goes."""

    def record(self, kind: str, body: Any) -> None:
        raise NotImplementedError

    def assign(self, role: str, who: str, source: str = "typed") -> None:
        self.record("owner", {"role": role, "who": who, "source": source})

    def waive(self, gate: str, why: str, by: str) -> None:
        self.record("waiver", closure.waiver(gate, why, by))

    def sign(self, role: str, who: str, note: str = "") -> None:
        self.record("signoff", {"role": role, "who": who, "note": note})

    def attach(self, role: str, evidence: str, why: str = "") -> None:
        self.record("artifact", {"role": role, "evidence": evidence, "why": why})
