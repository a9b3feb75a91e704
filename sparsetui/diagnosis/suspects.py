"""Who is suspected, and whether there is a gap between the variants to explain at all."""

from __future__ import annotations

from dataclasses import dataclass

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.catalogue import all_mechanisms
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.diagnosis.stats import Comparison
from sparsetui.diagnosis.stats.closures import Question

_CLAIM_SLACK = 0.04  # a claimed speed-up may be missed by so much before it counts as missing, however rough the floor


@dataclass(frozen=True)
class Suspect:
    """A mechanism that is present in the failing variant, and how it stands in the comparator."""

    mechanism: Mechanism
    failing: Suspicion
    comparator: Suspicion | None
    question: Question = "regression"

    @property
    def intervention(self) -> str | None:
        return self.failing.intervention or self.mechanism.intervention

    @property
    def shared(self) -> bool:
        """Present in the comparator as well."""
        return self.comparator is not None or self.mechanism.net

    @property
    def tried_on(self) -> tuple[str, ...]:
        """The variants its intervention has to be measured on.

        What a regression's comparator pays as well is not to blame, so only the difference counts. A missing speed-up is
        missed against the comparator as it is, and there all that the failing variant pays counts.
        """
        return ("failing", "comparator") if self.shared and self.question == "regression" else ("failing",)


def suspects(case: Case) -> list[Suspect]:
    """Every mechanism that is present in the failing variant, in the order they are tried."""
    out = []
    for m in all_mechanisms():
        found = m.suspect(case, "failing")
        if found is not None:
            out.append(Suspect(m, found, m.suspect(case, "comparator"), case.question))
    return out


def gap(case: Case) -> tuple[str, str]:
    """``(state, why)``: state is ``open`` (there is a gap to explain), ``none`` or ``undecided``."""
    c = case.comparison
    if c is None:
        return "undecided", "latency was not measured"
    if case.declared.wanted is not None:
        return _speedup_gap(c, case.declared.wanted, "declared" if case.declared.speedup else "asked for")
    if c.verdict == "slower":
        return "open", c.reason
    if c.verdict == "faster":
        return "none", f"the failing variant is the faster one, {c.reason}"
    if c.verdict == "same":
        return "none", c.reason
    if _could_matter(c):
        return "undecided", c.reason
    return "none", f"a slowdown of more than {_matters(c):.1%} is ruled out over {c.rounds} pairs of processes"


def _could_matter(c: Comparison) -> bool:
    """An undecided comparison matters only if a slowdown beyond the threshold is still possible."""
    if c.decision_ci is None:
        return True
    return c.decision_ci[1] > 1.0 + _matters(c)


def _matters(c: Comparison) -> float:
    return max(c.band, c.threshold)


def _speedup_gap(c: Comparison, speedup: float, said: str) -> tuple[str, str]:
    ideal = 1.0 / speedup
    if c.ratio.value is None or c.ratio.ci is None or c.decision_ci is None:
        return "undecided", c.reason
    slack = 1.0 + min(c.floor.value or 0.0, _CLAIM_SLACK)
    real = 1.0 / c.ratio.value
    text = f"real speed-up {real:.3g}, {said} {speedup:.3g}"
    if c.decision_ci[0] > ideal * slack:
        return "open", text
    if c.ratio.value <= ideal * slack:
        return "none", text
    return "undecided", text + f" (interval of the ratio {c.decision_ci[0]:.3f} to {c.decision_ci[1]:.3f})"
