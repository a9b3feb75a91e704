"""May this investigation be closed? Ten gates, each computed from the session's state and nothing else.

A gate that does not hold can be waived, but only with a reason and a name; both stay in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from sparsetui.evidence.records import Gate, Number, Verdict, unavailable
from sparsetui.flow import CLOSURE_ARTIFACTS
from sparsetui.session.state import SessionState

# The gates in the order in which a reviewer asks; the short name is what results and waivers use.
TITLES: dict[str, str] = {
    "lock": "lock matched",
    "reproduced": "failing reproduced",
    "stable": "comparator stable",
    "mechanism": "mechanism confirmed",
    "tails": "tails checked, not only averages",
    "matrix": "matrix present",
    "quality": "quality within gate",
    "replay": "replay passed",
    "owners": "owners assigned and artifacts attached",
    "rollback": "rollback rehearsed",
}

# Comparator replicas that run identical code keep steady offsets of ±2 %, some 3-4 %; beyond this they do not agree.
STABLE_FLOOR = 0.05
# ... unless the regression is so much larger than the floor that the floor cannot carry it.
FLOOR_OF_EFFECT = 1 / 3


class Found(NamedTuple):
    """What a gate came to before any waiver. ``holds`` is ``None`` when its evidence does not exist yet."""

    holds: bool | None
    why: str
    evidence: tuple[str, ...] = ()


def gates(state: SessionState) -> tuple[Gate, ...]:
    """All ten gates with their state, the figures behind it, and the evidence that proves it."""
    waived = {_gate_name(str(w.get("gate", ""))): w for w in state.waivers if _is_waiver(w)}
    out = []
    for name, check in _CHECKS.items():
        found = check(state)
        stands: Literal["not run", "failed"] = "not run" if found.holds is None else "failed"
        if found.holds:
            out.append(Gate(name, "passed", found.why, evidence=found.evidence))
        elif w := waived.get(name):
            why = f"{str(w['why']).strip()} (waived while {stands}: {found.why})"
            out.append(Gate(name, "waived", why, by=str(w["by"]).strip(), evidence=found.evidence))
        else:
            out.append(Gate(name, stands, found.why, evidence=found.evidence))
    return tuple(out)


def closed(state: SessionState) -> bool:
    """Whether every gate holds or is waived, so that the investigation may be called closed."""
    return all(g.state in ("passed", "waived") for g in gates(state))


def waiver(gate: str, why: str, by: str) -> dict[str, str]:
    """The body of a ``waiver`` event. Raises ``ValueError`` without a known gate, a reason and a name."""
    name = _gate_name(gate)
    if name not in TITLES:
        raise ValueError(f"no gate is called {gate!r}; the gates are {', '.join(TITLES)}")
    if not why.strip():
        raise ValueError(f"gate {name} cannot be waived without a reason")
    if not by.strip():
        raise ValueError(f"gate {name} cannot be waived without the name of who waives it")
    return {"gate": name, "why": why.strip(), "by": by.strip()}


def _is_waiver(body: Mapping[str, Any]) -> bool:
    try:
        return bool(waiver(str(body.get("gate", "")), str(body.get("why") or ""), str(body.get("by") or "")))
    except ValueError:
        return False


def _gate_name(text: str) -> str:
    text = text.strip().casefold()
    return next((name for name, title in TITLES.items() if text in (name, title.casefold())), text)


# The checks


def _lock(state: SessionState) -> Found:
    lock = state.lock or (state.result.lock if state.result else None)
    if lock is None or not (lock.tags or lock.differs):
        return Found(None, "the tags of the two variants were not compared")
    proof = _evidence(state, "lock")
    meant = [d.tag for d in lock.differs if d.declared]
    if not lock.match:
        stray = [f"{d.tag} {d.failing} against {d.comparator}" for d in lock.differs if not d.declared]
        return Found(False, f"differ without being declared: {'; '.join(stray) or 'not said what'}", proof)
    alike = f"{len(lock.tags)} tags compared"
    return Found(True, f"{alike}; differ as declared: {', '.join(meant)}" if meant else f"{alike}, none differs", proof)


def _reproduced(state: SessionState) -> Found:
    verdict = _verdict(state)
    if verdict is None:
        return Found(None, "no investigation has ended in a verdict yet")
    ratio, floor, speedup = _ratio(state), _floor(state), _number(_metrics(state), "real_speedup")
    proof = _evidence(state, "clock")
    said = f"failing / comparator {_figure(ratio)}"
    if verdict.status == "no_fault":
        return Found(False, f"the pair does not differ beyond the noise floor; {said}", proof)
    if verdict.status != "fault":
        return Found(False, f"the evidence does not decide; {said}", proof)
    if verdict.share_of_regression is None:
        return Found(
            True, f"{verdict.mechanism} is seen in the failing variant itself; {said}", verdict.evidence or proof
        )
    if ratio.value is not None and _low(ratio) > 1 + (floor.value or 0.0):
        return Found(True, said, proof)
    claim = _setting(state, "declared", "speedup")
    if claim is not None and speedup.value is not None and _high(speedup) < claim:
        return Found(True, f"declared speed-up {claim:g}, real speed-up {_figure(speedup)}", proof)
    floored = "" if floor.value is None else f" of {floor.value:.1%}"
    return Found(False, f"{said} is not beyond the noise floor{floored}", proof)


def _stable(state: SessionState) -> Found:
    floor = _floor(state)
    if floor.value is None:
        return Found(None, f"no noise floor from comparator against comparator: {floor.reason}")
    ratio, speedup, claim = (
        _ratio(state).value,
        _number(_metrics(state), "real_speedup").value,
        _setting(state, "declared", "speedup"),
    )
    effect = abs(ratio - 1) if ratio is not None else 0.0
    if claim is not None and speedup:  # the question may be the speed-up that is missing
        effect = max(effect, claim / speedup - 1)
    limit = max(STABLE_FLOOR, effect * FLOOR_OF_EFFECT)
    proof = _evidence(state, "clock")
    return Found(floor.value <= limit, f"noise floor {floor.value:.1%}, accepted up to {limit:.1%}", proof)


def _mechanism(state: SessionState) -> Found:
    verdict = _verdict(state)
    if verdict is None:
        return Found(None, "no investigation has ended in a verdict yet")
    if verdict.status != "fault" or not verdict.mechanism:
        return Found(False, f"the verdict is {verdict.status}: {verdict.summary}")
    proof = tuple(dict.fromkeys([*([verdict.intervention] if verdict.intervention else []), *verdict.evidence]))
    if verdict.confidence != "confirmed":
        return Found(False, f"{verdict.mechanism} is only {verdict.confidence}: no intervention has closed it", proof)
    if verdict.share_of_regression is None or verdict.share_of_regression.value is None:
        return Found(True, f"{verdict.mechanism} is confirmed", proof)
    share = _figure(verdict.share_of_regression)
    return Found(True, f"{verdict.mechanism}: its intervention closes {share} of the regression", proof)


def _tails(state: SessionState) -> Found:
    """p99 of both variants, from the clock; of one with too few steps there, from the replay, which serves it by request."""
    metrics, section = _metrics(state), state.sections.get("replay")
    served = section.get("variants") if isinstance(section, Mapping) else None
    if not metrics.get("latency_ms") and not served:
        return Found(None, "no latency was measured")
    said: list[str] = []
    absent: list[str] = []
    proof: list[str] = []
    for v in ("failing", "comparator"):
        n, probe = _number(metrics, "latency_ms", v, "p99"), "clock"
        under = _number(served, v, "p99")
        if n.value is None and under.value is not None:
            n, probe = under, "replay"
        if n.value is None:
            absent.append(f"p99 of {v}: {n.reason}")
        else:
            said.append(f"p99 of {v} {_figure(n)}" + (" under the replayed load" if probe == "replay" else ""))
        proof += _evidence(state, probe)
    return Found(not absent, "; ".join(absent) or ", ".join(said), tuple(dict.fromkeys(proof)))


def _matrix(state: SessionState) -> Found:
    section = state.sections.get("matrix")
    if not isinstance(section, Mapping):
        return Found(None, "no trade-off matrix was measured")
    rows = section.get("rows") or ()
    proof = _evidence(state, "matrix")
    return Found(bool(rows), f"{len(rows)} formats compared" if rows else "the matrix has no rows", proof)


def _quality(state: SessionState) -> Found:
    limit = _setting(state, "quality", "max_drift")
    drifts = _numbers(_metrics(state).get("quality_drift"))
    proof = _evidence(state, "quality") or _evidence(state, "outputs")
    broken = [f.mechanism for f in state.material if f.mechanism in _WRONG]
    if broken:
        return Found(False, f"found: {', '.join(broken)}", proof)
    if limit is None:
        return Found(None, "the workload sets no quality.max_drift")
    known = {name: n for name, n in drifts.items() if n.value is not None}
    if not known:
        reasons = [n.reason or "no reason was given" for n in drifts.values()] or ["it was not measured"]
        return Found(None, f"no drift: {reasons[0]}")
    over = [f"{name} {_figure(n)}" for name, n in known.items() if _worst(n) > limit]
    said = ", ".join(f"{name} {_figure(n)}" for name, n in known.items())
    return Found(not over, f"{', '.join(over)} exceeds {limit:g}" if over else f"{said}, at most {limit:g}", proof)


_WRONG = ("validation.quality-drift", "validation.precision", "validation.wrong-result", "validation.non-finite")


def _replay(state: SessionState) -> Found:
    section = state.sections.get("replay")
    if not isinstance(section, Mapping) or "passed" not in section:
        return Found(None, "no request log was replayed")
    variants, sla = section.get("variants") or {}, section.get("sla") or {}
    figures = []
    for name in ("fixed", "comparator", "failing"):
        p99 = _number(variants, name, "p99") if isinstance(variants, Mapping) else unavailable("")
        if p99.value is not None:
            figures.append(f"p99 of {name} {_figure(p99)}")
    if isinstance(sla, Mapping) and sla.get("p99_ms") is not None:
        limit = "SLA" if section.get("sla_is", "the SLA") == "the SLA" else "limit"
        figures.append(f"{limit} {sla['p99_ms']:.4g} ms")
    why = "; ".join([str(section.get("why") or ("passed" if section["passed"] else "failed")), *figures])
    return Found(section["passed"] is True, why, _evidence(state, "replay"))


def _owners(state: SessionState) -> Found:
    if not state.owners and not state.artifacts:
        return Found(None, f"none of the {len(CLOSURE_ARTIFACTS)} roles has an owner yet")
    proofs = {e.id for e in (*state.evidence, *(state.result.evidence if state.result else ())) if e.sha256}
    missing, attached = [], []
    for role, artifact in CLOSURE_ARTIFACTS.items():
        if not state.owners.get(role, "").strip():
            missing.append(f"{role}: no owner")
        own = [str(a.get("evidence", "")) for a in state.artifacts if a.get("role") == role]
        attached += [e for e in own if e in proofs]
        if not own:
            missing.append(f"{role}: {artifact} is not attached")
        elif not any(e in proofs for e in own):
            missing.append(f"{role}: {', '.join(own)} has no artifact in this session")
    named = f"{len(CLOSURE_ARTIFACTS)} roles have an owner and an artifact"
    return Found(not missing, "; ".join(missing) or named, tuple(dict.fromkeys(attached)))


def _rollback(state: SessionState) -> Found:
    section = state.sections.get("rehearsal")
    if not isinstance(section, Mapping) or "passed" not in section:
        return Found(None, "the way back was not rehearsed")
    why = str(section.get("why") or ("passed" if section["passed"] else "failed"))
    criteria = section.get("criteria") or ()
    if not criteria:
        return Found(False, f"{why}; there are no rollback criteria", _evidence(state, "rehearsal"))
    return Found(section["passed"] is True, f"{why}; {len(criteria)} criteria", _evidence(state, "rehearsal"))


_CHECKS: dict[str, Callable[[SessionState], Found]] = {
    "lock": _lock,
    "reproduced": _reproduced,
    "stable": _stable,
    "mechanism": _mechanism,
    "tails": _tails,
    "matrix": _matrix,
    "quality": _quality,
    "replay": _replay,
    "owners": _owners,
    "rollback": _rollback,
}


# Reading the state


def _verdict(state: SessionState) -> Verdict | None:
    return state.result.verdict if state.result else None


def _metrics(state: SessionState) -> Mapping[str, Any]:
    return {**(state.result.metrics if state.result else {}), **state.metrics}


def _ratio(state: SessionState) -> Number:
    ratio = _number(_metrics(state), "latency_ms", "ratio")
    return ratio if ratio.value is not None else _number(_metrics(state), "latency_ms", "ratio", "p50")


def _floor(state: SessionState) -> Number:
    """The A/A noise floor of the clock, as a ratio - 1."""
    return _number(_metrics(state), "latency_ms", "noise_floor")


def _evidence(state: SessionState, probe: str) -> tuple[str, ...]:
    """The newest evidence of ``probe``: one proof is enough for a reviewer."""
    return next(((e.id,) for e in reversed(state.evidence) if e.probe == probe), ())


def _setting(state: SessionState, table: str, key: str) -> float | None:
    """A figure that the workload file sets."""
    spec: Any = state.spec.get("spec", state.spec)
    section = spec.get(table) if isinstance(spec, Mapping) else None
    value = section.get(key) if isinstance(section, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _number(table: Any, *path: str) -> Number:
    """The figure at ``path``; an unavailable one with a reason when there is none."""
    for key in path:
        if isinstance(table, Number) or not isinstance(table, Mapping) or key not in table:
            return unavailable(f"{' '.join(path).replace('_', ' ')} was not measured")
        table = table[key]
    try:
        number = msgspec.convert(table, Number) if isinstance(table, Mapping) else table
    except msgspec.ValidationError:
        number = None
    if isinstance(number, Number) and (number.value is not None or number.reason):
        return number
    return unavailable(f"{' '.join(path).replace('_', ' ')} was not measured")


def _numbers(raw: Any) -> dict[str, Number]:
    """A single figure as ``drift``, or each figure of a table of them."""
    if isinstance(raw, Number) or (isinstance(raw, Mapping) and ("value" in raw or "quality" in raw)):
        return {"drift": _number({"drift": raw}, "drift")}
    return {str(k): _number(raw, k) for k in raw} if isinstance(raw, Mapping) else {}


def _worst(n: Number) -> float:
    """The largest size that the interval still allows: a gate holds only if all of it does."""
    low, high = n.ci or (0.0, 0.0)
    return max(abs(n.value or 0.0), abs(low), abs(high))


def _low(n: Number) -> float:
    return n.ci[0] if n.ci is not None else n.value or 0.0


def _high(n: Number) -> float:
    return n.ci[1] if n.ci is not None else n.value or 0.0


def _figure(n: Number) -> str:
    if n.value is None:
        return f"unavailable ({n.reason})"
    text = f"{n.value:.3g}"
    if n.ci is not None:
        text += f" [{n.ci[0]:.3g}, {n.ci[1]:.3g}]"
    return f"{text} {n.unit}".rstrip()
