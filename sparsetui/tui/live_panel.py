"""The live panel: latency strips, ratio and noise floor, the sparse reality check, counters, budget, distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from sparsetui.evidence.records import Number
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import as_number, brief, fallback_overhead, figure, metric
from sparsetui.report.plots import bar, budget_bars, distribution, fit, reality_check, spark
from sparsetui.runner.api import Live
from sparsetui.session.state import SessionState
from sparsetui.tui.look import ACCENT, COMPARATOR, DIM, FAILING, HEAD, OK, ink
from sparsetui.tui.wrapping import wrap

# what is drawn, in this order; of an intervention the two arms that are compared (its "off" arm is the failing variant anew)
_ARMS = {"failing": "failing", "comparator": "comparator", "control": "its control", "without": "without it"}
_REPEATS = "off"  # the arm that is not drawn
ENOUGH = 30  # block medians that a distribution is drawn from


def live_lines(state: SessionState, live: Live, width: int, height: int, unicode: bool) -> list[Text]:
    """Latency strips, ratio and floor, the sparse reality check, counters; more charts where there is height."""
    beside = bool(state.metrics) and width >= 86  # room for the reality check at the right of the strips
    left = strips(state, live, width - 38 if beside else width, unicode)
    if beside:
        lines = []
        right = reality(state.metrics, 36, unicode)
        for i in range(max(len(left), len(right))):
            a = left[i] if i < len(left) else ink()
            lines.append(a + ink(" " * max(2, width - 36 - a.cell_len)) + right[i] if i < len(right) else a)
    else:
        bars = [ink(x) for x in reality_check(state.metrics, width, unicode)] if state.metrics else []
        lines = left + ([ink(), *tinted(bars, ACCENT, OK, FAILING)] if bars else [])
    lines += counters(state, live, width)
    if state.budget is not None:
        title, *shares = budget_bars(state.budget, width, unicode, state.findings)
        lines += [ink()] * (len(lines) + 2 + len(shares) <= height)  # air gives way before the unexplained rest does
        lines += [ink(title, style=HEAD), *tinted([ink(x) for x in shares], FAILING)]
    enough = [a for a, v in live.latency_ms.items() if len(v) >= ENOUGH]
    if len(lines) + 9 <= height and len(enough) >= 2:
        names = enough[:2]
        chart = distribution(
            live.latency_ms[names[0]], live.latency_ms[names[1]], width, 8, unicode, names=(names[0], names[1])
        )
        lines += [ink(), *(ink(x) for x in chart)]
    return lines


def reality(metrics: Mapping[str, object], width: int, unicode: bool) -> list[Text]:
    """The sparse reality check in short lines: a name, a bar, a figure."""
    speedup = metric(metrics, "real_speedup")
    saved = None if not speedup.value or speedup.value <= 0 else 1 - 1 / speedup.value
    rows = (
        ("nominal sparsity", metric(metrics, "nominal_sparsity"), None, ACCENT),
        ("real speed-up", speedup, saved, OK if saved is not None and saved > 0 else FAILING),
        ("fallback overhead", fallback_overhead(metrics), None, FAILING),
    )
    lines = []
    for name, number, share, style in rows:
        line = ink(f"{name:<17} ", style=DIM)
        if number.value is None:
            line.append("– not measured", style=DIM)
        else:
            line.append(bar(number.value if share is None else share, max(4, width - 26), unicode), style=style)
            line.append(" " + (f"{brief(number.value)}×" if share is not None else f"{100 * number.value:.0f}%"))
        lines.append(line)
    return lines


def tinted(bars: Sequence[Text], *styles: str) -> list[Text]:
    """Colour the bar in each line; the text around it keeps the terminal's own colour."""
    for i, line in enumerate(bars):
        style = styles[min(i, len(styles) - 1)]
        at = next((i for i, c in enumerate(line.plain) if c in "█▏▎▍▌▋▊▉#◀<"), None)
        if at is not None:
            end = next((i for i in range(at, len(line.plain)) if line.plain[i] == " "), len(line.plain))
            line.stylize(style, at, end)
    return list(bars)


def strips(state: SessionState, live: Live, width: int, unicode: bool) -> list[Text]:
    """A line a variant: strip of block medians on one scale, then its percentiles; under them ratio and noise floor."""
    known = live.latency_ms or state.metrics.get("latency_ms", {})
    others = [a for a in known if a not in _ARMS and a in live.latency_ms and a != _REPEATS]
    arms = [a for a in _ARMS if a in known] + others
    arms = arms[:2] + arms[2:][-2:]  # of what a matrix or a rehearsal times, the newest
    if not arms:
        said = "no latency has been measured yet; the execution stage runs the clock"
        return [ink(line, style=DIM) for line in wrap(said, width)]
    top = max((v for a in arms for v in live.latency_ms.get(a, ()) if math.isfinite(v)), default=None)
    name_width = max(len(_ARMS.get(a, clean(a, 16))) for a in arms)
    texts = {a: _percentiles(state, live, a) for a in arms}
    room = max(0, min(40, width - name_width - 3 - max(len(t) for t in texts.values())))
    if not live.latency_ms:
        room = 0  # a session that was opened again: its percentiles are known, its strips were never kept
    lines = []
    for arm in arms:
        style = COMPARATOR if arm == "comparator" else FAILING
        line = ink(fit(_ARMS.get(arm, clean(arm, 16)), name_width) + " ", style=HEAD)
        if room >= 6:
            line.append(spark(live.latency_ms.get(arm, ()), room, unicode, low=0.0, high=top), style=style)
            line.append("  ")
        line.append(texts[arm])
        lines.append(line)
    lines.append(_ratio_line(state, live))
    return lines


def arm_strips(live: Live, width: int, unicode: bool) -> list[Text]:
    """All that is being timed side by side, on one scale: name, strip of block medians, the newest of them."""
    arms = {a: v for a, v in live.latency_ms.items() if v and a != _REPEATS}
    if not arms:
        return []
    top = max((v for values in arms.values() for v in values if math.isfinite(v)), default=None)
    name_width = min(24, max(len(a) for a in arms))
    room = max(6, min(60, width - name_width - 24))
    lines = []
    for arm, values in arms.items():
        line = ink(fit(clean(_ARMS.get(arm, arm), name_width), name_width) + " ", style=HEAD)
        line.append(
            spark(values, room, unicode, low=0.0, high=top), style=COMPARATOR if arm == "comparator" else FAILING
        )
        line.append(f"  {brief(values[-1])} ms", style="")
        lines.append(line)
    return lines


def _percentiles(state: SessionState, live: Live, arm: str) -> str:
    of_arm = state.metrics.get("latency_ms", {}).get(arm)
    if isinstance(of_arm, Mapping) and of_arm:
        shown = [(q, as_number(of_arm[q])) for q in ("p50", "p95", "p99") if q in of_arm]
        parts = [f"{q} {brief(n.value)}" for q, n in shown if n.value is not None]
        if parts:
            return "  ".join(parts) + " ms"
    values = [v for v in live.latency_ms.get(arm, ()) if math.isfinite(v)]
    return f"block median {brief(values[-1])} ms" if values else "not measured yet"


def _ratio_line(state: SessionState, live: Live) -> Text:
    ratio = live.ratio or metric(state.metrics, "latency_ms", "ratio")
    if ratio.value is None:
        ratio = metric(state.metrics, "latency_ms", "ratio", "p50")
    line = ink()
    if ratio.value is not None:
        line.append("ratio ", style=DIM)
        line.append(figure(ratio, unit="×", count=False, mark=False), style=HEAD)
        line.append("   ")
    floor = live.floor or metric(state.metrics, "latency_ms", "noise_floor")
    if floor.value is not None:
        size = abs(floor.value)
        said = f"±{100 * size:.1f} %" if size < 1 else f"up to ×{1 + size:.1f} between equal processes"
        line.append(f"noise floor {said}", style=DIM)
    return line


def counters(state: SessionState, live: Live, width: int) -> list[Text]:
    """The live counters, as many to a line as fit; after the run, the metrics they became."""
    shown: list[tuple[str, Number]] = list(live.counters.items()) or [
        (label, number)
        for label, number in (
            ("dense fallback", metric(state.metrics, "fallback_rate", "calls")),
            ("conversions", metric(state.metrics, "conversion_rate")),
            ("metadata overhead", metric(state.metrics, "metadata_overhead")),
        )
        if number.value is not None
    ]
    lines: list[Text] = []
    line = ink()
    for label, number in shown:
        item = ink(clean(label, 30) + " ", style=DIM) + ink(_counter(label, number))
        if line and line.cell_len + 3 + item.cell_len > width:
            lines.append(line)
            line = ink()
        if line:
            line.append("   ")
        line.append_text(item)
    return [*lines, line] if line else lines


def _counter(label: str, number: Number) -> str:
    if number.value is None:
        return clean(f"unavailable ({number.reason})", 40)
    share = "fallback" in label or number.unit in ("share", "%")
    return figure(number, percent=share and number.value <= 1.0, count=False, interval=False)
