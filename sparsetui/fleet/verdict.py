"""Is it the host or the release? Pure: reports of hosts go in, a verdict comes out.

Rules, in this order:

1. Hosts are grouped by lock. Figures are pooled inside the largest group only, the *reference*; hosts of other locks keep
   their own figures and enter by what they found.
2. A host *stands apart* where its comparator's step, typical or mean (the host's own speed, whatever the release does), or its
   failing/comparator ratio is off the prediction from the others, see :func:`sparsetui.fleet.pooling.apart`, by at least a
   fifth or a tenth. A host of another lock on the same hardware is held against the reference too: that names the host, and
   its lock is the reason; nothing of it is pooled. A host also stands apart where it alone (with fewer than half) shows a
   fault that the others do not.
3. What the rest shows is the *release's* effect: the pooled ratio of the reference's hosts that do not stand apart, or, where
   no host could time it, what each host found.
4. ``release``: the rest shows it. ``host``: only hosts that stand apart do. ``mixed``: both, or hosts contradict each other and
   none is odd. ``no_fault``: neither. ``cannot_answer``: anything that the intervals leave open. An effect counts as none
   beside another that is four times as large (in logs); what is left open that way is a remark.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from sparsetui.evidence.records import Number, Unanswered, unavailable
from sparsetui.fleet.differences import condition_differences, lock_differences, same_hardware
from sparsetui.fleet.pooling import apart, pool
from sparsetui.fleet.records import FleetStatus, FleetVerdict, HostReport, LockGroup, Outlier, Pool

LEVEL_MATTERS = math.log(1.2)
RATIO_MATTERS = math.log(1.1)
SLOWDOWN = 0.02  # a smaller one is not a regression, as in a single host's clock
RESOLUTION = 0.005
DOMINATES = 4.0
NAMES = 5  # hosts named in a sentence


def decide(reports: Sequence[HostReport]) -> FleetVerdict:
    """The verdict over ``reports``, in any order; each host once. Deterministic; 1,000 hosts take well under a second."""
    done = sorted((r for r in reports if r.state == "done"), key=lambda r: r.host)
    missing = tuple((r.host, r.state, r.why) for r in sorted(reports, key=lambda r: r.host) if r.state != "done")
    groups = _by_lock(done)
    reference = groups[0] if groups else []
    outliers = _outliers(done, reference)
    odd = {o.host for o in outliers}
    rest = [r for r in done if r.host not in odd]
    effect = _pooled([r for r in reference if r.host not in odd])
    status, remarks = _status(rest, effect, outliers)
    number, between, within, i2 = _figures(effect)
    mechanisms, minority = _mechanisms(done)
    verdict = FleetVerdict(
        status=status, summary="", ratio=number, between=between, within=within, i2=i2, outliers=tuple(outliers),
        groups=tuple(_group(g, reference) for g in groups),
        shown_by=tuple(r.host for r in done if r.shows is True), not_shown_by=tuple(r.host for r in done if r.shows is False),
        undecided=tuple(r.host for r in done if r.shows is None), mechanisms=mechanisms, minority=minority,
        missing=missing, remarks=tuple(remarks),
    )  # fmt: skip
    return msgspec.structs.replace(
        verdict, summary=_summary(verdict, len(done)), unanswered=_open(verdict, done, effect)
    )


def _by_lock(done: Sequence[HostReport]) -> list[list[HostReport]]:
    """Hosts by lock, the largest group first; of equals the one whose first host comes first."""
    found: dict[str, list[HostReport]] = {}
    for r in done:
        found.setdefault(r.lock_id, []).append(r)
    return sorted(found.values(), key=lambda g: (-len(g), g[0].host))


def _timed(r: HostReport) -> bool:
    return r.log_ratio is not None and r.se is not None and math.isfinite(r.log_ratio) and math.isfinite(r.se)


Figure = Callable[[HostReport], "tuple[float, float] | None"]


def _step(r: HostReport) -> tuple[float, float] | None:
    """The comparator's typical step in logs, with its standard error."""
    return _finite(r.level, r.level_se)


def _mean(r: HostReport) -> tuple[float, float] | None:
    """Its mean step: what a quota or a neighbour takes in whole time slices shows here only."""
    return _finite(r.pace, r.pace_se)


def _finite(value: float | None, error: float | None) -> tuple[float, float] | None:
    if value is None or error is None or not (math.isfinite(value) and math.isfinite(error)):
        return None
    return value, error


def _pooled(hosts: Sequence[HostReport]) -> Pool | None:
    timed = [r for r in hosts if _timed(r)]
    return pool([r.log_ratio or 0.0 for r in timed], [r.se or 0.0 for r in timed]) if timed else None


# -- who stands apart ------------------------------------------------------------------------------------------------


def _outliers(done: Sequence[HostReport], reference: Sequence[HostReport]) -> list[Outlier]:
    found: dict[str, Outlier] = {}
    for o in (
        *_by_level(done, reference, _step, "step"),
        *_by_level(done, reference, _mean, "mean step"),
        *_by_ratio(reference),
        *_by_finding(done),
    ):
        found.setdefault(o.host, o)  # the first reason is the nearest to the host itself
    return list(found.values())


def _by_level(done: Sequence[HostReport], reference: Sequence[HostReport], figure: Figure, name: str) -> list[Outlier]:
    base = [r for r in reference if figure(r) is not None]
    out = [
        _levelled_outlier(base[i], d, e, [b for b in base if b is not base[i]], name)
        for i, d, e in _apart_by(base, figure)
    ]
    odd = {o.host for o in out}
    rest = [r for r in base if r.host not in odd]
    if len(rest) >= 2:
        members = {r.host for r in reference}
        for r in done:
            if r.host in members or figure(r) is None or not same_hardware(r, rest[0]):
                continue
            hits = [(d, e) for i, d, e in _apart_by([*rest, r], figure) if i == len(rest)]
            out += [_levelled_outlier(r, d, e, rest, name) for d, e in hits]
    return out


def _apart_by(hosts: Sequence[HostReport], figure: Figure) -> list[tuple[int, float, float]]:
    found = [figure(r) or (0.0, 0.0) for r in hosts]
    return apart([v for v, _ in found], [e for _, e in found], LEVEL_MATTERS)


def _levelled_outlier(
    r: HostReport, deviation: float, error: float, others: Sequence[HostReport], name: str
) -> Outlier:
    factor = _factor(deviation, error, len(others))
    pace = "slower" if deviation > 0 else "faster"
    said = f"the comparator's {name} takes {math.exp(deviation):.2f}× what it takes elsewhere"
    return _outlier(r, name, factor, f"the host itself is {pace}: {said}", others)


def _by_ratio(reference: Sequence[HostReport]) -> list[Outlier]:
    timed = [r for r in reference if _timed(r)]
    hits = apart([r.log_ratio or 0.0 for r in timed], [r.se or 0.0 for r in timed], RATIO_MATTERS)
    out = []
    for i, deviation, error in hits:
        r, others = timed[i], [x for x in timed if x is not timed[i]]
        said = f"failing / comparator is {math.exp(deviation):.2f}× what the others show"
        out.append(_outlier(r, "ratio", _factor(deviation, error, len(others)), said, others))
    return out


def _by_finding(done: Sequence[HostReport]) -> list[Outlier]:
    """Hosts of a minority that alone show a fault, with at least twice as many that plainly do not."""
    shows, lacks = [r for r in done if r.shows is True], [r for r in done if r.shows is False]
    if not shows or len(shows) * 2 > len(lacks):
        return []
    out = []
    for r in shows:
        name = _mechanism(r)
        said = (
            f"it alone shows {name}" if len(shows) == 1 else f"it and {len(shows) - 1} more of {len(done)} show {name}"
        )
        factor = _host_ratio(r) if r.says == "slower" else unavailable("the fault is not one of latency")
        out.append(_outlier(r, "finding", factor, said, lacks))
    return out


def _outlier(r: HostReport, seen: str, factor: Number, why: str, others: Sequence[HostReport]) -> Outlier:
    return Outlier(r.host, seen, factor, why, lock_differences(r, others), condition_differences(r, others))


def _factor(deviation: float, error: float, n: int) -> Number:
    """exp of a deviation, with the interval of its standard error (normal: the test itself uses Student's t)."""
    low, high = deviation - 1.96 * error, deviation + 1.96 * error
    return Number(value=_exp(deviation), ci=(_exp(low), _exp(high)), n=n, unit="×", quality="derived")


def _exp(x: float) -> float:
    return math.exp(min(max(x, -700.0), 700.0))


def _host_ratio(r: HostReport) -> Number:
    return r.ratio if r.ratio.value is not None else unavailable("the ratio was not measured", "×")


# -- what the rest shows ---------------------------------------------------------------------------------------------


def _status(
    rest: Sequence[HostReport], effect: Pool | None, outliers: Sequence[Outlier]
) -> tuple[FleetStatus, list[str]]:
    if not rest or len(rest) + len(outliers) < 2:
        return "cannot_answer", []
    shown = _shown(rest, effect)
    largest = max((_size(o) for o in outliers), default=0.0)
    if not outliers:
        contradict = any(r.shows is True for r in rest) and any(r.shows is False for r in rest)
        by_shown: dict[str, FleetStatus] = {"yes": "release", "no": "no_fault"}
        return by_shown.get(shown, "mixed" if contradict else "cannot_answer"), []
    if shown == "yes":
        if effect is not None and effect.mean > 0 and largest * DOMINATES < effect.mean:
            names = _names([o.host for o in outliers])
            return "release", [
                f"{names}: apart from the others as well, by less than a quarter of the release's effect"
            ]
        return "mixed", []
    if shown == "no":
        return "host", []
    if effect is not None and max(abs(effect.ci[0]), abs(effect.ci[1])) * DOMINATES < largest:
        return "host", [
            f"beside that, the release may still cost the others {_range(effect)}: too little was measured to say"
        ]
    return "cannot_answer", []


def _size(o: Outlier) -> float:
    """How large an outlier's effect is at least, in logs; a fault without a figure counts as one that decides."""
    if o.factor.value is None:
        return math.inf
    if o.factor.ci is None:
        return abs(math.log(o.factor.value))
    low, high = (math.log(max(x, 1e-300)) for x in o.factor.ci)
    return max(0.0, low, -high)


def _shown(rest: Sequence[HostReport], effect: Pool | None) -> str:
    """``yes``, ``no`` or ``open``: whether hosts that do not stand apart show the release's fault."""
    plain = [r.shows for r in rest]
    firm_yes, firm_no = plain.count(True), plain.count(False)
    if firm_yes and firm_no:
        return "yes" if firm_yes >= 2 * firm_no and _slower(effect) else "open"
    if firm_yes and (firm_yes == len(rest) or _slower(effect)):
        return "yes"
    if firm_yes:
        return "open"
    if _slower(effect) and effect is not None and effect.hosts > 1:
        return "yes"  # no single host could tell; together they do
    if firm_no == len(rest):
        return "no"
    within = effect is not None and effect.hosts > 1 and effect.ci[1] < math.log1p(SLOWDOWN)
    return "no" if within and firm_no else "open"


def _slower(effect: Pool | None) -> bool:
    return effect is not None and effect.ci[0] > math.log1p(RESOLUTION) and effect.mean > math.log1p(SLOWDOWN)


def _range(effect: Pool) -> str:
    low, high = (100 * (_exp(x) - 1) for x in effect.ci)
    return f"{low:+.0f} to {high:+.0f} %"


def _mechanism(r: HostReport) -> str:
    if r.verdict is not None and r.verdict.mechanism:
        return r.verdict.mechanism
    return "a slowdown without a named mechanism" if r.says == "slower" else "none"


def _mechanisms(done: Sequence[HostReport]) -> tuple[dict[str, tuple[str, ...]], tuple[tuple[str, str], ...]]:
    """Who names which mechanism, most hosts first, and who names another one than most."""
    named = {r.host: r.verdict.mechanism for r in done if r.verdict is not None and r.verdict.mechanism}
    counted = sorted(Counter(named.values()).items(), key=lambda kv: (-kv[1], kv[0]))
    by = {m: tuple(h for h, x in named.items() if x == m) for m, _ in counted}
    minority = tuple((h, m) for m, _ in counted[1:] for h in by[m])
    return by, minority


# -- figures and words -----------------------------------------------------------------------------------------------


def _figures(effect: Pool | None) -> tuple[Number, Number, Number, Number]:
    if effect is None:
        none = unavailable("no host of the largest lock group timed enough pairs of processes")
        return none, none, none, none
    ci = (_exp(effect.ci[0]), _exp(effect.ci[1])) if effect.hosts > 1 else None
    n, share = effect.hosts, "of the ratio, from host to host"
    ratio = Number(value=_exp(effect.mean), ci=ci, n=n, unit="×", quality="derived")
    if n < 2:
        alone = unavailable("one host says nothing of the difference between hosts")
        return (
            ratio,
            alone,
            Number(value=effect.within, n=n, unit="of the ratio, within a host", quality="derived"),
            alone,
        )
    tau_ci = (effect.tau_ci[0], min(effect.tau_ci[1], 1e6))
    return (
        ratio,
        Number(value=effect.tau, ci=tau_ci, n=n, unit=share, quality="derived"),
        Number(value=effect.within, n=n, unit="of the ratio, within a host", quality="derived"),
        Number(value=effect.i2, n=n, unit="of the variance is between hosts", quality="derived"),
    )


def _group(hosts: Sequence[HostReport], reference: Sequence[HostReport]) -> LockGroup:
    ratio, between, within, i2 = _figures(_pooled(hosts))
    differs = () if hosts is reference else lock_differences(hosts[0], reference)
    return LockGroup(hosts[0].lock_id, tuple(r.host for r in hosts), ratio, between, within, i2, differs)


def _names(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - NAMES} more" if len(hosts) > NAMES else ""
    return ", ".join(hosts[:NAMES]) + more


def _because(o: Outlier) -> str:
    facts = [*o.lock[:3], *o.conditions[:2]]
    return f"{o.host}: {o.why}" + (
        f" ({'; '.join(facts)})" if facts else " (nothing in its lock or conditions differs)"
    )


def _summary(v: FleetVerdict, n: int) -> str:
    ratio = ""
    if v.ratio.value is not None:
        ends = f" [{v.ratio.ci[0]:.2f}, {v.ratio.ci[1]:.2f}]" if v.ratio.ci else ""
        ratio = f"{v.ratio.value:.2f}×{ends}"
    told = "; ".join(_because(o) for o in v.outliers[:3]) + (
        f"; and {len(v.outliers) - 3} more" if len(v.outliers) > 3 else ""
    )
    first = next(iter(v.mechanisms), "")
    by = f", {first} on {len(v.mechanisms[first])} of them" if first else ""
    gone = f" {len(v.missing)} more gave no answer: {_names([h for h, _, _ in v.missing])}." if v.missing else ""
    apart_ = f" Apart as well: {told}." if v.outliers else ""
    rest = n - len(v.outliers)
    said = {
        "release": f"It is the release: {rest} of {n} hosts show it, failing / comparator {ratio or 'not timed'}{by}.{apart_}",
        "host": f"It is the host: {told}. The other {rest} do not show it" + (f" ({ratio})." if ratio else "."),
        "mixed": f"Both: hosts show it ({ratio or 'not timed'}{by}), and {told} stand apart." if v.outliers
        else f"Hosts contradict each other: {_names(v.shown_by)} show it, {_names(v.not_shown_by)} do not{by}.",
        "no_fault": f"No fault: none of {n} hosts shows a slower release ({ratio or 'not timed'}), and none stands apart.",
        "cannot_answer": f"It cannot be told from {n} host{'s' if n != 1 else ''} that answered"
        + (f" (failing / comparator {ratio})" if ratio else "") + "." + (f" But {told}." if v.outliers else ""),
    }  # fmt: skip
    return said[v.status] + gone


def _open(v: FleetVerdict, done: Sequence[HostReport], effect: Pool | None) -> tuple[Unanswered, ...]:
    out = []
    again = "sparsetui fleet WORKLOAD.toml --address RAY_ADDRESS --session ID"
    if v.status == "cannot_answer":
        if len(done) < 2:
            why, settle = f"{len(done)} of at least 2 hosts answered", f"run the missing hosts: {again}"
        elif len(done) == 2 and not v.groups[1:]:
            why, settle = "two hosts that differ do not say which is the odd one", "a third host of the same lock"
        else:
            why, settle = (
                "the intervals over hosts leave both open",
                "more seconds a host (--budget) or more hosts of one lock",
            )
        out.append(Unanswered("Is it the host or the release?", why, settle))
    out += [Unanswered("Does the release cost the others anything?", r, "more seconds a host: --budget")
            for r in v.remarks if r.startswith("beside that")]  # fmt: skip
    if v.missing:
        said = "; ".join(f"{h} {state}: {why}" for h, state, why in v.missing[:NAMES])
        out.append(Unanswered(f"What do {len(v.missing)} more hosts show?", said, f"go on with this session: {again}"))
    if len(v.groups) > 1:
        out.append(Unanswered("What would hosts of other locks show under the same lock?",
                              f"{len(v.groups)} locks in this fleet; their latencies are not pooled",
                              "hosts of the same lock"))  # fmt: skip
    return tuple(out)
