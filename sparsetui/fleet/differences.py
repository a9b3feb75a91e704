"""What differs on a host that stands apart: tags of its lock, and the conditions it was measured under."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sparsetui.fleet.records import OF_THE_HARDWARE, HostReport, comparable

MOST = 8
_TEXT = 60

# condition -> words, the least value from which it matters at all, and how much more than the others' it must be
_CONDITIONS: dict[str, tuple[str, float, float]] = {
    "throttled": ("stops by the CPU quota a second", 0.5, 2.0),
    "steal": ("of the CPU taken by the hypervisor", 0.02, 2.0),
    "others_busy": ("of the CPU used by neighbours", 0.15, 1.5),
    "nivcsw": ("times a second taken off the CPU", 20.0, 3.0),
    "load_per_core": ("runnable tasks a core", 1.0, 1.5),
    "minflt": ("page faults a step", 50.0, 3.0),
    "temp_c": ("°C", 80.0, 1.15),
}


def lock_differences(host: HostReport, others: Sequence[HostReport], *, hardware: bool = True) -> tuple[str, ...]:
    """Tags in which ``host`` differs from what most of ``others`` have, as ``threads: 8 here, 1 elsewhere``.

    A tag that differs in both variants alike is told once. Tags of the hardware come last.
    """
    found: dict[str, None] = {}
    for variant in ("failing", "comparator"):
        mine = comparable(host.lock.get(variant, {}))
        theirs = [comparable(o.lock.get(variant, {})) for o in others if o.lock]
        if not mine or not theirs:
            continue
        tags = set(mine).union(*theirs)
        for tag in sorted(tags, key=lambda t: (t.startswith(OF_THE_HARDWARE), t)):
            if not hardware and tag.startswith(OF_THE_HARDWARE):
                continue
            usual = Counter(t.get(tag, "unset") for t in theirs).most_common(1)[0][0]
            here = mine.get(tag, "unset")
            if here != usual:
                found[f"{tag}: {here[:_TEXT]} here, {usual[:_TEXT]} elsewhere"] = None
    return tuple(found)[:MOST]


def same_hardware(a: HostReport, b: HostReport) -> bool:
    """Whether the hosts' locks agree in what the machine is, so that their step times may be held against each other."""

    def of(r: HostReport) -> dict[str, str]:
        return {k: v for k, v in r.lock.get("comparator", {}).items() if k.startswith(OF_THE_HARDWARE)}

    return of(a) == of(b)


def condition_differences(host: HostReport, others: Sequence[HostReport]) -> tuple[str, ...]:
    """Conditions of ``host`` that are worse than the others' by more than they vary among themselves."""
    out = []
    for name, (words, least, times) in _CONDITIONS.items():
        here = host.conditions.get(name)
        known = [o.conditions[name] for o in others if name in o.conditions]
        if here is None or not known or here < least:
            continue
        usual = float(np.median(known))
        spread = 1.4826 * float(np.median(np.abs(np.asarray(known) - usual)))
        if here > times * max(usual, 1e-9) and here > usual + 2.0 * spread:
            out.append(f"{_value(here, words)} {words}, elsewhere {_value(usual, words)}")
    here, known = (
        host.conditions.get("freq_mhz"),
        [o.conditions["freq_mhz"] for o in others if "freq_mhz" in o.conditions],
    )
    if here is not None and known and here < 0.85 * float(np.median(known)):
        out.append(f"clock {here:.0f} MHz, elsewhere {float(np.median(known)):.0f} MHz")
    return tuple(out)


def _value(value: float, words: str) -> str:
    return f"{value:.0%}" if words.startswith("of the CPU") else f"{value:.3g}"
