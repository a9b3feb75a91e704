"""Validation: are results, quality and SLA still right?"""

from __future__ import annotations

from sparsetui.diagnosis.case import Case
from sparsetui.diagnosis.mechanism import Mechanism, Suspicion
from sparsetui.evidence.records import Place


def _quality_drift(case: Case, variant: str) -> Suspicion | None:
    gate = case.declared.max_drift
    if variant != "failing" or gate is None or case.drift is None or case.drift.value is None:
        return None
    low = case.drift.ci[0] if case.drift.ci else case.drift.value
    if low <= gate:
        return None
    metric = case.drift_metric or "outputs"
    clean = [t for t in case.trials.values() if t.intervention == "dense-twin" and t.valid]
    passes = [("quality", "failing"), ("outputs", "failing")]
    if clean:
        passes.append(("check", "failing"))
    return Suspicion(
        summary=f"{metric} moved by {case.drift.value:.4g}, the gate allows {gate:g}"
        + ("; the sparse products equal their masked-dense twins" if clean else ""),
        where=(Place(module=metric),),
        figure=case.drift,
        passes=tuple(passes),
        broken=f"quality drift is over its gate of {gate:g}",
    )


MECHANISMS = [
    Mechanism(
        id="validation.quality-drift", owner="ML", suspect=_quality_drift,
        question="Is quality within its gate while execution is clean?",
        fix="prune less, or recover by fine-tuning under the mask; the runtime is not at fault",
        boundary="the weights; no runtime change",
        rollback="serve the comparator's weights",
        closes="the metric is within its gate",
    ),
]  # fmt: skip
